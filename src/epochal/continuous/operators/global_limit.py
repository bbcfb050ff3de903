"""Passes on the first rows of a query, and no others ever after: `limit`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.state.rows.types import AtomicType, StructField, StructType

_STORE = "default"
_KEY: Row = (None,)
_KEY_SCHEMA = StructType((StructField("key", AtomicType("void")),))
_VALUE_SCHEMA = StructType((StructField("value", AtomicType("long")),))


@dataclass(frozen=True, slots=True)
class GlobalLimitSpec:
    """The plan of a limit. All rows belong to one state partition, the first."""

    limit: int
    output_schema: pa.Schema
    name: ClassVar[str] = "globalLimit"
    keys: ClassVar[tuple[tuple[str, ...], ...]] = ((),)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        return (StoreSchema(_STORE, _KEY_SCHEMA, _VALUE_SCHEMA),)

    def open(self, partitions: Sequence[int], state_partitions: int) -> GlobalLimit:
        return GlobalLimit(self.limit, partitions)


class GlobalLimit:
    """Counts the rows that have passed."""

    def __init__(self, limit: int, partitions: Sequence[int]) -> None:
        self._limit = limit
        self._passed = dict.fromkeys(partitions, 0)
        self._stored = dict(self._passed)

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        for _, (count,) in rows:
            self._passed[partition] = self._stored[partition] = count

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        shown = batch.slice(0, max(0, self._limit - self._passed[partition]))
        self._passed[partition] += shown.num_rows
        return (shown,) if shown.num_rows else ()

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        return ()

    def cut(self, epoch: int) -> list[StateChanges]:
        changes = []
        for partition, count in self._passed.items():
            puts = [(_KEY, (count,))] if count != self._stored[partition] else []
            changes.append(StateChanges(_STORE, partition, puts, [], int(count > 0)))
        self._stored = dict(self._passed)
        return changes
