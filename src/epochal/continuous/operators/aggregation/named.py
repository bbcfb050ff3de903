"""Plans the aggregations of our own builder: `group_by(...).agg(total=("sum", "amount"))`. Pure.

The builder names functions as SQL does, and windows by their size. This module turns both into what
the operators work on: calls with Spark's names, and a column that holds the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.aggregation.functions import (
    MAX_DIGITS,
    SPARE_DIGITS,
    AggregateCall,
)
from epochal.continuous.operators.windows import AssignWindowsSpec, Window
from epochal.errors import OptionError

FUNCTIONS = {
    "count": "Count",
    "sum": "Sum",
    "min": "Min",
    "max": "Max",
    "avg": "Average",
    "first": "First",
    "last": "Last",
}
"""The builder's names, and those of Spark's classes."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a query: function, column (None counts rows) and output name."""

    function: str
    column: str | None
    alias: str

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise OptionError(
                f"{self.function!r} is not an aggregate function. Use one of {list(FUNCTIONS)}"
            )
        if self.column is None and self.function != "count":
            raise OptionError(f"{self.function} needs a column. Only count works without one")

    def call(self, schema: pa.Schema) -> AggregateCall:
        arguments = () if self.column is None else (self.column,)
        if self.column is not None and self.column not in schema.names:
            raise OptionError(
                f"{self.function} uses column {self.column!r}, which does not exist. The columns "
                f"are {schema.names}"
            )
        kind = pa.null() if self.column is None else schema.field(self.column).type
        return AggregateCall(
            FUNCTIONS[self.function], arguments, self.alias, _result_type(self.function, kind)
        )


def planned(
    *,
    keys: Sequence[str],
    aggregates: Sequence[Aggregate],
    input_schema: pa.Schema,
    window: Window | None = None,
    event_time: str | None = None,
    output_mode: str = "update",
) -> tuple[AssignWindowsSpec | None, AggregateSpec]:
    """Plan an aggregation of rows of the schema: what must run before the exchange, and after.

    The window comes first in the key, unless `keys` contains its name (`window`). `event_time` is
    the column that has a watermark.
    """
    if not aggregates:
        raise OptionError("an aggregation needs at least one aggregate, such as a count")
    grouping = tuple(keys)
    before = None
    if window is not None:
        _check_window(window, input_schema)
        before = AssignWindowsSpec(window)
        input_schema = before.output_schema(input_schema)
        if window.name not in grouping:
            grouping = (window.name, *grouping)
    timed: str | None = None
    if event_time is not None and window is not None and window.column == event_time:
        timed = window.name
    elif event_time in grouping:
        timed = event_time
    spec = AggregateSpec(
        key=grouping,
        aggregates=tuple(aggregate.call(input_schema) for aggregate in aggregates),
        input_schema=input_schema,
        output_mode=output_mode,
        event_time=timed,
        session=window.name if window is not None and window.is_session else None,
    )
    return before, spec


def _result_type(function: str, kind: Any) -> pa.DataType:
    if function == "count":
        return pa.int64()
    if function in ("min", "max", "first", "last"):
        same: pa.DataType = kind
        return same
    if pa.types.is_decimal(kind):
        if function == "sum":
            return pa.decimal128(min(MAX_DIGITS, kind.precision + SPARE_DIGITS), kind.scale)
        return pa.decimal128(min(MAX_DIGITS, kind.precision + 4), min(MAX_DIGITS, kind.scale + 4))
    if pa.types.is_integer(kind) and function == "sum":
        return pa.int64()
    return pa.float64()


def _check_window(window: Window, schema: pa.Schema) -> None:
    if window.column not in schema.names or not pa.types.is_timestamp(
        schema.field(window.column).type
    ):
        raise OptionError(
            f"the window is over {window.column!r}, which is not a timestamp column. The columns "
            f"are {schema.names}"
        )
    if window.name in schema.names:
        raise OptionError(
            f"the input already has a column {window.name!r}, which the window would add. Rename it"
        )
