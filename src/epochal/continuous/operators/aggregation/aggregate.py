"""Groups rows by key and window, and keeps aggregates of each group.

Update: a group's row comes out in the turn that changed it. Append: once, when the watermark has
passed the end of its window. Complete: all groups of a partition whenever one of them changed.
State is laid out as Spark's aggregation does: grouping columns to buffers.

As in Spark, a row is late if its *window* ended at or before what is late, however late the row
itself; and groups are forgotten when the watermark passes the end of their window, or, without a
window, the event time that is part of their key. Without either, groups stay for ever.

What a reader would get wrong: output of `update` leaves with `process`, not with `expire`. An
epoch may be cut in between, and what changed in it must come out with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from epochal.continuous.operators.agenda import Agenda
from epochal.continuous.operators.aggregation.aggregates import Aggregate
from epochal.continuous.operators.aggregation.grouping import (
    VECTOR_ROWS,
    Buffers,
    Partials,
    groups_well,
    keyed,
)
from epochal.continuous.operators.aggregation.session_windows import Sessions, session_store
from epochal.continuous.operators.cells import Array, arrow, hashable, keys_of, micros, on_time
from epochal.continuous.operators.contract import (
    Moment,
    OperatorSpec,
    Row,
    StateChanges,
    StatefulOperator,
    StoreSchema,
)
from epochal.continuous.operators.windows import AssignWindowsSpec, Window
from epochal.errors import OptionError
from epochal.state.rows.types import StructType

__all__ = ["Aggregate", "AggregateSpec"]

UPDATE, APPEND, COMPLETE = "update", "append", "complete"
DEFAULT_STORE = "default"


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """An aggregation as planned. `before` must run before the exchange, if there is one."""

    grouping: tuple[str, ...]
    """The columns of the key, the window's among them."""
    window: Window | None
    aggregates: tuple[Aggregate, ...]
    input_schema: pa.Schema
    """With the window's column."""
    event_time: str | None
    output_mode: str

    @classmethod
    def plan(
        cls,
        *,
        keys: Sequence[str],
        aggregates: Sequence[Aggregate],
        input_schema: pa.Schema,
        window: Window | None = None,
        event_time: str | None = None,
        output_mode: str = UPDATE,
    ) -> Self:
        """Plan an aggregation of rows of the schema.

        The window comes first in the key, unless `keys` has its name (`window`) elsewhere.
        `event_time` is the column that has a watermark.
        """
        if output_mode not in (UPDATE, APPEND, COMPLETE):
            raise OptionError(f"the output mode is {output_mode!r}, not update, append or complete")
        if not aggregates:
            raise OptionError("an aggregation needs at least one aggregate, such as a count")
        grouping = tuple(keys)
        if window is not None and window.name not in grouping:
            grouping = (window.name, *grouping)
        plain = [each for each in grouping if window is None or each != window.name]
        unknown = [each for each in plain if each not in input_schema.names]
        if unknown:
            raise OptionError(f"the key is {plain}, but the columns are {input_schema.names}")
        names = [*grouping, *(each.alias for each in aggregates)]
        twice = sorted({each for each in names if names.count(each) > 1})
        if twice:
            raise OptionError(f"the output would have more than one column named {twice}")
        _check_window(window, plain, input_schema, output_mode)
        timed = event_time is not None and (
            event_time in plain or (window is not None and window.column == event_time)
        )
        if output_mode == APPEND and not timed:
            raise OptionError(
                "append gives a group's row once it is final, but without event time in the key, "
                "and a watermark on it, none ever is: use update, or group by a window"
            )
        if window is not None and not window.is_session:
            input_schema = AssignWindowsSpec(window).output_schema(input_schema)
        marked = event_time if timed else None
        return cls(grouping, window, tuple(aggregates), input_schema, marked, output_mode)

    @property
    def before(self) -> OperatorSpec | None:
        """What must happen to rows before they are exchanged."""
        if self.window is None or self.window.is_session:
            return None
        return AssignWindowsSpec(self.window)

    @property
    def name(self) -> str:
        return "sessionWindowStateStoreSaveExec" if self.is_session else "stateStoreSave"

    @property
    def is_session(self) -> bool:
        return self.window is not None and self.window.is_session

    @property
    def key(self) -> tuple[str, ...]:
        if self.is_session:
            return tuple(each for each in self.grouping if each in self.input_schema.names)
        return self.grouping

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        buffers = Buffers(self.aggregates, self.input_schema)
        if self.is_session:
            return (session_store(DEFAULT_STORE, self._grouping_schema, self.key, buffers),)
        key = keyed(self.input_schema, self.grouping)
        return (StoreSchema(DEFAULT_STORE, key, StructType(buffers.fields)),)

    @property
    def output_schema(self) -> pa.Schema:
        buffers = Buffers(self.aggregates, self.input_schema)
        return pa.schema([*self._grouping_schema, *buffers.output])

    def open(self, partitions: Sequence[int], state_partitions: int) -> StatefulOperator:
        if self.window is not None and self.window.is_session:
            return Sessions(
                self.window,
                self._grouping_schema,
                self.input_schema,
                Buffers(self.aggregates, self.input_schema),
                self.output_schema,
                partitions,
                evicts=self.event_time is not None and self.output_mode == APPEND,
            )
        return Groups(self, partitions)

    @property
    def _grouping_schema(self) -> pa.Schema:
        fields = []
        for name in self.grouping:
            if self.window is not None and name == self.window.name:
                kind = self.window.type(self.input_schema.field(self.window.column).type)
                fields.append(pa.field(name, kind))
            else:
                fields.append(self.input_schema.field(name))
        return pa.schema(fields)


class _Partition:
    def __init__(self) -> None:
        self.groups: dict[Row, Row] = {}
        self.dirty: set[Row] = set()
        self.ends: Agenda[Row] = Agenda()


class Groups:
    """The groups of some partitions."""

    def __init__(self, spec: AggregateSpec, partitions: Sequence[int]) -> None:
        schema = spec.input_schema
        self._partitions = {each: _Partition() for each in partitions}
        self._buffers = Buffers(spec.aggregates, schema)
        self._output = spec.output_schema
        self._mode = spec.output_mode
        self._window = spec.window
        self._places = [schema.get_field_index(each) for each in spec.grouping]
        self._by_window = -1 if spec.window is None else spec.grouping.index(spec.window.name)
        self._by_time = -1
        if spec.event_time is not None and self._by_window < 0:
            self._by_time = spec.grouping.index(spec.event_time)
        self._timed = spec.event_time is not None and spec.output_mode != COMPLETE
        self._vector = all(
            number == self._by_window or groups_well(schema.field(place).type)
            for number, place in enumerate(self._places)
        )

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        held = self._partitions[partition]
        for stored, buffers in rows:
            key = hashable(stored)
            held.groups[key] = buffers
            self._schedule(held, key)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment
    ) -> Iterable[pa.RecordBatch]:
        if self._timed:
            batch = on_time(batch, self._ends(batch), at.late_ms)
        if not batch.num_rows:
            return ()
        held = self._partitions[partition]
        groups, merged = held.groups, self._buffers.merged
        changed: list[Row] = []
        for key, buffers in self._partials(batch):
            before = groups.get(key)
            if before is None:
                groups[key] = buffers
                self._schedule(held, key)
            else:
                groups[key] = merged(before, buffers)
            changed.append(key)
        held.dirty.update(changed)
        if self._mode == APPEND:
            return ()
        shown = changed if self._mode == UPDATE else list(groups)
        return (self._rows(shown, [groups[key] for key in shown]),)

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        if not self._timed or at.watermark_ms < 0:
            return ()
        output: list[pa.RecordBatch] = []
        for held in self._partitions.values():
            due = [key for _, keys in held.ends.take(at.watermark_ms * 1000) for key in keys]
            if not due:
                continue
            closed = [held.groups.pop(key) for key in due]
            held.dirty.update(due)
            if self._mode == APPEND:
                output.append(self._rows(due, closed))
        return output

    def cut(self, epoch: int) -> list[StateChanges]:
        changes = []
        for number, held in self._partitions.items():
            groups, dirty, held.dirty = held.groups, held.dirty, set()
            puts = [(key, groups[key]) for key in dirty if key in groups]
            removes = [key for key in dirty if key not in groups]
            changes.append(StateChanges(DEFAULT_STORE, number, puts, removes, len(groups)))
        return changes

    def _ends(self, batch: pa.RecordBatch) -> Array:
        if self._by_window >= 0:
            window: Array = batch.column(self._places[self._by_window])
            return micros(window.field(1))
        return micros(batch.column(self._places[self._by_time]))

    def _schedule(self, held: _Partition, key: Row) -> None:
        if self._timed:
            end = key[self._by_window][1] if self._by_window >= 0 else key[self._by_time]
            if end is not None:
                held.ends.add(end, key)

    def _partials(self, batch: pa.RecordBatch) -> Partials:
        buffers = self._buffers
        if batch.num_rows < VECTOR_ROWS or not self._vector or buffers.by_arrow_differs(batch):
            return buffers.by_hand(batch, keys_of(batch, self._places))
        columns: list[Array] = [batch.column(each) for each in self._places]
        if not columns:
            one = pa.array([0]).take([0] * batch.num_rows)
            return [((), kept) for _, kept in buffers.by_arrow(batch, [one])]
        place = self._by_window
        if self._window is None:
            return buffers.by_arrow(batch, columns)
        size = self._window.size_us
        columns[place] = micros(columns[place].field(0))
        return [
            ((*key[:place], (key[place], key[place] + size), *key[place + 1 :]), kept)
            for key, kept in buffers.by_arrow(batch, columns)
        ]

    def _rows(self, keys: Sequence[Row], buffers: Sequence[Row]) -> pa.RecordBatch:
        count = len(self._places)
        columns = [
            arrow([key[number] for key in keys], self._output.field(number).type)
            for number in range(count)
        ]
        columns += self._buffers.results(buffers)
        return pa.RecordBatch.from_arrays(columns, schema=self._output)


def _check_window(
    window: Window | None, keys: Sequence[str], schema: pa.Schema, output_mode: str
) -> None:
    if window is None:
        return
    if window.column not in schema.names or not pa.types.is_timestamp(
        schema.field(window.column).type
    ):
        raise OptionError(
            f"the window is over {window.column!r}, which must be a timestamp among {schema.names}"
        )
    if window.name in schema.names:
        raise OptionError(f"the input has a column {window.name!r} already: rename it")
    if window.is_session and output_mode == UPDATE:
        raise OptionError(
            "sessions merge, so a row given out for one may turn out to be wrong: as in Spark, "
            "use append or complete"
        )
    if window.is_session and not keys:
        raise OptionError("a session is of some key: group by at least one column beside it")
