"""Comparisons and logic, with nulls as in SQL. Pure.

In Spark, NaN equals itself and is larger than any number.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.values_of import kernel

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def _equal(call: Call, left: Value, right: Value) -> Value:
    same = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return same
    return pc.or_kleene(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _null_safe_equal(call: Call, left: Value, right: Value) -> Value:
    same = pc.fill_null(_equal(call, left, right), pa.scalar(False))
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))


def _greater(call: Call, left: Value, right: Value) -> Value:
    more = pc.greater(left, right)
    if not pa.types.is_floating(left.type):
        return more
    return pc.or_kleene(more, pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right))))


def _less(call: Call, left: Value, right: Value) -> Value:
    return _greater(call, right, left)


def _greater_or_equal(call: Call, left: Value, right: Value) -> Value:
    return pc.invert(_greater(call, right, left))


def _less_or_equal(call: Call, left: Value, right: Value) -> Value:
    return pc.invert(_greater(call, left, right))


def _in(call: Call, value: Value, *options: Value) -> Value:
    found: Value = pa.scalar(False)
    for option in options:
        found = pc.or_kleene(found, _equal(call, value, option))
    return found


def _between(call: Call, value: Value, lower: Value, upper: Value) -> Value:
    return pc.and_kleene(_greater_or_equal(call, value, lower), _less_or_equal(call, value, upper))


FUNCTIONS: dict[str, Function] = {
    "EqualTo": _equal,
    "EqualNullSafe": _null_safe_equal,
    "GreaterThan": _greater,
    "LessThan": _less,
    "GreaterThanOrEqual": _greater_or_equal,
    "LessThanOrEqual": _less_or_equal,
    "And": kernel("and_kleene"),
    "Or": kernel("or_kleene"),
    "Not": kernel("invert"),
    "IsNull": lambda _, value: pc.is_null(value),
    "IsNotNull": lambda _, value: pc.is_valid(value),
    "IsNaN": lambda _, value: pc.fill_null(pc.is_nan(value), pa.scalar(False)),
    "In": _in,
    "Between": _between,
    "Nvl": lambda _, value: value,
    "Coalesce": lambda _, *values: pc.coalesce(*values),
    "Greatest": lambda _, *values: pc.max_element_wise(*values, skip_nulls=True),
    "Least": lambda _, *values: pc.min_element_wise(*values, skip_nulls=True),
}
