"""Encodes rows as files: text, CSV, JSON lines and Parquet. Pure."""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from epochal.errors import OptionError
from epochal.record_batches import table_of


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
    form: FileFormat, schema: pa.Schema, csv: Csv, compression: ParquetCodec
) -> tuple[str, Callable[[pa.Table], bytes]]:
    """The suffix of file names, and the function that encodes rows of `schema` as a file."""
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
            return {key: _json_value(each) for key, each in value.items() if each is not None}
        case list():
            return [_json_value(each) for each in value]
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
