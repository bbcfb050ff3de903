"""AND, OR and COALESCE, argument by argument, each only for the rows that it decides. Pure.

It is slower than computing all arguments for all rows. Use it if that fails: `x <> 0 AND 1 / x > 2`
has a result for rows where x is 0. The same holds for functions that are null where an argument is:
Spark does not look at the second argument if the first one is null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Expr, Value
from epochal.continuous.operators.expressions.values_of import as_column

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


RIGHT_FIRST = ("Divide", "IntegralDivide", "Pmod", "Remainder")
"""Functions whose second argument is evaluated first."""

STOPS_AT_NULL = {
    *RIGHT_FIRST, "Add", "AddMonths", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Contains",
    "DateAdd", "DateDiff", "DateFormatClass", "DateSub", "ElementAt", "EndsWith", "EqualTo",
    "FromUTCTimestamp", "GetArrayItem", "GetMapValue", "GreaterThan", "GreaterThanOrEqual",
    "LessThan", "LessThanOrEqual", "Like", "Multiply", "Pow", "RLike", "RegExpExtract",
    "RegExpReplace", "Round", "ShiftLeft", "ShiftRight", "StartsWith", "StringInstr", "StringSplit",
    "Substring", "Subtract", "TimestampAddInterval", "ToUTCTimestamp", "TruncTimestamp",
}  # fmt: skip
"""Functions of several arguments that do not evaluate the others once one of them is null."""


def rows_without_null(values: Sequence[Value], rows: int) -> Any:
    """The rows in which none of these values is null."""
    valid = np.ones(rows, dtype=bool)
    for value in values:
        valid &= as_column(value, rows).is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(valid)


def spread(found: Value, rows: Any, count: int) -> Value:
    """A column of `count` rows that has these values in some rows, and null in the others."""
    places = np.full(count, -1)
    places[rows] = np.arange(len(rows))
    return as_column(found, len(rows)).take(pa.array(places, mask=places < 0))


def stepwise(
    call: Call, batch: pa.RecordBatch, evaluate: Callable[[Expr, pa.RecordBatch], Value]
) -> Value:
    """Evaluate the arguments of a call in turn, for the rows that the earlier ones left open."""
    rows: Any = np.arange(batch.num_rows)
    result: Value = None
    for argument in call.arguments:
        found = as_column(evaluate(argument, batch.take(rows)), len(rows))
        if result is None:
            result = found
        else:
            merged = _merged(call, result.take(pa.array(rows, pa.int64())), found)
            mask = np.zeros(batch.num_rows, dtype=bool)
            mask[rows] = True
            result = pc.replace_with_mask(result, pa.array(mask), merged)
        open_rows = pc.invert(_decided(call, result)).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(open_rows)
        if not len(rows):
            break
    return result


def _merged(call: Call, before: Value, found: Value) -> Value:
    match call.function:
        case "And":
            return pc.and_kleene(before, found)
        case "Or":
            return pc.or_kleene(before, found)
    return found


def _decided(call: Call, result: Value) -> Value:
    match call.function:
        case "And":
            return pc.fill_null(pc.invert(result), pa.scalar(False))
        case "Or":
            return pc.fill_null(result, pa.scalar(False))
    return pc.is_valid(result)
