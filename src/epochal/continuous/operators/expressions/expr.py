"""Column expressions as trees, and the Arrow values that they have for a batch. Pure.

Trees are pickled and sent to tasks. Names, types and implicit casts are already resolved: a column
is an index into the batch, and every call knows the type of its result. The functions have the
names of Spark's Catalyst classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Value: TypeAlias = Any
"""An Arrow array of the batch's length, or a scalar."""
Array: TypeAlias = Any
Kind: TypeAlias = Any
"""An Arrow type. The stubs do not know that a list type has a `value_type`."""

arrow: Any = pa  # its stubs are too strict about types that are known at run time only

EITHER = "ArrowOrSpark"
"""A call whose first argument is an expression that Arrow evaluates, and whose second is the same
expression for Spark's code, which decides where Arrow is not sure."""


class AskSpark(Exception):
    """Arrow is not sure to have Spark's result for these values."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the batch, by its index."""

    index: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: pa.Scalar[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        # As an array: a scalar that is an interval cannot be pickled.
        alone: Any = pa.repeat  # its stub has a variant per type, but none for any type
        return _first_of, (alone(self.value, 1),)


def _first_of(values: pa.Array[Any]) -> Literal:
    return Literal(values[0])


@dataclass(frozen=True, slots=True)
class Call:
    """A Spark function, by its class name, with further fields of that class in `extra`."""

    function: str
    arguments: tuple[Expr, ...]
    type: pa.DataType = field(default_factory=pa.null)
    """The type of the result; null if it is not known."""
    extra: Mapping[str, Any] = field(default_factory=dict)


Expr: TypeAlias = Column | Literal | Call

Function: TypeAlias = Callable[..., Value]
"""Takes a call and the values of its arguments."""


def columns_in(expr: Expr) -> frozenset[int]:
    """The indexes of the batch's columns that an expression uses."""
    match expr:
        case Column(index):
            return frozenset((index,))
        case Literal():
            return frozenset()
        case Call(_, arguments):
            return frozenset().union(*map(columns_in, arguments))


def type_of(expr: Expr, columns: Sequence[pa.DataType]) -> pa.DataType:
    """The type of an expression over columns of these types."""
    match expr:
        case Column(index):
            return columns[index]
        case Call(type=kind):
            return kind
        case Literal(value):
            constant: pa.DataType = value.type
            return constant


def in_arrow(expr: Expr) -> Expr:
    """The form of an expression that Arrow evaluates, if it has one: it shows what is computed."""
    match expr:
        case Call(function, arguments) if function == EITHER:
            return arguments[0]
    return expr


def as_column(value: Value, rows: int) -> Value:
    """Repeat a scalar `rows` times; a column stays as it is."""
    if not isinstance(value, pa.Scalar):
        return value
    # Arrow cannot repeat a list or a map zero times.
    return arrow.repeat(value, rows) if rows else arrow.nulls(0, value.type)


def column_of(value: Value, rows: int, kind: pa.DataType) -> Value:
    value = as_column(value, rows)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    return retyped(value, kind)


def retyped(column: Array, kind: Kind) -> Array:
    """A column with the type `kind`, which differs at most in names and in what may be null."""
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return arrow.nulls(len(column), kind)
    if pa.types.is_nested(kind) and _has_layout(column.type, kind):
        # The same buffers under other names: nothing is copied or checked.
        _, buffers = column.__arrow_c_array__()
        return arrow.Array._import_from_c_capsule(kind.__arrow_c_schema__(), buffers)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        fields = list(kind)
        if not fields:
            return column
        members = [retyped(column.field(i), field.type) for i, field in enumerate(fields)]
        return pa.StructArray.from_arrays(members, fields=fields, mask=_nulls(column))
    if pa.types.is_nested(kind) and pa.types.is_nested(column.type):
        return _retyped_list(column, kind)
    return column.cast(kind)


def _has_layout(own: Kind, wanted: Kind) -> bool:
    """Whether values of two types have the same buffers."""
    if not own.num_fields or not wanted.num_fields:
        return bool(own == wanted)
    return (
        own.id == wanted.id
        and own.num_fields == wanted.num_fields
        and all(_has_layout(own.field(i).type, wanted.field(i).type) for i in range(own.num_fields))
    )


def _retyped_list(column: Array, kind: Kind) -> Array:
    mask = _nulls(column)
    parts = [column]
    if pa.types.is_map(column.type):
        starts = arrow.array(np.asarray(column.offsets))
        parts = [
            arrow.ListArray.from_arrays(starts, part, mask=mask)
            for part in (column.keys, column.items)
        ]
    counts = parts[0].value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    elements = [part.flatten() for part in parts]
    if pa.types.is_map(kind):
        if len(elements) == 1:
            elements = [elements[0].field(0), elements[0].field(1)]
        keys, items = retyped(elements[0], kind.key_type), retyped(elements[1], kind.item_type)
        return arrow.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    return arrow.ListArray.from_arrays(
        offsets, retyped(elements[0], kind.value_type), type=kind, mask=mask
    )


def _nulls(column: Array) -> Array:
    return column.is_null() if column.null_count else arrow.array(np.zeros(len(column), bool))
