"""Reduces a batch to one partial buffer per group, in Arrow or, for small batches, in Python. Pure.

Both ways give the same result. Arrow has a fixed cost per batch, Python a cost per row. They break
even at about a hundred rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.operators.aggregation.aggregates import (
    Aggregate,
    Fold,
    fold_of,
    has_nan,
    may_overflow,
)
from epochal.continuous.operators.cells import Array, arrow_column, cells
from epochal.continuous.operators.contract import Row
from epochal.state.rows.arrow_types import spark_schema
from epochal.state.rows.types import StructField, StructType

MIN_ARROW_ROWS = 128
"""Batches with fewer rows are grouped in Python."""

Partials: TypeAlias = list[tuple[Row, Row]]
"""Pairs of key and buffers; each key occurs once."""


class Buffers:
    """All aggregates of a query. The buffers of a group form one row."""

    def __init__(self, aggregates: Sequence[Aggregate], schema: pa.Schema) -> None:
        self._folds: list[Fold] = [fold_of(each, schema) for each in aggregates]
        self._columns = [
            None if each.column is None else schema.get_field_index(each.column)
            for each in aggregates
        ]
        self._spans: list[slice] = []
        index = 0
        for fold in self._folds:
            self._spans.append(slice(index, index + len(fold.fields)))
            index += len(fold.fields)
        self._merges = [merge for fold in self._folds for merge in fold.merges]
        self.output = [
            pa.field(each.alias, fold.output)
            for each, fold in zip(aggregates, self._folds, strict=True)
        ]

    @property
    def fields(self) -> tuple[StructField, ...]:
        return tuple(chain.from_iterable(fold.fields for fold in self._folds))

    def merged(self, before: Row, later: Row) -> Row:
        """Merge the earlier and the later buffers of a group."""
        return tuple([m(a, b) for m, a, b in zip(self._merges, before, later, strict=True)])

    def results(self, rows: Sequence[Row]) -> list[Array]:
        """The output columns for the buffers of some groups."""
        columns = list(zip(*rows, strict=True))
        found = zip(self._folds, self._spans, strict=True)
        return [arrow_column(fold.result(columns[span]), fold.output) for fold, span in found]

    def single_rows(self, batch: pa.RecordBatch) -> list[Row]:
        """The buffers of each single row."""
        columns = []
        for column, fold in zip(self._columns, self._folds, strict=True):
            values = [1] * batch.num_rows if column is None else cells(batch.column(column))
            columns += fold.lift(values)
        return list(zip(*columns, strict=True))

    def group_in_python(self, batch: pa.RecordBatch, keys: Sequence[Row]) -> Partials:
        groups: dict[Row, Row] = {}
        for key, buffers in zip(keys, self.single_rows(batch), strict=True):
            before = groups.get(key)
            groups[key] = buffers if before is None else self.merged(before, buffers)
        return list(groups.items())

    def group_in_arrow(self, batch: pa.RecordBatch, keys: Sequence[Array]) -> Partials:
        """Group by columns whose types `arrow_groups_like_spark` allows."""
        names = [f"k{number}" for number in range(len(keys))]
        arrays: list[Array] = list(keys)
        wanted: list[Any] = []
        for number, (column, fold) in enumerate(zip(self._columns, self._folds, strict=True)):
            source: Array = keys[0] if column is None else batch.column(column)
            if fold.arrow_functions[0] in ("first", "last"):
                # Arrow's grouping has no ordered first and last. Take the lowest or highest row
                # number instead; `_from_arrow` looks up its value.
                source = pa.array(range(batch.num_rows))
            elif fold.cast_to is not None:
                source = source.cast(fold.cast_to)
            names.append(f"v{number}")
            arrays.append(source)
            rows = column is None
            wanted += [
                _arrow_aggregation(f"v{number}", function, rows=rows)
                for function in fold.arrow_functions
            ]
        made = pa.Table.from_arrays(arrays, names=names)
        grouped = made.group_by(names[: len(keys)], use_threads=False).aggregate(wanted)
        columns = [grouped.column(name).combine_chunks() for name in names[: len(keys)]]
        found = list(zip(*(cells(each, keys=True) for each in columns), strict=True))
        parts: list[Any] = []
        for number in range(len(self._folds)):
            parts += self._from_arrow(number, batch, grouped)
        return list(zip(found, zip(*parts, strict=True), strict=True))

    def arrow_differs(self, batch: pa.RecordBatch) -> bool:
        """Whether Arrow would ignore a NaN or silently overflow an integer sum."""
        for column, fold in zip(self._columns, self._folds, strict=True):
            if column is None:
                continue
            if fold.arrow_functions[0] in ("min", "max") and has_nan(batch.column(column)):
                return True
            if fold.arrow_functions == ("sum",) and may_overflow(batch.column(column)):
                return True
        return False

    def _from_arrow(self, number: int, batch: pa.RecordBatch, grouped: pa.Table) -> list[Any]:
        fold, column = self._folds[number], self._columns[number]
        results = []
        for function in fold.arrow_functions:
            name = {"first": "min", "last": "max"}.get(function, function)
            result: Array = grouped.column(f"v{number}_{name}").combine_chunks()
            if function in ("first", "last"):
                assert column is not None
                result = batch.column(column).take(result)
            results.append(cells(result))
        return list(fold.from_arrow(results))


def key_schema(schema: pa.Schema, names: Sequence[str]) -> StructType:
    """The schema of a key that consists of these columns."""
    return spark_schema(pa.schema([schema.field(name) for name in names]))


def arrow_groups_like_spark(kind: pa.DataType) -> bool:
    """Whether Arrow groups this type as Spark does: not floats (NaN, -0.0), not nested types."""
    return not (
        pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_dictionary(kind)
    )


def _arrow_aggregation(name: str, function: str, *, rows: bool) -> tuple[str, str, Any]:
    match function:
        case "count":
            return (name, "count", pc.CountOptions(mode="all" if rows else "only_valid"))
        case "sum":
            return (name, "sum", pc.ScalarAggregateOptions(skip_nulls=True, min_count=1))
        case "first":
            return (name, "min", pc.ScalarAggregateOptions(skip_nulls=True, min_count=1))
        case "last":
            return (name, "max", pc.ScalarAggregateOptions(skip_nulls=True, min_count=1))
        case _:
            return (name, function, pc.ScalarAggregateOptions(skip_nulls=True, min_count=1))
