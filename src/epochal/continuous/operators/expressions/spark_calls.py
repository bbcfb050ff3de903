"""Expressions that Spark's own code evaluates: `Call`s of one name, with the expression in them.

The arguments of such a call are the values that the expression refers to. All calls of a step go to
the evaluator in one request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Column, Expr, Value, as_column
from epochal.evaluator.evaluator_client import CLIENT, EvaluatorStep, Session
from epochal.record_batches import batch_of

SPARK = "SparkExpression"

_MONTHS = re.compile(r'"interval (year|month|year to month)"')

EXPRESSION, TYPE, SESSION = "expression", "spark_type", "session"
"""Fields of the call: the serialised expression, its type as Spark's JSON, the user's session."""


def spark_call(
    arguments: tuple[Expr, ...], kind: pa.DataType, expression: bytes, spark_type: str, on: Session
) -> Call:
    extra = {EXPRESSION: expression, TYPE: spark_type, SESSION: on}
    return Call(SPARK, arguments, kind, extra=extra)


def spark_values(
    calls: Sequence[Call], batch: pa.RecordBatch, evaluate: Callable[[Expr, pa.RecordBatch], Value]
) -> list[Value]:
    """The values of several calls for the rows of a batch."""
    key = tuple(map(id, calls))
    request = _REQUESTS.get(key)
    if request is None:
        if len(_REQUESTS) >= _MAX_REQUESTS:
            _REQUESTS.clear()
        request = _REQUESTS[key] = _Request(calls)
    columns = [
        _whole(as_column(evaluate(argument, batch), batch.num_rows))
        for argument in request.arguments
    ]
    # Without a column a batch would have no rows.
    columns = columns or [pa.nulls(batch.num_rows)]
    names = [str(number) for number in range(len(columns))]
    return CLIENT.run_rows(request.step, batch_of(columns, names, batch.num_rows))


class _Request:
    """What several calls of one operator need: their arguments, each once, and the step."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = tuple(calls)  # while they live, no others have their ids
        inputs: dict[int, int] = {}
        self.arguments: list[Expr] = []
        fields: list[bytes] = []
        for call in calls:
            places = []
            for argument in call.arguments:
                key = argument.index if isinstance(argument, Column) else -1 - len(self.arguments)
                if key not in inputs:
                    inputs[key] = len(self.arguments)
                    self.arguments.append(argument)
                places.append(inputs[key])
            fields += (call.extra[EXPRESSION], ",".join(map(str, places)).encode())
        schema = struct_json([call.extra[TYPE] for call in calls])
        self.step = EvaluatorStep("project", calls[0].extra[SESSION], schema, tuple(fields))


_REQUESTS: dict[tuple[int, ...], _Request] = {}
"""Requests by the identities of their calls: operators evaluate the same calls for each batch."""

_MAX_REQUESTS = 256


def spark_rows(
    call: Call,
    batch: pa.RecordBatch,
    evaluate: Callable[[Expr, pa.RecordBatch], Value],
    *,
    outer: bool,
) -> list[Value]:
    """What a generator makes of the rows of a batch: the number of the row, and the columns."""
    rows = batch.num_rows
    values = [as_column(evaluate(argument, batch), rows) for argument in call.arguments]
    # The client may send the rows in slices, so each carries its number in the whole batch.
    columns = [*map(_whole, values), pa.array(np.arange(rows, dtype=np.int32))]
    names = tuple(str(number) for number in range(len(columns)))
    kind = "generate outer" if outer else "generate"
    extra = call.extra
    step = _generator(kind, extra[SESSION], extra[EXPRESSION], extra[TYPE], names[:-1])
    return CLIENT.run_rows(step, batch_of(columns, list(names), rows))


@lru_cache(maxsize=256)
def _generator(
    kind: str, session: Session, expression: bytes, spark_type: str, columns: tuple[str, ...]
) -> EvaluatorStep:
    members = json.loads(spark_type)["elementType"]["fields"]
    schema = struct_json(['"integer"', *(json.dumps(member["type"]) for member in members)])
    return EvaluatorStep(kind, session, schema, (expression, ",".join(columns).encode()))


def struct_json(types: Sequence[str]) -> str:
    """Spark's JSON of a struct whose fields have these types, which are JSON themselves."""
    fields = ",".join(
        f'{{"name":"{number}","type":{kind},"nullable":true,"metadata":{{}}}}'
        for number, kind in enumerate(types)
    )
    # Months travel as the numbers that they are: pyarrow has no type for them.
    return _MONTHS.sub('"integer"', f'{{"type":"struct","fields":[{fields}]}}')


def _whole(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
