"""Groups rows by key and window, and keeps the aggregates of each group.

In update mode, a group's row is emitted in the turn that changed it. In append mode, it is emitted
once, when the watermark has passed the end of its window. In complete mode, all groups of a
partition are emitted whenever one of them changed. State has the layout of Spark's aggregation: it
maps grouping columns to aggregation buffers.

As in Spark, a row is late if its *window* has ended, regardless of the row's own event time.
Groups are removed when the watermark passes the end of their window or, without a window, the
event time in their key. Groups without either are kept forever.

Note: update mode emits its output in `process`, not in `expire`. An epoch may be cut between the
two, and its output must contain everything that changed in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from epochal.continuous.operators.agenda import Agenda
from epochal.continuous.operators.aggregation.aggregates import Aggregate
from epochal.continuous.operators.aggregation.grouping import (
    MIN_ARROW_ROWS,
    Buffers,
    Partials,
    arrow_groups_like_spark,
    key_schema,
)
from epochal.continuous.operators.aggregation.session_windows import Sessions, session_store
from epochal.continuous.operators.cells import (
    Array,
    arrow_column,
    drop_late,
    hashable,
    keys_of,
    micros,
)
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
    """The plan of an aggregation. If `before` is not None, it must run before the exchange."""

    grouping: tuple[str, ...]
    """The columns of the key, including the window's column."""
    window: Window | None
    aggregates: tuple[Aggregate, ...]
    input_schema: pa.Schema
    """Includes the window's column."""
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

        The window comes first in the key, unless `keys` contains its name (`window`).
        `event_time` is the column that has a watermark.
        """
        if output_mode not in (UPDATE, APPEND, COMPLETE):
            raise OptionError(
                f"the output mode is {output_mode!r}, but must be update, append or complete"
            )
        if not aggregates:
            raise OptionError("an aggregation needs at least one aggregate, such as a count")
        grouping = tuple(keys)
        if window is not None and window.name not in grouping:
            grouping = (window.name, *grouping)
        input_keys = [each for each in grouping if window is None or each != window.name]
        unknown = [each for each in input_keys if each not in input_schema.names]
        if unknown:
            raise OptionError(
                f"the key is {input_keys}, but the columns are {input_schema.names}. Group by "
                f"existing columns"
            )
        names = [*grouping, *(each.alias for each in aggregates)]
        duplicates = sorted({each for each in names if names.count(each) > 1})
        if duplicates:
            raise OptionError(
                f"the output would have more than one column named {duplicates}. Rename the "
                f"aggregates with alias"
            )
        _check_window(window, input_keys, input_schema, output_mode)
        timed = event_time is not None and (
            event_time in input_keys or (window is not None and window.column == event_time)
        )
        if output_mode == APPEND and not timed:
            raise OptionError(
                "output mode append emits a group once it is final, but without event time in the "
                "key and a watermark on it no group is ever final. Use update, or group by a "
                "window of a column that has a watermark"
            )
        if window is not None and not window.is_session:
            input_schema = AssignWindowsSpec(window).output_schema(input_schema)
        used_time = event_time if timed else None
        return cls(grouping, window, tuple(aggregates), input_schema, used_time, output_mode)

    @property
    def before(self) -> OperatorSpec | None:
        """The operator that must process rows before they are exchanged, if any."""
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
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (self.key,)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        buffers = Buffers(self.aggregates, self.input_schema)
        if self.is_session:
            return (session_store(DEFAULT_STORE, self._grouping_schema, self.key, buffers),)
        key = key_schema(self.input_schema, self.grouping)
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
        self._key_columns = [schema.get_field_index(each) for each in spec.grouping]
        self._window_index = -1 if spec.window is None else spec.grouping.index(spec.window.name)
        self._time_index = -1
        if spec.event_time is not None and self._window_index < 0:
            self._time_index = spec.grouping.index(spec.event_time)
        self._timed = spec.event_time is not None and spec.output_mode != COMPLETE
        self._arrow_allowed = all(
            number == self._window_index or arrow_groups_like_spark(schema.field(index).type)
            for number, index in enumerate(self._key_columns)
        )

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        state = self._partitions[partition]
        for stored, buffers in rows:
            key = hashable(stored)
            state.groups[key] = buffers
            self._schedule(state, key)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        if self._timed:
            batch = drop_late(batch, self._ends(batch), at.late_ms)
        if not batch.num_rows:
            return ()
        state = self._partitions[partition]
        groups, merged = state.groups, self._buffers.merged
        changed: list[Row] = []
        for key, buffers in self._partials(batch):
            before = groups.get(key)
            if before is None:
                groups[key] = buffers
                self._schedule(state, key)
            else:
                groups[key] = merged(before, buffers)
            changed.append(key)
        state.dirty.update(changed)
        if self._mode == APPEND:
            return ()
        shown = changed if self._mode == UPDATE else list(groups)
        return (self._output_rows(shown, [groups[key] for key in shown]),)

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        if not self._timed or at.watermark_ms < 0:
            return ()
        output: list[pa.RecordBatch] = []
        for state in self._partitions.values():
            due = [key for _, keys in state.ends.take(at.watermark_ms * 1000) for key in keys]
            if not due:
                continue
            closed = [state.groups.pop(key) for key in due]
            state.dirty.update(due)
            if self._mode == APPEND:
                output.append(self._output_rows(due, closed))
        return output

    def cut(self, epoch: int) -> list[StateChanges]:
        changes = []
        for number, state in self._partitions.items():
            groups, dirty, state.dirty = state.groups, state.dirty, set()
            puts = [(key, groups[key]) for key in dirty if key in groups]
            removes = [key for key in dirty if key not in groups]
            changes.append(StateChanges(DEFAULT_STORE, number, puts, removes, len(groups)))
        return changes

    def _ends(self, batch: pa.RecordBatch) -> Array:
        if self._window_index >= 0:
            window: Array = batch.column(self._key_columns[self._window_index])
            return micros(window.field(1))
        return micros(batch.column(self._key_columns[self._time_index]))

    def _schedule(self, state: _Partition, key: Row) -> None:
        if self._timed:
            end = key[self._window_index][1] if self._window_index >= 0 else key[self._time_index]
            if end is not None:
                state.ends.add(end, key)

    def _partials(self, batch: pa.RecordBatch) -> Partials:
        buffers = self._buffers
        if (
            batch.num_rows < MIN_ARROW_ROWS
            or not self._arrow_allowed
            or buffers.arrow_differs(batch)
        ):
            return buffers.group_in_python(batch, keys_of(batch, self._key_columns))
        columns: list[Array] = [batch.column(each) for each in self._key_columns]
        if not columns:
            # Arrow cannot group by nothing: group by a constant and drop it again.
            constant = pa.array([0]).take([0] * batch.num_rows)
            return [((), kept) for _, kept in buffers.group_in_arrow(batch, [constant])]
        index = self._window_index
        if self._window is None:
            return buffers.group_in_arrow(batch, columns)
        # Arrow cannot group by a struct either: group by the window's start and rebuild the struct.
        size = self._window.size_us
        columns[index] = micros(columns[index].field(0))
        return [
            ((*key[:index], (key[index], key[index] + size), *key[index + 1 :]), kept)
            for key, kept in buffers.group_in_arrow(batch, columns)
        ]

    def _output_rows(self, keys: Sequence[Row], buffers: Sequence[Row]) -> pa.RecordBatch:
        count = len(self._key_columns)
        columns = [
            arrow_column([key[number] for key in keys], self._output.field(number).type)
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
            f"the window is over {window.column!r}, which is not a timestamp column. The columns "
            f"are {schema.names}"
        )
    if window.name in schema.names:
        raise OptionError(
            f"the input already has a column {window.name!r}, which the window would add. Rename it"
        )
    if window.is_session and output_mode == UPDATE:
        raise OptionError(
            "session windows do not support output mode update: sessions can merge, so an emitted "
            "row could turn out to be wrong. As in Spark, use append or complete"
        )
    if window.is_session and not keys:
        raise OptionError(
            "a session window needs a key. Group by at least one column besides the window"
        )
