"""Expressions that Spark's own code evaluates: `Call`s of one name, with the expression in them.

The arguments of such a call are the values that the expression refers to. All calls of a step go to
the evaluator in one request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.evaluator.evaluator_client import (
    CLIENT,
    REQUEST_BYTES,
    EvaluatorStep,
    Session,
)
from epochal.continuous.operators.expressions.expr import Call, Column, Expr, Value
from epochal.continuous.operators.expressions.values_of import as_column

SPARK = "SparkExpression"

Evaluate: TypeAlias = Callable[[Expr, pa.RecordBatch], Value]

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


def spark_values(calls: Sequence[Call], batch: pa.RecordBatch, evaluate: Evaluate) -> list[Value]:
    """The values of several calls for the rows of a batch."""
    fields, rows = _inputs(calls, batch, evaluate)
    schema = struct_json([call.extra[TYPE] for call in calls])
    step = EvaluatorStep("project", calls[0].extra[SESSION], schema, fields)
    return [_whole(column) for column in pa.concat_tables(run_rows(step, rows)).columns]


def spark_rows(
    call: Call, batch: pa.RecordBatch, evaluate: Evaluate, *, outer: bool
) -> list[Value]:
    """What a generator makes of the rows of a batch: the number of the row, and the columns."""
    fields, rows = _inputs((call,), batch, evaluate)
    made = json.loads(call.extra[TYPE])["elementType"]["fields"]
    schema = struct_json(['"integer"', *(json.dumps(field["type"]) for field in made)])
    step = EvaluatorStep(
        "generate outer" if outer else "generate", call.extra[SESSION], schema, fields
    )
    parts = []
    before = 0
    for sent, part in zip(slices(rows), run_rows(step, rows), strict=True):
        numbers = pc.add(part.column(0), before)
        parts.append(part.set_column(0, "0", numbers))
        before += sent.num_rows
    return [_whole(column) for column in pa.concat_tables(parts).columns]


def _inputs(
    calls: Sequence[Call], batch: pa.RecordBatch, evaluate: Evaluate
) -> tuple[tuple[bytes, ...], pa.RecordBatch]:
    """The expressions of some calls with the places of their arguments, and the arguments."""
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
    names = list(map(str, range(len(columns))))
    return tuple(fields), pa.RecordBatch.from_arrays(columns, names)


def struct_json(types: Sequence[str]) -> str:
    """Spark's JSON of a struct whose fields have these types, which are JSON themselves."""
    fields = ",".join(
        f'{{"name":"{number}","type":{kind},"nullable":true,"metadata":{{}}}}'
        for number, kind in enumerate(types)
    )
    return f'{{"type":"struct","fields":[{fields}]}}'


def run_rows(step: EvaluatorStep, batch: pa.RecordBatch) -> list[pa.Table]:
    """Run a step over all rows of a batch; a result for each slice that is sent."""
    return [
        pa.ipc.open_stream(CLIENT.run(step, ipc_stream(part))).read_all() for part in slices(batch)
    ]


def slices(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """A batch in parts that the evaluator can take; one without rows if it has none."""
    size = max(1, min(batch.num_rows, REQUEST_BYTES * batch.num_rows // max(1, batch.nbytes)))
    return [batch.slice(start, size) for start in range(0, max(1, batch.num_rows), size)]


def ipc_stream(first: pa.RecordBatch, *more: pa.RecordBatch) -> pa.Buffer:
    """Batches of one schema as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, first.schema) as stream:
        for batch in (first, *more):
            stream.write_batch(batch)
    return sink.getvalue()


def _whole(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
