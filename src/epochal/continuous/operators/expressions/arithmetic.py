"""Arithmetic where Arrow's result is Spark's for sure. Pure.

What overflows, divides by zero or does not fit raises AskSpark: Spark's code then returns null, a
wrapped number or its own error. A remainder has the sign of its dividend.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.columns import as_column
from epochal.continuous.operators.expressions.expr import AskSpark, Call, Function, Value

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


FUNCTIONS: dict[str, Function] = {
    "Add": _checked("add_checked"),
    "BitwiseAnd": _unchanged("bit_wise_and"),
    "BitwiseNot": _unchanged("bit_wise_not"),
    "BitwiseOr": _unchanged("bit_wise_or"),
    "BitwiseXor": _unchanged("bit_wise_xor"),
    "Divide": _divide,
    "IntegralDivide": _divide,
    "MakeDecimal": _decimal_of_unscaled,
    "Multiply": _checked("multiply_checked"),
    "NormalizeNaNAndZero": _normalized,
    "Pmod": _remainder,
    "Remainder": _remainder,
    "Subtract": _checked("subtract_checked"),
    "UnaryMinus": _unchanged("negate_checked"),
    "UnscaledValue": _unscaled,
}
