"""Operators without state: maps, filters, projections, and what observes event times.

User functions have PySpark's signature: they take and return an iterator of batches. They are
called once per batch, with an iterator of one batch, so that its rows are passed on immediately.

Expressions are evaluated from the columns of a batch alone. Functions that depend on the moment or
on chance, `current_timestamp()` or `rand()`, are computed before: `lifted` replaces their calls by
columns, and `MomentColumns` appends those columns. The current time is the clock's, in
milliseconds, and the same for all rows of a batch. In a batch that Spark planned, it is the time
that Spark logged for it. Random values differ for each row and each run, whatever the seed: Spark
draws a new one for every batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.connectors.user_code import USER_CODE, name_of
from epochal.continuous.operators.contract import EventTimes, Moment
from epochal.continuous.operators.expressions.evaluate import evaluate, evaluate_all, shared
from epochal.continuous.operators.expressions.expr import Call, Column, Expr, column_of
from epochal.continuous.operators.java_values import zone_of
from epochal.errors import OptionError
from epochal.record_batches import batch_of, batch_of_frame

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]
PandasFunction: TypeAlias = Callable[[Iterator[Any]], Iterable[Any]]

_NOW = "CurrentBatchTimestamp"
MOMENT_FUNCTIONS = (_NOW, "Rand", "Randn", "Uuid")


@dataclass(frozen=True, slots=True)
class MapInArrowSpec:
    """`map_in_arrow`: a function of record batches. Its results are checked."""

    function: ArrowFunction
    schema: pa.Schema

    def open(self) -> Self:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        with USER_CODE:
            for result in _results(self.function, batch, pa.RecordBatch, "map_in_arrow"):
                yield fit(result, self.schema, "map_in_arrow")


@dataclass(frozen=True, slots=True)
class MapInPandasSpec:
    """`map_in_pandas`: a function of DataFrames, one per batch."""

    function: PandasFunction
    schema: pa.Schema

    def open(self) -> Self:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        import pandas as pd

        whole = batch.to_pandas()
        with USER_CODE:
            for frame in _results(self.function, whole, pd.DataFrame, "map_in_pandas"):
                _require_columns("map_in_pandas", self.schema, list(frame.columns))
                yield batch_of_frame(frame, self.schema)


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """`filter`: keeps rows for which the condition is true. Null does not count as true."""

    condition: Expr

    def open(self) -> Self:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        met = evaluate(self.condition, batch)
        if isinstance(met, pa.Scalar):
            return (batch,) if met.as_py() else ()
        rows = batch.filter(met)
        return (rows,) if rows.num_rows else ()


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """`select`, `with_column`, `drop`: an expression for each column of the result."""

    columns: tuple[Expr, ...]
    schema: pa.Schema

    def open(self) -> Project:
        return Project(self.columns, self.schema)


class Project:
    """Computes the columns of the result."""

    def __init__(self, columns: tuple[Expr, ...], schema: pa.Schema) -> None:
        self._columns, self._schema = shared(columns), schema
        self._types = schema.types

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        rows = batch.num_rows
        arrays = [
            column_of(value, rows, kind)
            for value, kind in zip(evaluate_all(self._columns, batch), self._types, strict=True)
        ]
        return (batch_of(arrays, self._schema, rows),)


@dataclass(frozen=True, slots=True)
class ExpandSpec:
    """For each projection, the expressions of the columns of the result."""

    projections: tuple[tuple[Expr, ...], ...]
    schema: pa.Schema

    def open(self) -> Expand:
        return Expand(self)


class Expand:
    """Computes all projections of a batch, one after the other."""

    def __init__(self, spec: ExpandSpec) -> None:
        self._projects = [Project(columns, spec.schema) for columns in spec.projections]

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        batches = [result for project in self._projects for result in project.process(batch, at)]
        return pa.Table.from_batches(batches).combine_chunks().to_batches()


@dataclass(frozen=True, slots=True)
class ObserveEventTimeSpec:
    """Observe a timestamp column for watermark number `watermark` of the plan."""

    watermark: int
    column: str

    def open(self) -> ObserveEventTime:
        return ObserveEventTime(self.watermark, self.column)


class ObserveEventTime:
    """Passes rows on unchanged and remembers their event times.

    `watermark` is the index of the watermark in the plan that it feeds.
    """

    def __init__(self, watermark: int, column: str) -> None:
        self.watermark, self._column = watermark, column
        self._highest_ms = -1
        self._newest = EventTimes()

    def highest_ms(self) -> int:
        """The highest event time seen; -1 if none."""
        return self._highest_ms

    def take(self) -> EventTimes:
        """Those of the rows since the last call."""
        newest, self._newest = self._newest, EventTimes()
        return newest

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        extremes = pc.min_max(batch.column(self._column))
        stamp = pa.timestamp("us", "UTC")
        lowest, highest = (extremes[name].cast(stamp).value for name in ("min", "max"))
        rows = batch.num_rows
        if highest is not None:
            self._highest_ms = max(self._highest_ms, highest // 1000)
            self._newest = self._newest.with_rows(rows, lowest // 1000, highest // 1000)
        else:
            self._newest = self._newest.with_rows(rows, None, -1)
        return (batch,)


@dataclass(frozen=True, slots=True)
class ArrowExpressionSpec:
    """A filter or projection made of pyarrow expressions, which only Arrow can evaluate."""

    expressions: tuple[Any, ...]
    schema: pa.Schema
    filters: bool = False

    def open(self) -> ArrowExpression:
        return ArrowExpression(self)


class ArrowExpression:
    """Runs Arrow's query engine on each batch, in the calling thread."""

    def __init__(self, spec: ArrowExpressionSpec) -> None:
        from pyarrow import acero

        self._spec, self._acero = spec, acero
        self._name = "filter" if spec.filters else "project"
        self._options: Any = (
            acero.FilterNodeOptions(spec.expressions[0])
            if spec.filters
            else acero.ProjectNodeOptions(list(spec.expressions), spec.schema.names)
        )

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        for result in self.run(pa.Table.from_batches([batch])).to_batches():
            if result.num_rows:
                yield fit(result, self._spec.schema, self._name)

    def run(self, rows: pa.Table) -> pa.Table:
        """The result for a table, with the types that Arrow gives it."""
        acero = self._acero
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
        step = acero.Declaration(self._name, self._options)
        plan = acero.Declaration.from_sequence([source, step])
        result: pa.Table = plan.to_table(use_threads=False)
        return result


def _results(
    function: Callable[[Iterator[Any]], Any], rows: Any, kind: type, operator: str
) -> Iterator[Any]:
    """Call the user's function with one batch; OptionError if it does not return batches."""
    results = function(iter((rows,)))
    # A batch, a DataFrame and a text can be iterated too, but over columns or characters.
    if isinstance(results, kind | str | bytes) or not isinstance(results, Iterable):
        raise _not_batches(operator, function, kind, "returned", results)
    for result in results:
        if not isinstance(result, kind):
            raise _not_batches(operator, function, kind, "yielded", result)
        yield result


def _not_batches(operator: str, function: Any, kind: type, verb: str, result: Any) -> OptionError:
    form = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    shown = "None" if result is None else f"a {type(result).__name__}"
    return OptionError(
        f"{operator}: the function {name_of(function)} {verb} {shown}. It must return an iterator "
        f"of {form}, or be a generator that yields them."
    )


def fit(batch: pa.RecordBatch, schema: pa.Schema, operator: str) -> pa.RecordBatch:
    """Select the columns of the schema from a user's batch, and cast them to its types."""
    if batch.schema.equals(schema):
        return batch
    _require_columns(operator, schema, batch.schema.names)
    try:
        arrays = [batch.column(field.name).cast(field.type) for field in schema]
    except pa.ArrowInvalid as error:
        raise OptionError(
            f"{operator}: a result cannot be cast to the type in the schema: {error}."
        ) from None
    return batch_of(arrays, schema, batch.num_rows)


def _require_columns(operator: str, schema: pa.Schema, names: list[str]) -> None:
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise OptionError(
            f"{operator}: the result lacks the columns {', '.join(missing)} of the schema. It has "
            f"{', '.join(map(str, names)) or 'none'}."
        )


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
            case Call(function) if function in MOMENT_FUNCTIONS:
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
