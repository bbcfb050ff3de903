"""Session windows: the rows of a key form a session until there is no row for a gap.

Each row comes with a session of its own, from its event time until one gap later. Gaps may differ
from row to row. Sessions of a key that touch are merged, as in Spark. State has Spark's layout: it
maps the key and the start of the session to all grouping columns and the buffers.

Note: a row between two sessions merges them into one. State rows are then removed although nothing
has expired.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.aggregation.functions import Column
from epochal.continuous.operators.aggregation.grouping import Buffers
from epochal.continuous.operators.aggregation.spark_buffers import SparkBuffers, Waiting
from epochal.continuous.operators.cells import (
    Array,
    StoredBatches,
    cells,
    drop_late,
    hashable,
    keys_of,
    micros,
)
from epochal.continuous.operators.containers import (
    Agenda,
    DiskAgenda,
    DiskMap,
    cut,
    pairs,
    touch,
    trim,
)
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.evaluator.evaluator_client import slices
from epochal.state.disk.disk_rows import DiskRows
from epochal.state.rows.types import AtomicType, StructField, StructType

if TYPE_CHECKING:
    from epochal.continuous.operators.aggregation.aggregate import AggregateSpec


def session_store(
    name: str, key: StructType, session: int, buffers: Buffers | SparkBuffers
) -> StoreSchema:
    """Spark's layout. `session` is the place of the session window in the key."""
    nullable = key.fields[session].nullable
    start = StructField("sessionStartTime", AtomicType("timestamp"), nullable)
    others = (*key.fields[:session], *key.fields[session + 1 :])
    return StoreSchema(
        name,
        StructType((*others, start)),
        StructType((*key.fields, *buffers.fields)),
        prefix_columns=len(others),
        scan_columns=len(others),
    )


class _Session:
    __slots__ = ("buffers", "end", "start")

    def __init__(self, start: int, end: int, buffers: Any) -> None:
        self.start, self.end, self.buffers = start, end, buffers


class _Partition:
    def __init__(self) -> None:
        self.sessions: MutableMapping[Row, list[_Session]] = {}
        """By key, ordered by start. No two sessions of a key touch."""
        self.dirty: set[tuple[Row, int]] = set()
        self.ends: Agenda[tuple[Row, int]] = Agenda()
        self.count = 0


class Sessions:
    """The sessions of some partitions."""

    def __init__(self, spec: AggregateSpec, partitions: Sequence[int]) -> None:
        assert spec.session is not None
        schema, (others,) = spec.input_schema, spec.keys
        self._column = schema.get_field_index(spec.session)
        self._place = spec.key.index(spec.session)
        self._key_columns = [schema.get_field_index(column) for column in others]
        self._buffers, self._made = spec.buffers, StoredBatches(spec.output_schema)
        self._waiting = Waiting()
        self._partitions = {number: _Partition() for number in partitions}
        self._drops_late, self._per_epoch = spec.event_time is not None, spec.per_epoch
        self._evicts = spec.output_mode == "append"
        self.late_rows = 0

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        state = self._partitions[partition]
        if isinstance(rows, DiskRows):
            state.count = rows.stop_counting()
            state.sessions = self._on_disk(rows, state.count)
            state.ends = DiskAgenda(rows, lambda entry, at: (*entry[0], entry[1]), _to_entry)
            if self._evicts:
                for stored, value in rows:
                    state.ends.add(value[self._place][1], _to_entry(stored))
            return
        for stored, value in rows:
            key, session = hashable(stored[:-1]), self._loaded(value)
            sessions = state.sessions.setdefault(key, [])
            sessions.insert(bisect_left(sessions, session.start, key=_start), session)
            state.ends.add(session.end, (key, session.start))
            state.count += 1

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        if self._drops_late:
            column: Array = batch.column(self._column)
            batch, late_rows = drop_late(batch, micros(column.field(1)), at.late_ms)
            self.late_rows += late_rows
        if not batch.num_rows:
            return ()
        if isinstance(self._buffers, SparkBuffers):
            for part in slices(batch):
                if self._waiting.add(partition, part):
                    self._fold_waiting(self._buffers)
            return ()
        state = self._partitions[partition]
        trim(state.sessions)
        rows: dict[Row, list[tuple[int, int, int]]] = {}
        sessions = cells(batch.column(self._column))
        for index, key in enumerate(keys_of(batch, self._key_columns)):
            rows.setdefault(key, []).append((*sessions[index], index))
        single_rows = self._buffers.single_rows(batch)
        for key, spans in rows.items():
            self._merge(state, key, _runs(spans, single_rows))
        if self._evicts or self._per_epoch:
            return ()
        return (self._everything(state),)

    def _fold_waiting(self, buffers: SparkBuffers) -> None:
        """Add the rows that wait to sessions, in one request. Rows of one time are one part."""
        waiting = self._waiting.taken()
        parts: dict[tuple[int, Row, int, int], int] = {}
        rows = []
        for partition, batch in waiting:
            sessions = cells(batch.column(self._column))
            keys = keys_of(batch, self._key_columns)
            numbers = [
                parts.setdefault((partition, key, *session), len(parts))
                for key, session in zip(keys, sessions, strict=True)
            ]
            rows.append((batch, np.array(numbers, dtype=np.int32)))
        of_keys: dict[tuple[int, Row], list[tuple[int, int, int]]] = {}
        for (partition, key, start, end), number in parts.items():
            of_keys.setdefault((partition, key), []).append((start, end, number))
        # `_joined` makes longer recipes of these, in the order of merging.
        recipes = [(number,) for number in range(len(parts))]
        for partition in {partition for partition, _ in waiting}:
            trim(self._partitions[partition].sessions)
        changed: list[_Session] = []
        for (partition, key), spans in of_keys.items():
            state = self._partitions[partition]
            self._merge(state, key, _runs(spans, recipes))
            changed += [s for s in state.sessions[key] if isinstance(s.buffers, tuple)]
        folded = buffers.folded(rows, [session.buffers for session in changed], exchanged=False)
        for session, new in zip(changed, folded, strict=True):
            session.buffers = new

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        if isinstance(self._buffers, SparkBuffers) and self._waiting:
            self._fold_waiting(self._buffers)
        if not self._evicts:
            states = [state for state in self._partitions.values() if state.count]
            return [self._everything(state) for state in states] if self._per_epoch else ()
        if at.watermark_ms < 0:
            return ()
        output: list[pa.RecordBatch] = []
        for state in self._partitions.values():
            # `_merge` takes a session off the agenda when it becomes part of another one, so each
            # entry is of a session that exists.
            due = state.ends.take(at.watermark_ms * 1000)
            closed = [(key, self._removed(state, key, s)) for _, ended in due for key, s in ended]
            if closed:
                output.append(self._output_rows(closed))
        return output

    def cut(self, epoch: int) -> list[StateChanges]:
        changes = []
        for number, state in self._partitions.items():
            dirty, state.dirty = state.dirty, set()
            puts: list[tuple[Row, Row]] = []
            removes: list[Row] = []
            for key, start in dirty:
                sessions = state.sessions.get(key, [])
                index = bisect_left(sessions, start, key=_start)
                if index < len(sessions) and sessions[index].start == start:
                    (buffers,) = self._buffers.stored([sessions[index].buffers])
                    puts.append(((*key, start), (*self._grouping(key, sessions[index]), *buffers)))
                else:  # merged or closed; if it came and went in this epoch, it was never stored
                    removes.append((*key, start))
            changes.append(StateChanges("default", number, puts, removes, state.count))
            cut(state.sessions, epoch)
        return changes

    def _loaded(self, value: Row) -> _Session:
        start, end = value[self._place]
        buffers = self._buffers.loaded(tuple(value[len(self._key_columns) + 1 :]))
        return _Session(start, end, buffers)

    def _on_disk(self, rows: DiskRows, count: int) -> DiskMap[list[_Session]]:
        def load(key: Row) -> list[_Session] | None:
            return sorted((self._loaded(row) for _, row in rows.having(key)), key=_start) or None

        def scan() -> Iterator[tuple[Row, list[_Session]]]:
            for stored, of_key in groupby(rows, lambda row: row[0][:-1]):
                sessions = sorted((self._loaded(row) for _, row in of_key), key=_start)
                yield hashable(stored), sessions

        return DiskMap(rows, load, scan, count)

    def _merge(self, state: _Partition, key: Row, runs: list[list[_Session]]) -> None:
        """Insert runs of new sessions of a key, and merge the sessions that touch."""
        sessions = state.sessions.setdefault(key, [])
        touch(state.sessions, key)
        for run in runs:
            # No two sessions of a key touch, so they are ordered by end as well as by start. A
            # session that starts when another ends touches it. Gaps differ, so the session of a run
            # that starts last need not end last.
            first, run_end = bisect_left(sessions, run[0].start, key=_end), max(map(_end, run))
            last = first
            while last < len(sessions) and sessions[last].start <= run_end:
                last += 1
            touching = sessions[first:last]
            for session in touching:
                state.ends.discard(session.end, (key, session.start))
                # If the merged session starts elsewhere, `cut` finds no session at this start and
                # removes its row.
                state.dirty.add((key, session.start))
            merged = self._joined([*touching, *run])
            sessions[first:last] = [merged]
            state.count += 1 - len(touching)
            state.ends.add(merged.end, (key, merged.start))
            state.dirty.add((key, merged.start))

    def _joined(self, sessions: list[_Session]) -> _Session:
        """Merge sessions by their start. Those of state come first, as in Spark."""
        sessions.sort(key=_start)  # stable: the caller has put those of state first
        buffers = sessions[0].buffers
        for session in sessions[1:]:
            buffers = self._buffers.merged(buffers, session.buffers)
        return _Session(sessions[0].start, max(map(_end, sessions)), buffers)

    def _removed(self, state: _Partition, key: Row, start: int) -> _Session:
        sessions = state.sessions[key]
        session = sessions.pop(bisect_left(sessions, start, key=_start))
        touch(state.sessions, key)
        if not sessions:
            del state.sessions[key]
        state.dirty.add((key, start))
        state.count -= 1
        return session

    def _grouping(self, key: Row, session: _Session) -> Row:
        place = self._place
        return (*key[:place], (session.start, session.end), *key[place:])

    def _everything(self, state: _Partition) -> pa.RecordBatch:
        return self._output_rows(
            [(key, session) for key, sessions in pairs(state.sessions) for session in sessions]
        )

    def _output_rows(self, sessions: Sequence[tuple[Row, _Session]]) -> pa.RecordBatch:
        grouped = [self._grouping(key, session) for key, session in sessions]
        columns: list[Column] = list(zip(*grouped, strict=True))
        columns = columns or [()] * (len(self._key_columns) + 1)
        columns += self._buffers.results([session.buffers for _, session in sessions])
        return self._made.batch(columns, len(sessions))


def _runs(spans: list[tuple[int, int, int]], buffers: Sequence[Row]) -> list[list[_Session]]:
    """Divide new sessions (start, end, index of the buffers) of a key into runs that touch."""
    runs: list[list[_Session]] = []
    end = 0
    for start, own_end, index in sorted(spans):
        if not runs or start > end:
            runs.append([])
            end = own_end
        runs[-1].append(_Session(start, own_end, buffers[index]))
        end = max(end, own_end)
    return runs


def _to_entry(key: Row) -> tuple[Row, int]:
    return hashable(key[:-1]), key[-1]


def _start(session: _Session) -> int:
    return session.start


def _end(session: _Session) -> int:
    return session.end
