"""Arithmetic and rounding. Pure.

In ANSI mode, overflow and division by zero are errors. A remainder has the sign of its dividend.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.values_of import constant, kernel

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def _arithmetic(checked: str, unchecked: str) -> Function:
    def apply(call: Call, *values: Value) -> Value:
        return pc.call_function(checked if call.ansi else unchecked, list(values))

    return apply


def _divide(call: Call, left: Value, right: Value) -> Value:
    if call.ansi:
        return pc.divide_checked(left, right)
    return pc.divide(left, _null_if_zero(right))


def _remainder(call: Call, left: Value, right: Value) -> Value:
    if not call.ansi:
        right = _null_if_zero(right)
    if pa.types.is_integer(left.type):
        return pc.subtract(left, pc.multiply(right, pc.divide_checked(left, right)))
    return pc.subtract(left, pc.multiply(right, pc.trunc(pc.divide_checked(left, right))))


def _null_if_zero(value: Value) -> Value:
    zero = pa.scalar(0, value.type)
    return pc.if_else(pc.equal(value, zero), pa.scalar(None, value.type), value)


def _round(call: Call, value: Value, digits: Value) -> Value:
    scale = int(constant(call, digits))
    if pa.types.is_integer(value.type) and scale >= 0:
        return value
    return pc.round(value, ndigits=scale, round_mode="half_towards_infinity")


def _whole(name: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        if pa.types.is_integer(value.type):
            return pc.cast(value, pa.int64())
        return pc.cast(pc.call_function(name, [value]), pa.int64())

    return apply


FUNCTIONS: dict[str, Function] = {
    "Add": _arithmetic("add_checked", "add"),
    "Subtract": _arithmetic("subtract_checked", "subtract"),
    "Multiply": _arithmetic("multiply_checked", "multiply"),
    "UnaryMinus": _arithmetic("negate_checked", "negate"),
    "Abs": _arithmetic("abs_checked", "abs"),
    "Divide": _divide,
    "IntegralDivide": _divide,
    "Remainder": _remainder,
    "Round": _round,
    "Floor": _whole("floor"),
    "Ceil": _whole("ceil"),
    "Sqrt": kernel("sqrt"),
    "Exp": kernel("exp"),
    "Log": lambda _, value: pc.ln(pc.if_else(pc.less_equal(value, 0.0), None, value)),
    "Pow": lambda _, base, power: pc.power(base, power),
}
