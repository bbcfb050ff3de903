"""Encodes rows as files of text, CSV, JSON lines and Parquet, and finds bad rows. Pure.

Whole columns are checked first, and cheaply. Only if a batch looks suspicious are its rows encoded
one by one, to find those that fail.

| format | what cannot be written |
|---|---|
| json | dates and times outside the years 1 to 9999, a map with one key twice, invalid UTF-8 |
| text, csv | invalid UTF-8 |
| any, partitioned | such dates and times in a partition column, and values too long for a name |
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq

from epochal.connectors.file.file_names import partition_directory
from epochal.errors import OptionError
from epochal.record_batches import table_of

pc: Any = pyarrow.compute
"""Untyped: its stubs miss functions that are used here."""

_SAFE_DAYS = (-719_000, 2_932_000)
"""Well within the years 1 to 9999, in days since 1970."""
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_CAUGHT = (ValueError, OverflowError, KeyError, TypeError, pa.ArrowException)


class FileFormat(StrEnum):
    TEXT = "text"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class ParquetCodec(StrEnum):
    """Spark's names of Parquet codecs."""

    SNAPPY = "snappy"
    ZSTD = "zstd"
    GZIP = "gzip"
    LZ4 = "lz4_raw"
    NONE = "none"


PARQUET_SUFFIX = {
    ParquetCodec.SNAPPY: ".snappy.parquet",
    ParquetCodec.ZSTD: ".zstd.parquet",
    ParquetCodec.GZIP: ".gz.parquet",
    ParquetCodec.LZ4: ".lz4raw.parquet",
    ParquetCodec.NONE: ".parquet",
}


@dataclass(frozen=True, slots=True)
class Csv:
    """The dialect of CSV files: Spark's options of the same names."""

    header: bool = False
    sep: str = ","


def encoder(
    form: FileFormat,
    schema: pa.Schema,
    csv: Csv,
    compression: ParquetCodec,
    partition_by: Sequence[str] = (),
) -> tuple[str, Callable[[pa.Table], bytes]]:
    """The suffix of file names, and the function that encodes rows of `schema` as a file.

    The rows come without the columns of `partition_by`.
    """
    schema = pa.schema([field for field in schema if field.name not in partition_by])
    match form:
        case FileFormat.PARQUET:
            return PARQUET_SUFFIX[compression], lambda table: _write_parquet(table, compression)
        case FileFormat.TEXT:
            if len(schema) != 1 or not _is_text(schema.field(0).type):
                raise OptionError(
                    f"text: a text file takes one column of strings, not {schema.names}. Combine "
                    f"them into one column, or write json."
                )
            return ".txt", _write_text
        case FileFormat.CSV:
            nested = [field.name for field in schema if pa.types.is_nested(field.type)]
            if nested:
                raise OptionError(
                    f"csv: column {nested[0]} is nested, which CSV cannot express. Write json."
                )
            return ".csv", lambda table: _write_csv(table, csv)
        case FileFormat.JSON:
            return ".json", _write_json


def _write_parquet(table: pa.Table, compression: ParquetCodec) -> bytes:
    out = pa.BufferOutputStream()
    codec: Any = "lz4" if compression is ParquetCodec.LZ4 else compression.value
    pq.write_table(table, out, compression=codec, coerce_timestamps="us", version="2.6")
    return out.getvalue().to_pybytes()


def _write_text(table: pa.Table) -> bytes:
    lines = table.column(0).to_pylist()
    return "".join(f"{'' if line is None else line}\n" for line in lines).encode()


def _write_csv(table: pa.Table, csv: Csv) -> bytes:
    out = pa.BufferOutputStream()
    columns = [_csv_column(column) for column in table.columns]
    pa.csv.write_csv(
        table_of(columns, table.schema.names, table.num_rows),
        out,
        pa.csv.WriteOptions(include_header=csv.header, delimiter=csv.sep),
    )
    return out.getvalue().to_pybytes()


def _csv_column(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        ending = "Z" if column.type.tz else ""
        without_zone: Any = column.cast(pa.timestamp("us"))
        return pc.strftime(without_zone, f"%Y-%m-%dT%H:%M:%S{ending}")
    return column


def _write_json(table: pa.Table) -> bytes:
    encode = msgspec.json.Encoder(decimal_format="number").encode
    rows: Any = table.to_pylist(maps_as_pydicts="strict")
    return b"".join(encode(_json_value(row)) + b"\n" for row in rows)


def _json_value(value: Any) -> Any:
    """A value as Spark writes it: no null fields in structs, times in UTC, bytes in base64."""
    match value:
        case Mapping():
            return {key: _json_value(inner) for key, inner in value.items() if inner is not None}
        case list():
            return [_json_value(element) for element in value]
        case dt.datetime():
            ending = "Z" if value.tzinfo else ""
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return f"{text.removesuffix('000')}{ending}"
        case dt.date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return value


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def bad_rows(
    batch: pa.RecordBatch,
    form: FileFormat,
    partition_by: Sequence[str],
    encode: Callable[[pa.Table], bytes],
    max_name_bytes: int | None,
) -> dict[int, str]:
    """Why rows cannot be written, by their index; names are those of partition directories."""
    in_file = [name for name in batch.schema.names if name not in partition_by]
    rows, keys = batch.select(in_file), batch.select(list(partition_by))
    checks: list[Callable[[int], object]] = []
    if _file_suspicious(rows, form):
        checks.append(lambda index: encode(pa.Table.from_batches([rows.slice(index, 1)])))
    if _key_suspicious(keys, max_name_bytes):
        checks.append(lambda index: _check_names(keys.slice(index, 1), max_name_bytes))
    bad: dict[int, str] = {}
    for index in range(batch.num_rows) if checks else ():
        reasons = (_failure(partial(check, index)) for check in checks)
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is not None:
            bad[index] = reason
    return bad


def _failure(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except _CAUGHT as error:
        text = str(error).strip().rstrip(".")
        return f"a value cannot be written: {type(error).__name__}{text and ': '}{text}"
    return None


def _file_suspicious(rows: pa.RecordBatch, form: FileFormat) -> bool:
    if form is FileFormat.PARQUET:
        return False
    if _failure(lambda: rows.validate(full=True)) is not None:
        return True
    if form is not FileFormat.JSON:
        return False
    if any(_out_of_range(leaf) for column in rows.columns for leaf in _leaves(column)):
        return True
    table = pa.Table.from_batches([rows])
    has_map = any(_has_map(field.type) for field in rows.schema)
    return has_map and _failure(lambda: table.to_pylist(maps_as_pydicts="strict")) is not None


def _key_suspicious(keys: pa.RecordBatch, max_name_bytes: int | None) -> bool:
    # An escaped character takes three bytes.
    most = None if max_name_bytes is None else max_name_bytes // 3 - 64
    for name, column in zip(keys.schema.names, keys.columns, strict=True):
        kind = column.type
        if _out_of_range(column):
            return True
        if _is_text(kind):
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if most is not None and longest + 3 * len(name.encode()) > most:
                return True
            if _failure(partial(column.validate, full=True)) is not None:
                return True
    return False


def _check_names(key: pa.RecordBatch, max_name_bytes: int | None) -> None:
    names = key.schema.names
    values = [column.to_pylist()[0] for column in key.columns]
    for part in partition_directory(names, values).split("/"):
        if max_name_bytes is not None and len(part.encode()) > max_name_bytes:
            raise ValueError(
                f"partition directory {part[:60]}… has {len(part.encode())} bytes, but names have "
                f"at most {max_name_bytes}"
            )


def _leaves(column: Any) -> Iterator[Any]:
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        for inner in column.flatten():
            yield from _leaves(inner)
    elif types.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _leaves(column.flatten())
    else:
        yield column


def _out_of_range(column: Any) -> bool:
    kind, scale = column.type, 1
    if pa.types.is_timestamp(kind):
        scale, column = _DAY[kind.unit], column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    else:
        return False
    low, high = (bound.as_py() for bound in pc.min_max(column).values())
    return low is not None and not (_SAFE_DAYS[0] * scale <= low and high <= _SAFE_DAYS[1] * scale)


def _has_map(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(n).type) for n in range(kind.num_fields))
