"""The keys that an operator has seen in one partition, and when each of them expires.

Keys and values have the form of the store. Changes since the last cut are recorded. The operator
decides when a key expires: by the watermark, by the clock, or never.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from epochal.continuous.operators.agenda import Agenda
from epochal.continuous.operators.contract import Row, StateChanges
from epochal.state.rows.types import AtomicType, StructField, StructType

STORE = "default"
EXPIRY_SCHEMA = StructType((StructField("expiresAtMicros", AtomicType("long"), nullable=False),))


class SeenKeys:
    """The keys of one partition with their stored values."""

    __slots__ = ("dirty", "ends", "values")

    def __init__(self) -> None:
        self.values: dict[Row, Row] = {}
        self.dirty: set[Row] = set()
        self.ends: Agenda[Row] = Agenda()

    def put(self, key: Row, value: Row) -> None:
        self.values[key] = value
        self.dirty.add(key)

    def forget(self, keys: Iterable[Row]) -> None:
        for key in keys:
            del self.values[key]
            self.dirty.add(key)

    def changes(self, partition: int) -> StateChanges:
        """The changes since the last call."""
        values, dirty, self.dirty = self.values, self.dirty, set()
        puts = [(key, values[key]) for key in dirty if key in values]
        removes = [key for key in dirty if key not in values]
        return StateChanges(STORE, partition, puts, removes, len(values))


def select_rows(batch: pa.RecordBatch, indexes: list[int]) -> tuple[pa.RecordBatch, ...]:
    """The rows at these indexes, as the output of an operator."""
    if len(indexes) == batch.num_rows:
        return (batch,)
    return (batch.take(indexes),) if indexes else ()
