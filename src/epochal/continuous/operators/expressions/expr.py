"""Column expressions as trees. Pure data, pickled and sent to tasks.

Names, types and implicit casts are already resolved: a column is an index into the batch, and every
call knows the type of its result. The functions have the names of Spark's Catalyst classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from typing import Literal as OneOf

import pyarrow as pa

Value: TypeAlias = Any
"""An Arrow array of the batch's length, or a scalar."""

Mode: TypeAlias = OneOf["ansi", "legacy", "try"]
"""What a call does with a value that has no result, such as an overflow: raise an error (ansi),
return what Spark returns without ANSI mode (legacy), or return null (try)."""


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
    mode: Mode = "ansi"
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ansi(self) -> bool:
        return self.mode == "ansi"


@dataclass(frozen=True, slots=True)
class Lambda:
    """The function argument of a higher-order function, such as `x -> x + 1`.

    In its body, the columns `first`, `first + 1`, … are its parameters. Lower indexes are the
    columns of the batch and the parameters of enclosing functions.
    """

    body: Expr
    first: int
    parameters: int


Expr: TypeAlias = Column | Literal | Call | Lambda

Function: TypeAlias = Callable[..., Value]
"""Takes a call and the values of its arguments."""


def columns_in(expr: Expr) -> frozenset[int]:
    """The indexes of the batch's columns that an expression uses, also within lambdas."""
    match expr:
        case Column(index):
            return frozenset((index,))
        case Literal():
            return frozenset()
        case Call(_, arguments):
            return frozenset().union(*map(columns_in, arguments))
        case Lambda(body, first):
            return frozenset(index for index in columns_in(body) if index < first)
