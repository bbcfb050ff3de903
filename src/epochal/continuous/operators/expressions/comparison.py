"""Comparisons and logic, with nulls as in SQL. Pure.

In Spark, NaN equals itself and is larger than any number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def equal(left: Value, right: Value) -> Value:
    """Whether two values are equal; null if one of them is null."""
    same = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return same
    return pc.or_kleene(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def greater(left: Value, right: Value) -> Value:
    """Whether the first value is larger; null if one of them is null."""
    more = pc.greater(left, right)
    if not pa.types.is_floating(left.type):
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
    if pa.types.is_floating(value.type):
        return _in(call, value, *options)
    known = [option.as_py() for option in options if option.is_valid]
    result = pc.is_in(value, value_set=pa.array(known, value.type))
    unknown = pc.is_null(value)
    if len(known) < len(options):
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
        if pa.types.is_floating(value.type):
            present = pc.and_(present, pc.invert(pc.fill_null(pc.is_nan(value), True)))
        count = pc.add(count, pc.cast(present, pa.int32()))
    return pc.greater_equal(count, pa.scalar(call.extra["n"], pa.int32()))


FUNCTIONS: dict[str, Function] = {
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
