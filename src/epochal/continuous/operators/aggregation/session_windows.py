"""Session windows: a key's rows belong together until there has been none for a gap.

Every row is a session from its time to a gap later; sessions of a key that touch are one, as in
Spark. State is Spark's: the key and where the session starts, to the session and its buffers.

What a reader would get wrong: a row between two sessions makes one of them. Then rows of state
go away, although nothing has expired.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import pyarrow as pa

from epochal.continuous.operators.agenda import Agenda
from epochal.continuous.operators.aggregation.grouping import Buffers
from epochal.continuous.operators.cells import arrow, cells, hashable, keys_of, micros, on_time
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.operators.windows import Window
from epochal.state.rows.arrow_types import spark_schema
from epochal.state.rows.types import AtomicType, StructField, StructType


def session_store(
    name: str, grouping: pa.Schema, key: Sequence[str], buffers: Buffers
) -> StoreSchema:
    """Key and start of the session, to all grouping columns and the buffers, as Spark has it."""
    fields = {each.name: each for each in spark_schema(grouping).fields}
    start = StructField("sessionStartTime", AtomicType("timestamp"), nullable=False)
    return StoreSchema(
        name,
        StructType((*(fields[each] for each in key), start)),
        StructType((*fields.values(), *buffers.fields)),
    )


class _Session:
    __slots__ = ("buffers", "end", "start")

    def __init__(self, start: int, end: int, buffers: Row) -> None:
        self.start, self.end, self.buffers = start, end, buffers


class _Partition:
    def __init__(self) -> None:
        self.sessions: dict[Row, list[_Session]] = {}
        """By key, in order of start; no two of a key touch."""
        self.dirty: set[tuple[Row, int]] = set()
        self.ends: Agenda[tuple[Row, int]] = Agenda()
        self.count = 0


class Sessions:
    """The sessions of some partitions."""

    def __init__(
        self,
        window: Window,
        grouping: pa.Schema,
        schema: pa.Schema,
        buffers: Buffers,
        output: pa.Schema,
        partitions: Sequence[int],
        *,
        evicts: bool,
    ) -> None:
        self._gap_us = window.size_us
        self._time = schema.get_field_index(window.column)
        self._window = grouping.get_field_index(window.name)
        self._places = [schema.get_field_index(n) for n in grouping.names if n != window.name]
        self._buffers, self._output = buffers, output
        self._partitions = {each: _Partition() for each in partitions}
        self._evicts = evicts

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        held = self._partitions[partition]
        for stored, value in rows:
            key = hashable(stored[:-1])
            start, end = value[self._window]
            found = _Session(start, end, tuple(value[len(self._places) + 1 :]))
            sessions = held.sessions.setdefault(key, [])
            sessions.insert(bisect_left(sessions, start, key=_start), found)
            held.ends.add(end, (key, start))
            held.count += 1

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment
    ) -> Iterable[pa.RecordBatch]:
        stamps = micros(batch.column(self._time))
        batch = batch.filter(stamps.is_valid())
        if self._evicts:
            ends = pa.array(
                [each + self._gap_us for each in cells(micros(batch.column(self._time)))],
                pa.int64(),
            )
            batch = on_time(batch, ends, at.late_ms)
        if not batch.num_rows:
            return ()
        held = self._partitions[partition]
        rows: dict[Row, list[tuple[int, int]]] = {}
        times = cells(batch.column(self._time))
        for place, key in enumerate(keys_of(batch, self._places)):
            rows.setdefault(key, []).append((times[place], place))
        lifted = self._buffers.lifted(batch)
        for key, found in rows.items():
            found.sort()
            self._merge(held, key, self._runs(found, lifted))
        if self._evicts:
            return ()
        everything = [(key, each) for key, found in held.sessions.items() for each in found]
        return (self._rows(everything),)

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        if not self._evicts or at.watermark_ms < 0:
            return ()
        output: list[pa.RecordBatch] = []
        for held in self._partitions.values():
            due = held.ends.take(at.watermark_ms * 1000)
            closed = [(key, self._removed(held, key, s)) for _, each in due for key, s in each]
            if closed:
                output.append(self._rows(closed))
        return output

    def cut(self, epoch: int) -> list[StateChanges]:
        changes = []
        for number, held in self._partitions.items():
            dirty, held.dirty = held.dirty, set()
            puts: list[tuple[Row, Row]] = []
            removes: list[Row] = []
            for key, start in dirty:
                sessions = held.sessions.get(key, [])
                place = bisect_left(sessions, start, key=_start)
                if place < len(sessions) and sessions[place].start == start:
                    puts.append(((*key, start), self._value(key, sessions[place])))
                else:
                    removes.append((*key, start))
            changes.append(StateChanges("default", number, puts, removes, held.count))
        return changes

    def _runs(self, found: list[tuple[int, int]], lifted: list[Row]) -> list[_Session]:
        """Sessions of a key's rows, given in order of time."""
        runs: list[_Session] = []
        for time, place in found:
            last = runs[-1] if runs else None
            if last is not None and time <= last.end:
                last.end = time + self._gap_us
                last.buffers = self._buffers.merged(last.buffers, lifted[place])
            else:
                runs.append(_Session(time, time + self._gap_us, lifted[place]))
        return runs

    def _merge(self, held: _Partition, key: Row, runs: list[_Session]) -> None:
        """Put new sessions among the key's own; those that touch become one."""
        sessions = held.sessions.setdefault(key, [])
        for run in runs:
            first = bisect_left(sessions, run.start, key=_end)
            last = first
            while last < len(sessions) and sessions[last].start <= run.end:
                last += 1
            touching = sessions[first:last]
            for each in touching:
                held.ends.discard(each.end, (key, each.start))
                held.dirty.add((key, each.start))
            merged = self._joined([*touching, run])
            sessions[first:last] = [merged]
            held.count += 1 - len(touching)
            held.ends.add(merged.end, (key, merged.start))
            held.dirty.add((key, merged.start))

    def _joined(self, sessions: list[_Session]) -> _Session:
        sessions.sort(key=_start)
        buffers = sessions[0].buffers
        for each in sessions[1:]:
            buffers = self._buffers.merged(buffers, each.buffers)
        return _Session(sessions[0].start, max(map(_end, sessions)), buffers)

    def _removed(self, held: _Partition, key: Row, start: int) -> _Session:
        sessions = held.sessions[key]
        found = sessions.pop(bisect_left(sessions, start, key=_start))
        if not sessions:
            del held.sessions[key]
        held.dirty.add((key, start))
        held.count -= 1
        return found

    def _value(self, key: Row, found: _Session) -> Row:
        place = self._window
        return (*key[:place], (found.start, found.end), *key[place:], *found.buffers)

    def _rows(self, sessions: Sequence[tuple[Row, _Session]]) -> pa.RecordBatch:
        grouped = [self._value(key, found) for key, found in sessions]
        columns = [
            arrow([row[number] for row in grouped], self._output.field(number).type)
            for number in range(len(self._places) + 1)
        ]
        columns += self._buffers.results([found.buffers for _, found in sessions])
        return pa.RecordBatch.from_arrays(columns, schema=self._output)


def _start(each: _Session) -> int:
    return each.start


def _end(each: _Session) -> int:
    return each.end
