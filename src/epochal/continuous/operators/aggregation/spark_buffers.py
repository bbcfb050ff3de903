"""Aggregates that Spark's own code computes: percentiles, sketches, `mode`, functions of users.

The buffers of a group are one `bytes`: the row that Spark keeps in state for the aggregates of the
operator. If one aggregate of an operator needs Spark, all of them run there, because the rows are
sent anyway. A request has the rows of many groups, and says what is merged, in which order:

    new rows of a group  ->  a part  ->  merged with what the group had before

This is the order in which Spark's operators update and merge, so buffers equal Spark's byte by byte
if an epoch has the rows of a micro-batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.connectors.arrow_stream import decode_stream, encode_stream
from epochal.continuous.operators.aggregation.functions import AggregateCall, Column
from epochal.continuous.operators.aggregation.grouping import arrow_groups_like_spark
from epochal.continuous.operators.cells import keys_of
from epochal.continuous.operators.contract import Row
from epochal.continuous.operators.expressions.expr import column_of
from epochal.evaluator.evaluator_client import CLIENT, REQUEST_BYTES, EvaluatorStep, Session, slices
from epochal.record_batches import FEW_TO_GROUP, batch_of
from epochal.state.rows.types import StructField, StructType
from epochal.state.rows.unsafe_row import decode_row, encode_row

Recipe: TypeAlias = tuple[bytes | int, ...]
"""What is merged into a group, in order: rows that exist, and the numbers of parts."""

Numbered: TypeAlias = tuple[pa.RecordBatch, Any]
"""Rows, and an array with the numbers of their parts."""

_LENGTH, _MERGE = struct.Struct(">i"), struct.Struct(">iii")
_NONE = -1
_NO_ROWS = batch_of([pa.array([], pa.int32())], ["part"], 0)


@dataclass(frozen=True, slots=True)
class SparkAggregates:
    """The aggregates of one operator, as the driver has planned them."""

    expressions: bytes
    """Spark's aggregate expressions and the attributes of their input, serialised."""
    columns: tuple[str, ...]
    """The columns of the input that the attributes stand for."""
    fields: tuple[StructField, ...]
    """The fields of the buffers in state."""
    results_json: str
    """Spark's schema of the results."""
    session: Session


class SparkBuffers:
    """Folds rows into buffers, and computes results of them."""

    def __init__(self, spec: SparkAggregates, calls: Sequence[AggregateCall]) -> None:
        self.fields = spec.fields
        self.output = [pa.field(call.alias, call.type) for call in calls]
        self._columns = list(spec.columns)
        self._schema = StructType(spec.fields)
        self._step = EvaluatorStep(
            "aggregate", spec.session, spec.results_json, (spec.expressions,)
        )
        self._empty: bytes | None = None

    def new(self) -> bytes:
        """The buffers of a group without rows."""
        if self._empty is None:
            (self._empty,) = self._fold((), [()], exchanged=False)
        return self._empty

    def merged(self, before: Any, later: Any) -> Recipe:
        """What makes up a group of which two parts are known."""
        return (*_recipe(before), *_recipe(later))

    def merged_all(self, groups: Sequence[bytes]) -> bytes:
        (merged,) = self._fold((), [tuple(groups)], exchanged=False)
        return merged

    def with_rows(self, before: bytes | None, batch: pa.RecordBatch) -> bytes:
        """Add rows to the buffers of one group."""
        for part in slices(batch):
            numbers = np.zeros(part.num_rows, dtype=np.int32)
            recipe: Recipe = (0,) if before is None else (before, 0)
            (before,) = self._fold([(part, numbers)], [recipe], exchanged=False)
        assert before is not None
        return before

    def stored(self, groups: Sequence[bytes]) -> Sequence[Row]:
        """The rows of some groups in state."""
        return [decode_row(group, self._schema) for group in groups]

    def loaded(self, row: Row) -> bytes:
        """The buffers of a group from its row in state."""
        return encode_row(row, self._schema)

    def results(self, groups: Sequence[bytes]) -> list[Column]:
        """The output columns for the buffers of some groups, as Arrow arrays."""
        tables = []
        for start, end in _chunks([len(group) for group in groups]) or [(0, 0)]:
            some = groups[start:end]
            rows = b"".join(chain.from_iterable((_LENGTH.pack(len(g)), g) for g in some))
            tables.append(decode_stream(CLIENT.run(self._step, rows)))
        whole = pa.concat_tables(tables)
        return [
            column_of(column, len(groups), field.type)
            for column, field in zip(whole.columns, self.output, strict=True)
        ]

    def folded(
        self, rows: Sequence[Numbered], recipes: Sequence[Recipe], *, exchanged: bool
    ) -> list[bytes]:
        """Make groups of rows, whose parts are numbered, and of what groups were before.

        A part belongs to one group. `exchanged` says that Spark merges parts after an exchange.
        """
        sizes = [sum(len(part) for part in r if isinstance(part, bytes)) for r in recipes]
        chunks = _chunks(sizes)
        if len(chunks) <= 1:
            return self._fold(rows, recipes, exchanged=exchanged)
        groups: list[bytes] = []
        for start, end in chunks:
            # A part belongs to one group: its rows go with this request and with no other.
            parts = [part for r in recipes[start:end] for part in r if isinstance(part, int)]
            chosen = [(batch, np.isin(numbers, parts), numbers) for batch, numbers in rows]
            some = [(b.filter(pa.array(mask)), numbers[mask]) for b, mask, numbers in chosen]
            groups += self._fold(some, recipes[start:end], exchanged=exchanged)
        return groups

    def _fold(
        self, rows: Sequence[Numbered], recipes: Sequence[Recipe], *, exchanged: bool
    ) -> list[bytes]:
        names = [*self._columns, "part"]
        batches = [
            batch_of(
                [*map(batch.column, self._columns), pa.array(numbers, pa.int32())],
                names,
                batch.num_rows,
            )
            for batch, numbers in rows
        ]
        merges = b"".join(
            chain.from_iterable(_merge(group, recipe) for group, recipe in enumerate(recipes))
        )
        data = encode_stream((batches or [_NO_ROWS])[0].schema, batches)
        answer = CLIENT.run(self._step, data, merges, *([b""] if exchanged else []))
        return list(_split(answer))


class Waiting:
    """Rows of partitions that wait until they are worth a request, or the epoch ends."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, pa.RecordBatch]] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, partition: int, batch: pa.RecordBatch) -> bool:
        """Let rows wait; whether those that wait are worth a request."""
        self._rows.append((partition, batch))
        self._bytes += batch.nbytes
        return self._bytes >= REQUEST_BYTES

    def taken(self) -> list[tuple[int, pa.RecordBatch]]:
        rows, self._rows, self._bytes = self._rows, [], 0
        return rows


def group_numbers(batch: pa.RecordBatch, columns: Sequence[int]) -> tuple[Any, list[Row]]:
    """The number of each row's group in a batch, and the keys of the groups."""
    keys: list[Any] = [batch.column(index) for index in columns]
    if batch.num_rows < FEW_TO_GROUP or not all(arrow_groups_like_spark(k.type) for k in keys):
        groups: dict[Row, int] = {}
        codes = [groups.setdefault(key, len(groups)) for key in keys_of(batch, columns)]
        return np.array(codes, dtype=np.int32), list(groups)
    numbers = np.zeros(batch.num_rows, dtype=np.int64)
    first: Any = np.zeros(1, dtype=np.int64)
    for column in keys:
        is_struct = pa.types.is_struct(column.type)
        for part in (column.is_valid(), *column.flatten()) if is_struct else (column,):
            encoded = part.dictionary_encode(null_encoding="encode")
            codes = encoded.indices.to_numpy(zero_copy_only=False)
            # Neither factor exceeds the number of rows, since `unique` numbers groups anew after
            # each column: the product fits.
            both = numbers * len(encoded.dictionary) + codes
            _, first, numbers = np.unique(both, return_index=True, return_inverse=True)
    return numbers, keys_of(batch.take(pa.array(first, pa.int64())), columns)


def _recipe(buffers: Any) -> Recipe:
    return buffers if isinstance(buffers, tuple) else (buffers,)


def _merge(group: int, recipe: Recipe) -> Iterable[bytes]:
    if not recipe:
        yield _MERGE.pack(group, _NONE, _NONE)
    for part in recipe:
        if isinstance(part, bytes):
            yield _MERGE.pack(group, _NONE, len(part))
            yield part
        else:
            yield _MERGE.pack(group, part, _NONE)


def _split(answer: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(answer):
        (size,) = _LENGTH.unpack_from(answer, at)
        at += _LENGTH.size
        yield answer[at : at + size]
        at += size


def _chunks(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of groups whose rows fit into a request."""
    chunks, start, total = [], 0, 0
    for index, size in enumerate(sizes):
        if total and total + size > REQUEST_BYTES:
            chunks.append((start, index))
            start, total = index, 0
        total += size
    return [*chunks, (start, len(sizes))] if len(sizes) else []
