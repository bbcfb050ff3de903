"""Passes on the first row of each key: `dropDuplicates` and `dropDuplicatesWithinWatermark`.

The rules are Spark's. If the stream has event time, late rows are dropped. A key expires when the
watermark passes the event time among its columns. With `dropDuplicatesWithinWatermark`, it expires
when the watermark passes the first row's event time plus the watermark's delay. All other keys are
kept forever.

Note: with `dropDuplicatesWithinWatermark`, the first row determines the expiry. Later duplicates do
not extend it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from epochal.continuous.operators.aggregation.grouping import key_schema
from epochal.continuous.operators.cells import cells, drop_late, keys_of, micros
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.operators.deduplication.seen_keys import (
    EXPIRY_SCHEMA,
    STORE,
    SeenKeys,
    select_rows,
)
from epochal.continuous.operators.on_disk.disk_map import trim
from epochal.errors import OptionError
from epochal.state.rows.types import AtomicType, StructField, StructType

_EMPTY: Row = (None,)
_EMPTY_SCHEMA = StructType((StructField("__dummy__", AtomicType("void")),))


@dataclass(frozen=True, slots=True)
class DropDuplicatesSpec:
    """The plan of a deduplication."""

    key: tuple[str, ...]
    output_schema: pa.Schema
    event_time: str | None
    delay_ms: int
    within_watermark: bool

    @classmethod
    def plan(
        cls,
        *,
        columns: Sequence[str],
        input_schema: pa.Schema,
        event_time: str | None = None,
        delay_ms: int = 0,
        within_watermark: bool = False,
    ) -> Self:
        """Plan for rows of the schema. `event_time` is the column that has a watermark."""
        unknown = [each for each in columns if each not in input_schema.names]
        if unknown or not columns:
            raise OptionError(
                f"duplicates are identified by {list(columns)}, but the columns are "
                f"{input_schema.names}. Name at least one column, and only existing ones"
            )
        if within_watermark and event_time is None:
            raise OptionError(
                "drop_duplicates_within_watermark needs a watermark, but the stream has none. Call "
                "with_watermark first"
            )
        return cls(tuple(columns), input_schema, event_time, delay_ms, within_watermark)

    @property
    def name(self) -> str:
        return "dedupeWithinWatermark" if self.within_watermark else "dedupe"

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (self.key,)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        value = EXPIRY_SCHEMA if self.within_watermark else _EMPTY_SCHEMA
        return (StoreSchema(STORE, key_schema(self.output_schema, self.key), value),)

    def open(self, partitions: Sequence[int], state_partitions: int) -> DropDuplicates:
        return DropDuplicates(self, partitions)


class DropDuplicates:
    """Remembers the keys seen in some partitions and drops their duplicates."""

    def __init__(self, spec: DropDuplicatesSpec, partitions: Sequence[int]) -> None:
        schema = spec.output_schema
        self._partitions = {each: SeenKeys() for each in partitions}
        self._key_columns = [schema.get_field_index(each) for each in spec.key]
        self._time = -1 if spec.event_time is None else schema.get_field_index(spec.event_time)
        self._delay_us = spec.delay_ms * 1000
        self._within = spec.within_watermark
        self._in_key = spec.key.index(spec.event_time) if spec.event_time in spec.key else -1
        self.late_rows = 0

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        expires = self._within or self._in_key >= 0
        self._partitions[partition].load(rows, self._schedule if expires else None)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        if self._time >= 0:
            timely = drop_late(batch, micros(_times(batch.column(self._time))), at.late_ms)
            self.late_rows += batch.num_rows - timely.num_rows
            batch = timely
        if not batch.num_rows:
            return ()
        state = self._partitions[partition]
        trim(state.values)
        times = cells(batch.column(self._time)) if self._within else []
        new: list[int] = []
        for index, key in enumerate(keys_of(batch, self._key_columns)):
            if key in state.values:
                continue
            value = ((times[index] or 0) + self._delay_us,) if self._within else _EMPTY
            state.put(key, value)
            self._schedule(state, key, value)
            new.append(index)
        return select_rows(batch, new)

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        if at.watermark_ms >= 0:
            for state in self._partitions.values():
                for _, keys in state.ends.take(at.watermark_ms * 1000):
                    state.forget(keys)
        return ()

    def cut(self, epoch: int) -> list[StateChanges]:
        return [state.changes(number, epoch) for number, state in self._partitions.items()]

    def _schedule(self, state: SeenKeys, key: Row, value: Row) -> None:
        if self._within:
            state.ends.add(value[0], key)
        elif self._in_key >= 0 and key[self._in_key] is not None:
            time = key[self._in_key]
            state.ends.add(time[1] if isinstance(time, tuple) else time, key)


def _times(column: Any) -> Any:
    """Event time. If it is a window, its end counts."""
    return column.flatten()[1] if pa.types.is_struct(column.type) else column
