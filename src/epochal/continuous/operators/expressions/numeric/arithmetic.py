"""Arithmetic on whole and floating-point numbers. Pure. Decimals are in `decimals`.

In ANSI mode, overflow and division by zero are errors; otherwise whole numbers wrap around as in
Java, and a division by zero is null. A remainder has the sign of its dividend.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import null_flags_of
from epochal.continuous.operators.expressions.numeric import decimals
from epochal.continuous.operators.expressions.row_casts import saturated, whole_of
from epochal.continuous.operators.expressions.row_values import by_row
from epochal.continuous.operators.expressions.values_of import as_column, constant, kernel
from epochal.continuous.operators.spark_values.number_texts import EXACT, round_to_single
from epochal.errors import ExpressionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name
types = pa.types


def overflow(call: Call) -> ExpressionError:
    """The error of a result that does not fit in its type."""
    return ExpressionError(
        f"ARITHMETIC_OVERFLOW: a result of {call.function} does not fit in {call.type}. Use a "
        f"try_ function to get null instead, or set spark.sql.ansi.enabled to false."
    )


def _zero(call: Call) -> ExpressionError:
    return ExpressionError(
        f"DIVIDE_BY_ZERO: {call.function} was given a divisor of 0. Use a try_ function to get "
        f"null instead, or set spark.sql.ansi.enabled to false."
    )


def _arithmetic(checked: str, unchecked: str) -> Function:
    def apply(call: Call, *values: Value) -> Value:
        if any(types.is_decimal(value.type) for value in values):
            return decimals.arithmetic(call, *values)
        if call.mode == "legacy":
            return pc.call_function(unchecked, list(values))
        try:
            return pc.call_function(checked, list(values))
        except pa.ArrowInvalid:
            if call.ansi:
                raise overflow(call) from None
            return _or_null(checked, values)

    return apply


def _or_null(checked: str, values: tuple[Value, ...]) -> Value:
    def single(*arguments: Any) -> Any:
        scalars = [pa.scalar(a, v.type) for a, v in zip(arguments, values, strict=True)]
        try:
            return pc.call_function(checked, scalars).as_py()
        except pa.ArrowInvalid:
            return None

    return by_row(single, values[0].type, *values)


def _divisor(call: Call, left: Value, right: Value) -> Value:
    """The divisor with null instead of 0. In ANSI mode, 0 is an error."""
    if isinstance(right, pa.Scalar) and right.as_py():
        return right
    is_zero = pc.equal(right, pa.scalar(0, right.type))
    fails = pc.and_kleene(is_zero, pc.is_valid(left))
    fails = fails if isinstance(fails, pa.Scalar) else pc.any(fails)
    if call.ansi and fails.as_py():
        raise _zero(call)
    return pc.if_else(is_zero, pa.scalar(None, right.type), right)


def _divide(call: Call, left: Value, right: Value) -> Value:
    right = _divisor(call, left, right)
    if types.is_decimal(left.type):
        return decimals.arithmetic(call, left, right)
    if types.is_floating(left.type):
        return pc.divide(left, right)
    lowest = pa.scalar(-(2 ** (left.type.bit_width - 1)), left.type)
    minus_one = pa.scalar(-1, left.type)
    if call.mode == "legacy":
        # Java wraps around: the lowest number divided by -1 is itself.
        wraps = pc.and_(pc.equal(left, lowest), pc.equal(right, minus_one))
        one = pa.scalar(1, left.type)
        return pc.divide(left, pc.if_else(pc.fill_null(wraps, pa.scalar(False)), one, right))
    try:
        return pc.divide_checked(left, right)
    except pa.ArrowInvalid:
        if call.ansi:
            raise overflow(call) from None
        return _or_null("divide_checked", (left, right))


def _remainder(call: Call, left: Value, right: Value) -> Value:
    right = _divisor(call, left, right)
    if types.is_decimal(left.type):
        return decimals.arithmetic(call, left, right)
    columns = [as_column(value, 1) for value in (left, right)]  # NumPy repeats a single value
    numbers = [
        pc.fill_null(column, pa.scalar(1, column.type)).to_numpy(zero_copy_only=False)
        for column in columns
    ]
    if types.is_integer(left.type) and left.type.bit_width < 32:
        numbers = [number.astype(np.int32) for number in numbers]  # as in Java
    with np.errstate(all="ignore"):
        rest = np.fmod(*numbers)
        if call.function == "Pmod":
            rest = np.where(rest < 0, np.fmod(rest + numbers[1], numbers[1]), rest)
    nulls = np.logical_or(*(null_flags_of(column) for column in columns))
    found = pa.array(rest, mask=nulls, from_pandas=False).cast(left.type)
    return found[0] if all(isinstance(value, pa.Scalar) for value in (left, right)) else found


def _round(mode: str) -> Function:
    def apply(call: Call, value: Value, digits: Value) -> Value:
        scale = constant(call, digits)
        kind = value.type
        if scale is None:
            return pa.scalar(None, kind if types.is_null(call.type) else call.type)
        if types.is_decimal(kind):
            target = kind if types.is_null(call.type) else call.type
            return decimals.rounded(call, value, int(scale), mode, target)
        if types.is_integer(kind):
            return value if scale >= 0 else _round_integer(call, value, int(scale), mode)
        narrow = round_to_single if kind == pa.float32() else float
        step = Decimal(1).scaleb(-int(scale), EXACT)

        def single(number: float) -> float:
            if not math.isfinite(number) or (scale >= 0 and abs(number) >= 2**53):
                return number
            return narrow(float(Decimal(repr(number)).quantize(step, mode, EXACT) + 0))

        return by_row(single, kind, value)

    return apply


def _round_integer(call: Call, value: Value, scale: int, mode: str) -> Value:
    kind, step = value.type, Decimal(1).scaleb(-scale)
    low: int = -(1 << kind.bit_width - 1)

    def single(number: int) -> int:
        found = int(Decimal(number).quantize(step, mode, EXACT))
        if low <= found < -low:
            return found
        if call.ansi:
            raise overflow(call)
        return (found - low) % (-2 * low) + low

    return by_row(single, kind, value)


def _whole(name: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        if types.is_decimal(value.type):
            mode = "ROUND_CEILING" if name == "ceil" else "ROUND_FLOOR"
            kind = value.type
            target = pa.decimal128(min(kind.precision - kind.scale + 1, 38), 0)
            found = target if types.is_null(call.type) else call.type
            return decimals.rounded(call, value, 0, mode, found)
        if types.is_integer(value.type):
            return pc.cast(value, pa.int64())
        rounded = pc.call_function(name, [value])
        try:
            return pc.cast(rounded, pa.int64())
        except pa.ArrowInvalid:
            return by_row(lambda number: _long(call, number), pa.int64(), rounded)

    return apply


def _long(call: Call, number: float) -> int:
    if call.mode == "legacy":
        return saturated(number, 64)
    found = whole_of(number, -(2**63), 2**63 - 1)
    if found is None:
        raise overflow(call)
    return found


def _sign(number: float) -> float:
    return number if math.isnan(number) or number == 0 else math.copysign(1.0, number)


FUNCTIONS: dict[str, Function] = {
    "Abs": _arithmetic("abs_checked", "abs"),
    "Add": _arithmetic("add_checked", "add"),
    "BRound": _round(ROUND_HALF_EVEN),
    "BitwiseAnd": kernel("bit_wise_and"),
    "BitwiseNot": kernel("bit_wise_not"),
    "BitwiseOr": kernel("bit_wise_or"),
    "BitwiseXor": kernel("bit_wise_xor"),
    "Ceil": _whole("ceil"),
    "Divide": _divide,
    "Floor": _whole("floor"),
    "IntegralDivide": _divide,
    "Multiply": _arithmetic("multiply_checked", "multiply"),
    "Pmod": _remainder,
    "Remainder": _remainder,
    "Round": _round(ROUND_HALF_UP),
    "RoundCeil": _round("ROUND_CEILING"),
    "RoundFloor": _round("ROUND_FLOOR"),
    "Signum": lambda _, value: by_row(_sign, value.type, value),
    "Subtract": _arithmetic("subtract_checked", "subtract"),
    "UnaryMinus": _arithmetic("negate_checked", "negate"),
    "UnaryPositive": lambda _, value: value,
}
