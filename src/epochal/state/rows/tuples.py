"""Encodes tuples of Spark's values as UnsafeRows, many of them by columns. Pure.

The bytes are the same either way. Many rows are encoded in a few calls of Arrow and NumPy, in a
fraction of the time, so that the thread that encodes holds the interpreter lock less long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from epochal.state.rows.arrow_types import AnyArrowType, arrow_type
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.types import AtomicType, DataType, StringType, StructType
from epochal.state.rows.unsafe_row import encode_row

_MIN_COLUMNAR_ROWS = 64
"""With fewer rows than this, encoding them one at a time is faster than by columns."""

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


def encode_tuples(rows: Sequence[Sequence[Any]], schema: StructType) -> list[bytes]:
    """Encode rows: by columns if there are many and Arrow accepts their values unchanged."""
    columns = _columns(rows, schema) if len(rows) >= _MIN_COLUMNAR_ROWS else None
    if columns is None:
        return [encode_row(row, schema) for row in rows]
    return encode_rows(columns, schema).to_list()


def _columns(rows: Sequence[Sequence[Any]], schema: StructType) -> pa.RecordBatch | None:
    types = [_plain_type(each.data_type) for each in schema.fields]
    if not types or any(each is None for each in types):
        return None
    arrays = [
        pa.array(column, type_).view(arrow_type(each.data_type))
        for column, type_, each in zip(zip(*rows, strict=True), types, schema.fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def _plain_type(data_type: DataType) -> AnyArrowType | None:
    match data_type:
        case AtomicType(name):
            return _PLAIN.get(name)
        case StringType():
            return pa.string()
    return None
