"""The aggregates of a query as data: function, input columns, result. Pure.

Spark's DataFrames and our own builder both describe aggregates this way. A function has the name
of its class in Spark's plans, and works on columns: whatever Spark computes from a row before it
aggregates is a projection before the exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from epochal.state.rows.types import StructField

Mode: TypeAlias = Literal["ansi", "legacy", "try"]
Column: TypeAlias = Sequence[Any]
Buffer: TypeAlias = Any
"""What a fold keeps for a group: the value if it has one field, else a tuple."""


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
        return (
            self.function == other.function
            and self.arguments == other.arguments
            and self.filter == other.filter
            and self.mode == other.mode
            and dict(self.extra) == dict(other.extra)
        )


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
