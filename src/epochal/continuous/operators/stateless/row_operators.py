"""Operators without state: maps, filters, projections.

User functions have PySpark's signature: they take and return an iterator of batches. They are
called once per batch, with an iterator of one batch, so that its rows are passed on immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.connectors.user_code import USER_CODE, name_of
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.evaluate import (
    column_of,
    evaluate,
    evaluate_all,
    shared,
)
from epochal.continuous.operators.expressions.expr import Expr
from epochal.errors import OptionError
from epochal.record_batches import batch_of, batch_of_frame

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]
PandasFunction: TypeAlias = Callable[[Iterator[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class MapInArrowSpec:
    """`map_in_arrow`: a function of record batches."""

    function: ArrowFunction
    schema: pa.Schema

    def open(self) -> MapInArrow:
        return MapInArrow(self.function, self.schema)


class MapInArrow:
    """Calls the function and checks its results against the schema."""

    def __init__(self, function: ArrowFunction, schema: pa.Schema) -> None:
        self._function, self._schema = function, schema

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        with USER_CODE:
            for result in _results(self._function, batch, pa.RecordBatch, "map_in_arrow"):
                yield fit(result, self._schema, "map_in_arrow")


@dataclass(frozen=True, slots=True)
class MapInPandasSpec:
    """`map_in_pandas`: a function of DataFrames."""

    function: PandasFunction
    schema: pa.Schema

    def open(self) -> MapInPandas:
        return MapInPandas(self.function, self.schema)


class MapInPandas:
    """Calls the function with one DataFrame per batch."""

    def __init__(self, function: PandasFunction, schema: pa.Schema) -> None:
        self._function, self._schema = function, schema

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        import pandas as pd

        given = batch.to_pandas()
        with USER_CODE:
            for frame in _results(self._function, given, pd.DataFrame, "map_in_pandas"):
                missing = [name for name in self._schema.names if name not in frame.columns]
                if missing:
                    raise _missing("map_in_pandas", missing, list(frame.columns))
                yield batch_of_frame(frame, self._schema)


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """`filter`: keeps rows for which the condition is true. Null does not count as true."""

    condition: Expr

    def open(self) -> Filter:
        return Filter(self.condition)


class Filter:
    """Keeps the rows that meet the condition."""

    def __init__(self, condition: Expr) -> None:
        self._condition = condition

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        met = evaluate(self._condition, batch)
        if isinstance(met, pa.Scalar):
            return (batch,) if met.as_py() else ()
        kept = batch.filter(met)
        return (kept,) if kept.num_rows else ()


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
        self._options: Any = (
            acero.FilterNodeOptions(spec.expressions[0])
            if spec.filters
            else acero.ProjectNodeOptions(list(spec.expressions), spec.schema.names)
        )

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        acero, name = self._acero, "filter" if self._spec.filters else "project"
        source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        plan = acero.Declaration.from_sequence(
            [acero.Declaration("table_source", source), acero.Declaration(name, self._options)]
        )
        for result in plan.to_table(use_threads=False).to_batches():
            if result.num_rows:
                yield fit(result, self._spec.schema, name)


def _results(
    function: Callable[[Iterator[Any]], Any], given: Any, kind: type, operator: str
) -> Iterator[Any]:
    """Call the user's function with one batch; OptionError if it does not return batches."""
    results = function(iter((given,)))
    # A batch, a DataFrame and a text can be iterated too, but over columns or characters.
    if isinstance(results, kind | str | bytes) or not isinstance(results, Iterable):
        raise _not_batches(operator, function, kind, "returned", results)
    for result in results:
        if not isinstance(result, kind):
            raise _not_batches(operator, function, kind, "yielded", result)
        yield result


def _not_batches(operator: str, function: Any, kind: type, verb: str, found: Any) -> OptionError:
    form = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    shown = "None" if found is None else f"a {type(found).__name__}"
    return OptionError(
        f"{operator}: the function {name_of(function)} {verb} {shown}. It must return an iterator "
        f"of {form}, or be a generator that yields them."
    )


def fit(batch: pa.RecordBatch, schema: pa.Schema, operator: str) -> pa.RecordBatch:
    """Select the columns of the schema from a user's batch, and cast them to its types."""
    if batch.schema.equals(schema):
        return batch
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise _missing(operator, missing, batch.schema.names)
    try:
        arrays = [batch.column(field.name).cast(field.type) for field in schema]
    except pa.ArrowInvalid as error:
        raise OptionError(
            f"{operator}: a result cannot be cast to the type in the schema: {error}."
        ) from None
    return batch_of(arrays, schema, batch.num_rows)


def _missing(operator: str, missing: list[str], found: list[str]) -> OptionError:
    return OptionError(
        f"{operator}: the result lacks the columns {', '.join(missing)} of the schema. It has "
        f"{', '.join(map(str, found)) or 'none'}."
    )
