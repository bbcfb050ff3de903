"""Passes on the first row of each key and drops its repetitions, for some time by the clock.

For sources that may hand a row out again, such as Pub/Sub: the key is the row's own identity. A key
is forgotten when a window has passed since it was last seen.

What a reader would get wrong: the time that a query does not run does not count. What was committed
and not acknowledged before a query stopped for a week comes again when it starts; so a running
operator forgets nothing before it has itself run for a whole window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from epochal.continuous.operators.aggregation.grouping import keyed
from epochal.continuous.operators.cells import hashable, keys_of
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.operators.deduplication.seen_keys import (
    EXPIRY_SCHEMA,
    STORE,
    SeenKeys,
    chosen,
)

STEP_MS = 1_000
"""Keys are forgotten in steps, so that time alone does not keep a query busy."""


@dataclass(frozen=True, slots=True)
class DropRepeatsSpec:
    """As planned: rows are told by `key`, and remembered for `window_ms`."""

    key: tuple[str, ...]
    output_schema: pa.Schema
    window_ms: int

    @property
    def name(self) -> str:
        return "dropRepeats"

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        return (StoreSchema(STORE, keyed(self.output_schema, self.key), EXPIRY_SCHEMA),)

    def open(self, partitions: Sequence[int], state_partitions: int) -> DropRepeats:
        return DropRepeats(self, partitions)


class DropRepeats:
    """The keys seen of late in some partitions."""

    def __init__(self, spec: DropRepeatsSpec, partitions: Sequence[int]) -> None:
        self._partitions = {each: SeenKeys() for each in partitions}
        self._places = [spec.output_schema.get_field_index(each) for each in spec.key]
        self._window_ms = spec.window_ms
        self._began_ms: int | None = None

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        held = self._partitions[partition]
        for stored, value in rows:
            key = hashable(stored)
            held.values[key] = value
            held.ends.add(value[0], key)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment
    ) -> Iterable[pa.RecordBatch]:
        self._note_time(at)
        held = self._partitions[partition]
        expiry: Row = (self._expiry_us(at.now_ms),)
        new: list[int] = []
        for place, key in enumerate(keys_of(batch, self._places)):
            known = held.values.get(key)
            if known is None:
                new.append(place)
                held.ends.add(expiry[0], key)
            elif known == expiry:
                continue
            # Of a repetition, too: whoever sends it again has not heard that it is done.
            held.put(key, expiry)
        return chosen(batch, new)

    def due_ms(self) -> int | None:
        times = [each.ends.first() for each in self._partitions.values()]
        ends = [each for each in times if each is not None]
        if not ends or self._began_ms is None:
            return None
        return max(-(-min(ends) // 1000), self._began_ms + self._window_ms)

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        began_ms = self._note_time(at)
        if at.now_ms < began_ms + self._window_ms:
            return ()
        now_us = at.now_ms * 1000
        for held in self._partitions.values():
            for _, keys in held.ends.take(now_us):
                for key in keys:
                    (expiry_us,) = held.values[key]
                    if expiry_us > now_us:
                        held.ends.add(expiry_us, key)
                    else:
                        held.forget([key])
        return ()

    def cut(self, epoch: int) -> list[StateChanges]:
        return [held.changes(number) for number, held in self._partitions.items()]

    def _note_time(self, at: Moment) -> int:
        if self._began_ms is None:
            self._began_ms = at.now_ms
        return self._began_ms

    def _expiry_us(self, now_ms: int) -> int:
        return -(-(now_ms + self._window_ms) // STEP_MS) * STEP_MS * 1000
