"""Aggregates over a group: what is kept of its rows, and what comes out. Pure.

Each is a fold in Spark's own form: the columns it keeps are those of Spark's aggregation buffer,
with their names, so that its state reads alike. Values of a batch become one partial buffer,
either from a list or through Arrow's grouping, and partial buffers are merged.

What a reader would get wrong: NaN. In Spark it equals itself and is larger than any number, so it
is the maximum wherever it occurs. Arrow passes over it; batches with NaN take the slow way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.operators.cells import Array
from epochal.continuous.operators.contract import Row
from epochal.errors import OptionError, StateValueError
from epochal.state.arrow_types import spark_type
from epochal.state.types import AtomicType, DataType, StructField

Function: TypeAlias = Literal["count", "sum", "min", "max", "avg", "first", "last"]
FUNCTIONS: tuple[Function, ...] = ("count", "sum", "min", "max", "avg", "first", "last")

_LONG = 1 << 63
_EXACT = Context(prec=60)
_LONG_TYPE, _DOUBLE_TYPE = AtomicType("long"), AtomicType("double")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a query: a function, its column (none counts rows), and its name."""

    function: Function
    column: str | None
    alias: str

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise OptionError(f"{self.function!r} is no aggregate; there are {list(FUNCTIONS)}")
        if self.column is None and self.function != "count":
            raise OptionError(f"{self.function} needs a column; only count can do without")


@dataclass(frozen=True, slots=True)
class Fold:
    """An aggregate over a column of a known type."""

    fields: tuple[StructField, ...]
    """What is kept of a group."""
    output: pa.DataType
    partial: Callable[[list[Any]], Row]
    """From values as stores hold them."""
    merge: Callable[[Row, Row], Row]
    """Of what was there before, and what came later."""
    result: Callable[[Row], Any]
    grouped: tuple[str, ...]
    """The functions of Arrow's that give a partial buffer…"""
    joined: Callable[[Sequence[Any]], Row]
    """…and what makes one of their results."""
    widened: pa.DataType | None = None
    """What the column is cast to before Arrow groups it."""


def fold_of(aggregate: Aggregate, schema: pa.Schema) -> Fold:
    """The aggregate over the columns of the schema."""
    if aggregate.column is None:
        return _count()
    if aggregate.column not in schema.names:
        raise OptionError(
            f"{aggregate.function} is over {aggregate.column!r}, but the columns are {schema.names}"
        )
    kind = schema.field(aggregate.column).type
    match aggregate.function:
        case "count":
            return _count()
        case "sum":
            return _sum(kind, aggregate.column)
        case "min":
            return _extreme(kind, aggregate, least=True)
        case "max":
            return _extreme(kind, aggregate, least=False)
        case "avg":
            return _average(kind, aggregate.column)
        case "first":
            return _chosen(kind, first=True)
        case "last":
            return _chosen(kind, first=False)


def has_nan(column: Array) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def may_overflow(column: Array) -> bool:
    """Whether the sum of a column of integers could leave the range of a long."""
    if not pa.types.is_int64(column.type) or not len(column):
        return False
    found: Any = pc.min_max(column).as_py()
    largest: int = max(abs(found["min"] or 0), abs(found["max"] or 0))
    return largest * len(column) >= _LONG


def _count() -> Fold:
    return Fold(
        fields=(StructField("count", _LONG_TYPE),),
        output=pa.int64(),
        partial=lambda values: (sum(value is not None for value in values),),
        merge=lambda a, b: (a[0] + b[0],),
        result=lambda kept: kept[0],
        grouped=("count",),
        joined=lambda found: (found[0],),
    )


def _sum(kind: pa.DataType, column: str) -> Fold:
    if pa.types.is_decimal(kind):
        return _decimal_sum(kind)
    wide = _summed(kind, "sum", column)

    def checked(value: Any) -> Any:
        if type(value) is int and not -_LONG <= value < _LONG:
            raise StateValueError(column, "bigint", f"the sum is {value}, which is out of range")
        return value

    def partial(values: list[Any]) -> Row:
        known = [value for value in values if value is not None]
        return (checked(sum(known)) if known else None,)

    def merge(a: Row, b: Row) -> Row:
        if a[0] is None or b[0] is None:
            return a if b[0] is None else b
        return (checked(a[0] + b[0]),)

    return Fold(
        fields=(StructField("sum", spark_type(wide)),),
        output=wide,
        partial=partial,
        merge=merge,
        result=lambda kept: kept[0],
        grouped=("sum",),
        joined=lambda found: (found[0],),
        widened=wide,
    )


def _decimal_sum(kind: Any) -> Fold:
    """Spark keeps whether there was any value beside a sum of decimals."""
    wide = pa.decimal128(min(38, kind.precision + 10), kind.scale)

    def partial(values: list[Any]) -> Row:
        known = [value for value in values if value is not None]
        return (_added(known), not known)

    return Fold(
        fields=(
            StructField("sum", spark_type(wide)),
            StructField("isEmpty", AtomicType("boolean")),
        ),
        output=wide,
        partial=partial,
        merge=lambda a, b: (_EXACT.add(a[0], b[0]), a[1] and b[1]),
        result=lambda kept: None if kept[1] else kept[0],
        grouped=("sum", "count"),
        joined=lambda found: (found[0] if found[1] else Decimal(0), not found[1]),
        widened=wide,
    )


def _average(kind: Any, column: str) -> Fold:
    decimal = pa.types.is_decimal(kind)
    if decimal:
        wide: pa.DataType = pa.decimal128(min(38, kind.precision + 10), kind.scale)
        scale = min(38, kind.scale + 4)
        output: pa.DataType = pa.decimal128(min(38, kind.precision + 4), scale)
        zero: Any = Decimal(0)
        unit = Decimal(1).scaleb(-scale)
    else:
        _summed(kind, "avg", column)
        wide = output = pa.float64()
        zero = 0.0

    def partial(values: list[Any]) -> Row:
        known = [value for value in values if value is not None]
        return (_added(known) if decimal else sum(map(float, known)) + zero, len(known))

    def result(kept: Row) -> Any:
        if not kept[1]:
            return None
        if not decimal:
            return kept[0] / kept[1]
        return _EXACT.divide(kept[0], Decimal(kept[1])).quantize(unit, ROUND_HALF_UP, _EXACT)

    return Fold(
        fields=(StructField("sum", spark_type(wide)), StructField("count", _LONG_TYPE)),
        output=output,
        partial=partial,
        merge=lambda a, b: ((_EXACT.add(a[0], b[0]) if decimal else a[0] + b[0]), a[1] + b[1]),
        result=result,
        grouped=("sum", "count"),
        joined=lambda found: (found[0] if found[1] else zero, found[1]),
        widened=wide,
    )


def _extreme(kind: pa.DataType, aggregate: Aggregate, *, least: bool) -> Fold:
    if pa.types.is_nested(kind):
        raise OptionError(f"{aggregate.function} of {aggregate.column!r}: {kind} has no order here")
    choose = min if least else max
    rank = _nan_last if pa.types.is_floating(kind) else None

    def partial(values: list[Any]) -> Row:
        known = [value for value in values if value is not None]
        return (choose(known, key=rank) if known else None,)

    def merge(a: Row, b: Row) -> Row:
        if a[0] is None or b[0] is None:
            return a if b[0] is None else b
        return (choose(a[0], b[0], key=rank),)

    return Fold(
        fields=(StructField(aggregate.function, spark_type(kind)),),
        output=kind,
        partial=partial,
        merge=merge,
        result=lambda kept: kept[0],
        grouped=("min" if least else "max",),
        joined=lambda found: (found[0],),
    )


def _chosen(kind: pa.DataType, *, first: bool) -> Fold:
    """The first or last row's value, null or not."""
    place = 0 if first else -1
    data_type: DataType = spark_type(kind)
    return Fold(
        fields=(
            StructField("first" if first else "last", data_type),
            StructField("valueSet", AtomicType("boolean")),
        ),
        output=kind,
        partial=lambda values: (values[place], True),
        merge=(lambda a, b: a) if first else (lambda a, b: b),
        result=lambda kept: kept[0],
        grouped=("first" if first else "last",),
        joined=lambda found: (found[0], True),
    )


def _summed(kind: pa.DataType, function: str, column: str) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    raise OptionError(f"{function} needs a number, but {column!r} is of type {kind}")


def _added(values: list[Decimal]) -> Decimal:
    total = Decimal(0)
    for value in values:
        total = _EXACT.add(total, value)
    return total


def _nan_last(value: float) -> tuple[bool, float]:
    return (True, 0.0) if value != value else (False, value)
