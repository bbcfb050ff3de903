"""Merges the records of a snapshot and of the deltas after it into the rows of a version. Pure.

The last record of a key wins; if it is a delete, the key has no row. A version with a million keys
is merged without touching a key in Python: Arrow's hash table numbers the keys of the deltas, and
the keys of the snapshot are only tested for whether a delta contains them too.

Keys are compared as bytes, as Spark does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.files.delta_snapshot import Records
from epochal.state.rows.byte_spans import Flags, Ints, Spans, numpy_view


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Keys and values, as spans over the bytes of one file."""

    keys: Spans
    values: Spans
    source: str

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, which: Ints | Flags) -> Rows:
        return Rows(self.keys.take(which), self.values.take(which), self.source)

    def slice(self, start: int, end: int) -> Rows:
        return Rows(self.keys.slice(start, end), self.values.slice(start, end), self.source)

    def parts(self, most_bytes: int) -> list[Rows]:
        """The rows, in order, split into the fewest parts that each stay below `most_bytes`."""
        ends = np.cumsum(self.keys.lengths + self.values.lengths)
        if len(self) == 0 or ends[-1] <= most_bytes:
            return [self]
        cuts = np.searchsorted(ends, np.arange(most_bytes, int(ends[-1]), most_bytes))
        bounds = np.unique(np.concatenate(([0], cuts, [len(self)])))
        return [self.slice(start, end) for start, end in pairwise(bounds.tolist())]


def puts_of(records: Records) -> Rows:
    """Keys and values of all records; a delete has an empty value."""
    return Rows(records.keys, records.values, records.source)


def merge_records(base: Records | None, deltas: Sequence[Records]) -> list[Rows]:
    """The rows after applying the deltas, in order, to the snapshot, if there is one."""
    changing = [delta for delta in deltas if len(delta)]
    bottom = [] if base is None else [puts_of(base)]  # a snapshot has each key once
    if not changing:
        return [rows for rows in bottom if len(rows)]
    keys: Any = pa.chunked_array([_wide(delta.keys) for delta in changing])
    coded = keys.dictionary_encode().unify_dictionaries()
    codes = np.concatenate([_numbers(chunk.indices) for chunk in coded.chunks])
    last = np.full(len(coded.chunk(0).dictionary), -1, np.int64)
    last[codes] = np.arange(len(codes))  # numpy keeps the last assignment to a repeated index
    wins = np.zeros(len(codes), np.bool_)
    wins[last] = True
    parts = [rows.take(~_are_in(rows.keys, coded.chunk(0).dictionary)) for rows in bottom]
    at = 0
    for delta in changing:
        mine = wins[at : at + len(delta)] & ~delta.deleted
        parts.append(puts_of(delta).take(mine))
        at += len(delta)
    return [rows for rows in parts if len(rows)]


def _are_in(keys: Spans, others: Any) -> Flags:
    if len(keys) == 0:
        return np.zeros(0, np.bool_)
    # Imported here: importing Arrow's functions takes longer than reading a lone snapshot.
    from pyarrow import compute

    answers: Any = compute.is_in(_wide(keys), value_set=others)
    bits = np.unpackbits(numpy_view(answers.buffers()[1], np.dtype(np.uint8)), bitorder="little")
    flags: Flags = bits[answers.offset : answers.offset + len(answers)].view(np.bool_)
    return flags


def _wide(keys: Spans) -> Any:
    """Keys with 64-bit offsets, so that keys of large and of small files can be compared."""
    array: Any = keys.to_arrow()
    return array if array.type == pa.large_binary() else array.cast(pa.large_binary())


def _numbers(indices: Any) -> npt.NDArray[np.int32]:
    """The indices of an encoded column.

    Arrow's own `to_numpy` would import pandas, which takes longer than reading a million keys.
    """
    view = numpy_view(indices.buffers()[1], np.dtype(np.int32))
    return view[indices.offset : indices.offset + len(indices)]
