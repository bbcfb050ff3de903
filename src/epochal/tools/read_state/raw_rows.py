"""Loads the stored rows of all partitions as arrays of bytes, for work that needs no decoding.

Rows are compared, counted and found by their bytes, as Spark compares them. Only the rows of a
result are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.errors import StateReadError
from epochal.state.files.merge import Rows
from epochal.state.rows.byte_spans import Ints, Spans, as_spans
from epochal.state.rows.tagged_json import json_rows
from epochal.tools.read_state.read import StateReader, StoreReader, choose_partitions, in_parallel
from epochal.tools.read_state.read_target import StoreTarget, load_rows


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Every row of a store: its key bytes, value bytes and partition."""

    reader: StoreReader
    keys: Any
    values: Any
    partitions: Ints

    def __len__(self) -> int:
        return len(self.keys)

    def decoded(self, which: Sequence[int] | Ints) -> list[dict[str, Any]]:
        """The rows at these indices, in JSON form."""
        picks = pa.array(np.asarray(which, np.int64))
        rows = Rows(as_spans(self.keys.take(picks)), as_spans(self.values.take(picks)), "state")
        batch = self.reader.decode(rows, 0)
        kinds = [kind for _, kind in self.reader.fields]
        objects = [row for part in json_rows(batch, kinds) for row in part]
        for row, index in zip(objects, np.asarray(which).tolist(), strict=True):
            row["partition_id"] = int(self.partitions[index])
        return objects


def load_stored(reader: StateReader, partition: int | None = None) -> StoredRows:
    """Load the rows of a store in their stored form."""
    if not isinstance(reader, StoreReader):
        raise StateReadError(
            reader.target.files.url,
            "this works on one store at a time: name it with --store instead of a join side.",
            "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE",
        )
    chosen = choose_partitions(reader.target, partition)
    loaded = in_parallel(lambda number: load_rows(reader.target, number), chosen)
    parts = [(number, rows) for number, each in zip(chosen, loaded, strict=True) for rows in each]
    empty: Any = pa.array([], pa.large_binary())
    keys = pa.concat_arrays([_wide(rows.keys) for _, rows in parts] or [empty])
    values = pa.concat_arrays([_wide(rows.values) for _, rows in parts] or [empty])
    numbers = [np.full(len(rows), number, np.int64) for number, rows in parts]
    return StoredRows(reader, keys, values, np.concatenate(numbers or [np.empty(0, np.int64)]))


def _wide(spans: Spans) -> Any:
    array: Any = spans.to_arrow()
    return array.cast(pa.large_binary())


def same_form(one: StoreTarget, other: StoreTarget) -> bool:
    """Whether equal rows of the two stores have equal bytes."""
    return (
        one.settings.format == other.settings.format
        and one.encoder == other.encoder
        and one.schema.key == other.schema.key
        and one.schema.value == other.schema.value
    )
