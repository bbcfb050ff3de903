"""Expressions that Spark's own code evaluates: `Call`s of one name, with the expression in them.

The arguments of such a call are the values that the expression refers to. All calls of a step go to
the evaluator in one request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Column, Expr, Value
from epochal.continuous.operators.expressions.values_of import as_column
from epochal.evaluator.evaluator_client import (
    CLIENT,
    REQUEST_BYTES,
    EvaluatorStep,
    Session,
)

SPARK = "SparkExpression"

EXPRESSION, TYPE, SESSION = "expression", "spark_type", "session"
"""Fields of the call: the serialised expression, its type as Spark's JSON, the user's session."""


def spark_call(
    arguments: tuple[Expr, ...], kind: pa.DataType, expression: bytes, spark_type: str, on: Session
) -> Call:
    """A call that Spark's code evaluates."""
    extra = {EXPRESSION: expression, TYPE: spark_type, SESSION: on}
    return Call(SPARK, arguments, kind, extra=extra)


def is_spark_call(expr: Expr) -> bool:
    """Whether Spark's code evaluates an expression."""
    return isinstance(expr, Call) and expr.function == SPARK


def spark_values(
    calls: Sequence[Call], batch: pa.RecordBatch, evaluate: Callable[[Expr, pa.RecordBatch], Value]
) -> list[Value]:
    """The values of several calls for the rows of a batch."""
    inputs: dict[int, int] = {}
    columns: list[Any] = []
    fields: list[bytes] = []
    for call in calls:
        places = []
        for argument in call.arguments:
            key = argument.index if isinstance(argument, Column) else -1 - len(columns)
            if key not in inputs:
                inputs[key] = len(columns)
                columns.append(_whole(as_column(evaluate(argument, batch), batch.num_rows)))
            places.append(inputs[key])
        fields += (call.extra[EXPRESSION], ",".join(map(str, places)).encode())
    # Without a column a batch would have no rows.
    columns = columns or [pa.nulls(batch.num_rows)]
    types = ",".join(
        f'{{"name":"{number}","type":{call.extra[TYPE]},"nullable":true,"metadata":{{}}}}'
        for number, call in enumerate(calls)
    )
    schema = f'{{"type":"struct","fields":[{types}]}}'
    step = EvaluatorStep("project", calls[0].extra[SESSION], schema, tuple(fields))
    return run_rows(step, pa.RecordBatch.from_arrays(columns, list(map(str, range(len(columns))))))


def run_rows(step: EvaluatorStep, batch: pa.RecordBatch) -> list[Value]:
    """Run a step over all rows of a batch; the columns of the result."""
    size = max(1, min(batch.num_rows, REQUEST_BYTES * batch.num_rows // max(1, batch.nbytes)))
    parts = [
        pa.ipc.open_stream(CLIENT.run(step, _stream(batch.slice(start, size)))).read_all()
        for start in range(0, max(1, batch.num_rows), size)
    ]
    whole = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
    return [_whole(column) for column in whole.columns]


def _stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _whole(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
