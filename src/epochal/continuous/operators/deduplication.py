"""Passes on the first row of each key: `dropDuplicates`, and the rows of sources that redeliver.

`DropDuplicates` has Spark's rules. If the stream has event time, late rows are dropped. A key
expires when the watermark passes the event time among its columns. With
`dropDuplicatesWithinWatermark`, it expires when the watermark passes the first row's event time
plus the watermark's delay; later duplicates do not extend that. All other keys are kept forever.

`DropRepeats` serves sources that may redeliver rows, such as Pub/Sub. The key identifies a row. A
key expires when it was not seen for the length of a window of clock time.

Note: time during which the query does not run does not count. If a query stops for a week, messages
that were committed but not acknowledged before are redelivered when it starts again. Therefore
`DropRepeats` lets no key expire before it has run for a whole window itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

from epochal.checkpoint.operator_metadata import REPEATS_OPERATOR
from epochal.continuous.operators.cells import (
    cells,
    drop_late,
    event_times,
    hashable,
    key_schema,
    keys_of,
)
from epochal.continuous.operators.containers import Agenda, DiskAgenda, DiskMap, cut, trim
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.errors import OptionError
from epochal.state.disk.disk_rows import DiskRows
from epochal.state.rows.types import AtomicType, StructField, StructType

STEP_MS = 1_000
"""Expiries of `DropRepeats` are rounded up to this step, so that expiring keys does not keep an
idle query busy."""

_STORE = "default"
_EMPTY: Row = (None,)
_EMPTY_SCHEMA = StructType((StructField("__dummy__", AtomicType("void")),))
_EXPIRY_SCHEMA = StructType((StructField("expiresAtMicros", AtomicType("long"), nullable=False),))

Schedule: TypeAlias = Callable[["SeenKeys", Row, Row], None]
"""Notes when a key with its value expires."""


class SeenKeys:
    """The keys that an operator has seen in one partition, and when each of them expires.

    Keys and values have the form of the store. Changes since the last cut are recorded.
    """

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
        return StateChanges(_STORE, partition, puts, removes, len(values))


def _select_rows(batch: pa.RecordBatch, indexes: list[int]) -> tuple[pa.RecordBatch, ...]:
    """The rows at these indexes, as the output of an operator."""
    if len(indexes) == batch.num_rows:
        return (batch,)
    return (batch.take(indexes),) if indexes else ()


@dataclass(frozen=True, slots=True)
class DropDuplicatesSpec:
    """The plan of a deduplication. `event_time` is the column that has a watermark."""

    key: tuple[str, ...]
    output_schema: pa.Schema
    event_time: str | None = None
    delay_ms: int = 0
    within_watermark: bool = False

    def __post_init__(self) -> None:
        if not self.key or not set(self.key) <= set(self.output_schema.names):
            raise OptionError(
                f"duplicates are identified by {list(self.key)}, but the columns are "
                f"{self.output_schema.names}. Name at least one column, and only existing ones"
            )
        if self.within_watermark and self.event_time is None:
            raise OptionError(
                "drop_duplicates_within_watermark needs a watermark, but the stream has none. Call "
                "with_watermark first"
            )

    @property
    def name(self) -> str:
        return "dedupeWithinWatermark" if self.within_watermark else "dedupe"

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (self.key,)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        value = _EXPIRY_SCHEMA if self.within_watermark else _EMPTY_SCHEMA
        return (StoreSchema(_STORE, key_schema(self.output_schema, self.key), value),)

    def open(self, partitions: Sequence[int], state_partitions: int) -> DropDuplicates:
        return DropDuplicates(self, partitions)


class DropDuplicates:
    """Remembers the keys seen in some partitions and drops their duplicates."""

    def __init__(self, spec: DropDuplicatesSpec, partitions: Sequence[int]) -> None:
        schema = spec.output_schema
        self._partitions = {number: SeenKeys() for number in partitions}
        self._key_columns = [schema.get_field_index(column) for column in spec.key]
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
            batch, late_rows = drop_late(batch, event_times(batch.column(self._time)), at.late_ms)
            self.late_rows += late_rows
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
        return _select_rows(batch, new)

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        if at.watermark_ms >= 0:
            for state in self._partitions.values():
                # A key is scheduled when it is put, and is not put again: it is due only once.
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
    name: ClassVar[str] = REPEATS_OPERATOR

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (self.key,)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        return (StoreSchema(_STORE, key_schema(self.output_schema, self.key), _EXPIRY_SCHEMA),)

    def open(self, partitions: Sequence[int], state_partitions: int) -> DropRepeats:
        return DropRepeats(self, partitions)


class DropRepeats:
    """Remembers the keys seen recently in some partitions and drops their repeats."""

    def __init__(self, spec: DropRepeatsSpec, partitions: Sequence[int]) -> None:
        self._partitions = {number: SeenKeys() for number in partitions}
        self._key_columns = [spec.output_schema.get_field_index(column) for column in spec.key]
        self._version = -1
        if spec.version is not None:
            self._version = spec.output_schema.get_field_index(spec.version)
        self._window_ms = spec.window_ms
        self._began_ms: int | None = None

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        def schedule(state: SeenKeys, key: Row, value: Row) -> None:
            state.ends.add(value[0], key)

        self._partitions[partition].load(rows, schedule)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        self._note_time(at)
        state = self._partitions[partition]
        trim(state.values)
        ends_ms = at.now_ms + self._window_ms
        expiry: Row = (-(-ends_ms // STEP_MS) * STEP_MS * 1000,)
        new: list[int] = []
        for index, (key, plain) in enumerate(self._keys(batch)):
            stored = state.values.get(key)
            if stored is None:
                # Release 0.1 stored the plain key. It stands for rows with any time.
                if plain not in state.values:
                    new.append(index)
                state.ends.add(expiry[0], key)
            elif stored == expiry:
                continue
            # A repeat extends the expiry too: the source redelivers the row, so it has not yet
            # received the acknowledgement and may redeliver it once more. The entry in `ends`
            # stays at the earlier time; `expire` moves it.
            state.put(key, expiry)
        return _select_rows(batch, new)

    def due_ms(self) -> int | None:
        times = [state.ends.first() for state in self._partitions.values()]
        ends = [time for time in times if time is not None]
        if not ends or self._began_ms is None:
            return None
        # Rounded up: a millisecond earlier, `expire` would find nothing due and be called again.
        return max(-(-min(ends) // 1000), self._began_ms + self._window_ms)

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        began_ms = self._note_time(at)
        if at.now_ms < began_ms + self._window_ms:
            return ()
        now_us = at.now_ms * 1000
        for state in self._partitions.values():
            # Each key is on the agenda exactly once: `process` enters it when it is new, and here
            # it is either entered again or forgotten.
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
