"""Makes any number of rows of each row: `explode`, `posexplode`, `inline`, `stack`, and others.

The rows of a batch keep their order. A null or empty collection makes no row, or, with `outer`, one
row whose generated columns are null. Generators that are not in this module run in Spark's own
code. What such a generator adds at the end of its input, it adds at the end of each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.evaluate import evaluate, evaluate_all
from epochal.continuous.operators.expressions.expr import Call, Expr, Value, column_of
from epochal.continuous.operators.expressions.spark_calls import SPARK, spark_rows
from epochal.record_batches import batch_of

Columns: TypeAlias = list[Value]


@dataclass(frozen=True, slots=True)
class GenerateSpec:
    """A generator over expressions, and the columns of the input that the result keeps."""

    generator: str
    """The name of Spark's class: Explode, PosExplode, Inline, Stack. SPARK for all others."""
    arguments: tuple[Expr, ...]
    """The call of the generator itself if Spark's code runs it."""
    input_columns: tuple[int, ...]
    outer: bool
    schema: pa.Schema
    """Those columns of the input, then the generated ones."""

    def open(self) -> Self:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        """Repeat each row once for every row that the generator makes of it."""
        rows, types = batch.num_rows, self.schema.types[len(self.input_columns) :]
        if not rows:
            return ()
        (call, *_) = self.arguments
        if self.generator == SPARK and isinstance(call, Call):
            parents, *generated = spark_rows(call, batch, evaluate, outer=self.outer)
        else:
            values = evaluate_all(self.arguments, batch)
            parents, generated = GENERATORS[self.generator](values, rows, types)
            if self.outer:
                own = len(parents)
                parents, places = with_unmatched(parents, np.arange(own), rows)
                if len(parents) > own:
                    index = pa.array(places, pa.int64(), mask=places < 0)
                    generated = [column.take(index) for column in generated]
        if not len(parents):
            return ()
        index = pa.array(parents, pa.int64())
        own_columns = [batch.column(number).take(index) for number in self.input_columns]
        made_columns = [
            column_of(column, len(parents), kind)
            for column, kind in zip(generated, types, strict=True)
        ]
        return (batch_of([*own_columns, *made_columns], self.schema, len(parents)),)


def with_unmatched(rows: Any, places: Any, count: int) -> tuple[Any, Any]:
    """Add a place of -1 for each of `count` rows that has none, in the order of the rows."""
    missing = np.setdiff1d(np.arange(count), rows)
    if not len(missing):
        return rows, places
    rows = np.concatenate((rows, missing))
    places = np.concatenate((places, np.full(len(missing), -1)))
    order = np.argsort(rows, kind="stable")
    return rows[order], places[order]


def _lists(value: Value, rows: int) -> tuple[Value, Any, Any, Any]:
    """A column of lists or maps; for each element its row, its position, and its flat index."""
    value = column_of(value, rows, value.type)
    lengths = np.zeros(rows, dtype=np.int64)
    starts = np.zeros(rows, dtype=np.int64)
    offsets = value.offsets.to_numpy()
    present = value.is_valid().to_numpy(zero_copy_only=False)
    starts[:] = offsets[:-1]
    lengths[present] = np.diff(offsets)[present]
    parents = np.repeat(np.arange(rows), lengths)
    firsts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    positions = np.arange(len(parents)) - firsts
    return value, parents, positions, np.repeat(starts, lengths) + positions


def _elements(value: Value, index: Any) -> Columns:
    """The elements of a list, or the keys and values of a map, at flat indexes."""
    at = pa.array(index, pa.int64())
    if pa.types.is_map(value.type):
        return [value.keys.take(at), value.items.take(at)]
    return [value.values.take(at)]


def _explode(values: Columns, rows: int, types: list[pa.DataType]) -> tuple[Any, Columns]:
    collection, parents, _, index = _lists(values[0], rows)
    return parents, _elements(collection, index)


def _posexplode(values: Columns, rows: int, types: list[pa.DataType]) -> tuple[Any, Columns]:
    collection, parents, positions, index = _lists(values[0], rows)
    return parents, [pa.array(positions, pa.int32()), *_elements(collection, index)]


def _inline(values: Columns, rows: int, types: list[pa.DataType]) -> tuple[Any, Columns]:
    collection, parents, _, index = _lists(values[0], rows)
    structs = collection.values.take(pa.array(index, pa.int64()))
    return parents, list(structs.flatten())  # flatten applies the nulls of the structs


def _stack(values: Columns, rows: int, types: list[pa.DataType]) -> tuple[Any, Columns]:
    count, cells = values[0].as_py(), values[1:]
    width = len(types)
    columns: Columns = []
    order = np.argsort(np.tile(np.arange(rows), count), kind="stable")
    for number, kind in enumerate(types):
        parts = []
        for line in range(count):
            at = line * width + number
            cell = cells[at] if at < len(cells) else pa.scalar(None, kind)
            parts.append(column_of(cell, rows, kind))
        columns.append(pa.concat_arrays(parts).take(pa.array(order, pa.int64())))
    return np.repeat(np.arange(rows), count), columns


Generator: TypeAlias = Callable[[Columns, int, list[pa.DataType]], tuple[Any, Columns]]
"""Takes argument values, the number of rows and the generated types; returns for each generated row
the index of its row, and the generated columns."""

GENERATORS: dict[str, Generator] = {
    "Explode": _explode,
    "PosExplode": _posexplode,
    "Inline": _inline,
    "Stack": _stack,
}
