"""The aggregate functions: their buffers, and their results. Pure.

Each function is a fold whose buffer has the columns and names of Spark's aggregation buffer, so
that Spark can read the state. Rows become buffers either one by one or through Arrow's grouping.
The buffers of a group are merged field by field.

Note: in Spark, NaN equals itself and is larger than any number, so it is the maximum of its group.
Arrow ignores NaN, so batches with NaN are processed in Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.operators.cells import Array
from epochal.errors import OptionError, StateValueError
from epochal.state.rows.arrow_types import spark_type
from epochal.state.rows.types import AtomicType, StructField

Function: TypeAlias = Literal["count", "sum", "min", "max", "avg", "first", "last"]
FUNCTIONS: tuple[Function, ...] = ("count", "sum", "min", "max", "avg", "first", "last")

Column: TypeAlias = Sequence[Any]
Merge: TypeAlias = Callable[[Any, Any], Any]

_LONG = 1 << 63
_ZERO = Decimal(0)
_EXACT = Context(prec=60)
_LONG_TYPE, _DOUBLE_TYPE = AtomicType("long"), AtomicType("double")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a query: function, column (None counts rows) and output name."""

    function: Function
    column: str | None
    alias: str

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise OptionError(
                f"{self.function!r} is not an aggregate function. Use one of {list(FUNCTIONS)}"
            )
        if self.column is None and self.function != "count":
            raise OptionError(f"{self.function} needs a column. Only count works without one")


@dataclass(frozen=True, slots=True)
class Fold:
    """An aggregate over a column of a known type.

    Columns are lists of values as stores hold them. The buffer of a group has one value per field.
    """

    fields: tuple[StructField, ...]
    """The fields of the buffer."""
    merges: tuple[Merge, ...]
    """For each field, the function that merges an earlier and a later value."""
    lift: Callable[[Column], list[Column]]
    """Turns each value of a column into a buffer, field by field."""
    output: pa.DataType
    result: Callable[[Sequence[Column]], Column]
    """Computes the results of many groups from their buffers."""
    arrow_functions: tuple[str, ...]
    """The Arrow functions whose results make up the buffer."""
    from_arrow: Callable[[Sequence[Column]], list[Column]]
    """Builds the buffer from the results of these functions."""
    cast_to: pa.DataType | None = None
    """The type to which the column is cast before Arrow groups it."""


def fold_of(aggregate: Aggregate, schema: pa.Schema) -> Fold:
    """The fold of an aggregate for input of this schema."""
    if aggregate.column is None:
        return _count()
    if aggregate.column not in schema.names:
        raise OptionError(
            f"{aggregate.function} uses column {aggregate.column!r}, which does not exist. The "
            f"columns are {schema.names}"
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
            return _first_or_last(kind, first=True)
        case "last":
            return _first_or_last(kind, first=False)


def has_nan(column: Array) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def may_overflow(column: Array) -> bool:
    """Whether the sum of an integer column might exceed the range of a long."""
    if not pa.types.is_int64(column.type) or not len(column):
        return False
    found: Any = pc.min_max(column).as_py()
    largest: int = max(abs(found["min"] or 0), abs(found["max"] or 0))
    return largest * len(column) >= _LONG


def _count() -> Fold:
    return Fold(
        fields=(StructField("count", _LONG_TYPE),),
        merges=(operator.add,),
        lift=lambda values: [[0 if value is None else 1 for value in values]],
        output=pa.int64(),
        result=_first_column,
        arrow_functions=("count",),
        from_arrow=list,
    )


def _sum(kind: pa.DataType, column: str) -> Fold:
    if pa.types.is_decimal(kind):
        return _decimal_sum(kind)
    wide = _sum_type(kind, "sum", column)

    def add(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        total = a + b
        if type(total) is int and not -_LONG <= total < _LONG:
            raise StateValueError(column, "bigint", f"the sum {total} is out of range")
        return total

    return Fold(
        fields=(StructField("sum", spark_type(wide)),),
        merges=(add,),
        lift=lambda values: [values],
        output=wide,
        result=_first_column,
        arrow_functions=("sum",),
        from_arrow=list,
        cast_to=wide,
    )


def _decimal_sum(kind: Any) -> Fold:
    """For decimals, Spark's buffer also records whether there was any value."""
    wide = pa.decimal128(min(38, kind.precision + 10), kind.scale)
    return Fold(
        fields=(
            StructField("sum", spark_type(wide)),
            StructField("isEmpty", AtomicType("boolean")),
        ),
        merges=(_EXACT.add, operator.and_),
        lift=lambda values: [_replace_nulls(values, _ZERO), [value is None for value in values]],
        output=wide,
        result=lambda kept: [None if empty else total for total, empty in zip(*kept, strict=True)],
        arrow_functions=("sum", "count"),
        from_arrow=lambda found: [
            _replace_nulls(found[0], _ZERO),
            [not count for count in found[1]],
        ],
        cast_to=wide,
    )


def _average(kind: Any, column: str) -> Fold:
    if pa.types.is_decimal(kind):
        return _decimal_average(kind)
    _sum_type(kind, "avg", column)
    return Fold(
        fields=(StructField("sum", _DOUBLE_TYPE), StructField("count", _LONG_TYPE)),
        merges=(operator.add, operator.add),
        lift=lambda values: [
            [0.0 if value is None else float(value) for value in values],
            [0 if value is None else 1 for value in values],
        ],
        output=pa.float64(),
        result=lambda kept: [
            total / count if count else None for total, count in zip(*kept, strict=True)
        ],
        arrow_functions=("sum", "count"),
        from_arrow=lambda found: [_replace_nulls(found[0], 0.0), found[1]],
        cast_to=pa.float64(),
    )


def _decimal_average(kind: Any) -> Fold:
    wide = pa.decimal128(min(38, kind.precision + 10), kind.scale)
    scale = min(38, kind.scale + 4)
    unit = Decimal(1).scaleb(-scale)

    def mean(total: Decimal, count: int) -> Decimal:
        return _EXACT.divide(total, Decimal(count)).quantize(unit, ROUND_HALF_UP, _EXACT)

    return Fold(
        fields=(StructField("sum", spark_type(wide)), StructField("count", _LONG_TYPE)),
        merges=(_EXACT.add, operator.add),
        lift=lambda values: [
            _replace_nulls(values, _ZERO),
            [0 if value is None else 1 for value in values],
        ],
        output=pa.decimal128(min(38, kind.precision + 4), scale),
        result=lambda kept: [
            mean(total, count) if count else None for total, count in zip(*kept, strict=True)
        ],
        arrow_functions=("sum", "count"),
        from_arrow=lambda found: [_replace_nulls(found[0], _ZERO), found[1]],
        cast_to=wide,
    )


def _extreme(kind: pa.DataType, aggregate: Aggregate, *, least: bool) -> Fold:
    if pa.types.is_nested(kind):
        raise OptionError(
            f"{aggregate.function} of {aggregate.column!r}: values of type {kind} cannot be ordered"
        )
    choose = min if least else max
    rank = _nan_last if pa.types.is_floating(kind) else None

    def better(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return choose(a, b) if rank is None else choose(a, b, key=rank)

    return Fold(
        fields=(StructField(aggregate.function, spark_type(kind)),),
        merges=(better,),
        lift=lambda values: [values],
        output=kind,
        result=_first_column,
        arrow_functions=("min" if least else "max",),
        from_arrow=list,
    )


def _first_or_last(kind: pa.DataType, *, first: bool) -> Fold:
    """The value of the first or last row, even if it is null."""
    merge: Merge = (lambda a, b: a) if first else (lambda a, b: b)
    return Fold(
        fields=(
            StructField("first" if first else "last", spark_type(kind)),
            StructField("valueSet", AtomicType("boolean")),
        ),
        merges=(merge, merge),
        lift=lambda values: [values, [True] * len(values)],
        output=kind,
        result=_first_column,
        arrow_functions=("first" if first else "last",),
        from_arrow=lambda found: [found[0], [True] * len(found[0])],
    )


def _sum_type(kind: pa.DataType, function: str, column: str) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    raise OptionError(f"{function} needs a numeric column, but {column!r} is of type {kind}")


def _first_column(kept: Sequence[Column]) -> Column:
    return kept[0]


def _replace_nulls(values: Column, default: Any) -> Column:
    return [default if value is None else value for value in values]


def _nan_last(value: float) -> tuple[bool, float]:
    return (True, 0.0) if value != value else (False, value)
