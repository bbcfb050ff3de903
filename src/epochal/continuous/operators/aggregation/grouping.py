"""Reduces a batch to one partial buffer per group, in Arrow or, for small batches, in Python. Pure.

Both ways give the same result. Arrow has a fixed cost per batch, Python a cost per row. They break
even at about a hundred rows. Where Arrow has no function for an aggregate, it still finds the rows
of each group, and Python adds them up.

In memory, a group has one buffer per aggregate (`Fold`). In state, it has one row with the fields
of all buffers. Aggregates that compute the same share a buffer, as in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.aggregation.functions import (
    AggregateCall,
    Buffer,
    Column,
    Fold,
    fold_of,
)
from epochal.continuous.operators.cells import Array, cells
from epochal.continuous.operators.contract import Row
from epochal.record_batches import FEW_TO_GROUP, table_of
from epochal.state.rows.types import StructField

pc: Any = compute  # its stubs do not support scalars beside arrays

Partials: TypeAlias = list[tuple[Row, Row]]
"""Pairs of key and buffers; each key occurs once."""

_ROWS = "rows"


class Buffers:
    """All aggregates of a query. A group has one buffer for each that differs from the others."""

    def __init__(self, calls: Sequence[AggregateCall], schema: pa.Schema) -> None:
        self._calls: list[AggregateCall] = []
        self._places = [self._place(call) for call in calls]
        self._folds: list[Fold] = [fold_of(call, schema) for call in self._calls]
        self._merges = [fold.merge for fold in self._folds]
        self._plain = all(len(fold.fields) == 1 for fold in self._folds)
        self.output = [pa.field(call.alias, call.type) for call in calls]

    def _place(self, call: AggregateCall) -> int:
        for number, earlier in enumerate(self._calls):
            if call.computes_like(earlier):
                return number
        self._calls.append(call)
        return len(self._calls) - 1

    @property
    def fields(self) -> tuple[StructField, ...]:
        return tuple(chain.from_iterable(fold.fields for fold in self._folds))

    def new(self) -> Row:
        """The buffers of a group without rows."""
        return tuple([fold.new() for fold in self._folds])

    def merged(self, before: Row, later: Row) -> Row:
        """Merge the earlier and the later buffers of a group."""
        return tuple([m(a, b) for m, a, b in zip(self._merges, before, later, strict=True)])

    def merged_all(self, groups: Sequence[Row]) -> Row:
        return reduce(self.merged, groups, self.new())

    def with_rows(self, before: Row | None, batch: pa.RecordBatch) -> Row:
        """Add rows to the buffers of one group. The first column is constant, and not null."""
        if batch.num_rows < FEW_TO_GROUP or self.arrow_differs(batch):
            ((_, group),) = self.group_in_python(batch, [()] * batch.num_rows)
        else:
            ((_, group),) = self.group_in_arrow(batch, [batch.column(0)])
        return self.merged(self.new() if before is None else before, group)

    def stored(self, groups: Sequence[Row]) -> Sequence[Row]:
        """The rows of some groups in state."""
        if self._plain or not groups:
            return groups
        columns: list[Column] = []
        for fold, buffers in zip(self._folds, zip(*groups, strict=True), strict=True):
            if len(fold.fields) == 1:
                columns.append(buffers)
            else:
                columns.extend(zip(*buffers, strict=True))
        return list(zip(*columns, strict=True))

    def loaded(self, row: Row) -> Row:
        """The buffers of a group from its row in state."""
        if self._plain:
            return row
        buffers: list[Buffer] = []
        index = 0
        for fold in self._folds:
            part = tuple(row[index : index + len(fold.fields)])
            index += len(fold.fields)
            buffers.append(part[0] if len(part) == 1 else part)
        return tuple(buffers)

    def results(self, groups: Sequence[Row]) -> list[Column]:
        """The values of the output columns for the buffers of some groups."""
        if not self._folds:
            return []
        columns: list[Any] = list(zip(*groups, strict=True)) or [()] * len(self._folds)
        values = [fold.results(column) for fold, column in zip(self._folds, columns, strict=True)]
        return [values[place] for place in self._places]

    def single_rows(self, batch: pa.RecordBatch) -> list[Row]:
        rows = _Rows(self._calls, self._folds, batch)
        groups = []
        for index in range(batch.num_rows):
            buffers = [fold.new() for fold in self._folds]
            rows.add(index, buffers)
            groups.append(tuple(buffers))
        return groups

    def group_in_python(self, batch: pa.RecordBatch, keys: Sequence[Row]) -> Partials:
        groups: dict[Row, list[Buffer]] = {}
        rows = _Rows(self._calls, self._folds, batch)
        for index, key in enumerate(keys):
            buffers = groups.get(key)
            if buffers is None:
                groups[key] = buffers = [fold.new() for fold in self._folds]
            rows.add(index, buffers)
        return [(key, tuple(buffers)) for key, buffers in groups.items()]

    def group_in_arrow(self, batch: pa.RecordBatch, keys: Sequence[Array]) -> Partials:
        """Group by columns whose types `arrow_groups_like_spark` allows, without null structs."""
        # Arrow cannot group by a struct: group by its fields and rebuild it.
        arrays = [
            part
            for key in keys
            for part in (key.flatten() if pa.types.is_struct(key.type) else [key])
        ]
        key_names = [f"k{number}" for number in range(len(arrays))]
        names = list(key_names)
        wanted: list[Any] = []
        for number, (call, fold) in enumerate(zip(self._calls, self._folds, strict=True)):
            if fold.arrow is None:
                continue
            names.append(f"v{number}")
            arrays.append(_source(call, fold, batch, arrays[0]))
            rows = not call.arguments and call.filter is None
            wanted += [
                _arrow_aggregation(f"v{number}", function, rows=rows)
                for function in fold.arrow.functions
            ]
        if any(fold.arrow is None for fold in self._folds):
            names.append(_ROWS)
            arrays.append(pa.array(range(batch.num_rows)))
            wanted.append((_ROWS, "list"))
        table = table_of(arrays, names, batch.num_rows)
        grouped = table.group_by(key_names, use_threads=False).aggregate(wanted)
        parts = iter(cells(grouped.column(name).combine_chunks(), keys=True) for name in key_names)
        columns = [
            list(zip(*[next(parts) for _ in range(key.type.num_fields)], strict=True))
            if pa.types.is_struct(key.type)
            else next(parts)
            for key in keys
        ]
        groups = list(zip(*columns, strict=True))
        if not self._folds:
            return [(key, ()) for key in groups]
        buffers = [self._from_arrow(number, batch, grouped) for number in range(len(self._folds))]
        return list(zip(groups, zip(*buffers, strict=True), strict=True))

    def arrow_differs(self, batch: pa.RecordBatch) -> bool:
        """Whether Arrow would ignore a NaN or silently overflow an integer sum."""
        return any(
            fold.arrow is not None
            and fold.arrow.differs is not None
            and fold.arrow.differs(batch.column(call.arguments[0]))
            for call, fold in zip(self._calls, self._folds, strict=True)
        )

    def _from_arrow(self, number: int, batch: pa.RecordBatch, grouped: pa.Table) -> Column:
        call, fold = self._calls[number], self._folds[number]
        if fold.arrow is None:
            rows = _Rows([call], [fold], batch)
            of_groups: Any = grouped.column(f"{_ROWS}_list").to_pylist()
            return [rows.folded(rows_of_group) for rows_of_group in of_groups]
        results: list[Column] = []
        for function in fold.arrow.functions:
            name = {"first": "min", "last": "max"}.get(function, function)
            result: Array = grouped.column(f"v{number}_{name}").combine_chunks()
            if function in ("first", "last"):
                results.append(cells(batch.column(call.arguments[0]).take(result)))
                results.append(result.is_valid().to_pylist())
            else:
                results.append(cells(result))
        return fold.arrow.buffers(results)


class _Rows:
    """The arguments and filters of aggregates, as columns of Python values."""

    def __init__(
        self, calls: Sequence[AggregateCall], folds: Sequence[Fold], batch: pa.RecordBatch
    ) -> None:
        self._steps: list[tuple[int, Any, Column, Column | None]] = []
        for number, (call, fold) in enumerate(zip(calls, folds, strict=True)):
            arguments = [batch.column(name) for name in call.arguments]
            if len(arguments) == 1:
                values = cells(arguments[0])
            else:
                columns = [cells(argument) for argument in arguments]
                values = list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows
            passes = None if call.filter is None else batch.column(call.filter).to_pylist()
            self._steps.append((number, fold.update, values, passes))
        self._new = folds[0].new if folds else None

    def add(self, row: int, buffers: list[Buffer]) -> None:
        for number, update, values, passes in self._steps:
            if passes is None or passes[row]:
                buffers[number] = update(buffers[number], values[row])

    def folded(self, rows: Sequence[int]) -> Buffer:
        """The buffer of the first aggregate for some rows."""
        assert self._new is not None
        buffers = [self._new()]
        for row in rows:
            self.add(row, buffers)
        return buffers[0]


def arrow_groups_like_spark(kind: pa.DataType) -> bool:
    """Whether Arrow groups this type as Spark does: not floats (NaN, -0.0) or lists."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i).type for i in range(kind.num_fields)]
        return bool(fields) and all(map(_is_flat, fields))
    return _is_flat(kind)


def _is_flat(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_dictionary(kind)
    )


def _source(call: AggregateCall, fold: Fold, batch: pa.RecordBatch, any_key: Array) -> Array:
    """The column that Arrow aggregates. Rows that do not count are null in it."""
    assert fold.arrow is not None
    counts = None if call.filter is None else batch.column(call.filter).fill_null(False)
    column: Array
    function = fold.arrow.functions[0]
    if function in ("first", "last"):
        # Arrow's grouping has no ordered first and last. Take the lowest or highest row number
        # instead; `_from_arrow` looks up its value.
        column = pa.array(range(batch.num_rows))
        if call.extra.get("ignoreNulls"):
            valid = batch.column(call.arguments[0]).is_valid()
            counts = valid if counts is None else pc.and_(counts, valid)
    elif fold.arrow.functions == ("count",):
        if len(call.arguments) == 1:
            column = batch.column(call.arguments[0])
            if counts is None and not pa.types.is_nested(column.type):
                return column
        elif not call.arguments and counts is None:
            return any_key
        for name in call.arguments:
            valid = batch.column(name).is_valid()
            counts = valid if counts is None else pc.and_(counts, valid)
        column = counts
    else:
        column = batch.column(call.arguments[0])
        if fold.arrow.cast_to is not None:
            # A long may lose its last digits in a double, as in Spark.
            column = column.cast(fold.arrow.cast_to, safe=False)
    return column if counts is None else pc.if_else(counts, column, pa.scalar(None, column.type))


def _arrow_aggregation(name: str, function: str, *, rows: bool) -> tuple[str, str, Any]:
    match function:
        case "count":
            return (name, "count", pc.CountOptions(mode="all" if rows else "only_valid"))
        case "first":
            function = "min"
        case "last":
            function = "max"
    return (name, function, pc.ScalarAggregateOptions(skip_nulls=True, min_count=1))
