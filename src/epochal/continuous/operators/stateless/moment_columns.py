"""Appends columns that depend on the moment or on chance: `current_timestamp()`, `rand()`.

Expressions are evaluated from the columns of a batch alone. Functions that need more are computed
before: `lifted` replaces their calls by columns, and this operator appends those columns.

The current time is the clock's, in milliseconds, and the same for all rows of a batch. In a batch
that Spark planned, it is the time that Spark logged for it. Random values differ for each row and
each run, whatever the seed: Spark draws a new one for every batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Call, Column, Expr, column_of
from epochal.continuous.operators.java_values import zone_of
from epochal.record_batches import batch_of

_NOW = "CurrentBatchTimestamp"
FUNCTIONS = (_NOW, "Rand", "Randn", "Uuid")


@dataclass(frozen=True, slots=True)
class Lifted:
    """Expressions over a batch to which the values of `calls` are appended as columns."""

    columns: tuple[Expr, ...]
    calls: tuple[Call, ...]


def lifted(exprs: tuple[Expr, ...], width: int) -> Lifted:
    """Replace the calls that need the moment or chance by columns after the first `width`.

    Equal calls for the time share a column. Each random call has its own.
    """
    calls: list[Call] = []
    places: dict[Any, int] = {}

    def replaced(expr: Expr) -> Expr:
        match expr:
            case Call(function) if function in FUNCTIONS:
                key: Any = (expr.type, _zone(expr)) if function == _NOW else id(expr)
                if key not in places:
                    places[key] = width + len(calls)
                    calls.append(expr)
                return Column(places[key])
            case Call(arguments=arguments):
                return replace(expr, arguments=tuple(map(replaced, arguments)))
        return expr

    columns = tuple(map(replaced, exprs))
    return Lifted(columns if calls else exprs, tuple(calls))


def _zone(call: Call) -> str:
    return str(call.extra.get("zone", "UTC"))


@dataclass(frozen=True, slots=True)
class MomentColumnsSpec:
    """Calls whose values are appended to each batch."""

    calls: tuple[Call, ...]
    schema: pa.Schema

    @classmethod
    def plan(cls, calls: tuple[Call, ...], input_schema: pa.Schema) -> Self:
        """Name the columns so that no name repeats."""
        fields = list(input_schema)
        for number, call in enumerate(calls):
            name = f"_{call.function}{number}"
            while name in input_schema.names:
                name += "_"
            fields.append(pa.field(name, call.type))
        return cls(calls, pa.schema(fields))

    def open(self) -> MomentColumns:
        return MomentColumns(self)


class MomentColumns:
    """Computes the columns for each batch."""

    def __init__(self, spec: MomentColumnsSpec) -> None:
        self._spec = spec
        self._random = np.random.default_rng()

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        rows = batch.num_rows
        added = [
            column_of(self._value(call, rows, at), rows, call.type) for call in self._spec.calls
        ]
        return (batch_of([*batch.columns, *added], self._spec.schema, rows),)

    def _value(self, call: Call, rows: int, at: Moment) -> Any:
        match call.function:
            case "Rand":
                return pa.array(self._random.random(rows))
            case "Randn":
                return pa.array(self._random.standard_normal(rows))
            case "Uuid":
                return pa.array([str(uuid.uuid4()) for _ in range(rows)], pa.string())
        now = datetime.fromtimestamp(at.now_ms / 1000, zone_of(_zone(call)))
        if pa.types.is_date(call.type):
            return pa.scalar(now.date(), call.type)
        is_local = getattr(call.type, "tz", None) is None
        return pa.scalar(now.replace(tzinfo=None) if is_local else now, call.type)
