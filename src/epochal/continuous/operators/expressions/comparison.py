"""Comparisons and logic, with nulls as in SQL. Pure.

In Spark, NaN equals itself and is larger than any number. Arrays and structs are compared element
by element, with nulls first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.row_values import by_row
from epochal.continuous.operators.expressions.values_of import kernel

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def order_key(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function of a value that is not null, whose results Python orders as Spark the values."""
    if pa.types.is_floating(kind):
        return lambda value: (True, 0.0) if math.isnan(value) else (False, value)
    if pa.types.is_list(kind):
        element = _nullable_key(kind.value_type)
        return lambda values: [element(v) for v in values]
    if pa.types.is_struct(kind):
        keys = [_nullable_key(kind.field(i).type) for i in range(kind.num_fields)]
        return lambda row: [key(v) for key, v in zip(keys, row.values(), strict=True)]
    return lambda value: value


def _nullable_key(kind: pa.DataType) -> Callable[[Any], Any]:
    key = order_key(kind)
    return lambda value: (0,) if value is None else (1, key(value))


def _nested(compare: Callable[[Any, Any], bool], left: Value, right: Value) -> Value:
    key = order_key(left.type)
    return by_row(lambda a, b: compare(key(a), key(b)), pa.bool_(), left, right)


def equal(left: Value, right: Value) -> Value:
    """Whether two values are equal; null if one of them is null."""
    if pa.types.is_nested(left.type):
        return _nested(lambda a, b: a == b, left, right)
    same = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return same
    return pc.or_kleene(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def greater(left: Value, right: Value) -> Value:
    """Whether the first value is larger; null if one of them is null."""
    if pa.types.is_nested(left.type):
        return _nested(lambda a, b: a > b, left, right)
    more = pc.greater(left, right)
    if not pa.types.is_floating(left.type):
        return more
    return pc.or_kleene(more, pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right))))


def _null_safe_equal(call: Call, left: Value, right: Value) -> Value:
    same = pc.fill_null(equal(left, right), pa.scalar(False))
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))


def _in(call: Call, value: Value, *options: Value) -> Value:
    found = pc.if_else(pc.is_null(value), pa.scalar(None, pa.bool_()), pa.scalar(False))
    for option in options:
        found = pc.or_kleene(found, equal(value, option))
    return found


def _in_set(call: Call, value: Value) -> Value:
    options: list[pa.Scalar[Any]] = call.extra["values"]
    if pa.types.is_floating(value.type) or pa.types.is_nested(value.type):
        return _in(call, value, *options)
    known = [option.as_py() for option in options if option.is_valid]
    found = pc.is_in(value, value_set=pa.array(known, value.type))
    unknown = pc.is_null(value)
    if len(known) < len(options):
        unknown = pc.or_(unknown, pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def _between(call: Call, value: Value, lower: Value, upper: Value) -> Value:
    return pc.and_kleene(pc.invert(greater(lower, value)), pc.invert(greater(value, upper)))


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


def _nan_or(call: Call, value: Value, other: Value) -> Value:
    is_nan = pc.is_nan(value)
    return pc.if_else(pc.is_null(is_nan), value, pc.if_else(is_nan, other, value))


FUNCTIONS: dict[str, Function] = {
    "And": kernel("and_kleene"),
    "AtLeastNNonNulls": _not_null_count,
    "Between": _between,
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
    "NaNvl": _nan_or,
    "Not": kernel("invert"),
    "Nvl": lambda _, value: value,
    "Or": kernel("or_kleene"),
}
