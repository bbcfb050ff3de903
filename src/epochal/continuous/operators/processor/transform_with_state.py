"""Runs PySpark's StatefulProcessor, unchanged, over the keys of some state partitions.

A turn corresponds to a micro-batch in Spark. The processor gets the rows of each key in one call,
then its due timers. Time and watermark stay the same during a turn. Output is matched by name.

As in Spark, a processor lives for one epoch and one partition. It is unpickled at its first use and
`init` runs. At the cut `close` runs and the processor is dropped. Attributes that it has set are
lost; only state remains.

Note: the due timers are a snapshot. A timer that a handler registers for the past fires in the next
turn. A due timer that a handler deletes still fires in this turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from epochal.clock import SystemClock
from epochal.connectors.user_code import USER_CODE
from epochal.continuous.operators.cells import drop_late, key_schema, key_sorter, micros
from epochal.continuous.operators.containers import cut, trim
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.operators.processor.processor_handle import (
    TIMER_STORES,
    ProcessorHandle,
    ProcessorPhase,
    TimeMode,
    Variable,
    record_variables,
    spark_store,
)
from epochal.continuous.operators.processor.row_api import PandasApi, RowApi
from epochal.continuous.operators.processor.state_rows import VariableRows
from epochal.continuous.operators.processor.state_values import ValueConverter, value_converter
from epochal.continuous.operators.processor.state_variables import Cursor, NoKey
from epochal.continuous.operators.processor.timers import Timers, timer_store
from epochal.errors import OptionError
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.types import StructType

PURGE_EVERY_MS = 1000
"""How often expired state is removed. It is hidden once it expires, so removal can wait."""


@dataclass(frozen=True, slots=True)
class TransformWithStateSpec:
    """The plan of a processor."""

    processor: bytes
    """Pickled. Each epoch and partition unpickles its own copy."""
    key: tuple[str, ...]
    input_schema: pa.Schema
    output_schema: pa.Schema
    time_mode: TimeMode
    variables: tuple[Variable, ...]
    initial_key: tuple[str, ...]
    initial_state: pa.Table | None = None
    event_time: str | None = None
    pandas: bool = False
    timezone: str = "UTC"
    output_mode: str = "Update"
    spark_layout: bool = False
    """Whether the state is laid out as Spark's, in column families of RocksDB, so that Spark can
    continue from it. Otherwise each variable has its own store, which any provider can keep."""

    @classmethod
    def plan(
        cls,
        processor: Any,
        key: Sequence[str],
        input_schema: pa.Schema,
        output_schema: pa.Schema,
        *,
        time_mode: str = "None",
        initial_key: Sequence[str] | None = None,
        **more: Any,
    ) -> Self:
        """Plan a processor. Runs `init` of a copy once to learn which state it declares."""
        mode, pickled = TimeMode.named(time_mode), cloudpickle.dumps(processor)
        return cls(
            processor=pickled,
            key=tuple(key),
            input_schema=input_schema,
            output_schema=output_schema,
            time_mode=mode,
            variables=record_variables(cloudpickle.loads(pickled), mode),
            initial_key=tuple(initial_key or key),
            **more,
        )

    def __post_init__(self) -> None:
        columns = self.input_schema.names
        if self.output_mode.lower() not in ("append", "update"):
            raise OptionError(
                f"the output mode is {self.output_mode!r}, but transformWithState emits each row "
                f"only once. Use Append or Update"
            )
        if not self.key or not set(self.key) <= set(columns):
            raise OptionError(
                f"the key is {list(self.key)}, but the columns are {columns}. Name at least one "
                f"column, and only existing ones"
            )

    @property
    def name(self) -> str:
        if self.spark_layout:
            api = "Pandas" if self.pandas else "PySpark"
            return f"transformWithStateIn{api}Exec"
        # Not Spark's name: the layout differs, and Spark's reader would expect its own.
        return "epochalTransformWithState"

    @property
    def key_schema(self) -> StructType:
        return key_schema(self.input_schema, self.key)

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (self.key,)

    @property
    def stores(self) -> tuple[StoreSchema, ...]:
        key = self.key_schema
        if self.spark_layout:
            return (spark_store(self.variables, key, self.time_mode, self.output_mode),)
        schemas = [variable.store(key) for variable in self.variables]
        if self.time_mode in TIMER_STORES:
            schemas.append(timer_store(TIMER_STORES[self.time_mode], key))
        return tuple(schemas)

    def open(self, partitions: Sequence[int], state_partitions: int) -> TransformWithState:
        return TransformWithState(self, partitions, state_partitions)


class _Partition:
    """The state of one partition, and the processor that uses it in this epoch."""

    def __init__(self, number: int, spec: TransformWithStateSpec, key_form: ValueConverter) -> None:
        self.number = number
        self.cursor = Cursor()
        self.rows: dict[str, VariableRows] = {
            state.name: state.rows(spark_layout=spec.spark_layout) for state in spec.variables
        }
        self.timers: Timers | None = None
        if spec.time_mode in TIMER_STORES:
            self.timers = Timers(TIMER_STORES[spec.time_mode])
        self.expiring = [rows for rows in self.rows.values() if rows.ttl_ms]
        self._spec = spec
        self._variables = {variable.name: variable for variable in spec.variables}
        self._key_form = key_form
        self._processor: Any = None
        self._handle: ProcessorHandle | None = None

    def begin(self, at: Moment, phase: ProcessorPhase) -> Any:
        """The processor of this epoch, moved to the given phase. Created at the first call."""
        self.cursor.now_ms = at.now_ms
        if self._handle is None:
            mode = self._spec.time_mode
            handle = ProcessorHandle(self._variables, self.rows, self.timers, mode, self.cursor)
            with USER_CODE:
                self._processor = cloudpickle.loads(self._spec.processor)
                self._processor.init(handle)
            handle.enter(ProcessorPhase.INITIALIZED)
            self._handle = handle
        self._handle.enter(phase)
        return self._processor

    def end(self) -> None:
        if self._handle is not None:
            self._handle.enter(ProcessorPhase.TIMER_PROCESSED)
            self._processor.close()
            self._processor = self._handle = None

    def fire(self, at: Moment, until: int, values: TimerValues) -> list[Any]:
        """Call the handler of each timer that is due at or before `until`."""
        if self.timers is None or (first := self.timers.first()) is None or first > until:
            return []
        processor = self.begin(at, ProcessorPhase.DATA_PROCESSED)
        due = self.timers.take(until)
        results: list[Any] = []
        for time_ms, keys in due:
            info = ExpiredTimerInfo(time_ms)
            for key in key_sorter(True)(keys) if len(keys) > 1 else keys:
                self.cursor.key = key
                row = self._key_form.row_of(key)
                with USER_CODE:
                    results.extend(
                        processor.handleExpiredTimer(
                            key=row, timerValues=values, expiredTimerInfo=info
                        )
                    )
                self.timers.delete(key, time_ms)
        self.cursor.key = NoKey()
        return results

    def changes(self, epoch: int) -> list[StateChanges]:
        stores = self._kept()
        changes = [store.changes(self.number) for store in stores]
        for store in stores:
            cut(store.values, epoch)
        return changes

    def trim(self) -> None:
        """Forget what was not used lately, if state is on disk."""
        for store in self._kept():
            trim(store.values)

    def _kept(self) -> list[VariableRows | Timers]:
        return [*self.rows.values(), *(() if self.timers is None else (self.timers,))]


class TransformWithState:
    """Runs the processor for the partitions of one task."""

    def __init__(
        self, spec: TransformWithStateSpec, partitions: Sequence[int], state_partitions: int
    ) -> None:
        key_form = value_converter(spec.key_schema)
        self._spec = spec
        self._partitions = {number: _Partition(number, spec, key_form) for number in partitions}
        self._state_partitions = state_partitions
        self._api = _api(spec, spec.key, spec.input_schema)
        self._seeded = spec.initial_state is None
        self._purged_ms = 0
        self._ages = any(
            state.expiring or state.timers is not None for state in self._partitions.values()
        )
        """Whether time matters: without timers and expiring state, `expire` has nothing to do."""
        self._event_time = -1
        if spec.time_mode is TimeMode.EVENT and spec.event_time is not None:
            self._event_time = spec.input_schema.get_field_index(spec.event_time)
        self.late_rows = 0

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        state = self._partitions[partition]
        if state.timers is not None and store == state.timers.name:
            state.timers.load(rows)
        else:
            state.rows[store].load(rows)

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        self._seed(at)
        if self._event_time >= 0:
            batch, late_rows = drop_late(batch, micros(batch.column(self._event_time)), at.late_ms)
            self.late_rows += late_rows
        if not batch.num_rows:
            return ()
        state = self._partitions[partition]
        state.trim()
        handle_rows = state.begin(at, ProcessorPhase.INITIALIZED).handleInputRows
        values = self._timer_values(at)
        cursor = state.cursor
        results: list[Any] = []
        with USER_CODE:
            for stored, key, rows in self._api.groups(batch):
                cursor.key = stored
                results.extend(handle_rows(key, rows(), values))
            cursor.key = NoKey()
            return list(self._api.output(results))

    def due_ms(self) -> int | None:
        if not self._seeded:
            return 0
        if not self._ages:
            return None
        times = [self._purge_due()]
        if self._spec.time_mode is TimeMode.PROCESSING:
            times += [state.timers.first() for state in self._partitions.values() if state.timers]
        due = [time for time in times if time is not None]
        return min(due) if due else None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        self._seed(at)
        if not self._ages:
            return ()
        until = at.now_ms
        if self._spec.time_mode is TimeMode.EVENT:
            until = max(at.watermark_ms, 0)
        values = self._timer_values(at)
        output: list[pa.RecordBatch] = []
        for state in self._partitions.values():
            results = state.fire(at, until, values)
            if results:
                output.extend(self._api.output(results))
        due = self._purge_due()
        if due is not None and due <= at.now_ms:
            self._purged_ms = at.now_ms
            for state in self._partitions.values():
                for rows in state.expiring:
                    rows.purge(at.now_ms)
        return output

    def cut(self, epoch: int) -> list[StateChanges]:
        # The first epoch may end before any turn, but its state must include the initial state.
        if not self._seeded:
            now_ms = SystemClock().now_ms()
            self._seed(Moment(now_ms=now_ms, watermark_ms=-1, epoch=epoch, late_ms=-1))
        changes: list[StateChanges] = []
        for state in self._partitions.values():
            state.end()
            changes += state.changes(epoch)
        return changes

    def _timer_values(self, at: Moment) -> TimerValues:
        if self._spec.time_mode is TimeMode.NONE:
            return TimerValues(-1, -1)
        return TimerValues(at.now_ms, max(at.watermark_ms, 0))

    def _purge_due(self) -> int | None:
        first = [
            at
            for state in self._partitions.values()
            for rows in state.expiring
            if (at := rows.expiries.first()) is not None
        ]
        return max(min(first), self._purged_ms + PURGE_EVERY_MS) if first else None

    def _seed(self, at: Moment) -> None:
        """Pass the initial state to the processor, in the first epoch and before anything else."""
        if self._seeded:
            return
        self._seeded = True
        table = self._spec.initial_state
        if at.epoch != 0 or table is None or not table.num_rows:
            return
        (batch,) = table.combine_chunks().to_batches()
        api = _api(self._spec, self._spec.initial_key, batch.schema)
        values = self._timer_values(at)
        owners = self._owners(batch)
        for number, state in self._partitions.items():
            mine = batch.filter(pa.array(owners == number))
            if not mine.num_rows:
                continue
            handle_initial = state.begin(at, ProcessorPhase.INITIALIZED).handleInitialState
            for stored, key, rows in api.groups(mine):
                for row in rows():
                    state.cursor.key = stored
                    with USER_CODE:
                        handle_initial(key, row, values)
            state.cursor.key = NoKey()

    def _owners(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """The partition of each row of the initial state, by the same hash as input rows."""
        # The hash of an int is not that of an equal long: keys need the types of the input's keys.
        columns = [
            batch.column(name).cast(self._spec.input_schema.field(own).type)
            for name, own in zip(self._spec.initial_key, self._spec.key, strict=True)
        ]
        return partition_ids(columns, self._spec.key_schema, self._state_partitions)


def _api(spec: TransformWithStateSpec, key: Sequence[str], schema: pa.Schema) -> PandasApi | RowApi:
    if spec.pandas:
        return PandasApi(key, spec.output_schema, spec.timezone)
    return RowApi(key, schema, spec.output_schema)
