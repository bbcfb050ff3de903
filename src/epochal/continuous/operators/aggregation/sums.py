"""Count, sum and average, with the buffers that Spark keeps for them. Pure.

Integers add up as longs and floats as doubles. The sum of decimals has ten more digits than its
input. What is out of range depends on the mode of the call. A sum of longs raises an error
(ansi), wraps around (legacy) or becomes null (try). A sum of decimals becomes null in its buffer;
its *result* then is an error (ansi) or null.

Note: sums of doubles depend on the order of rows in their last bits, as they do in Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.operators.aggregation.calls import AggregateCall, ArrowFold, Column, Fold
from epochal.continuous.operators.cells import Array
from epochal.errors import OptionError, StateValueError
from epochal.state.rows.arrow_types import spark_type
from epochal.state.rows.types import AtomicType, StructField

LONG_RANGE = 1 << 63
MAX_DIGITS = 38
SPARE_DIGITS = 10
"""How many digits the sum of decimals has more than its input."""

_ZERO = Decimal(0)
_EXACT = Context(prec=100)
_LONG, _DOUBLE, _BOOLEAN = AtomicType("long"), AtomicType("double"), AtomicType("boolean")


def count(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """Counts rows in which no argument is null."""
    several = len(kinds) > 1

    def update(found: int, value: Any) -> int:
        if several:
            return found if None in value else found + 1
        return found if value is None else found + 1

    return Fold(
        fields=(StructField("count", _LONG),),
        new=lambda: 0,
        update=update,
        merge=operator.add,
        results=as_they_are,
        arrow=ArrowFold(("count",), lambda found: found[0]),
    )


def sum_(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """The sum of the values that are not null; null if there are none."""
    (kind,) = kinds
    if pa.types.is_decimal(kind):
        return _decimal_sum(call, kind)
    wide = summed_type(kind, call)
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
        results=as_they_are,
        arrow=ArrowFold(
            ("sum",),
            lambda found: found[0],
            cast_to=wide,
            differs=_may_overflow if whole and call.mode == "ansi" else None,
        )
        if not pa.types.is_duration(kind)
        else None,
    )


def average(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """The mean of the values that are not null; null if there are none."""
    (kind,) = kinds
    if pa.types.is_decimal(kind):
        return _decimal_average(call, kind)
    if pa.types.is_duration(kind):
        return _duration_average(call, kind)
    summed_type(kind, call)

    def update(kept: tuple[float, int], value: Any) -> tuple[float, int]:
        return kept if value is None else (kept[0] + value, kept[1] + 1)

    return Fold(
        fields=(StructField("sum", _DOUBLE), StructField("count", _LONG)),
        new=lambda: (0.0, 0),
        update=update,
        merge=lambda a, b: (a[0] + b[0], a[1] + b[1]),
        results=lambda kept: [total / number if number else None for total, number in kept],
        arrow=ArrowFold(
            ("sum", "count"),
            lambda found: list(zip(replace_nulls(found[0], 0.0), found[1], strict=True)),
            cast_to=pa.float64(),
        ),
    )


def as_they_are(kept: Sequence[Any]) -> Column:
    return kept


def replace_nulls(values: Column, default: Any) -> Column:
    return [default if value is None else value for value in values]


def summed_type(kind: pa.DataType, call: AggregateCall) -> pa.DataType:
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
    found: Any = pc.min_max(column).as_py()
    largest: int = max(abs(found["min"] or 0), abs(found["max"] or 0))
    return largest * len(column) >= LONG_RANGE


def _decimal_sum(call: AggregateCall, kind: Any) -> Fold:
    wide = _summed_decimal(kind)
    checked = _checked_sums(call)
    arrow = None
    if kind.precision + SPARE_DIGITS <= MAX_DIGITS:
        arrow = ArrowFold(
            ("sum", "count"),
            lambda found: list(
                zip(replace_nulls(found[0], _ZERO), [not n for n in found[1]], strict=True)
            ),
            cast_to=wide,
        )
    return _sum_with_flag(spark_type(wide), _decimal_addition(wide), _ZERO, checked, arrow)


def _sum_with_flag(
    kind: Any,
    add: Callable[[Any, Any], Any],
    zero: Any,
    results: Callable[[Column], Column],
    arrow: ArrowFold | None,
) -> Fold:
    """A sum that may be null because it is out of range; a flag tells whether there are values."""

    def update(kept: tuple[Any, bool], value: Any) -> tuple[Any, bool]:
        return kept if value is None else (add(kept[0], value), False)

    def total_or_none(kept: Sequence[tuple[Any, bool]]) -> Column:
        found = iter(results([total for total, empty in kept if not empty]))
        return [None if empty else next(found) for _, empty in kept]

    return Fold(
        fields=(StructField("sum", kind), StructField("isEmpty", _BOOLEAN)),
        new=lambda: (zero, True),
        update=update,
        merge=lambda a, b: (add(a[0], b[0]), a[1] and b[1]),
        results=total_or_none,
        arrow=arrow,
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
        found = _EXACT.divide(total, Decimal(number)).quantize(unit, ROUND_HALF_UP, _EXACT)
        if found.copy_abs() < limit:
            return found
        if call.mode == "ansi":
            raise _out_of_range(call, found)
        return None

    def results(kept: Sequence[tuple[Any, int]]) -> Column:
        checked([total for total, number in kept if number])
        return [mean(total, number) if number else None for total, number in kept]

    def update(kept: tuple[Any, int], value: Any) -> tuple[Any, int]:
        return kept if value is None else (add(kept[0], value), kept[1] + 1)

    arrow = None
    if kind.precision + SPARE_DIGITS <= MAX_DIGITS:
        arrow = ArrowFold(
            ("sum", "count"),
            lambda found: list(zip(replace_nulls(found[0], _ZERO), found[1], strict=True)),
            cast_to=wide,
        )
    return Fold(
        fields=(StructField("sum", spark_type(wide)), StructField("count", _LONG)),
        new=lambda: (_ZERO, 0),
        update=update,
        merge=lambda a, b: (add(a[0], b[0]), a[1] + b[1]),
        results=results,
        arrow=arrow,
    )


def _duration_average(call: AggregateCall, kind: pa.DataType) -> Fold:
    """The mean of intervals, rounded half up to a microsecond."""
    add = _long_addition(call)

    def update(kept: tuple[int, int], value: Any) -> tuple[int, int]:
        return kept if value is None else (add(kept[0], value), kept[1] + 1)

    def mean(total: int, number: int) -> int:
        size = (2 * abs(total) + number) // (2 * number)
        return size if total >= 0 else -size

    return Fold(
        fields=(StructField("sum", spark_type(kind)), StructField("count", _LONG)),
        new=lambda: (0, 0),
        update=update,
        merge=lambda a, b: (add(a[0], b[0]), a[1] + b[1]),
        results=lambda kept: [mean(total, number) if number else None for total, number in kept],
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
