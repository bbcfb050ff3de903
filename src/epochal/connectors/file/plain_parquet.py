"""Reads Parquet files with Arrow where that is the same as with Spark's reader, but faster.

A file is plain if its columns have exactly the types of the query's schema, and none of the special
cases that Spark's reader knows: nested values, times in other units, the calendar of Spark 2, field
ids, names that differ in case. Whatever cannot be read here is left to Spark's reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from epochal.connectors.file.file_names import NULL_PARTITION
from epochal.record_batches import batch_of, without_columns

ROWS_PER_BATCH = 16_384

_PLAIN = {
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
}
_PARTITIONS = {pa.string(), pa.int32(), pa.int64()}
_VERSION, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"
USUAL = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
"""Settings of the session with which plain files can be read here."""
_OPTIONS = ("datetimerebasemode", "int96rebasemode")


def can_be_plain(
    fields: Sequence[pa.Field[Any]], options: Mapping[str, str], settings: Mapping[str, str]
) -> bool:
    """Whether files with these columns may be plain. `settings` are those that `USUAL` names."""
    return (
        all(field.type in _PLAIN or pa.types.is_decimal128(field.type) for field in fields)
        and not any(name.lower() in _OPTIONS for name in options)
        and all(settings[key].upper() == usual.upper() for key, usual in USUAL.items())
    )


class NotPlain(Exception):
    """Spark's reader must read a file."""


def plain_batches(
    data: bytes, fields: Sequence[pa.Field[Any]], partitions: Sequence[tuple[pa.Field[Any], str]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file: its columns, and then the partition columns with their values."""
    if not all(field.type in _PARTITIONS for field, _ in partitions):
        raise NotPlain
    constants = [_constant(field, text) for field, text in partitions]
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        _check(file, fields)
        names = [field.name for field in fields]
        if names:
            batches: Iterator[Any] = file.iter_batches(ROWS_PER_BATCH, columns=names)
        else:
            batches = iter([without_columns(file.metadata.num_rows)])
        repeat: Any = pa.repeat  # its stub has a variant per type, but none for any type
        for batch in batches:
            columns = [batch.column(name) for name in names]
            columns += [repeat(constant, batch.num_rows) for constant in constants]
            yield batch_of(columns, [str(n) for n in range(len(columns))], batch.num_rows)


def _check(file: pq.ParquetFile, fields: Sequence[pa.Field[Any]]) -> None:
    there = file.schema_arrow
    kinds = {field.name: field.type for field in there}
    about = file.metadata.metadata or {}
    if (
        any(kinds.get(field.name) != field.type for field in fields)
        or len({name.lower() for name in there.names}) < len(there)
        or about.get(_VERSION, b"3") < b"3"
        or _LEGACY in about
    ):
        raise NotPlain


def _constant(field: pa.Field[Any], text: str) -> Any:
    if text == NULL_PARTITION:
        return pa.scalar(None, field.type)
    return pa.scalar(unquote(text) if field.type == pa.string() else int(text), field.type)
