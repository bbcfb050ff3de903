"""Groups rows by key, and keeps the aggregates of each group.

In update mode, a group's row is emitted when it changed. In append mode, it is emitted once, when
the watermark has passed the end of its window. In complete mode, all groups are emitted. State has
the layout of Spark's aggregation: it maps grouping columns to aggregation buffers.

A window is an ordinary column of the key, computed before. If it is the event time of the key, a
row is late when its *window* has ended, regardless of the row's own event time, as in Spark. Groups
are removed when the watermark passes the end of their window or, without a window, the event time
in their key. Groups without either are kept forever. Complete mode ignores the watermark.

Note: by default update and complete mode emit their output in `process`, not in `expire`. An epoch
may be cut between the two, and its output must contain everything that changed in it. With
`per_epoch` the caller promises one `expire` per epoch, and what is emitted is what a batch of
Spark emits.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.aggregation.functions import AggregateCall, Column
from epochal.continuous.operators.aggregation.grouping import (
    Buffers,
    Partials,
    arrow_groups_like_spark,
)
from epochal.continuous.operators.aggregation.session_windows import Sessions, session_store
from epochal.continuous.operators.aggregation.spark_buffers import (
    SparkAggregates,
    SparkBuffers,
    Waiting,
    group_numbers,
)
from epochal.continuous.operators.cells import (
    Array,
    StoredBatches,
    drop_late,
    hashable,
    key_schema,
    keys_of,
    micros,
)
from epochal.continuous.operators.containers import Agenda, DiskAgenda, DiskMap, cut, trim
from epochal.continuous.operators.contract import (
    Moment,
    Row,
    StateChanges,
    StatefulOperator,
    StoreSchema,
)
from epochal.errors import OptionError
from epochal.evaluator.evaluator_client import slices
from epochal.record_batches import FEW_TO_GROUP
from epochal.state.disk.disk_rows import DiskRows
from epochal.state.rows.types import StructType

UPDATE, APPEND, COMPLETE = "update", "append", "complete"
DEFAULT_STORE = "default"

_END = 1
"""The index of a window's end in its struct."""


@dataclass(frozen=True, slots=True)
class AggregateSpec:
    """The plan of an aggregation. The output has the key's columns, then one per aggregate."""

    key: tuple[str, ...]
    """The grouping columns in order, windows among them. None at all makes one global group."""
    aggregates: tuple[AggregateCall, ...]
    input_schema: pa.Schema
    output_mode: str
    event_time: str | None = None
    """The column of the key that has a watermark: a window, whose end counts, or a timestamp."""
    session: str | None = None
    """The column of the key that holds session windows: each row's own session, which starts at
    its event time and ends one gap later."""
    per_epoch: bool = False
    """Whether `expire` is called once per epoch. Then the output of an epoch is what a batch of
    Spark emits: each changed group once (update), or all groups (complete)."""
    spark: SparkAggregates | None = None
    """The aggregates, if Spark's own code computes them. This needs `per_epoch`."""

    def __post_init__(self) -> None:
        names = [*self.key, *(aggregate.alias for aggregate in self.aggregates)]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise OptionError(
                f"the output would have more than one column named {duplicates}. Rename the "
                f"aggregates with alias"
            )
        if self.output_mode == APPEND and self.event_time is None:
            raise OptionError(
                "output mode append emits a group once it is final, but without event time in the "
                "key and a watermark on it no group is ever final. Use update, or group by a "
                "window of a column that has a watermark"
            )
        if self.session is not None and self.output_mode == UPDATE:
            raise OptionError(
                "session windows do not support output mode update: sessions can merge, so an "
                "emitted row could turn out to be wrong. As in Spark, use append or complete"
            )
        if self.session is not None and len(self.key) == 1:
            raise OptionError(
                "a session window needs a key. Group by at least one column besides the window"
            )

    @property
    def name(self) -> str:
        return "stateStoreSave" if self.session is None else "sessionWindowStateStoreSaveExec"

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (tuple(column for column in self.key if column != self.session),)

    @property
    def buffers(self) -> Buffers | SparkBuffers:
        if self.spark is not None:
            return SparkBuffers(self.spark, self.aggregates)
        return Buffers(self.aggregates, self.input_schema)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        buffers = self.buffers
        key = key_schema(self.input_schema, self.key)
        if self.session is not None:
            return (session_store(DEFAULT_STORE, key, self.key.index(self.session), buffers),)
        return (StoreSchema(DEFAULT_STORE, key, StructType(buffers.fields)),)

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*map(self.input_schema.field, self.key), *self.buffers.output])

    def open(self, partitions: Sequence[int], state_partitions: int) -> StatefulOperator:
        if self.session is None:
            return Groups(self, partitions)
        return Sessions(self, partitions)


class _Partition:
    def __init__(self) -> None:
        self.groups: MutableMapping[Row, Any] = {}
        self.dirty: set[Row] = set()
        self.shown: dict[Row, None] = {}
        """The groups that the next `expire` emits in update mode, in order of their change."""
        self.ends: Agenda[Row] = Agenda()


class Groups:
    """The groups of some partitions."""

    def __init__(self, spec: AggregateSpec, partitions: Sequence[int]) -> None:
        schema = spec.input_schema
        self._partitions = {number: _Partition() for number in partitions}
        self._buffers = spec.buffers
        self._waiting = Waiting()
        self._made = StoredBatches(spec.output_schema)
        self._mode, self._per_epoch = spec.output_mode, spec.per_epoch
        self._key_columns = [schema.get_field_index(name) for name in spec.key]
        kinds = [schema.field(index).type for index in self._key_columns]
        self._timed = spec.event_time is not None and spec.output_mode != COMPLETE
        self._time = -1 if spec.event_time is None else spec.key.index(spec.event_time)
        self._is_window = self._time >= 0 and pa.types.is_struct(kinds[self._time])
        self._arrow_allowed = all(map(arrow_groups_like_spark, kinds))
        self.late_rows = 0

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        state = self._partitions[partition]
        if isinstance(rows, DiskRows):
            state.groups = DiskMap.of_values(rows, self._buffers.loaded)
            if self._timed:
                state.ends = DiskAgenda(rows)
                for key in rows.all_keys():
                    self._schedule(state, hashable(key))
            return
        for stored, buffers in rows:
            key = hashable(stored)
            state.groups[key] = self._buffers.loaded(buffers)
            self._schedule(state, key)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        if self._timed:
            column: Array = batch.column(self._key_columns[self._time])
            ends = micros(column.field(_END) if self._is_window else column)
            batch, late_rows = drop_late(batch, ends, at.late_ms)
            self.late_rows += late_rows
        if not batch.num_rows:
            return ()
        if isinstance(self._buffers, SparkBuffers):
            for part in slices(batch):
                if self._waiting.add(partition, part):
                    self._fold_waiting(self._buffers)
            return ()
        state = self._partitions[partition]
        trim(state.groups)
        groups, merged = state.groups, self._buffers.merged
        changed: list[Row] = []
        for key, buffers in self._partials(self._buffers, batch):
            before = groups.get(key)
            if before is None:
                groups[key] = buffers
                self._schedule(state, key)
            else:
                groups[key] = merged(before, buffers)
            changed.append(key)
        self._note_changes(state, changed)
        if self._mode == APPEND or self._per_epoch:
            return ()
        return (self._output_rows(state, changed if self._mode == UPDATE else list(groups)),)

    def _note_changes(self, state: _Partition, keys: Sequence[Row]) -> None:
        state.dirty.update(keys)
        if self._per_epoch and self._mode == UPDATE:
            state.shown.update(dict.fromkeys(keys))

    def _fold_waiting(self, buffers: SparkBuffers) -> None:
        """Add the rows that wait to their groups, in one request."""
        waiting = self._waiting.taken()
        numbers: dict[tuple[int, Row], int] = {}
        rows = []
        for partition, batch in waiting:
            local, keys = group_numbers(batch, self._key_columns)
            # From the number of a group in its batch to its number among all groups that wait: rows
            # of a group are one part, whatever batches they came in.
            numbers_here = [numbers.setdefault((partition, key), len(numbers)) for key in keys]
            rows.append((batch, np.array(numbers_here, dtype=np.int32)[local]))
        for partition in {partition for partition, _ in waiting}:
            trim(self._partitions[partition].groups)
        before = [self._partitions[partition].groups.get(key) for partition, key in numbers]
        recipes = [(n,) if old is None else (old, n) for n, old in enumerate(before)]
        folded = buffers.folded(rows, recipes, exchanged=True)
        for (partition, key), old, new in zip(numbers, before, folded, strict=True):
            state = self._partitions[partition]
            state.groups[key] = new
            if old is None:
                self._schedule(state, key)
            self._note_changes(state, (key,))

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        if isinstance(self._buffers, SparkBuffers) and self._waiting:
            self._fold_waiting(self._buffers)
        output = self._of_epoch() if self._per_epoch else []
        if not self._timed or at.watermark_ms < 0:
            return output
        for state in self._partitions.values():
            # A key is scheduled when its group is made and never moves, so each key that is due has
            # a group. Rows that would make the group again are late from now on.
            due = [key for _, keys in state.ends.take(at.watermark_ms * 1000) for key in keys]
            if not due:
                continue
            if self._mode == APPEND:
                output.append(self._output_rows(state, due))
            for key in due:
                del state.groups[key]
            state.dirty.update(due)
        return output

    def cut(self, epoch: int) -> list[StateChanges]:
        changes = []
        for number, state in self._partitions.items():
            groups, dirty, state.dirty = state.groups, state.dirty, set()
            keys = [key for key in dirty if key in groups]
            puts = list(zip(keys, self._buffers.stored([groups[key] for key in keys]), strict=True))
            removes = [key for key in dirty if key not in groups]
            changes.append(StateChanges(DEFAULT_STORE, number, puts, removes, len(groups)))
            cut(groups, epoch)
        return changes

    def _of_epoch(self) -> list[pa.RecordBatch]:
        """What an epoch emits in update and complete mode."""
        output: list[pa.RecordBatch] = []
        if self._mode == APPEND:
            return output
        first = self._partitions.get(0)
        if not self._key_columns and first is not None and not first.groups:
            # Spark's global aggregate has a row even if there was no input yet.
            first.groups[()] = self._buffers.new()
            first.shown[()] = None
            first.dirty.add(())
        for state in self._partitions.values():
            shown, state.shown = state.shown, {}
            if keys := list(shown if self._mode == UPDATE else state.groups):
                output.append(self._output_rows(state, keys))
        return output

    def _schedule(self, state: _Partition, key: Row) -> None:
        if self._timed:
            end = key[self._time]
            if self._is_window and end is not None:
                end = end[_END]
            if end is not None:
                state.ends.add(end, key)

    def _partials(self, buffers: Buffers, batch: pa.RecordBatch) -> Partials:
        columns: list[Array] = [batch.column(index) for index in self._key_columns]
        if (
            batch.num_rows < FEW_TO_GROUP
            or not self._arrow_allowed
            or any(pa.types.is_struct(column.type) and column.null_count for column in columns)
            or buffers.arrow_differs(batch)
        ):
            return buffers.group_in_python(batch, keys_of(batch, self._key_columns))
        if not columns:
            # Arrow cannot group by nothing: group by a constant and drop it again.
            constant = pa.array([0]).take([0] * batch.num_rows)
            return [((), group) for _, group in buffers.group_in_arrow(batch, [constant])]
        return buffers.group_in_arrow(batch, columns)

    def _output_rows(self, state: _Partition, keys: Sequence[Row]) -> pa.RecordBatch:
        columns: list[Column] = list(zip(*keys, strict=True)) or [()] * len(self._key_columns)
        columns += self._buffers.results([state.groups[key] for key in keys])
        return self._made.batch(columns, len(keys))
