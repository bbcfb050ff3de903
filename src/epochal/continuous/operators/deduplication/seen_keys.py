"""The keys that an operator has seen in one partition, and when each is to be forgotten.

Held as its store holds them, with what changed since the last cut. When a key ends is for the
operator to say: by the watermark, by the clock, or never.
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
    """One partition's keys, each with the value that is stored for it."""

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
        """What has changed since this was last asked."""
        values, dirty, self.dirty = self.values, self.dirty, set()
        puts = [(key, values[key]) for key in dirty if key in values]
        removes = [key for key in dirty if key not in values]
        return StateChanges(STORE, partition, puts, removes, len(values))


def chosen(batch: pa.RecordBatch, places: list[int]) -> tuple[pa.RecordBatch, ...]:
    """The rows at these places, as operators give rows out."""
    if len(places) == batch.num_rows:
        return (batch,)
    return (batch.take(places),) if places else ()
