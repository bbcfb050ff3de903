"""Measures state: rows, bytes, skew between partitions, and the largest keys.

Bytes are those of the rows themselves, before compression and without a store's overhead in memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from epochal.state.rows.byte_spans import Ints
from epochal.tools.read_state.raw_rows import StoredRows, load_stored
from epochal.tools.read_state.read import StateReader


@dataclass(frozen=True, slots=True)
class LargeKey:
    """A key and the size of its row."""

    key: dict[str, Any]
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition of a store."""

    partition_id: int
    rows: int
    key_bytes: int
    value_bytes: int
    file_bytes: int
    largest: tuple[LargeKey, ...]


@dataclass(frozen=True, slots=True)
class StateStats:
    """One store at one version."""

    rows: int
    bytes: int
    file_bytes: int
    skew: float
    """The rows of the fullest partition divided by the average; 1.0 means evenly distributed."""
    partitions: tuple[PartitionStats, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def state_stats(reader: StateReader, *, largest: int = 5) -> StateStats:
    """Measure every partition of a store."""
    stored = load_stored(reader)
    key_sizes, value_sizes = _sizes(stored.keys), _sizes(stored.values)
    parts = tuple(
        _partition(stored, number, key_sizes, value_sizes, largest)
        for number in reader.target.partitions
    )
    fullest = max((part.rows for part in parts), default=0)
    average = len(stored) / len(parts)
    return StateStats(
        rows=len(stored),
        bytes=int(key_sizes.sum() + value_sizes.sum()),
        file_bytes=sum(part.file_bytes for part in parts),
        skew=round(fullest / average, 3) if average else 1.0,
        partitions=parts,
    )


def _partition(
    stored: StoredRows, number: int, key_sizes: Ints, value_sizes: Ints, largest: int
) -> PartitionStats:
    mine = np.flatnonzero(stored.partitions == number)
    sizes = key_sizes[mine] + value_sizes[mine]
    top = mine[np.argsort(-sizes, kind="stable")[:largest]]
    files = stored.reader.target.directory(number).list()
    return PartitionStats(
        partition_id=number,
        rows=len(mine),
        key_bytes=int(key_sizes[mine].sum()),
        value_bytes=int(value_sizes[mine].sum()),
        file_bytes=sum(info.size for info in files if not info.is_dir and not info.hidden),
        largest=tuple(
            LargeKey(row["key"], int(key_sizes[index] + value_sizes[index]))
            for row, index in zip(stored.decoded(top), top.tolist(), strict=True)
        ),
    )


def _sizes(array: Any) -> Ints:
    lengths: Any = pc.binary_length(array)
    sizes: Ints = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes
