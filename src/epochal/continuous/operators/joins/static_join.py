"""Joins a stream with a table that every task holds in memory.

The table is indexed by its keys once, when the operator opens. A null in a key matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from typing import Literal as OneOf

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.cells import Array, keys_of
from epochal.continuous.operators.contract import Moment, Row
from epochal.continuous.operators.expressions.evaluate import evaluate
from epochal.continuous.operators.expressions.expr import Expr, as_column, column_of
from epochal.continuous.operators.stateless.generate import with_unmatched
from epochal.errors import OptionError
from epochal.record_batches import batch_of, with_a_column

StaticKind: TypeAlias = OneOf[
    "inner", "left_outer", "right_outer", "left_semi", "left_anti", "existence"
]
Side: TypeAlias = OneOf["left", "right"]

_KINDS: dict[str, frozenset[str]] = {
    "left": frozenset({"inner", "left_outer", "left_semi", "left_anti", "existence"}),
    "right": frozenset({"inner", "right_outer"}),
}
"""The kinds that Spark allows, by the side of the stream. All others would have to emit rows of the
table that no row of the stream will ever match, which is never known."""

_MAX_CANDIDATES = 1 << 18
"""Pairs that are built at once. Without keys, each row pairs with the whole table."""


@dataclass(frozen=True, slots=True)
class StaticJoinSpec:
    """The plan of a join of a stream with a table. A join without keys is a cross join."""

    table: pa.Table = field(repr=False)
    stream_side: Side
    kind: StaticKind
    stream_key: tuple[str, ...]
    table_key: tuple[str, ...]
    condition: Expr | None
    """What else must hold for a pair: over the own columns of the left side, then of the right."""
    output_schema: pa.Schema
    """The own columns of the left side, then those of the right side. A semi or anti join has only
    the first, an existence join adds a boolean to them."""
    stream_columns: int | None = None
    """How many columns of the stream are its own, before computed keys; None if all are."""
    table_columns: int | None = None

    def __post_init__(self) -> None:
        if not self.table.num_columns:  # the spec is pickled, which would lose the rows
            object.__setattr__(self, "table", with_a_column(self.table))
            object.__setattr__(self, "table_columns", 0)
        if self.kind not in _KINDS[self.stream_side]:
            raise OptionError(
                f"a stream on the {self.stream_side} side of a {self.kind} join with a table "
                f"cannot be joined: rows of the table that do not match would never be final. "
                f"Use {', '.join(sorted(_KINDS[self.stream_side]))}, or exchange the sides."
            )

    def open(self) -> StaticJoin:
        return StaticJoin(self)


class StaticJoin:
    """Joins each batch with the table."""

    def __init__(self, spec: StaticJoinSpec) -> None:
        self._spec = spec
        table = spec.table.combine_chunks()
        count = table.num_columns if spec.table_columns is None else spec.table_columns
        self._table: list[Array] = [_one_chunk(table.column(i)) for i in range(count)]
        self._table_rows = table.num_rows
        self._index = _index(table, spec.table_key)
        self._unique: dict[Row, int] | None = None
        if all(len(rows) == 1 for rows in self._index.values()):
            self._unique = {key: rows[0] for key, rows in self._index.items()}
        self._outer = spec.kind in ("left_outer", "right_outer")

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        if not batch.num_rows:
            return ()
        if self._spec.stream_key or self._table_rows * batch.num_rows <= _MAX_CANDIDATES:
            return self._joined(batch)
        size = max(1, _MAX_CANDIDATES // self._table_rows)
        parts = [batch.slice(start, size) for start in range(0, batch.num_rows, size)]
        return [joined for part in parts for joined in self._joined(part)]

    def _joined(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        spec = self._spec
        rows, places = self._pairs(batch)
        if spec.condition is not None and len(rows):
            pairs = self._columns(batch, rows, places)
            names = [str(number) for number in range(len(pairs))]
            candidates = batch_of(pairs, names, len(rows))
            met = as_column(evaluate(spec.condition, candidates), len(rows)).fill_null(False)
            chosen = met.to_numpy(zero_copy_only=False).astype(bool)
            rows, places = rows[chosen], places[chosen]
        if spec.kind in ("left_semi", "left_anti", "existence"):
            return self._marked(batch, rows)
        if self._outer:
            rows, places = with_unmatched(rows, places, batch.num_rows)
        return self._emit(self._columns(batch, rows, places), len(rows))

    def _pairs(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        """For each pair with equal keys, the row of the batch and the row of the table."""
        key = self._spec.stream_key
        if not key:
            every = np.arange(batch.num_rows)
            return np.repeat(every, self._table_rows), np.tile(
                np.arange(self._table_rows), batch.num_rows
            )
        columns = [batch.schema.get_field_index(name) for name in key]
        keys = keys_of(batch, columns)
        if self._unique is not None:
            unique = self._unique
            places_found = np.array([unique.get(key, -1) for key in keys], np.int64)
            rows = np.flatnonzero(places_found >= 0)
            return rows, places_found[rows]
        matches = [self._index.get(key, ()) for key in keys]
        rows = np.repeat(np.arange(len(keys)), [len(places) for places in matches])
        return rows, np.array([place for places in matches for place in places], np.int64)

    def _marked(self, batch: pa.RecordBatch, rows: Any) -> Sequence[pa.RecordBatch]:
        """Rows of the stream, by whether they have a match."""
        has_match = np.zeros(batch.num_rows, bool)
        has_match[rows] = True
        own: list[Array] = self._own(batch)
        if self._spec.kind == "existence":
            return self._emit([*own, pa.array(has_match)], batch.num_rows)
        chosen = pa.array(has_match if self._spec.kind == "left_semi" else ~has_match)
        return self._emit([column.filter(chosen) for column in own], chosen.true_count)

    def _columns(self, batch: pa.RecordBatch, rows: Any, places: Any) -> list[Array]:
        """The columns of pairs, left side first. A place of -1 stands for nulls."""
        stream = [column.take(pa.array(rows)) for column in self._own(batch)]
        taken = pa.array(places, mask=places < 0)
        table = [column.take(taken) for column in self._table]
        return [*stream, *table] if self._spec.stream_side == "left" else [*table, *stream]

    def _own(self, batch: pa.RecordBatch) -> list[Array]:
        count = self._spec.stream_columns
        return [batch.column(i) for i in range(batch.num_columns if count is None else count)]

    def _emit(self, columns: Sequence[Array], rows: int) -> Sequence[pa.RecordBatch]:
        if not rows:
            return ()
        schema = self._spec.output_schema
        fitting = [
            column_of(column, rows, kind)
            for column, kind in zip(columns, schema.types, strict=True)
        ]
        return (batch_of(fitting, schema, rows),)


def _index(table: pa.Table, key: Sequence[str]) -> dict[Row, list[int]]:
    """The rows of each key, without keys that can match nothing."""
    if not key or not table.num_rows:
        return {}
    columns = [_one_chunk(table.column(name)) for name in key]
    keyed = batch_of(columns, list(map(str, range(len(key)))), table.num_rows)
    index: dict[Row, list[int]] = {}
    for number, values in enumerate(keys_of(keyed, range(len(key)))):
        if None not in values:
            index.setdefault(values, []).append(number)
    return index


def _one_chunk(column: Any) -> Array:
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # it has no chunk at all
        return pa.array([], column.type) if not whole.num_chunks else whole.chunk(0)
    return whole
