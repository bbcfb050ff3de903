"""Column expressions as trees. Pure data, pickled and sent to tasks.

Names, types and implicit casts are already resolved: a column is an index into the batch, and every
call knows the type of its result. The functions have the names of Spark's Catalyst classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

Value: TypeAlias = Any
"""An Arrow array of the batch's length, or a scalar."""

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
