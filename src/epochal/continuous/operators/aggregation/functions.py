"""Aggregates as data, and our own aggregate functions with the buffers that Spark keeps for them.

Spark's DataFrames and our own builder both describe the aggregates of a query as `AggregateCall`s.
A function has the name of its class in Spark's plans, and works on columns: whatever Spark computes
from a row before it aggregates is a projection before the exchange.

Arrow computes all functions of the table, and many times faster than Spark's code. What is not in
the table, or not for a type, runs in Spark's code: see `spark_buffers`. This module is pure.

Integers add up as longs and floats as doubles. The sum of decimals has ten more digits than its
input. What is out of range depends on the mode of the call. A sum of longs raises an error
(ansi), wraps around (legacy) or becomes null (try). A sum of decimals becomes null in its buffer;
its *result* then is an error (ansi) or null.

Values are ordered as Spark orders them: NaN equals itself and is larger than any number, -0.0
equals 0.0, text is ordered by its bytes. Of equal values the earlier one is kept.

Note: sums of doubles depend on the order of rows in their last bits, as they do in Spark. Arrow
ignores NaN and does not say which of -0.0 and 0.0 it keeps: batches with either are grouped in
Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.operators.cells import Array
from epochal.errors import OptionError, StateValueError
from epochal.state.rows.arrow_types import spark_type
from epochal.state.rows.types import AtomicType, StructField

Mode: TypeAlias = Literal["ansi", "legacy", "try"]
Column: TypeAlias = Sequence[Any]
Buffer: TypeAlias = Any
"""What a fold keeps for a group: the value if it has one field, else a tuple."""
Types: TypeAlias = Sequence[pa.DataType]

LONG_RANGE = 1 << 63
MAX_DIGITS = 38
SPARE_DIGITS = 10
"""How many digits the sum of decimals has more than its input."""

_ZERO = Decimal(0)
_EXACT = Context(prec=100)
_LONG, _DOUBLE, _BOOLEAN = AtomicType("long"), AtomicType("double"), AtomicType("boolean")


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate of a query."""

    function: str
    """The simple name of the class in Spark's plans: Count, Sum, Average, …"""
    arguments: tuple[str, ...]
    """Columns of the input. `Count` without one counts rows."""
    alias: str
    type: pa.DataType
    filter: str | None = None
    """A boolean column: only rows for which it is true count (`FILTER (WHERE …)`)."""
    mode: Mode = "ansi"
    """What a sum out of range does: raise an error, wrap around, or give null."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further fields of the class in Spark's plans, such as `ignoreNulls`."""

    def computes_like(self, other: AggregateCall) -> bool:
        """Whether both have the same result. Spark then keeps one buffer for the two."""
        return replace(self, alias=other.alias, type=other.type) == other


@dataclass(frozen=True, slots=True)
class ArrowFold:
    """How Arrow's grouping computes the buffers of all groups of a batch."""

    functions: tuple[str, ...]
    """The functions whose results make up the buffer: count, sum, min, max, first or last."""
    buffers: Callable[[Sequence[Column]], Column]
    """Builds the buffers from the results of these functions."""
    cast_to: pa.DataType | None = None
    """The type to which the column is cast before Arrow groups it."""
    differs: Callable[[Any], bool] | None = None
    """Whether Arrow's result for this column would not be Spark's."""


@dataclass(frozen=True, slots=True)
class Fold:
    """An aggregate over columns of known types."""

    fields: tuple[StructField, ...]
    """The fields of the buffer in state."""
    new: Callable[[], Buffer]
    """Returns the buffer of a group without rows."""
    update: Callable[[Buffer, Any], Buffer]
    """Adds a row to a buffer. Takes the value of the argument, or a tuple of several."""
    merge: Callable[[Buffer, Buffer], Buffer]
    """Merges the earlier and the later buffer of a group. Both may be used up."""
    results: Callable[[Sequence[Buffer]], Column]
    arrow: ArrowFold | None = None


def _count(call: AggregateCall, kinds: Types) -> Fold:
    """Counts rows in which no argument is null."""
    several = len(kinds) > 1

    def update(count: int, value: Any) -> int:
        if several:
            return count if None in value else count + 1
        return count if value is None else count + 1

    return Fold(
        fields=(StructField("count", _LONG),),
        new=lambda: 0,
        update=update,
        merge=operator.add,
        results=_as_they_are,
        arrow=ArrowFold(("count",), lambda found: found[0]),
    )


def _sum(call: AggregateCall, kinds: Types) -> Fold:
    """The sum of the values that are not null; null if there are none."""
    (kind,) = kinds
    if pa.types.is_decimal(kind):
        return _decimal_sum(call, kind)
    wide = _summed_type(kind, call)
    whole = not pa.types.is_floating(wide)
    if whole and call.mode == "try":
        raise OptionError("try_sum runs in Spark's own code")
    add: Callable[[Any, Any], Any] = _long_addition(call) if whole else operator.add
    zero: Any = 0 if whole else 0.0

    def update(total: Any, value: Any) -> Any:
        if value is None:
            return total
        return add(zero if total is None else total, value)

    def merge(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return add(a, b)

    return Fold(
        fields=(StructField("sum", spark_type(wide)),),
        new=lambda: None,
        update=update,
        merge=merge,
        results=_as_they_are,
        arrow=ArrowFold(
            ("sum",),
            lambda found: found[0],
            cast_to=wide,
            differs=_may_overflow if whole and call.mode == "ansi" else None,
        )
        if not pa.types.is_duration(kind)
        else None,
    )


def _average(call: AggregateCall, kinds: Types) -> Fold:
    """The mean of the values that are not null; null if there are none."""
    (kind,) = kinds
    if pa.types.is_decimal(kind):
        return _decimal_average(call, kind)
    if pa.types.is_duration(kind):
        return _duration_average(call, kind)
    _summed_type(kind, call)

    def update(buffer: tuple[float, int], value: Any) -> tuple[float, int]:
        return buffer if value is None else (buffer[0] + value, buffer[1] + 1)

    return Fold(
        fields=(StructField("sum", _DOUBLE), StructField("count", _LONG)),
        new=lambda: (0.0, 0),
        update=update,
        merge=lambda a, b: (a[0] + b[0], a[1] + b[1]),
        results=lambda kept: [total / number if number else None for total, number in kept],
        arrow=ArrowFold(
            ("sum", "count"),
            lambda found: list(zip(_replace_nulls(found[0], 0.0), found[1], strict=True)),
            cast_to=pa.float64(),
        ),
    )


def _as_they_are(buffers: Sequence[Any]) -> Column:
    return buffers


def _replace_nulls(values: Column, default: Any) -> Column:
    return [default if value is None else value for value in values]


def _summed_type(kind: pa.DataType, call: AggregateCall) -> pa.DataType:
    """The type of the sum of a column that is not a decimal."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_duration(kind):
        return kind
    raise OptionError(
        f"{call.function} needs a numeric column, but {call.arguments[0]!r} is of type {kind}"
    )


def _long_addition(call: AggregateCall) -> Callable[[int, int], int]:
    def checked(a: int, b: int) -> int:
        total = a + b
        if not -LONG_RANGE <= total < LONG_RANGE:
            raise StateValueError(call.arguments[0], "bigint", f"the sum {total} is out of range")
        return total

    def wrapped(a: int, b: int) -> int:
        return (a + b + LONG_RANGE) % (2 * LONG_RANGE) - LONG_RANGE

    return wrapped if call.mode == "legacy" else checked


def _may_overflow(column: Array) -> bool:
    """Whether the sum of an integer column might exceed the range of a long."""
    if not pa.types.is_int64(column.type) or not len(column):
        return False
    extremes: Any = pc.min_max(column).as_py()
    # No group of the batch can have a larger sum. Python adds up the sums of batches, and checks.
    largest: int = max(abs(extremes["min"] or 0), abs(extremes["max"] or 0))
    return largest * len(column) >= LONG_RANGE


def _decimal_sum(call: AggregateCall, kind: Any) -> Fold:
    """A sum that may be null because it is out of range; a flag tells whether there are values."""
    wide = _summed_decimal(kind)
    add, checked = _decimal_addition(wide), _checked_sums(call)

    def update(buffer: tuple[Any, bool], value: Any) -> tuple[Any, bool]:
        return buffer if value is None else (add(buffer[0], value), False)

    def results(sums: Sequence[tuple[Any, bool]]) -> Column:
        totals = iter(checked([total for total, empty in sums if not empty]))
        return [None if empty else next(totals) for _, empty in sums]

    def buffers(results: Sequence[Column]) -> Column:
        empty = [not number for number in results[1]]
        return list(zip(_replace_nulls(results[0], _ZERO), empty, strict=True))

    return Fold(
        fields=(StructField("sum", spark_type(wide)), StructField("isEmpty", _BOOLEAN)),
        new=lambda: (_ZERO, True),
        update=update,
        merge=lambda a, b: (add(a[0], b[0]), a[1] and b[1]),
        results=results,
        arrow=_decimals_in_arrow(kind, wide, buffers),
    )


def _decimal_average(call: AggregateCall, kind: Any) -> Fold:
    wide: Any = _summed_decimal(kind)
    target: Any = call.type
    add = _decimal_addition(wide)
    checked = _checked_sums(call)
    unit = Decimal(1).scaleb(-target.scale)
    limit = Decimal(1).scaleb(target.precision - target.scale)

    def mean(total: Decimal | None, number: int) -> Decimal | None:
        if total is None:
            return None
        # Spark divides to a quotient of at most 38 digits first, then rounds to the result's.
        quotient = _EXACT.divide(total, Decimal(number)).quantize(unit, ROUND_HALF_UP, _EXACT)
        if quotient.copy_abs() < limit:
            return quotient
        if call.mode == "ansi":
            raise _out_of_range(call, quotient)
        return None

    def results(sums: Sequence[tuple[Any, int]]) -> Column:
        checked([total for total, number in sums if number])
        return [mean(total, number) if number else None for total, number in sums]

    def buffers(results: Sequence[Column]) -> Column:
        return list(zip(_replace_nulls(results[0], _ZERO), results[1], strict=True))

    return _sum_and_count(wide, _ZERO, add, results, _decimals_in_arrow(kind, wide, buffers))


def _decimals_in_arrow(
    kind: Any, wide: pa.DataType, buffers: Callable[[Sequence[Column]], Column]
) -> ArrowFold | None:
    """How Arrow adds up decimals, if the sum has a place for all digits."""
    if kind.precision + SPARE_DIGITS > MAX_DIGITS:
        return None
    return ArrowFold(("sum", "count"), buffers, cast_to=wide)


def _duration_average(call: AggregateCall, kind: pa.DataType) -> Fold:
    """The mean of intervals, rounded half up to a microsecond."""

    def mean(total: int, number: int) -> int:
        size = (2 * abs(total) + number) // (2 * number)
        return size if total >= 0 else -size

    def results(sums: Sequence[tuple[int, int]]) -> Column:
        return [mean(total, number) if number else None for total, number in sums]

    return _sum_and_count(kind, 0, _long_addition(call), results, None)


def _sum_and_count(
    kind: pa.DataType,
    zero: Any,
    add: Callable[[Any, Any], Any],
    results: Callable[[Sequence[Any]], Column],
    arrow: ArrowFold | None,
) -> Fold:
    def update(buffer: tuple[Any, int], value: Any) -> tuple[Any, int]:
        return buffer if value is None else (add(buffer[0], value), buffer[1] + 1)

    return Fold(
        fields=(StructField("sum", spark_type(kind)), StructField("count", _LONG)),
        new=lambda: (zero, 0),
        update=update,
        merge=lambda a, b: (add(a[0], b[0]), a[1] + b[1]),
        results=results,
        arrow=arrow,
    )


def _summed_decimal(kind: Any) -> Any:
    return pa.decimal128(min(MAX_DIGITS, kind.precision + SPARE_DIGITS), kind.scale)


def _decimal_addition(wide: Any) -> Callable[[Any, Any], Any]:
    limit = Decimal(1).scaleb(wide.precision - wide.scale)

    def add(a: Decimal | None, b: Decimal | None) -> Decimal | None:
        if a is None or b is None:
            return None
        total = _EXACT.add(a, b)
        return total if total.copy_abs() < limit else None  # `abs` would round

    return add


def _checked_sums(call: AggregateCall) -> Callable[[Column], Column]:
    """Sums of at least one value: a null among them was out of range."""

    def checked(sums: Column) -> Column:
        if call.mode == "ansi" and None in sums:
            raise _out_of_range(call, "of its values")
        return sums

    return checked


def _out_of_range(call: AggregateCall, what: Any) -> StateValueError:
    column = call.arguments[0]
    return StateValueError(column, str(call.type), f"{call.function} {what} is out of range")


def _first(call: AggregateCall, kinds: Types) -> Fold:
    """The value of the first row, or with `ignoreNulls` the first value that is not null."""
    ignores_nulls = bool(call.extra.get("ignoreNulls", False))

    def update(buffer: tuple[Any, bool], value: Any) -> tuple[Any, bool]:
        if buffer[1] or (ignores_nulls and value is None):
            return buffer
        return (value, True)

    return _of_one_row("first", kinds[0], update, lambda a, b: a if a[1] else b)


def _last(call: AggregateCall, kinds: Types) -> Fold:
    """The value of the last row, or with `ignoreNulls` the last value that is not null."""
    ignores_nulls = bool(call.extra.get("ignoreNulls", False))

    def update(buffer: tuple[Any, bool], value: Any) -> tuple[Any, bool]:
        return buffer if ignores_nulls and value is None else (value, True)

    return _of_one_row("last", kinds[0], update, lambda a, b: b if b[1] else a)


def _extreme(name: str, call: AggregateCall, kinds: Types) -> Fold:
    """The least or greatest value."""
    (kind,) = kinds
    if pa.types.is_nested(kind):
        raise OptionError(
            f"{call.function} of {call.arguments[-1]!r}: values of type {kind} are ordered only in "
            f"DataFrames, by Spark's own code"
        )
    is_float = pa.types.is_floating(kind)
    less: Callable[[Any, Any], Any] = _less_with_nan if is_float else operator.lt

    def least(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return b if less(b, a) else a

    def greatest(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return b if less(a, b) else a

    better = least if name == "min" else greatest
    arrow = None
    if not (pa.types.is_duration(kind) or pa.types.is_time(kind)):
        differs = _has_nan_or_negative_zero if is_float else None
        arrow = ArrowFold((name,), lambda found: found[0], differs=differs)
    return Fold(
        fields=(StructField(name, spark_type(kind)),),
        new=lambda: None,
        update=better,
        merge=better,
        results=_as_they_are,
        arrow=arrow,
    )


def _less_with_nan(a: float, b: float) -> bool:
    return a < b or (b != b and a == a)


def _of_one_row(
    name: str,
    kind: pa.DataType,
    update: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any],
) -> Fold:
    return Fold(
        fields=(StructField(name, spark_type(kind)), StructField("valueSet", _BOOLEAN)),
        new=lambda: (None, False),
        update=update,
        merge=merge,
        results=lambda kept: [value for value, _ in kept],
        arrow=ArrowFold((name,), lambda found: list(zip(found[0], found[1], strict=True))),
    )


def _has_nan_or_negative_zero(column: Array) -> bool:
    if bool(pc.any(pc.is_nan(column)).as_py()):
        return True
    values = column.drop_null().to_numpy(zero_copy_only=False)
    return bool(np.any(np.signbit(values) & (values == 0)))


FUNCTIONS: dict[str, Callable[[AggregateCall, Types], Fold]] = {
    "Count": _count,
    "Sum": _sum,
    "Average": _average,
    "Min": partial(_extreme, "min"),
    "Max": partial(_extreme, "max"),
    "First": _first,
    "Last": _last,
}
"""By the names of Spark's classes. Each takes the call and the types of its arguments."""


def fold_of(call: AggregateCall, schema: pa.Schema) -> Fold:
    return FUNCTIONS[call.function](call, [schema.field(column).type for column in call.arguments])
