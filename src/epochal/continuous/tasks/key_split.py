"""Decides which rows go to which task, by Spark's hash of the key. Pure.

The rows for one task are ordered by state partition, and within a partition as they arrived. For
small batches the partitions of recent keys are cached, because hashing ten rows by columns costs as
much as hashing a thousand.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pyarrow as pa

from epochal.continuous.tasks.frames import Runs
from epochal.state.rows.arrow_types import arrow_type, spark_schema
from epochal.state.rows.byte_spans import Ints, arrow_buffer, numpy_view
from epochal.state.rows.murmur3 import partition_ids

_FEW_ROWS = 128
_MAX_KNOWN_KEYS = 1 << 16


_SIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype("i1"),
    2: np.dtype("<i2"),
    4: np.dtype("<i4"),
    8: np.dtype("<i8"),
}


class KeySplit:
    """Splits batches of one schema among tasks."""

    def __init__(
        self, schema: pa.Schema, key: Sequence[str], state_partitions: int, tasks: int
    ) -> None:
        self._schema = schema
        self._columns = [schema.get_field_index(name) for name in key]
        self._key = spark_schema(pa.schema([schema.field(i) for i in self._columns]))
        self._types = [arrow_type(each.data_type) for each in self._key.fields]
        self._partitions, self._tasks = state_partitions, tasks
        order = sorted(range(state_partitions), key=lambda p: (p % tasks, p))
        self._order = order
        self._ranks = np.empty(state_partitions, np.int64)
        self._ranks[order] = np.arange(state_partitions)
        self._known: dict[Hashable, int] = {}
        self._dtypes = _dtypes(schema)
        self._row_bytes = (
            None if self._dtypes is None else sum(each.itemsize for each in self._dtypes)
        )

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch, Runs]]:
        """Return (task, rows, runs) for every task that gets any rows."""
        if not self._columns or self._partitions == 1:
            return [(0, batch, ((0, batch.num_rows),))]
        ranks = self._ranks[self._ids(batch)]
        counts = np.bincount(ranks, minlength=self._partitions)
        present = np.flatnonzero(counts).tolist()
        if len(present) > 1:
            # NumPy sorts 16-bit integers by radix, much faster than by comparison.
            keys = ranks.astype(np.uint16) if self._partitions <= 1 << 16 else ranks
            batch = self._taken(batch, np.argsort(keys, kind="stable"))
        return self._cut_up(batch, present, counts)

    def size(self, batch: pa.RecordBatch) -> float:
        """Return the bytes per row, as credits count them."""
        if self._row_bytes is not None:
            return self._row_bytes
        return batch.nbytes / batch.num_rows

    def _taken(self, batch: pa.RecordBatch, order: Ints) -> pa.RecordBatch:
        """Return the rows in that order. For few rows NumPy is faster than Arrow's `take`."""
        if self._dtypes is None or batch.num_rows > _FEW_ROWS:
            indexes = pa.Array.from_buffers(pa.int64(), len(order), [None, arrow_buffer(order)])
            return batch.take(indexes)
        columns: list[Any] = []
        for dtype, column in zip(self._dtypes, cast(Any, batch.columns), strict=True):
            if column.null_count:
                columns.append(column.take(pa.array(order)))
                continue
            values = numpy_view(column.buffers()[1], dtype)[column.offset :][order]
            columns.append(
                pa.Array.from_buffers(column.type, len(order), [None, arrow_buffer(values)])
            )
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _cut_up(
        self, batch: pa.RecordBatch, present: list[int], counts: Ints
    ) -> list[tuple[int, pa.RecordBatch, Runs]]:
        runs: dict[int, list[tuple[int, int]]] = {}
        for rank in present:
            partition = self._order[rank]
            runs.setdefault(partition % self._tasks, []).append((partition, int(counts[rank])))
        found, start = [], 0
        for task, of_task in runs.items():
            rows = sum(count for _, count in of_task)
            part = batch if rows == batch.num_rows else batch.slice(start, rows)
            found.append((task, part, tuple(of_task)))
            start += rows
        return found

    def _ids(self, batch: pa.RecordBatch) -> Ints:
        if batch.num_rows > _FEW_ROWS:
            return self._hashed(batch)
        lists = [batch.column(index).to_pylist() for index in self._columns]
        keys = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
        known = self._known
        # Keys with structs, lists or maps are not hashable in Python.
        with suppress(TypeError):
            if all(key in known for key in keys):
                return np.array([known[key] for key in keys], np.int64)
        ids = self._hashed(batch)
        if len(known) > _MAX_KNOWN_KEYS:
            known.clear()
        with suppress(TypeError):
            known.update(zip(keys, ids.tolist(), strict=True))
        return ids

    def _hashed(self, batch: pa.RecordBatch) -> Ints:
        columns = [
            cast(Any, batch.column(index)).cast(type_)
            if batch.schema.field(index).type != type_
            else batch.column(index)
            for index, type_ in zip(self._columns, self._types, strict=True)
        ]
        return partition_ids(columns, self._key, self._partitions)


def _dtypes(schema: pa.Schema) -> list[np.dtype[Any]] | None:
    """Return a NumPy type of each column's width; None if a column is not fixed-width in bytes."""
    found = []
    for field in schema:
        kind = field.type
        if not pa.types.is_primitive(kind) or kind.bit_width % 8 or kind.bit_width > 64:
            return None
        found.append(_SIGNED[kind.bit_width // 8])
    return found
