"""Evaluates column expressions over record batches with Spark's semantics. Pure.

Spark resolves names, types and casts; this module gets the resolved tree. The functions themselves
are in the modules beside this one. Where Arrow and Spark differ, the result is Spark's.

Note: branches of CASE and IF are evaluated only for the rows that take them. `CASE WHEN x <> 0 THEN
1 / x END` must not fail on rows where x is 0. The same holds for AND, OR and COALESCE.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions import (
    arithmetic,
    casts,
    comparison,
    dates_times,
    decimals,
    json_functions,
    nested_values,
    regexes,
    text_codes,
    texts,
)
from epochal.continuous.operators.expressions.expr import (
    Call,
    Column,
    Expr,
    Function,
    Lambda,
    Literal,
    Value,
)
from epochal.continuous.operators.expressions.json_functions import unknown_options
from epochal.continuous.operators.expressions.regexes import untranslatable
from epochal.continuous.operators.expressions.short_circuit import stepwise
from epochal.continuous.operators.expressions.values_of import as_column
from epochal.errors import EpochalError, OptionError

FUNCTIONS: dict[str, Function] = {
    **arithmetic.FUNCTIONS,
    **casts.FUNCTIONS,
    **comparison.FUNCTIONS,
    **dates_times.FUNCTIONS,
    **decimals.FUNCTIONS,
    **json_functions.FUNCTIONS,
    **nested_values.FUNCTIONS,
    **regexes.FUNCTIONS,
    **text_codes.FUNCTIONS,
    **texts.FUNCTIONS,
}

CHOICES = ("CaseWhen", "If")


def evaluate(expr: Expr, batch: pa.RecordBatch) -> Value:
    """Evaluate an expression for each row of a batch."""
    match expr:
        case Column(index):
            return batch.column(index)
        case Literal(value):
            return value
        case Call("CaseWhen" | "If"):
            return _choose(expr, batch)
        case Call("And" | "Or" | "Coalesce"):
            try:
                return _call(expr, batch)
            except (EpochalError, pa.ArrowException):
                # Spark stops at the first argument that decides. A later one must not fail.
                return stepwise(expr, batch, evaluate)
        case Call():
            return _call(expr, batch)
        case Lambda():
            raise AssertionError("a lambda is evaluated by the function that it is an argument of")


def _call(expr: Call, batch: pa.RecordBatch) -> Value:
    values = [evaluate(argument, batch) for argument in expr.arguments]
    return FUNCTIONS[expr.function](expr, *values)


def column_of(value: Value, rows: int, kind: pa.DataType) -> Value:
    """Convert a value to a column of the type `kind` with `rows` rows."""
    value = as_column(value, rows)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    return value if value.type == kind else value.cast(kind)


def unsupported(expr: Expr) -> list[str]:
    """The names of the functions in a tree that cannot be evaluated here."""
    match expr:
        case Call(function, arguments):
            known = function in FUNCTIONS or function in CHOICES
            found = limits_of(expr) if known else [function]
            return found + [name for argument in arguments for name in unsupported(argument)]
        case Lambda(body):
            return unsupported(body)
    return []


_NEEDED = {"InSet": "values", "JsonToStructs": "options"}
_NEEDED |= dict.fromkeys(("LikeAll", "LikeAny", "NotLikeAll", "NotLikeAny"), "patterns")
"""Fields of a call that change its meaning. The JSON of a plan does not have them."""


def limits_of(call: Call) -> list[str]:
    """What a supported function was given that it does not support."""
    needed = _NEEDED.get(call.function)
    if needed is not None and needed not in call.extra:
        return [f"{call.function} without its {needed}"]
    found = [f"{call.function} with {name}" for name in unknown_options(call)]
    pattern = untranslatable(call)
    return [*found, f"{call.function} with a pattern: {pattern}"] if pattern else found


def check_supported(expr: Expr, text: str) -> None:
    """Reject an unsupported function while the user still builds the query."""
    for function in unsupported(expr):
        raise OptionError(
            f"{text!r} uses {function}, which column expressions do not support. Compute it "
            f"in map_in_arrow or map_in_pandas instead."
        )


def _choose(expr: Call, batch: pa.RecordBatch) -> Value:
    arguments = expr.arguments
    pairs = list(zip(arguments[0::2], arguments[1::2], strict=False))
    otherwise = arguments[-1] if len(arguments) % 2 else None
    remaining = np.arange(batch.num_rows)  # rows that no branch has taken yet
    indexes: list[Any] = []
    parts: list[Value] = []
    for condition, result in pairs:
        subset = batch.take(remaining)
        met = as_column(evaluate(condition, subset), len(remaining)).fill_null(False)
        chosen = met.to_numpy(zero_copy_only=False).astype(bool)
        _add(indexes, parts, remaining[chosen], result, batch)
        remaining = remaining[~chosen]
    if otherwise is not None:
        _add(indexes, parts, remaining, otherwise, batch)
        remaining = remaining[:0]
    if not parts:
        return pa.nulls(batch.num_rows)
    kind = next((part.type for part in parts if not pa.types.is_null(part.type)), parts[0].type)
    indexes.append(remaining)
    parts.append(pa.nulls(len(remaining), kind))
    # The parts are grouped by branch: bring the rows back into the batch's order.
    order = np.argsort(np.concatenate(indexes), kind="stable")
    return pa.concat_arrays([part.cast(kind) for part in parts]).take(order)


def _add(
    indexes: list[Any], parts: list[Value], rows: Any, result: Expr, batch: pa.RecordBatch
) -> None:
    subset = batch.take(rows)
    indexes.append(rows)
    parts.append(as_column(evaluate(result, subset), len(rows)))
