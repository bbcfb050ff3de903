"""Evaluates column expressions over record batches with Spark's semantics. Pure.

Spark resolves names, types and casts; this module gets the resolved tree. The functions themselves
are in the modules beside this one. Where Arrow and Spark differ, the result is Spark's.

Spark repeats subtrees: the start of a window is in a plan a dozen times. `shared` makes equal
subtrees one object, and `evaluate_all` computes each object once per batch.

Note: branches of CASE and IF are evaluated only for the rows that take them. `CASE WHEN x <> 0 THEN
1 / x END` must not fail on rows where x is 0. The same holds for AND, OR and COALESCE.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions import (
    avro_values,
    casts,
    comparison,
    hash_functions,
    planner_functions,
    row_functions,
)
from epochal.continuous.operators.expressions.expr import (
    Call,
    Column,
    Expr,
    Function,
    Lambda,
    Literal,
    Value,
    columns_in,
)
from epochal.continuous.operators.expressions.nested import (
    array_sets,
    arrays,
    higher_order,
    maps,
    nested_values,
)
from epochal.continuous.operators.expressions.nested.higher_order import BatchFunction
from epochal.continuous.operators.expressions.nested.lists_of import arrow, on_columns, retyped
from epochal.continuous.operators.expressions.numeric import arithmetic, decimals, mathematics
from epochal.continuous.operators.expressions.short_circuit import (
    RIGHT_FIRST,
    STOPS_AT_NULL,
    rows_without_null,
    spread,
    stepwise,
)
from epochal.continuous.operators.expressions.textual import (
    formatted_texts,
    json_functions,
    regexes,
    text_codes,
    texts,
    url_parts,
)
from epochal.continuous.operators.expressions.textual.json_functions import unknown_options
from epochal.continuous.operators.expressions.textual.regexes import untranslatable
from epochal.continuous.operators.expressions.times import (
    dates_times,
    intervals,
    sequences,
    time_texts,
)
from epochal.continuous.operators.expressions.values_of import as_column
from epochal.errors import EpochalError, OptionError
from epochal.record_batches import batch_of


def _concat(call: Call, *values: Value) -> Value:
    of_arrays = pa.types.is_list(call.type)
    return (_concat_arrays if of_arrays else texts.FUNCTIONS["Concat"])(call, *values)


def _reverse(call: Call, value: Value) -> Value:
    of_arrays = pa.types.is_list(value.type)
    return (arrays if of_arrays else texts).FUNCTIONS["Reverse"](call, value)


def _negate(call: Call, value: Value) -> Value:
    of_intervals = value.type == intervals.INTERVAL
    return (_negated if of_intervals else arithmetic.FUNCTIONS["UnaryMinus"])(call, value)


_negated = on_columns(intervals.negated)
_concat_arrays = on_columns(arrays.concat_arrays)

FUNCTIONS: dict[str, Function] = {
    **arithmetic.FUNCTIONS,
    **array_sets.FUNCTIONS,
    **arrays.FUNCTIONS,
    **avro_values.FUNCTIONS,
    **casts.FUNCTIONS,
    **comparison.FUNCTIONS,
    **dates_times.FUNCTIONS,
    **decimals.FUNCTIONS,
    **formatted_texts.FUNCTIONS,
    **hash_functions.FUNCTIONS,
    **intervals.FUNCTIONS,
    **json_functions.FUNCTIONS,
    **maps.FUNCTIONS,
    **mathematics.FUNCTIONS,
    **nested_values.FUNCTIONS,
    **planner_functions.FUNCTIONS,
    **regexes.FUNCTIONS,
    **sequences.FUNCTIONS,
    **text_codes.FUNCTIONS,
    **texts.FUNCTIONS,
    **time_texts.FUNCTIONS,
    **url_parts.FUNCTIONS,
    "Concat": _concat,
    "Reverse": _reverse,
    "UnaryMinus": _negate,
}
"""Functions of the values of their arguments."""

BATCH_FUNCTIONS: dict[str, BatchFunction] = {
    **higher_order.FUNCTIONS,
    **row_functions.FUNCTIONS,
    "TryEval": lambda call, batch, _: _try(call.arguments[0], batch, call.type),
}
"""Functions that evaluate their arguments themselves."""

CHOICES = ("CaseWhen", "If")
STEPWISE = ("And", "Or", "Coalesce")

_CHECKS = {**avro_values.CHECKS, **formatted_texts.CHECKS, **time_texts.CHECKS}
"""What is wrong with a call of a function that is supported in part."""

_NEED_TYPE = {
    *array_sets.FUNCTIONS,
    *arrays.FUNCTIONS,
    *avro_values.FUNCTIONS,
    *dates_times.FUNCTIONS,
    *higher_order.FUNCTIONS,
    *intervals.FUNCTIONS,
    *maps.FUNCTIONS,
    *sequences.FUNCTIONS,
    *time_texts.FUNCTIONS,
} - {*dates_times.UNTYPED, "TimestampAddInterval"}
"""Functions that must be told the type of their result."""

RANDOM = ("Rand", "Randn", "Uuid")
"""Functions whose value is not the same for the same arguments."""


Cache: TypeAlias = dict[int, Value]
"""The values of calls for one batch, by the identity of the call."""


def evaluate(expr: Expr, batch: pa.RecordBatch, cache: Cache | None = None) -> Value:
    """Evaluate an expression for each row of a batch."""
    match expr:
        case Column(index):
            return batch.column(index)
        case Literal(value):
            return value
        case Call():
            if cache is None:
                return _call(expr, batch, None)
            found = cache.get(id(expr))
            if found is None:
                found = cache[id(expr)] = _call(expr, batch, cache)
            return found
        case Lambda():
            raise AssertionError("a lambda is evaluated by the function that it is an argument of")


def evaluate_all(exprs: Iterable[Expr], batch: pa.RecordBatch) -> list[Value]:
    """Evaluate several expressions; what they share is computed once."""
    cache: Cache = {}
    return [evaluate(expr, batch, cache) for expr in exprs]


def shared(exprs: Iterable[Expr]) -> tuple[Expr, ...]:
    """The same expressions, in which equal subtrees are the same object."""
    known: dict[Any, Expr] = {}
    return tuple(_interned(expr, known) for expr in exprs)


def _interned(expr: Expr, known: dict[Any, Expr]) -> Expr:
    key: Any
    match expr:
        case Call(function, arguments, kind, mode, extra):
            parts = tuple(_interned(argument, known) for argument in arguments)
            expr = Call(function, parts, kind, mode, extra)
            if function in RANDOM:
                return expr
            key = (function, kind, mode, tuple(map(id, parts)), repr(sorted(extra.items())))
        case Lambda(body, first, parameters):
            inner = _interned(body, known)
            expr, key = Lambda(inner, first, parameters), (id(inner), first, parameters)
        case Literal(value):
            key = (value.type, value)
        case Column(index):
            key = index
    return known.setdefault(key, expr)


def _call(call: Call, batch: pa.RecordBatch, cache: Cache | None) -> Value:
    if call.function in CHOICES:
        return _choose(call, batch, cache)
    special = BATCH_FUNCTIONS.get(call.function)
    if special is not None:
        return special(call, batch, evaluate)
    if call.function in STEPWISE:
        try:
            return _apply(call, batch, cache)
        except (EpochalError, pa.ArrowException):
            # Spark stops at the first argument that decides. A later one must not fail.
            return stepwise(call, batch, evaluate)
    return _apply(call, batch, cache)


def _apply(call: Call, batch: pa.RecordBatch, cache: Cache | None) -> Value:
    values: list[Value] = []
    reverse = call.function in RIGHT_FIRST
    for argument in reversed(call.arguments) if reverse else call.arguments:
        try:
            values.append(evaluate(argument, batch, cache))
        except (EpochalError, pa.ArrowException):
            if call.function not in STOPS_AT_NULL:
                raise
            rows = rows_without_null(values, batch.num_rows)
            if len(rows) == batch.num_rows:
                raise
            # Spark does not evaluate this argument where an earlier one is null.
            subset, _ = _rows(batch, rows, call, None)
            return spread(_apply(call, subset, None), rows, batch.num_rows)
    return FUNCTIONS[call.function](call, *(reversed(values) if reverse else values))


def column_of(value: Value, rows: int, kind: pa.DataType) -> Value:
    """Convert a value to a column of the type `kind` with `rows` rows."""
    value = as_column(value, rows)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    return retyped(value, kind)


def unsupported(expr: Expr) -> list[str]:
    """The functions in a tree that cannot be evaluated here: a name, or a name and the reason."""
    match expr:
        case Call(function, arguments):
            found = []
            known = function in FUNCTIONS or function in (*BATCH_FUNCTIONS, *CHOICES)
            if not known or (function in _NEED_TYPE and pa.types.is_null(expr.type)):
                found = [function]
            else:
                found = limits_of(expr)
            if function in _CHECKS:
                problem = _CHECKS[function](expr)
                found += [f"{function} ({problem})"] if problem else []
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


def _choose(call: Call, batch: pa.RecordBatch, cache: Cache | None) -> Value:
    arguments, rows = call.arguments, batch.num_rows
    pairs = list(zip(arguments[0::2], arguments[1::2], strict=False))
    if len(arguments) % 2:
        pairs.append((Literal(pa.scalar(True)), arguments[-1]))
    remaining = np.arange(rows)  # rows that no branch has taken yet
    indexes: list[Any] = []
    parts: list[Value] = []
    for condition, result in pairs:
        subset, known = _rows(batch, remaining, condition, cache)
        met = as_column(evaluate(condition, subset, known), len(remaining)).fill_null(False)
        chosen = met.to_numpy(zero_copy_only=False).astype(bool)
        if not chosen.any() and rows:
            continue
        subset, known = _rows(batch, remaining[chosen], result, cache)
        indexes.append(remaining[chosen])
        parts.append(as_column(evaluate(result, subset, known), len(indexes[-1])))
        remaining = remaining[~chosen]
    kind = call.type
    if pa.types.is_null(kind):
        kind = next((part.type for part in parts if not pa.types.is_null(part.type)), kind)
    if len(parts) == 1 and len(indexes[0]) == rows:
        return retyped(parts[0], kind)
    indexes.append(remaining)
    parts.append(arrow.nulls(len(remaining), kind))
    # The parts are grouped by branch: bring the rows back into the batch's order.
    order = np.argsort(np.concatenate(indexes), kind="stable")
    return pa.concat_arrays([retyped(part, kind) for part in parts]).take(order)


def _rows(
    batch: pa.RecordBatch, rows: Any, expr: Expr, cache: Cache | None
) -> tuple[pa.RecordBatch, Cache | None]:
    """Some rows of a batch, with the columns that an expression uses, and the cache for them."""
    if len(rows) == batch.num_rows:
        return batch, cache
    used = columns_in(expr)
    columns = [
        column.take(pa.array(rows)) if index in used else pa.nulls(len(rows))
        for index, column in enumerate(batch.columns)
    ]
    return batch_of(columns, [str(i) for i in range(len(columns))], len(rows)), None


def _try(expr: Expr, batch: pa.RecordBatch, kind: pa.DataType) -> Value:
    """The expression's value, and null for rows where it fails."""
    try:
        return evaluate(expr, batch)
    except (EpochalError, pa.ArrowException):
        if batch.num_rows == 1:
            return arrow.nulls(1, kind)
    middle = batch.num_rows // 2
    halves = [_try(expr, part, kind) for part in (batch.slice(0, middle), batch.slice(middle))]
    sizes = (middle, batch.num_rows - middle)
    return pa.concat_arrays(
        [column_of(half, size, kind) for half, size in zip(halves, sizes, strict=True)]
    )
