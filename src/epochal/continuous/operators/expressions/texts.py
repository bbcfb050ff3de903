"""Functions of texts and structs where Arrow's result is Spark's for sure. Pure.

Upper and lower case, lengths and positions are Arrow's only for texts of ASCII characters.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.columns import as_column, retyped
from epochal.continuous.operators.expressions.expr import AskSpark, Call, Function, Value
from epochal.record_batches import struct_of

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def _require_ascii(value: Value) -> None:
    if pa.types.is_binary(value.type):
        return
    if pc.all(as_column(pc.string_is_ascii(value), 1)).as_py() is False:
        raise AskSpark


def _of_ascii(kernel: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        _require_ascii(value)
        return pc.call_function(kernel, [value])

    return apply


def _constant(value: Value) -> Any:
    if not isinstance(value, pa.Scalar) or not value.is_valid:
        raise AskSpark
    return value.as_py()


def _found(kernel: str) -> Function:
    def apply(call: Call, value: Value, pattern: Value) -> Value:
        return getattr(pc, kernel)(value, pattern=_constant(pattern))

    return apply


def _substring(call: Call, value: Value, start: Value, length: Value) -> Value:
    first, count = _constant(start), _constant(length)
    if first < 0 or not pa.types.is_string(value.type):
        raise AskSpark
    _require_ascii(value)
    first = max(first - 1, 0)
    return pc.utf8_slice_codeunits(value, start=first, stop=first + max(count, 0))


def _concat(call: Call, *values: Value) -> Value:
    if any(pa.types.is_nested(value.type) for value in values):
        raise AskSpark
    separator = pa.scalar("" if pa.types.is_string(call.type) else b"", call.type)
    if all(isinstance(value, pa.Scalar) for value in values):
        raise AskSpark
    return pc.binary_join_element_wise(*values, separator, null_handling="emit_null")


def _trim(call: Call, value: Value, *characters: Value) -> Value:
    if characters:
        raise AskSpark
    return pc.ascii_trim(value, characters=" ")


def _struct(call: Call, *values: Value) -> Value:
    members, kind = values[1::2], call.type
    rows = next((len(member) for member in members if not isinstance(member, pa.Scalar)), None)
    if rows is None or not pa.types.is_struct(kind):
        raise AskSpark
    fields = list(kind)
    columns = [
        retyped(as_column(member, rows), field.type)
        for member, field in zip(members, fields, strict=True)
    ]
    return struct_of(columns, fields, rows)


FUNCTIONS: dict[str, Function] = {
    "Concat": _concat,
    "Contains": _found("match_substring"),
    "CreateNamedStruct": _struct,
    "EndsWith": _found("ends_with"),
    "GetStructField": lambda call, value: pc.struct_field(value, [call.extra["ordinal"]]),
    "Length": lambda call, value: pc.cast(_of_ascii("binary_length")(call, value), pa.int32()),
    "Lower": _of_ascii("ascii_lower"),
    "StartsWith": _found("starts_with"),
    "StringTrim": _trim,
    "Substring": _substring,
    "Upper": _of_ascii("ascii_upper"),
}
