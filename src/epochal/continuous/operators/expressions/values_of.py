"""Conversions between Arrow scalars, columns and Python values, for functions. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def constant(call: Call, value: Value) -> Any:
    """The Python value of an argument that must not depend on the row."""
    if isinstance(value, pa.Scalar):
        return value.as_py()
    raise OptionError(
        f"{call.function} needs a constant, but was given a column. Use map_in_arrow instead."
    )


def kernel(name: str) -> Function:
    """A function that Arrow computes as Spark does."""

    def apply(call: Call, *values: Value) -> Value:
        return pc.call_function(name, list(values))

    return apply


def as_column(value: Value, rows: int) -> Value:
    """Repeat a scalar `rows` times; a column stays as it is."""
    if not isinstance(value, pa.Scalar):
        return value
    arrow: Any = pa
    # Arrow cannot repeat a list or a map zero times.
    return arrow.repeat(value, rows) if rows else arrow.nulls(0, value.type)


def each(function: Callable[..., Any], kind: pa.DataType, *values: Value) -> Value:
    """Call a Python function for every row; the result is null where an argument is null."""
    rows = next((len(value) for value in values if not isinstance(value, pa.Scalar)), None)
    if rows is None:
        found = [value.as_py() for value in values]
        return pa.scalar(None if None in found else function(*found), kind)
    columns = [as_column(value, rows).to_pylist() for value in values]
    made = [None if None in row else function(*row) for row in zip(*columns, strict=True)]
    return pa.array(made, kind)
