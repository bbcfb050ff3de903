"""Functions of texts. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.values_of import constant, kernel
from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def _like(call: Call, value: Value, pattern: Value) -> Value:
    return pc.match_like(value, constant(call, pattern))


def _regex(call: Call, value: Value, pattern: Value) -> Value:
    return pc.match_substring_regex(value, constant(call, pattern))


def _substring(call: Call, value: Value, position: Value, length: Value) -> Value:
    start, count = int(constant(call, position)), int(constant(call, length))
    if pa.types.is_binary(value.type):
        cut: Any = pc.binary_slice
        if start < 0:
            raise OptionError(
                "substring of binary with a negative position is not supported. Use map_in_arrow."
            )
    else:
        cut = pc.utf8_slice_codeunits
    if start >= 0:
        first = max(start - 1, 0)
        # Spark counts positions from 1, and 0 means the same as 1.
        return cut(value, first, max(first, first + count))
    if count <= 0:
        return cut(value, 0, 0)
    return cut(value, start, start + count if start + count < 0 else None)


def _concat(call: Call, *values: Value) -> Value:
    kind = values[0].type
    empty = b"" if pa.types.is_binary(kind) else ""
    return pc.binary_join_element_wise(*values, pa.scalar(empty, kind), null_handling="emit_null")


FUNCTIONS: dict[str, Function] = {
    "Like": _like,
    "RLike": _regex,
    "StartsWith": lambda call, value, part: pc.starts_with(value, constant(call, part)),
    "EndsWith": lambda call, value, part: pc.ends_with(value, constant(call, part)),
    "Contains": lambda call, value, part: pc.match_substring(value, constant(call, part)),
    "Concat": _concat,
    "Upper": kernel("utf8_upper"),
    "Lower": kernel("utf8_lower"),
    "Length": lambda _, value: pc.cast(
        pc.binary_length(value) if pa.types.is_binary(value.type) else pc.utf8_length(value),
        pa.int32(),
    ),
    "StringTrim": lambda _, value: pc.utf8_trim(value, " "),
    "StringTrimLeft": lambda _, value: pc.utf8_ltrim(value, " "),
    "StringTrimRight": lambda _, value: pc.utf8_rtrim(value, " "),
    "Substring": _substring,
}
