"""Evaluates column expressions over record batches with Spark's semantics.

Spark resolves names, types and casts; this module gets the resolved tree. A function is evaluated
by Arrow where that is much faster and its result is Spark's for sure. Everything else is left to
Spark's own code: expressions with other functions as a whole (`spark_calls`), and all others for
the batches in which a value is not plain, such as an overflow or a letter beyond ASCII (`EITHER`).
So Spark decides what an odd value means, and words the errors.

Spark repeats subtrees: the start of a window is in a plan a dozen times. `shared` makes equal
subtrees one object, and `evaluate_all` computes each object once per batch.

Note: branches of CASE and IF are evaluated only for the rows that take them. `CASE WHEN x <> 0 THEN
1 / x END` must not fail on rows where x is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions import casts, scalars
from epochal.continuous.operators.expressions.expr import (
    EITHER,
    AskSpark,
    Call,
    Column,
    Expr,
    Function,
    Literal,
    Value,
    arrow,
    as_column,
    columns_in,
    retyped,
)
from epochal.continuous.operators.expressions.spark_calls import SPARK, spark_values
from epochal.record_batches import batch_of

FUNCTIONS: dict[str, Function] = {**casts.FUNCTIONS, **scalars.FUNCTIONS}
"""Functions of the values of their arguments."""

CHOICES = ("CaseWhen", "If")

SURE = frozenset(
    {
        *scalars.COMPARISONS,
        *CHOICES,
        *("CurrentBatchTimestamp", "Rand", "Randn", "Uuid"),
        *("GetStructField", "PreciseTimestampConversion"),
    }
)
"""Functions for which Arrow has a result whatever the values are."""

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
            if id(expr) not in cache:
                cache[id(expr)] = _call(expr, batch, cache)
            return cache[id(expr)]


def evaluate_all(exprs: Sequence[Expr], batch: pa.RecordBatch) -> list[Value]:
    """Evaluate several expressions; what they share is computed once.

    What Spark's code evaluates is sent in one request.
    """
    cache: Cache = {}
    calls = [expr for expr in exprs if isinstance(expr, Call) and expr.function == SPARK]
    if calls:
        calls = list({id(call): call for call in calls}.values())
        values = spark_values(calls, batch, evaluate)
        cache = {id(call): value for call, value in zip(calls, values, strict=True)}
    return [evaluate(expr, batch, cache) for expr in exprs]


def shared(exprs: Iterable[Expr]) -> tuple[Expr, ...]:
    """The same expressions, in which equal subtrees are the same object."""
    interned: dict[Any, Expr] = {}
    return tuple(_interned(expr, interned) for expr in exprs)


def _interned(expr: Expr, interned: dict[Any, Expr]) -> Expr:
    key: Any
    match expr:
        case Call(function, arguments, kind, extra):
            parts = tuple(_interned(argument, interned) for argument in arguments)
            # Spark's may be random: it is the same value only where it is the same object.
            alike = id(expr) if function == SPARK else repr(sorted(extra.items()))
            key = (function, kind, tuple(map(id, parts)), alike)
            expr = Call(function, parts, kind, extra)
        case Literal(value):
            key = (value.type, value)
        case Column(index):
            key = index
    return interned.setdefault(key, expr)


def _call(call: Call, batch: pa.RecordBatch, cache: Cache | None) -> Value:
    if call.function == EITHER:
        try:
            return evaluate(call.arguments[0], batch, cache)
        except (AskSpark, pa.ArrowException):
            return evaluate(call.arguments[1], batch, cache)
    if call.function == SPARK:
        return spark_values((call,), batch, evaluate)[0]
    if call.function in CHOICES:
        return _choose(call, batch, cache)
    values = [evaluate(argument, batch, cache) for argument in call.arguments]
    return FUNCTIONS[call.function](call, *values)


def _choose(call: Call, batch: pa.RecordBatch, cache: Cache | None) -> Value:
    arguments, rows = call.arguments, batch.num_rows
    pairs = list(zip(arguments[0::2], arguments[1::2], strict=False))
    if len(arguments) % 2:
        pairs.append((Literal(pa.scalar(True)), arguments[-1]))
    remaining = np.arange(rows)  # rows that no branch has taken yet
    indexes: list[Any] = []
    parts: list[Value] = []
    for condition, result in pairs:
        subset, cached = _rows(batch, remaining, condition, cache)
        met = as_column(evaluate(condition, subset, cached), len(remaining)).fill_null(False)
        chosen = met.to_numpy(zero_copy_only=False).astype(bool)
        if not chosen.any() and rows:
            continue
        subset, cached = _rows(batch, remaining[chosen], result, cache)
        indexes.append(remaining[chosen])
        parts.append(as_column(evaluate(result, subset, cached), len(indexes[-1])))
        remaining = remaining[~chosen]
    kind = call.type
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
        return batch, cache  # rows are ascending, so these are all of them in their order
    used = columns_in(expr)
    columns = [
        column.take(pa.array(rows)) if index in used else pa.nulls(len(rows))
        for index, column in enumerate(batch.columns)
    ]
    # Cached values are those of all rows. A part of the rows is evaluated without a cache.
    return batch_of(columns, [str(i) for i in range(len(columns))], len(rows)), None
