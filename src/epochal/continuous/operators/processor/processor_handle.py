"""Replaces PySpark's StatefulProcessorHandle: processors use it to declare state and set timers.

On the driver, `record_variables` runs `init` once to learn the state variables, as Spark does:
their stores must be known before the first row. In a task, a handle provides the variables of one
partition and expects `init` to declare the same ones.

Spark keeps all of a processor's state in one store, with a column family for each variable
(`spark_store`). It adds families of its own, whose names start with `$`: timers, how long lists
are, and when values expire. Most of them are indexes on a variable and follow from its rows.

Note: `init` runs again in every epoch and partition, so a `deleteIfExists` in `init` deletes every
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeAlias

from pyspark.errors import PySparkRuntimeError

from epochal.checkpoint.layout import DEFAULT_STORE
from epochal.checkpoint.spark_json import to_json
from epochal.continuous.operators.contract import StoreSchema
from epochal.continuous.operators.processor.state_rows import (
    ListRows,
    MapRows,
    ValueRows,
    VariableRows,
)
from epochal.continuous.operators.processor.state_values import failure, value_converter
from epochal.continuous.operators.processor.state_variables import (
    Cursor,
    ExpiringValueState,
    ListState,
    MapState,
    ValueState,
    invalidate,
)
from epochal.continuous.operators.processor.timers import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    Timers,
    timer_store,
)
from epochal.errors import OptionError, StateSchemaError
from epochal.state.files.rocksdb_family import Family, FamilyRows, Index, index_entry
from epochal.state.files.schema_file import FamilySchema, KeyEncoder
from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.types import AtomicType, StructField, StructType, parse_schema

Kind: TypeAlias = Literal["value", "list", "map"]
AnyState: TypeAlias = ValueState | ListState | MapState


class TimeMode(Enum):
    """The time that timers and the time to live of state refer to."""

    NONE = "None"
    PROCESSING = "ProcessingTime"
    EVENT = "EventTime"

    @classmethod
    def named(cls, name: str) -> TimeMode:
        """The mode with this name of Spark's, in upper or lower case."""
        for mode in cls:
            if mode.value.lower() == name.lower():
                return mode
        raise OptionError(
            f"the time mode is {name!r}, but must be 'None', 'ProcessingTime' or 'EventTime'"
        )


class ProcessorPhase(Enum):
    """The phase of a processor's life, with Spark's names."""

    PRE_INIT = "PRE_INIT"
    CREATED = "CREATED"
    INITIALIZED = "INITIALIZED"
    DATA_PROCESSED = "DATA_PROCESSED"
    TIMER_PROCESSED = "TIMER_PROCESSED"


@dataclass(frozen=True, slots=True)
class Variable:
    """A state variable as `init` declared it."""

    name: str
    kind: Kind
    entry: StructType | None
    """The schema of a map's keys."""
    value: StructType
    ttl_ms: int

    def store(self, key: StructType) -> StoreSchema:
        """The store of this variable, for grouping keys of the schema `key`."""
        value = self.value
        if self.ttl_ms:
            expires = StructField("ttlExpirationMs", AtomicType("long"))
            value = StructType((StructField("value", self.value), expires))
        match self.kind:
            case "value":
                return StoreSchema(self.name, key, value)
            case "list":
                number = StructField("index", AtomicType("long"), nullable=False)
                numbered = StructType((StructField("key", key), number))
                return StoreSchema(self.name, numbered, value, scan_columns=1)
            case "map":
                entry = StructField("userKey", self.entry or StructType(()))
                mapped = StructType((StructField("key", key), entry))
                return StoreSchema(self.name, mapped, value, scan_columns=1)

    def rows(self, *, spark_layout: bool = False) -> VariableRows:
        """The rows of an empty partition of this variable."""
        match self.kind:
            case "value":
                return ValueRows(self.name, self.ttl_ms)
            case "list":
                return ListRows(self.name, self.ttl_ms, whole=spark_layout)
            case "map":
                return MapRows(self.name, self.ttl_ms)


TIMER_STORES = {TimeMode.PROCESSING: PROCESSING_TIMERS, TimeMode.EVENT: EVENT_TIMERS}
_KINDS = {"value": "ValueState", "list": "ListState", "map": "MapState"}
_TIMES = {TimeMode.NONE: "NoTime"}
_PLAIN = KeyEncoder("plain")
_BY_TIME = KeyEncoder("range", ordering=(0,))
_BY_KEY = KeyEncoder("prefix", prefix_columns=1)
_LONG = AtomicType("long")
_COUNT = StructType((StructField("count", _LONG),))
_EXPIRY = StructType((StructField("expirationMs", _LONG),))
_NOTHING = StructType((StructField("__empty__", AtomicType("void")),))


def spark_store(
    variables: Sequence[Variable], key: StructType, mode: TimeMode, output_mode: str
) -> StoreSchema:
    """The one store of a processor with these variables."""
    families = [_family(variable, key) for variable in variables]
    if mode in TIMER_STORES:
        families.append(_timers(TIMER_STORES[mode], key))
    return StoreSchema(
        DEFAULT_STORE,
        StructType(()),
        StructType(()),
        families=tuple(families),
        properties_json=_properties(variables, mode, output_mode),
    )


def _family(variable: Variable, key: StructType) -> Family:
    name, schema = variable.name, variable.store(key)
    match variable.kind:
        case "value":
            rows = FamilyRows(FamilySchema(name, key, schema.value, encoder=_PLAIN))
            return Family(rows, _expiring(variable, key))
        case "map":
            rows = FamilyRows(
                FamilySchema(
                    name, schema.key, schema.value, encoder=_BY_KEY, user_key=variable.entry
                )
            )
            return Family(rows, _expiring(variable, schema.key))
    rows = FamilyRows(FamilySchema(name, key, schema.value, encoder=_PLAIN), is_list=True)
    counted = _index(f"$rowCounter_{name}", key, _COUNT, _PLAIN, is_list=True)
    if not variable.ttl_ms:
        return Family(rows, (counted,))
    earliest = _index(f"$min_{name}", key, _EXPIRY, _PLAIN, is_list=True)
    count = _index(f"$count_{name}", key, _COUNT, _PLAIN, is_list=True)
    expiring = _expiring(variable, key)
    return Family(rows, (*expiring, earliest, count), unused=(counted.rows.schema,))


def _timers(name: str, key: StructType) -> Family:
    schema = timer_store(name, key)
    rows = FamilyRows(FamilySchema(name, schema.key, schema.value, encoder=_BY_KEY))
    owner, time = schema.key.fields
    by_time = name.replace("_keyToTimestamp", "_timestampToKey")
    reverse = StructType((time, owner))
    return Family(rows, (_index(by_time, reverse, schema.value, _BY_TIME),))


def _expiring(variable: Variable, key: StructType) -> tuple[Index, ...]:
    if not variable.ttl_ms:
        return ()
    element = StructType((StructField("expirationMs", _LONG), StructField("elementKey", key)))
    is_list = variable.kind == "list"
    return (_index(f"$ttl_{variable.name}", element, _NOTHING, _BY_TIME, is_list=is_list),)


def _index(
    name: str, key: StructType, value: StructType, encoder: KeyEncoder, *, is_list: bool = False
) -> Index:
    rows = FamilyRows(FamilySchema(name, key, value, encoder=encoder))
    return Index(rows, index_entry(name, is_list=is_list))


def _properties(variables: Sequence[Variable], mode: TimeMode, output_mode: str) -> str:
    listed = [(state.name, _KINDS[state.kind], bool(state.ttl_ms)) for state in variables]
    if mode in TIMER_STORES:
        listed.append((TIMER_STORES[mode], "TimerState", False))
    return to_json(
        {
            "timeMode": _TIMES.get(mode, mode.value),
            "outputMode": output_mode.capitalize(),
            "stateVariables": [
                {"stateName": name, "stateVariableType": kind, "ttlEnabled": ttl}
                for name, kind, ttl in listed
            ],
        }
    )


class ProcessorHandle:
    """Provides a processor with the variables and timers of one partition."""

    def __init__(
        self,
        variables: Mapping[str, Variable],
        rows: Mapping[str, VariableRows],
        timers: Timers | None,
        mode: TimeMode,
        cursor: Cursor,
        phase: ProcessorPhase = ProcessorPhase.CREATED,
    ) -> None:
        self._variables, self._rows, self._timers = variables, rows, timers
        self._mode, self._cursor = mode, cursor
        self._phase = phase
        self._given_out: dict[str, tuple[Variable, AnyState]] = {}

    def declared(self) -> tuple[Variable, ...]:
        """The variables that `init` declared and did not delete."""
        return tuple(variable for variable, _ in self._given_out.values())

    def enter(self, phase: ProcessorPhase) -> None:
        if self._phase is ProcessorPhase.CREATED:
            unknown = sorted(set(self._given_out) - set(self._variables))
            if unknown:
                raise PySparkRuntimeError(
                    f"init declared the state variables {unknown} in a task, but on the driver it "
                    f"declared only {sorted(self._variables)}. A variable without a store would "
                    f"lose its data: init must declare the same variables every time"
                )
        self._phase = phase

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._declare("value", stateName, None, schema, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._declare("list", stateName, None, schema, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        return self._declare("map", stateName, userKeySchema, valueSchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        self._need_init("deleting state", "delete_if_exists")
        deleted = self._given_out.pop(stateName, None)
        if deleted is not None:
            invalidate(deleted[1], deleted[0].kind.capitalize())
        if stateName in self._rows:
            self._rows[stateName].drop_all()

    def registerTimer(self, expiryTimestampMs: int) -> None:
        timers = self._timers
        if timers is None or self._phase is not ProcessorPhase.INITIALIZED:
            timers = self._usable_timers("register timer", "register_timer")
        timers.register(self._cursor.key, expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        timers = self._usable_timers("deleting timer", "delete_timer")
        timers.delete(self._cursor.key, expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """Empty where timers are not allowed: PySpark's iterator swallows that error."""
        if self._timers is None or self._phase not in (
            ProcessorPhase.INITIALIZED,
            ProcessorPhase.DATA_PROCESSED,
        ):
            return
        yield from list(self._timers.of(self._cursor.key))

    def _declare(
        self, kind: Kind, name: str, entry: Any, value: Any, ttl_ms: int | None
    ) -> AnyState:
        doing = f"initializing {kind} state"
        value_schema = _schema(value, doing)
        entry_schema = None if entry is None else _schema(entry, doing)
        self._need_init(doing, f"get_{kind}_state")
        _check_name(name, doing)
        ttl = ttl_ms or 0
        if ttl and self._mode is not TimeMode.PROCESSING:
            raise failure(
                doing,
                "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL",
                f"Cannot use TTL for state={name} in timeMode={self._mode.value}, use "
                f"TimeMode.ProcessingTime() instead.",
            )
        if ttl < 0:
            raise failure(
                doing,
                "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE",
                f"TTL duration must be greater than zero for State store operation=update on "
                f"state={name}.",
            )
        return self._give_out(Variable(name, kind, entry_schema, value_schema, ttl), doing)

    def _give_out(self, variable: Variable, doing: str) -> AnyState:
        name = variable.name
        if name in self._given_out:
            raise failure(
                doing,
                "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED",
                f"State variable with name {name} has already been defined in the "
                f"StatefulProcessor.",
            )
        planned = self._variables.get(name)
        if planned is not None and planned != variable:
            raise PySparkRuntimeError(
                f"Error {doing}: init declared {name} as {variable} in a task, but as {planned} on "
                f"the driver. It must declare the same variables every time"
            )
        rows = variable.rows() if planned is None else self._rows[name]
        state = _state_object(variable, rows, self._cursor)
        self._given_out[name] = (variable, state)
        return state

    def _need_init(self, doing: str, operation: str) -> None:
        if self._phase not in (ProcessorPhase.PRE_INIT, ProcessorPhase.CREATED):
            raise _wrong_phase(doing, operation, self._phase)

    def _usable_timers(self, doing: str, operation: str) -> Timers:
        if self._mode is TimeMode.NONE:
            raise failure(
                doing,
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                f"Failed to perform stateful processor operation={operation} with invalid "
                f"timeMode=None",
            )
        if self._phase not in (ProcessorPhase.INITIALIZED, ProcessorPhase.DATA_PROCESSED):
            raise _wrong_phase(doing, operation, self._phase)
        assert self._timers is not None
        return self._timers


def record_variables(processor: Any, mode: TimeMode) -> tuple[Variable, ...]:
    """Run `init` and `close` once and return the variables that `init` declared."""
    handle = ProcessorHandle({}, {}, None, mode, Cursor(), ProcessorPhase.PRE_INIT)
    processor.init(handle)
    processor.close()
    return handle.declared()


def _state_object(variable: Variable, rows: VariableRows, at: Cursor) -> AnyState:
    form = value_converter(variable.value)
    match rows:
        case ValueRows():
            return (ExpiringValueState if variable.ttl_ms else ValueState)(rows, form, at)
        case ListRows():
            return ListState(rows, form, at)
        case MapRows():
            return MapState(rows, value_converter(variable.entry or StructType(())), form, at)


def _schema(schema: Any, doing: str) -> StructType:
    try:
        if isinstance(schema, str):
            return parse_ddl(schema)
        return parse_schema(schema.json(), source="state variable's schema")
    except StateSchemaError as error:
        raise PySparkRuntimeError(f"Error {doing}: {error}") from None


def _check_name(name: str, doing: str) -> None:
    if name.startswith("$"):
        raise failure(
            doing,
            "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS",
            f"Failed to create column family with unsupported starting character and name={name}.",
        )
    if not name or name != name.strip() or name == "default":
        raise failure(
            doing,
            "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME",
            f"Failed to perform column family operation=create_col_family with invalid "
            f"name={name}. Column family name cannot be empty or include leading/trailing spaces "
            f"or use the reserved keyword=default",
        )
    if "/" in name or name.startswith("."):
        raise PySparkRuntimeError(
            f"Error {doing}: the name {name!r} contains a slash or begins with a dot, but each "
            f"variable is a directory in the checkpoint. Choose another name"
        )


def _wrong_phase(doing: str, operation: str, phase: ProcessorPhase) -> PySparkRuntimeError:
    return failure(
        doing,
        "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE",
        f"Failed to perform stateful processor operation={operation} with invalid handle "
        f"state={phase.value}.",
    )
