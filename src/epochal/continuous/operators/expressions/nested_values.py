"""Structs, arrays and maps. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.values_of import as_column, constant
from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def _field(call: Call, value: Value) -> Value:
    return pc.struct_field(value, [call.extra["ordinal"]])


def _item(call: Call, value: Value, ordinal: Value) -> Value:
    index = int(constant(call, ordinal))
    shortest = pc.min(pc.list_value_length(value)).as_py()
    if shortest is not None and not 0 <= index < shortest:
        if call.ansi:
            raise OptionError(
                f"Array index {index} is out of bounds: an array has only {shortest} elements. "
                f"Set spark.sql.ansi.enabled to false to get null instead."
            )
        rows = [row[index] if row and 0 <= index < len(row) else None for row in value.to_pylist()]
        return pa.array(rows, value.type.value_type)
    return pc.list_element(value, index)


def _lookup(call: Call, value: Value, key: Value) -> Value:
    return pc.map_lookup(value, pa.scalar(constant(call, key), value.type.key_type), "first")


def _struct(call: Call, *values: Value) -> Value:
    names = [constant(call, name) for name in values[0::2]]
    members = values[1::2]
    rows = next((len(each) for each in members if not isinstance(each, pa.Scalar)), 1)
    return pc.make_struct(*(as_column(each, rows) for each in members), field_names=names)


FUNCTIONS: dict[str, Function] = {
    "GetStructField": _field,
    "GetArrayItem": _item,
    "GetMapValue": _lookup,
    "CreateNamedStruct": _struct,
}
