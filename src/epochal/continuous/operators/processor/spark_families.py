"""The state of a processor as Spark lays it out: one store, a column family for each variable.

Spark adds families of its own, whose names start with `$`: timers, how long lists are, and when
values expire. Most of them are indexes on a variable and follow from its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochal.checkpoint.layout import DEFAULT_STORE
from epochal.checkpoint.spark_json import to_json
from epochal.continuous.operators.contract import StoreSchema
from epochal.continuous.operators.processor.processor_handle import TimeMode, Variable
from epochal.continuous.operators.processor.timers import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    timer_store,
)
from epochal.state.files.rocksdb_family import Family, FamilyRows, Index, index_entry
from epochal.state.files.schema_file import FamilySchema, KeyEncoder
from epochal.state.rows.types import AtomicType, StructField, StructType

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
    families = [_family(each, key) for each in variables]
    if mode in TIMER_STORES:
        families.append(_timers(TIMER_STORES[mode], key))
    nothing = StructType(())
    return StoreSchema(
        DEFAULT_STORE,
        nothing,
        nothing,
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
    listed = [(each.name, _KINDS[each.kind], bool(each.ttl_ms)) for each in variables]
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
