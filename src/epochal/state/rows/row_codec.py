"""Encodes rows for a store and decodes them again.

Users pass tuples or dictionaries; engines pass Arrow batches with the schema's columns. Both become
the same UnsafeRow bytes. They must, because a store finds a key by its bytes alone.

Many rows are encoded and decoded by columns where every column has plain values. The result is the
same as one row at a time, in about a fifth of the time, and loading state is mostly decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from epochal.errors import StateValueError
from epochal.record_batches import batch_of
from epochal.state.rows.arrow_types import NUMBERS, AnyArrowType, arrow_type
from epochal.state.rows.byte_spans import arrow_buffer, numpy_view, spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.types import AtomicType, DataType, Kind, Layout, StringType, StructType
from epochal.state.rows.unsafe_row import Row, decode_row, encode_row

_WORTH_A_BATCH = 64
"""Below this many rows, doing one at a time is faster."""

_PLAIN: dict[str, AnyArrowType] = {
    "long": pa.int64(),
    "timestamp": pa.int64(),
    "timestamp_ntz": pa.int64(),
    "integer": pa.int32(),
    "date": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "float": pa.float32(),
    "binary": pa.binary(),
}
"""Spark types whose Python values Arrow accepts unchanged as this type of the same width."""


class RowCodec:
    """Encodes and decodes the rows of one store."""

    def __init__(
        self, key_schema: StructType, value_schema: StructType, num_cols_prefix_key: int
    ) -> None:
        self.key_schema, self.value_schema = key_schema, value_schema
        self.num_cols_prefix_key = num_cols_prefix_key
        self._prefix_schema = StructType(key_schema.fields[:num_cols_prefix_key])

    def encode_key(self, key: Sequence[Any] | Mapping[str, Any]) -> bytes:
        return encode_row(_in_order(key, self.key_schema, "key"), self.key_schema)

    def encode_value(self, value: Sequence[Any] | Mapping[str, Any]) -> bytes:
        return encode_row(_in_order(value, self.value_schema, "value"), self.value_schema)

    def encode_prefix(self, prefix: Sequence[Any] | Mapping[str, Any]) -> bytes:
        return encode_row(_in_order(prefix, self._prefix_schema, "prefix"), self._prefix_schema)

    def decode_value(self, data: bytes) -> Row:
        return decode_row(data, self.value_schema)

    def decoded(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[Row, Row]]:
        """Decode many rows, in order, some at a time."""
        return decode_tuples(rows, self.key_schema, self.value_schema)

    def encode_keys(self, keys: pa.RecordBatch) -> list[bytes]:
        return encode_rows(keys, self.key_schema).to_list()

    def encode_values(self, values: pa.RecordBatch) -> list[bytes]:
        return encode_rows(values, self.value_schema).to_list()

    def decode_values(
        self, values: Sequence[bytes | None]
    ) -> tuple[pa.RecordBatch, pa.BooleanArray]:
        """Decode values into a batch. Also returns which of them exist; the others are all null."""
        there = np.fromiter((value is not None for value in values), np.bool_, len(values))
        decoded = decode_rows(
            spans_of([value for value in values if value is not None]), self.value_schema
        )
        # From buffers: for a numpy array `pa.array` would import pandas, which is slow.
        bits = arrow_buffer(np.packbits(there, bitorder="little"))
        places = pa.Array.from_buffers(
            pa.int64(), len(there), [bits, arrow_buffer(np.cumsum(there) - 1)]
        )
        columns = decoded.take(places).flatten()
        batch = batch_of(columns, list(self.value_schema.names), len(there))
        exists = pa.Array.from_buffers(pa.bool_(), len(there), [None, bits])
        return batch, cast(pa.BooleanArray, exists)

    def prefixes_of(self, keys: Sequence[bytes]) -> list[bytes]:
        count = self.num_cols_prefix_key
        if len(keys) < _WORTH_A_BATCH:
            return [
                encode_row(decode_row(key, self.key_schema)[:count], self._prefix_schema)
                for key in keys
            ]
        columns = decode_rows(spans_of(keys), self.key_schema).flatten()[:count]
        batch = batch_of(columns, list(self._prefix_schema.names), len(keys))
        return encode_rows(batch, self._prefix_schema).to_list()

    def range_test(
        self,
        start: Sequence[Any] | Mapping[str, Any] | None,
        end: Sequence[Any] | Mapping[str, Any] | None,
    ) -> Callable[[Row], bool]:
        """A test for keys between two bounds. A bound has the leading columns of a key."""
        low = None if start is None else _order(self._leading(start))
        high = None if end is None else _order(self._leading(end))

        def within(key: Row) -> bool:
            return (low is None or low <= _order(key[: len(low)])) and (
                high is None or _order(key[: len(high)]) <= high
            )

        return within

    def _leading(self, bound: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any]:
        schema = StructType(self.key_schema.fields[: len(bound)])
        values = _in_order(bound, schema, "bound")
        return decode_row(encode_row(values, schema), schema)  # fails if no key could hold it


def _order(values: Sequence[Any]) -> tuple[Any, ...]:
    """Values in a form that compares as Spark sorts them: nulls first, nested ones too."""
    return tuple(
        (value is not None, _order(value) if isinstance(value, tuple | list) else value)
        for value in values
    )


def _in_order(
    row: Sequence[Any] | Mapping[str, Any], schema: StructType, what: str
) -> Sequence[Any]:
    if not isinstance(row, Mapping):
        return row
    unknown = set(row) - set(schema.names)
    missing = [name for name in schema.names if name not in row]
    if unknown or missing:
        raise StateValueError(
            what, ", ".join(schema.names), f"columns missing: {missing}, unknown: {sorted(unknown)}"
        )
    return [row[name] for name in schema.names]


def encode_tuples(rows: Sequence[Sequence[Any]], schema: StructType) -> list[bytes]:
    """Encode rows: by columns if there are many and Arrow accepts their values unchanged."""
    columns = _columns(rows, schema) if len(rows) >= _WORTH_A_BATCH else None
    if columns is None:
        return [encode_row(row, schema) for row in rows]
    return encode_rows(columns, schema).to_list()


def _columns(rows: Sequence[Sequence[Any]], schema: StructType) -> pa.RecordBatch | None:
    types = [_plain_type(field.data_type) for field in schema.fields]
    if not types or any(field is None for field in types):
        return None
    arrays = [
        pa.array(column, type_).view(arrow_type(field.data_type))
        for column, type_, field in zip(zip(*rows, strict=True), types, schema.fields, strict=True)
    ]
    return batch_of(arrays, list(schema.names), len(rows))


def _plain_type(data_type: DataType) -> AnyArrowType | None:
    match data_type:
        case AtomicType(name):
            return _PLAIN.get(name)
        case StringType():
            return pa.string()
    return None


_ROWS_AT_ONCE = 1 << 14
"""Enough to make the fixed cost of a batch small; few enough that a batch's copies are small."""

_AS_THEY_ARE = frozenset({Kind.BOOLEAN, Kind.STRING, Kind.BINARY})

Decode: TypeAlias = Callable[[Sequence[bytes]], list[Row]]


def decode_tuples(
    rows: Iterable[tuple[bytes, bytes]], key_schema: StructType, value_schema: StructType
) -> Iterator[tuple[Row, Row]]:
    """The rows of a store with keys and values decoded, in order."""
    keys_of, values_of = _decoder(key_schema), _decoder(value_schema)
    remaining = iter(rows)
    while batch := list(islice(remaining, _ROWS_AT_ONCE)):
        keys, values = zip(*batch, strict=True)
        yield from zip(keys_of(keys), values_of(values), strict=True)


def _decoder(schema: StructType) -> Decode:
    def one_by_one(rows: Sequence[bytes]) -> list[Row]:
        return [decode_row(row, schema) for row in rows]

    def by_columns(rows: Sequence[bytes]) -> list[Row]:
        if len(rows) < _WORTH_A_BATCH:
            return one_by_one(rows)
        return _tuples(decode_rows(spans_of(rows), schema), schema.layout)

    return by_columns if _is_plain(schema.layout) else one_by_one


def _is_plain(layout: Layout) -> bool:
    if layout.kind is Kind.STRUCT:
        return all(map(_is_plain, layout.children))
    return layout.kind in NUMBERS or layout.kind in _AS_THEY_ARE


def _tuples(column: pa.StructArray, layout: Layout) -> list[Row]:
    if not layout.children:
        return [()] * len(column)
    members = [_values(column.field(place), child) for place, child in enumerate(layout.children)]
    return list(zip(*members, strict=True))


def _values(column: pa.Array[Any], layout: Layout) -> list[Any]:
    values: list[Any]
    if isinstance(column, pa.StructArray):
        values = list(_tuples(column, layout))
    elif layout.kind in NUMBERS:
        data = column.buffers()[1]
        assert data is not None
        end = column.offset + len(column)
        values = numpy_view(data, NUMBERS[layout.kind])[column.offset : end].tolist()
    else:
        return column.to_pylist()
    if column.null_count:
        there = column.is_valid().to_pylist()
        values = [value if valid else None for value, valid in zip(values, there, strict=True)]
    return values
