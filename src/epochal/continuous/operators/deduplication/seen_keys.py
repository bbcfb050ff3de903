"""The keys that an operator has seen in one partition, and when each of them expires.

Keys and values have the form of the store. Changes since the last cut are recorded. The operator
decides when a key expires: by the watermark, by the clock, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import TypeAlias

import pyarrow as pa

from epochal.continuous.operators.agenda import Agenda
from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.contract import Row, StateChanges
from epochal.continuous.operators.on_disk.disk_agenda import DiskAgenda
from epochal.continuous.operators.on_disk.disk_map import DiskMap, cut
from epochal.state.disk.disk_rows import DiskRows
from epochal.state.rows.types import AtomicType, StructField, StructType

STORE = "default"
EXPIRY_SCHEMA = StructType((StructField("expiresAtMicros", AtomicType("long"), nullable=False),))


Schedule: TypeAlias = Callable[["SeenKeys", Row, Row], None]
"""Notes when a key with its value expires."""


class SeenKeys:
    """The keys of one partition with their stored values."""

    __slots__ = ("dirty", "ends", "values")

    def __init__(self) -> None:
        self.values: MutableMapping[Row, Row] = {}
        self.dirty: set[Row] = set()
        self.ends: Agenda[Row] = Agenda()

    def load(self, rows: Iterable[tuple[Row, Row]], schedule: Schedule | None) -> None:
        """Load stored keys. `schedule` says when each of them expires; None if they never do."""
        if isinstance(rows, DiskRows):
            self.values, self.ends = DiskMap.of_values(rows), DiskAgenda(rows)
            if schedule is not None:
                for stored, value in rows:
                    schedule(self, hashable(stored), value)
            return
        for stored, value in rows:
            key = hashable(stored)
            self.values[key] = value
            if schedule is not None:
                schedule(self, key, value)

    def put(self, key: Row, value: Row) -> None:
        self.values[key] = value
        self.dirty.add(key)

    def forget(self, keys: Iterable[Row]) -> None:
        for key in keys:
            del self.values[key]
            self.dirty.add(key)

    def changes(self, partition: int, epoch: int) -> StateChanges:
        """The changes since the last call, which belong to `epoch`."""
        values, dirty, self.dirty = self.values, self.dirty, set()
        puts = [(key, values[key]) for key in dirty if key in values]
        removes = [key for key in dirty if key not in values]
        cut(values, epoch)
        return StateChanges(STORE, partition, puts, removes, len(values))


def select_rows(batch: pa.RecordBatch, indexes: list[int]) -> tuple[pa.RecordBatch, ...]:
    """The rows at these indexes, as the output of an operator."""
    if len(indexes) == batch.num_rows:
        return (batch,)
    return (batch.take(indexes),) if indexes else ()
