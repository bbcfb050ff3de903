"""Structs, and the elements of arrays and maps by position or key. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    Flags,
    Ints,
    all_on_columns,
    ints_of,
    list_column,
    lists_of,
    null_flags_of,
    struct_column,
    taken,
)
from epochal.continuous.operators.expressions.nested.ranks import ranks
from epochal.continuous.operators.expressions.values_of import as_column, constant
from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def _field(call: Call, value: Value) -> Value:
    return pc.struct_field(value, [call.extra["ordinal"]])


def _fields_of_elements(call: Call, value: Value) -> Value:
    lists = lists_of(value)
    member = pc.struct_field(lists.elements, [call.extra["ordinal"]])
    return list_column(member, lists.counts, lists.nulls, call.type)


def _item(call: Call, value: Value, ordinal: Value) -> Value:
    index = ints_of(ordinal)
    inside = (index >= 0) & (index < lists_of(value).counts)
    return _picked(call, value, index, inside, null_flags_of(ordinal))


def _element_at(call: Call, value: Value, key: Value) -> Value:
    if pa.types.is_map(value.type):
        return _lookup(call, value, key)
    given, counts = ints_of(key), lists_of(value).counts
    nulls = null_flags_of(key)
    if (~nulls & ~null_flags_of(value) & (given == 0)).any():
        raise OptionError("INVALID_INDEX_OF_ZERO: element_at counts from 1, but was given 0.")
    index = np.where(given > 0, given - 1, counts + given)
    return _picked(call, value, index, (index >= 0) & (index < counts), nulls)


def _picked(call: Call, value: Value, index: Ints, inside: Flags, nulls: Flags) -> Value:
    lists = lists_of(value)
    outside = ~inside & ~nulls & ~lists.nulls
    if call.ansi and outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise OptionError(
            f"INVALID_ARRAY_INDEX: an index is outside an array of {lists.counts[row]} elements. "
            f"Use get or try_element_at to get null instead."
        )
    found = inside & ~nulls & ~lists.nulls
    return taken(lists.elements, np.where(found, lists.starts + index, 0), ~found)


def _lookup(call: Call, value: Value, key: Value) -> Value:
    lists = lists_of(value)
    keys, wanted = ranks(lists.elements.field(0), key)
    hits = np.flatnonzero(keys == np.repeat(wanted, lists.counts))
    places = np.full(len(value), -1)
    places[lists.row_of[hits]] = hits
    missing = (places < 0) | null_flags_of(key)
    return taken(lists.elements.field(1), np.where(missing, 0, places), missing)


def _struct(call: Call, *values: Value) -> Value:
    names = [constant(call, name) for name in values[0::2]]
    members = values[1::2]
    rows = next((len(each) for each in members if not isinstance(each, pa.Scalar)), None)
    columns = [as_column(each, 1 if rows is None else rows) for each in members]
    kind = call.type
    if not pa.types.is_struct(kind):
        kind = pa.struct(
            [pa.field(name, each.type) for name, each in zip(names, columns, strict=True)]
        )
    made = struct_column(columns, kind)
    return made[0] if rows is None else made


FUNCTIONS: dict[str, Function] = {
    "GetStructField": _field,
    "CreateNamedStruct": _struct,
    **all_on_columns(
        {
            "GetArrayStructFields": _fields_of_elements,
            "GetArrayItem": _item,
            "GetMapValue": _lookup,
            "ElementAt": _element_at,
        }
    ),
}
