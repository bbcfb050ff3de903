"""Derives from the condition of a stream-stream join which stored rows cannot match any more. Pure.

The rules are Spark's (`StreamingSymmetricHashJoinHelper`, `StreamingJoinHelper`). If event time is
among the keys, a key expires when the watermark passes it. Otherwise the condition may bound the
event time of one side by that of the other, as `right_time <= left_time + 2 seconds` does: with a
watermark on the right side, left rows older than the watermark minus 2 seconds cannot match.

Times are in milliseconds, as watermarks are. Like Spark, bounds are computed in doubles and cut off
to whole milliseconds: state must expire exactly when it does in Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.expressions.expr import (
    Call,
    Column,
    Expr,
    Literal,
    columns_in,
    in_arrow,
)

_MICROS_PER_DAY = 86_400_000_000.0


@dataclass(frozen=True, slots=True)
class _Term:
    """A summand: a column, or a constant in microseconds."""

    value: Column | float
    negative: bool


@dataclass(frozen=True, slots=True)
class Sides:
    """Where the columns of a condition come from, and which of them are event time."""

    left_columns: int
    event_times: tuple[int | None, int | None]
    """For each side, the index of event time in the condition's columns; None if it has none."""

    def side_of(self, column: Column) -> int:
        return 0 if column.index < self.left_columns else 1


def conjuncts(condition: Expr | None) -> list[Expr]:
    """The parts of a condition that AND connects."""
    match condition:
        case None:
            return []
        case Call("And", (left, right)):
            return [*conjuncts(left), *conjuncts(right)]
        case _:
            return [condition]


def conjunction(parts: Sequence[Expr]) -> Expr | None:
    """Connect conditions with AND; None if there are none."""
    return functools.reduce(lambda a, b: Call("And", (a, b), pa.bool_()), parts) if parts else None


def split_condition(
    condition: Expr | None, left_columns: int
) -> tuple[Expr | None, Expr | None, Expr | None]:
    """Split into what needs the left columns only, the right ones only, and both.

    The second part refers to the right side's columns by their index in that side.
    """
    sides = Sides(left_columns, (None, None))
    parts: tuple[list[Expr], list[Expr], list[Expr]] = ([], [], [])
    for part in conjuncts(condition):
        used = {sides.side_of(Column(index)) for index in columns_in(part)}
        if 1 not in used:
            parts[0].append(part)
        if 0 not in used:
            parts[1].append(_shifted(part, -left_columns))
        if len(used) == 2:
            parts[2].append(part)
    return conjunction(parts[0]), conjunction(parts[1]), conjunction(parts[2])


def value_watermark_ms(
    condition: Expr | None, side: int, sides: Sides, watermark_ms: int
) -> int | None:
    """The event time up to which rows of a side cannot match new rows of the other.

    None if the condition does not bound it.
    """
    if sides.event_times[1 - side] is None:
        return None
    # AND connects the parts, so each bound holds on its own. Spark takes the lowest.
    bounds: list[int] = []
    for part in conjuncts(condition):
        bound = _bound_of(part, side, sides, watermark_ms)
        if bound is not None:
            bounds.append(bound)
    return min(bounds, default=None)


def _bound_of(part: Expr, side: int, sides: Sides, watermark_ms: int) -> int | None:
    match in_arrow(part):
        case Call("LessThan" | "LessThanOrEqual" as name, (low, high)) | Call(
            "GreaterThan" | "GreaterThanOrEqual" as name, (high, low)
        ):
            bound = _solved(low, high, side, sides, watermark_ms)
            # The bound is lower if the comparison includes the value itself.
            return None if bound is None else bound - name.endswith("OrEqual")
    return None


def _solved(low: Expr, high: Expr, side: int, sides: Sides, watermark_ms: int) -> int | None:
    """Solve `low < high` for the time of a side, with the watermark as the other side's time.

    The condition `other + 5s < this` says that `this` is above the watermark plus 5 seconds.
    """
    try:
        # The sum of these is less than 0. If the time of this side is subtracted in it, then it is
        # more than the sum of the other terms.
        terms = [*_terms(low, False), *_terms(high, True)]
    except _NotLinearError:
        return None
    columns = {term.value for term in terms if isinstance(term.value, Column)}
    if any([sides.side_of(column) for column in columns].count(number) > 1 for number in (0, 1)):
        return None
    mine = [
        term
        for term in terms
        if isinstance(term.value, Column) and sides.side_of(term.value) == side
    ]
    if len(mine) != 1 or not mine[0].negative:
        return None
    total = 0.0
    for term in terms:
        if term is mine[0]:
            continue
        if isinstance(term.value, Column):
            if term.value.index != sides.event_times[1 - side]:
                return None
            amount = watermark_ms * 1000.0
        else:
            amount = term.value
        total += -amount if term.negative else amount
    return int(total / 1000.0)


class _NotLinearError(Exception):
    """An expression is not a sum of columns and constants."""


def _terms(expr: Expr, negative: bool) -> Iterator[_Term]:
    match expr:
        case Column():
            yield _Term(expr, negative)
        case Literal(value):
            yield _Term(_constant_micros(value), negative)
        case Call("Add" | "TimestampAddInterval", (first, second)):
            yield from _terms(first, negative)
            yield from _terms(second, negative)
        case Call("Subtract", (first, second)):
            yield from _terms(first, negative)
            yield from _terms(second, not negative)
        case Call("UnaryMinus", (child,)):
            yield from _terms(child, not negative)
        case Call("Cast", (child,), kind) if _is_number_or_time(kind):
            yield from _terms(child, negative)
        case _:
            raise _NotLinearError


def _is_number_or_time(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or (types.is_timestamp(kind) and kind.tz is not None)
    )


def _constant_micros(value: pa.Scalar[Any]) -> float:
    """A constant in microseconds. A plain number counts seconds. (A timestamp gives no bound.)"""
    kind, types = value.type, pa.types
    constant: Any = value.as_py()
    if constant is None:
        raise _NotLinearError
    if types.is_duration(kind):
        return float(value.cast(pa.duration("us")).cast(pa.int64()).as_py())
    if types.is_interval(kind):
        if constant.months:
            raise _NotLinearError  # a month has no fixed length
        return float(constant.days * _MICROS_PER_DAY + constant.nanoseconds / 1000.0)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return float(constant) * 1_000_000.0
    raise _NotLinearError


def _shifted(expr: Expr, by: int) -> Expr:
    match expr:
        case Column(index):
            return Column(index + by)
        case Call(arguments=arguments):
            return replace(expr, arguments=tuple(_shifted(argument, by) for argument in arguments))
        case _:
            return expr
