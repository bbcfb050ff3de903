"""Passes on the first row of each key and drops redelivered rows within a window of clock time.

It serves sources that may redeliver rows, such as Pub/Sub. The key identifies a row. A key expires
when it was not seen for the length of the window.

Note: time during which the query does not run does not count. If a query stops for a week, messages
that were committed but not acknowledged before are redelivered when it starts again. Therefore an
operator lets no key expire before it has run for a whole window itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from epochal.checkpoint.operator_metadata import REPEATS_OPERATOR
from epochal.continuous.operators.aggregation.grouping import key_schema
from epochal.continuous.operators.cells import cells, keys_of
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.operators.deduplication.seen_keys import (
    EXPIRY_SCHEMA,
    STORE,
    SeenKeys,
    select_rows,
)
from epochal.continuous.operators.on_disk.disk_map import trim

STEP_MS = 1_000
"""Expiries are rounded up to this step, so that expiring keys does not keep an idle query busy."""


@dataclass(frozen=True, slots=True)
class DropRepeatsSpec:
    """The plan: rows are identified by `key` and remembered for `window_ms`.

    With `version`, a timestamp column, rows with the same key but another time are different rows.
    The key is then a single text. State holds both in the key's column, as KEY@MICROSECONDS.
    """

    key: tuple[str, ...]
    output_schema: pa.Schema
    window_ms: int
    version: str | None = None

    @property
    def name(self) -> str:
        return REPEATS_OPERATOR

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (self.key,)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        return (StoreSchema(STORE, key_schema(self.output_schema, self.key), EXPIRY_SCHEMA),)

    def open(self, partitions: Sequence[int], state_partitions: int) -> DropRepeats:
        return DropRepeats(self, partitions)


class DropRepeats:
    """Remembers the keys seen recently in some partitions and drops their repeats."""

    def __init__(self, spec: DropRepeatsSpec, partitions: Sequence[int]) -> None:
        self._partitions = {each: SeenKeys() for each in partitions}
        self._key_columns = [spec.output_schema.get_field_index(each) for each in spec.key]
        self._version = -1
        if spec.version is not None:
            self._version = spec.output_schema.get_field_index(spec.version)
        self._window_ms = spec.window_ms
        self._began_ms: int | None = None

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        self._partitions[partition].load(rows, _schedule)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        self._note_time(at)
        state = self._partitions[partition]
        trim(state.values)
        expiry: Row = (self._expiry_us(at.now_ms),)
        new: list[int] = []
        for index, (key, plain) in enumerate(self._keys(batch)):
            known = state.values.get(key)
            if known is None:
                # Release 0.1 stored the plain key. It stands for rows with any time.
                if plain not in state.values:
                    new.append(index)
                state.ends.add(expiry[0], key)
            elif known == expiry:
                continue
            # A repeat extends the expiry too: the source redelivers the row, so it has not yet
            # received the acknowledgement and may redeliver it once more. The entry in `ends`
            # stays at the earlier time; `expire` moves it.
            state.put(key, expiry)
        return select_rows(batch, new)

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
        for state in self._partitions.values():
            for _, keys in state.ends.take(now_us):
                for key in keys:
                    (expiry_us,) = state.values[key]
                    if expiry_us > now_us:
                        state.ends.add(expiry_us, key)
                    else:
                        state.forget([key])
        return ()

    def cut(self, epoch: int) -> list[StateChanges]:
        return [state.changes(number, epoch) for number, state in self._partitions.items()]

    def _keys(self, batch: pa.RecordBatch) -> Iterable[tuple[Row, Row]]:
        """Yield the key of each row as it is stored, and without its version."""
        plain = keys_of(batch, self._key_columns)
        if self._version < 0:
            return zip(plain, plain, strict=True)
        times = cells(batch.column(self._version))
        stored = [(f"{key}@{time}",) for (key,), time in zip(plain, times, strict=True)]
        return zip(stored, plain, strict=True)

    def _note_time(self, at: Moment) -> int:
        if self._began_ms is None:
            self._began_ms = at.now_ms
        return self._began_ms

    def _expiry_us(self, now_ms: int) -> int:
        return -(-(now_ms + self._window_ms) // STEP_MS) * STEP_MS * 1000


def _schedule(state: SeenKeys, key: Row, value: Row) -> None:
    state.ends.add(value[0], key)
