"""Numbers, comparisons, logic, texts and structs where Arrow's result is Spark's for sure. Pure.

What overflows, divides by zero or does not fit raises AskSpark: Spark's code then returns null, a
wrapped number or its own error. A remainder has the sign of its dividend. In Spark, NaN equals
itself and is larger than any number. Upper and lower case, lengths and positions are Arrow's only
for texts of ASCII characters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import (
    AskSpark,
    Call,
    Function,
    Value,
    as_column,
    retyped,
)
from epochal.record_batches import struct_of

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name
types = pa.types


def _checked(kernel: str) -> Function:
    def apply(call: Call, *values: Value) -> Value:
        if types.is_decimal(values[0].type):
            kernel_of_decimals = kernel.removesuffix("_checked")
            result = pc.call_function(kernel_of_decimals, list(values))
            if result.type != call.type:
                raise AskSpark  # Spark rounds to fewer digits
            return result
        return pc.call_function(kernel, list(values))

    return apply


def _unchanged(kernel: str) -> Function:
    """A kernel for all numbers but decimals: Java rounds some of those to 34 digits."""

    def apply(call: Call, *values: Value) -> Value:
        if types.is_decimal(values[0].type):
            raise AskSpark
        return pc.call_function(kernel, list(values))

    return apply


def _divide(call: Call, left: Value, right: Value) -> Value:
    if not types.is_integer(left.type) and not types.is_floating(left.type):
        raise AskSpark  # Spark rounds decimals, and cuts the quotient of two intervals
    return pc.divide_checked(left, right)


def _remainder(call: Call, left: Value, right: Value) -> Value:
    if not types.is_integer(left.type):
        raise AskSpark
    # Arrow cuts off quotients as Java does, and fails for 0 and for the lowest number by -1.
    rest = pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))
    if call.function == "Remainder":
        return rest
    zero = pa.scalar(0, left.type)
    if pc.any(as_column(pc.less(right, zero), 1)).as_py():
        raise AskSpark  # the sum below could wrap around in Java
    return pc.if_else(pc.less(rest, zero), pc.add(rest, right), rest)


def _normalized(call: Call, value: Value) -> Value:
    """One form of NaN, and 0.0 for -0.0, so that equal keys have equal bytes."""
    kind = value.type
    if not types.is_floating(kind):
        raise AskSpark
    zero = pc.if_else(pc.equal(value, pa.scalar(0.0, kind)), pa.scalar(0.0, kind), value)
    return pc.if_else(pc.is_nan(zero), pa.scalar(float("nan"), kind), zero)


def _unscaled(call: Call, value: Value) -> Value:
    """The digits of a decimal as a long: 1.25 is 125."""
    scale = value.type.scale
    if isinstance(value, pa.Scalar):
        number = value.as_py()
        return pa.scalar(None if number is None else int(number.scaleb(scale)), pa.int64())
    wide = value.cast(pa.decimal128(38, scale))
    # Arrow stores the digits as 128 bits. The optimiser uses this function for at most 18 digits.
    words = np.frombuffer(wide.buffers()[1], np.int64)[2 * wide.offset :: 2][: len(wide)]
    return pa.array(words, mask=wide.is_null().to_numpy(zero_copy_only=False))


def _decimal_of_unscaled(call: Call, value: Value) -> Value:
    """The decimal with these digits."""
    kind: Any = call.type
    limit = pa.scalar(min(10**kind.precision, 2**63 - 1), pa.int64())
    if pc.any(as_column(pc.greater_equal(pc.abs_checked(value), limit), 1)).as_py():
        raise AskSpark
    whole = value.cast(pa.decimal128(19, 0)).cast(pa.decimal256(38, 19))
    factor = pa.scalar(Decimal(1).scaleb(-kind.scale), pa.decimal256(19, kind.scale))
    return pc.multiply(whole, factor).cast(kind)


def equal(left: Value, right: Value) -> Value:
    """Whether two values are equal; null if one of them is null."""
    same = pc.equal(left, right)
    if not types.is_floating(left.type):
        return same
    return pc.or_kleene(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def greater(left: Value, right: Value) -> Value:
    """Whether the first value is larger; null if one of them is null."""
    more = pc.greater(left, right)
    if not types.is_floating(left.type):
        return more
    return pc.or_kleene(more, pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right))))


def _null_safe_equal(call: Call, left: Value, right: Value) -> Value:
    same = pc.fill_null(equal(left, right), pa.scalar(False))
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))


def _in(call: Call, value: Value, *options: Value) -> Value:
    result = pc.if_else(pc.is_null(value), pa.scalar(None, pa.bool_()), pa.scalar(False))
    for option in options:
        result = pc.or_kleene(result, equal(value, option))
    return result


def _in_set(call: Call, value: Value) -> Value:
    options: list[pa.Scalar[Any]] = call.extra["values"]
    if types.is_floating(value.type):
        return _in(call, value, *options)
    constants = [option.as_py() for option in options if option.is_valid]
    result = pc.is_in(value, value_set=pa.array(constants, value.type))
    unknown = pc.is_null(value)
    if len(constants) < len(options):
        unknown = pc.or_(unknown, pc.invert(result))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), result)


def _extreme(better: Callable[[Value, Value], Value]) -> Function:
    def choose(best: Value, other: Value) -> Value:
        # Of equal values the first stays, which matters for 0.0 and -0.0.
        wins = pc.fill_null(better(other, best), pa.scalar(False))
        wins = pc.or_(wins, pc.and_(pc.is_null(best), pc.is_valid(other)))
        return pc.if_else(wins, other, best)

    return lambda _, *values: functools.reduce(choose, values)


def _not_null_count(call: Call, *values: Value) -> Value:
    """Whether at least n values are neither null nor NaN."""
    count: Value = pa.scalar(0, pa.int32())
    for value in values:
        present = pc.is_valid(value)
        if types.is_floating(value.type):
            present = pc.and_(present, pc.invert(pc.fill_null(pc.is_nan(value), True)))
        count = pc.add(count, pc.cast(present, pa.int32()))
    return pc.greater_equal(count, pa.scalar(call.extra["n"], pa.int32()))


def _require_ascii(value: Value) -> None:
    if types.is_binary(value.type):
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
    if first < 0 or not types.is_string(value.type):
        raise AskSpark
    _require_ascii(value)
    first = max(first - 1, 0)
    return pc.utf8_slice_codeunits(value, start=first, stop=first + max(count, 0))


def _concat(call: Call, *values: Value) -> Value:
    if any(types.is_nested(value.type) for value in values):
        raise AskSpark
    separator = pa.scalar("" if types.is_string(call.type) else b"", call.type)
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
    if rows is None or not types.is_struct(kind):
        raise AskSpark
    fields = list(kind)
    columns = [
        retyped(as_column(member, rows), field.type)
        for member, field in zip(members, fields, strict=True)
    ]
    return struct_of(columns, fields, rows)


COMPARISONS: dict[str, Function] = {
    "And": lambda _, left, right: pc.and_kleene(left, right),
    "AtLeastNNonNulls": _not_null_count,
    "Coalesce": lambda _, *values: pc.coalesce(*values),
    "EqualNullSafe": _null_safe_equal,
    "EqualTo": lambda _, left, right: equal(left, right),
    "GreaterThan": lambda _, left, right: greater(left, right),
    "GreaterThanOrEqual": lambda _, left, right: pc.invert(greater(right, left)),
    "Greatest": _extreme(greater),
    "In": _in,
    "InSet": _in_set,
    "IsNaN": lambda _, value: pc.fill_null(pc.is_nan(value), pa.scalar(False)),
    "IsNotNull": lambda _, value: pc.is_valid(value),
    "IsNull": lambda _, value: pc.is_null(value),
    "Least": _extreme(lambda left, right: greater(right, left)),
    "LessThan": lambda _, left, right: greater(right, left),
    "LessThanOrEqual": lambda _, left, right: pc.invert(greater(left, right)),
    "Not": lambda _, value: pc.invert(value),
    "Or": lambda _, left, right: pc.or_kleene(left, right),
}
"""Comparisons and logic, with nulls as in SQL: they have a result whatever the values are."""

FUNCTIONS: dict[str, Function] = {
    **COMPARISONS,
    "Add": _checked("add_checked"),
    "BitwiseAnd": _unchanged("bit_wise_and"),
    "BitwiseNot": _unchanged("bit_wise_not"),
    "BitwiseOr": _unchanged("bit_wise_or"),
    "BitwiseXor": _unchanged("bit_wise_xor"),
    "Concat": _concat,
    "Contains": _found("match_substring"),
    "CreateNamedStruct": _struct,
    "Divide": _divide,
    "EndsWith": _found("ends_with"),
    "GetStructField": lambda call, value: pc.struct_field(value, [call.extra["ordinal"]]),
    "IntegralDivide": _divide,
    "Length": lambda call, value: pc.cast(_of_ascii("binary_length")(call, value), pa.int32()),
    "Lower": _of_ascii("ascii_lower"),
    "MakeDecimal": _decimal_of_unscaled,
    "Multiply": _checked("multiply_checked"),
    "NormalizeNaNAndZero": _normalized,
    "Pmod": _remainder,
    "Remainder": _remainder,
    "StartsWith": _found("starts_with"),
    "StringTrim": _trim,
    "Substring": _substring,
    "Subtract": _checked("subtract_checked"),
    "UnaryMinus": _unchanged("negate_checked"),
    "UnscaledValue": _unscaled,
    "Upper": _of_ascii("ascii_upper"),
}
