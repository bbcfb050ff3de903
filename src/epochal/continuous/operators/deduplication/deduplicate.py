"""Passes on the first row of each key: `dropDuplicates` and `dropDuplicatesWithinWatermark`.

As in Spark. Rows at or before what is late are dropped if the stream has event time at all. Keys
are forgotten when the watermark passes them: the event time that is one of the columns, or,
within the watermark, the first row's event time plus the watermark's delay. Otherwise they stay
for ever.

What a reader would get wrong: within the watermark the expiry is that of the first row; later
duplicates do not push it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from epochal.continuous.operators.aggregation.grouping import keyed
from epochal.continuous.operators.cells import cells, hashable, keys_of, micros, on_time
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.operators.deduplication.seen_keys import (
    EXPIRY_SCHEMA,
    STORE,
    SeenKeys,
    chosen,
)
from epochal.errors import OptionError
from epochal.state.rows.types import AtomicType, StructField, StructType

_EMPTY: Row = (None,)
_EMPTY_SCHEMA = StructType((StructField("__dummy__", AtomicType("void")),))


@dataclass(frozen=True, slots=True)
class DropDuplicatesSpec:
    """A deduplication as planned."""

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
        """Plan for rows of the schema; `event_time` is the column that has a watermark."""
        unknown = [each for each in columns if each not in input_schema.names]
        if unknown or not columns:
            raise OptionError(
                f"duplicates are told by {list(columns)}, but the columns are "
                f"{input_schema.names}: name at least one of them, and no others"
            )
        if within_watermark and event_time is None:
            raise OptionError("to forget duplicates by the watermark, the stream must have one")
        return cls(tuple(columns), input_schema, event_time, delay_ms, within_watermark)

    @property
    def name(self) -> str:
        return "dedupeWithinWatermark" if self.within_watermark else "dedupe"

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        value = EXPIRY_SCHEMA if self.within_watermark else _EMPTY_SCHEMA
        return (StoreSchema(STORE, keyed(self.output_schema, self.key), value),)

    def open(self, partitions: Sequence[int], state_partitions: int) -> DropDuplicates:
        return DropDuplicates(self, partitions)


class DropDuplicates:
    """The keys seen in some partitions."""

    def __init__(self, spec: DropDuplicatesSpec, partitions: Sequence[int]) -> None:
        schema = spec.output_schema
        self._partitions = {each: SeenKeys() for each in partitions}
        self._places = [schema.get_field_index(each) for each in spec.key]
        self._time = -1 if spec.event_time is None else schema.get_field_index(spec.event_time)
        self._delay_us = spec.delay_ms * 1000
        self._within = spec.within_watermark
        self._in_key = spec.key.index(spec.event_time) if spec.event_time in spec.key else -1

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        held = self._partitions[partition]
        for stored, value in rows:
            key = hashable(stored)
            held.values[key] = value
            self._schedule(held, key, value)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment
    ) -> Iterable[pa.RecordBatch]:
        if self._time >= 0:
            batch = on_time(batch, micros(batch.column(self._time)), at.late_ms)
        if not batch.num_rows:
            return ()
        held = self._partitions[partition]
        times = cells(batch.column(self._time)) if self._within else []
        new: list[int] = []
        for place, key in enumerate(keys_of(batch, self._places)):
            if key in held.values:
                continue
            value = ((times[place] or 0) + self._delay_us,) if self._within else _EMPTY
            held.put(key, value)
            self._schedule(held, key, value)
            new.append(place)
        return chosen(batch, new)

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        if at.watermark_ms >= 0:
            for held in self._partitions.values():
                for _, keys in held.ends.take(at.watermark_ms * 1000):
                    held.forget(keys)
        return ()

    def cut(self, epoch: int) -> list[StateChanges]:
        return [held.changes(number) for number, held in self._partitions.items()]

    def _schedule(self, held: SeenKeys, key: Row, value: Row) -> None:
        if self._within:
            held.ends.add(value[0], key)
        elif self._in_key >= 0 and key[self._in_key] is not None:
            held.ends.add(key[self._in_key], key)
