"""Decides which rows go to which task, by Spark's hash of the key. Pure.

The rows for one task are ordered by state partition, and within a partition as they arrived. For
small batches the partitions of recent keys are cached; `epochal.record_batches` says why.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pyarrow as pa

from epochal.continuous.tasks.frames import Runs
from epochal.record_batches import FEW_KEYS, FEW_SLICES, batch_of
from epochal.state.rows.arrow_types import arrow_type, spark_schema
from epochal.state.rows.byte_spans import Ints, arrow_buffer, numpy_view
from epochal.state.rows.murmur3 import partition_ids

_SMALL_BYTES = 1 << 14
_MAX_KNOWN_KEYS = 1 << 16
_SIGNED: dict[int, np.dtype[Any]] = {width: np.dtype(f"<i{width}") for width in (1, 2, 4, 8)}


class KeySplit:
    """Splits batches of one schema among tasks."""

    def __init__(
        self, schema: pa.Schema, key: Sequence[str], state_partitions: int, tasks: int
    ) -> None:
        self._schema = schema
        self._columns = [schema.get_field_index(name) for name in key]
        self._key = spark_schema(pa.schema([schema.field(i) for i in self._columns]))
        self._types = [arrow_type(field.data_type) for field in self._key.fields]
        self._partitions, self._tasks = state_partitions, tasks
        order = sorted(range(state_partitions), key=lambda p: (p % tasks, p))
        self._order = order
        self._ranks = np.empty(state_partitions, np.int64)
        self._ranks[order] = np.arange(state_partitions)
        self._rank_list: list[int] = self._ranks.tolist()
        self._known: dict[Hashable, int] = {}
        self._dtypes = _dtypes(schema)
        self._row_bytes = (
            None if self._dtypes is None else sum(dtype.itemsize for dtype in self._dtypes)
        )

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch, Runs]]:
        """Return (task, rows, runs) for every task that gets any rows."""
        if not self._columns or self._partitions == 1:
            return [(0, batch, ((0, batch.num_rows),))]
        ids = self._known_ids(batch)
        if ids is not None:
            return self._split_known(batch, ids)
        ranks = self._ranks[self._hashed_ids(batch)]
        counts = np.bincount(ranks, minlength=self._partitions)
        present = np.flatnonzero(counts).tolist()
        if len(present) > 1:
            # NumPy sorts 16-bit integers by radix, much faster than by comparison.
            keys = ranks.astype(np.uint16) if self._partitions <= 1 << 16 else ranks
            order = np.argsort(keys, kind="stable")
            indexes = pa.Array.from_buffers(pa.int64(), len(order), [None, arrow_buffer(order)])
            batch = batch.take(indexes)
        return self._cut_up(batch, present, counts.tolist())

    def _split_known(
        self, batch: pa.RecordBatch, ids: list[int]
    ) -> list[tuple[int, pa.RecordBatch, Runs]]:
        """Do the same for few rows whose partitions are known, without NumPy where possible."""
        if ids.count(ids[0]) == len(ids):
            return [(ids[0] % self._tasks, batch, ((ids[0], len(ids)),))]
        ranks = [self._rank_list[partition] for partition in ids]
        counts: dict[int, int] = {}
        for rank in ranks:
            counts[rank] = counts.get(rank, 0) + 1
        in_order = sorted(ranks)
        if ranks != in_order:
            batch = self._taken(batch, sorted(range(len(ranks)), key=ranks.__getitem__))
        return self._cut_up(batch, sorted(counts), counts)

    def _taken(self, batch: pa.RecordBatch, order: list[int]) -> pa.RecordBatch:
        """Return the rows in that order. Both other ways are faster than `take`."""
        if self._dtypes is None or any(column.null_count for column in batch.columns):
            if len(order) > FEW_SLICES:
                return batch.take(pa.array(order, pa.int64()))
            rows = [batch.slice(row, 1) for row in order]
            return cast(pa.RecordBatch, cast(Any, pa).concat_batches(rows))
        columns: list[Any] = []
        for dtype, column in zip(self._dtypes, cast(Any, batch.columns), strict=True):
            values = numpy_view(column.buffers()[1], dtype)[column.offset :][order]
            columns.append(
                pa.Array.from_buffers(column.type, len(order), [None, arrow_buffer(values)])
            )
        return batch_of(columns, self._schema, len(order))

    def size(self, batch: pa.RecordBatch) -> float:
        """Return the bytes per row, as credits count them."""
        if self._row_bytes is not None:
            return self._row_bytes
        # Faster than `nbytes`, but it also counts rows beside a slice. Below this size that does
        # not matter: credits for bytes come into play far above it.
        whole: int = cast(Any, batch).get_total_buffer_size()
        return (whole if whole <= _SMALL_BYTES else batch.nbytes) / batch.num_rows

    def _cut_up(
        self, batch: pa.RecordBatch, present: list[int], counts: Mapping[int, int] | list[int]
    ) -> list[tuple[int, pa.RecordBatch, Runs]]:
        runs: dict[int, list[tuple[int, int]]] = {}
        for rank in present:
            partition = self._order[rank]
            runs.setdefault(partition % self._tasks, []).append((partition, counts[rank]))
        parts, start = [], 0
        for task, of_task in runs.items():
            rows = sum(count for _, count in of_task)
            part = batch if rows == batch.num_rows else batch.slice(start, rows)
            parts.append((task, part, tuple(of_task)))
            start += rows
        return parts

    def _known_ids(self, batch: pa.RecordBatch) -> list[int] | None:
        """Return the partition of each row, if there are few and all their keys are cached."""
        if batch.num_rows > FEW_KEYS or not batch.num_rows:
            return None
        try:
            return [self._known[key] for key in self._keys(batch)]
        except (KeyError, TypeError):  # keys with structs, lists or maps are not hashable
            return None

    def _hashed_ids(self, batch: pa.RecordBatch) -> Ints:
        """Return the partition of each row; cache the keys of few rows."""
        ids = self._hashed(batch)
        if batch.num_rows <= FEW_KEYS:
            if len(self._known) > _MAX_KNOWN_KEYS:
                self._known.clear()
            with suppress(TypeError):
                self._known.update(zip(self._keys(batch), ids.tolist(), strict=True))
        return ids

    def _keys(self, batch: pa.RecordBatch) -> list[Any]:
        lists = [batch.column(index).to_pylist() for index in self._columns]
        return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))

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
    dtypes = []
    for field in schema:
        kind = field.type
        if not pa.types.is_primitive(kind) or kind.bit_width % 8 or kind.bit_width > 64:
            return None
        dtypes.append(_SIGNED[kind.bit_width // 8])
    return dtypes
