"""Decodes and encodes files of rows: text, CSV, JSON lines and Parquet. Pure.

Note: a line that does not parse is an error here (Spark's FAILFAST mode), not a row of nulls.
Continuing would hide the problem.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from io import BytesIO
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from epochal.errors import OptionError
from epochal.record_batches import batch_of, table_of, without_columns

TEXT_SCHEMA = pa.schema([pa.field("value", pa.string())])
CODEC_OF_SUFFIX: dict[str, Any] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
ROWS_PER_BATCH = 16_384


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
    null_value: str = ""


def decode(
    form: FileFormat, data: bytes, name: str, schema: pa.Schema, csv: Csv
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, as batches of `schema`. Missing columns become null."""
    match form:
        case FileFormat.PARQUET:
            batches = _read_parquet(data, schema)
        case FileFormat.TEXT:
            lines = _uncompressed(data, name).splitlines()
            columns = [pa.array(lines, pa.binary())][: len(schema)]
            batches = iter([batch_of(columns, schema.names[:1], len(lines))])
        case FileFormat.CSV:
            batches = _read_csv(_uncompressed(data, name), schema, csv)
        case FileFormat.JSON:
            batches = _read_json(_uncompressed(data, name), schema)
    for batch in batches:
        fitted = _fitted(batch, schema)
        for start in range(0, fitted.num_rows, ROWS_PER_BATCH):
            yield fitted.slice(start, ROWS_PER_BATCH)


def _uncompressed(data: bytes, name: str) -> bytes:
    codec = next((codec for end, codec in CODEC_OF_SUFFIX.items() if name.endswith(end)), None)
    if codec is None:
        return data
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return stream.read()


def _read_parquet(data: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        present = set(file.schema_arrow.names)
        columns = [name for name in schema.names if name in present]
        yield from file.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns)


def _read_csv(data: bytes, schema: pa.Schema, csv: Csv) -> Iterator[pa.RecordBatch]:
    if not len(schema):  # Arrow's reader would take the names from the first line
        lines = sum(bool(line.strip()) for line in data.splitlines())
        yield without_columns(max(0, lines - csv.header))
        return
    if not data.strip():
        return
    table = pa.csv.read_csv(
        BytesIO(data),
        read_options=pa.csv.ReadOptions(
            column_names=schema.names, skip_rows=1 if csv.header else 0, use_threads=False
        ),
        parse_options=pa.csv.ParseOptions(delimiter=csv.sep, newlines_in_values=False),
        convert_options=pa.csv.ConvertOptions(
            column_types=schema,
            null_values=[csv.null_value],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    yield from table.to_batches()


def _read_json(data: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    # pyarrow's own JSON reader supports neither dates nor decimals.
    decode_line = msgspec.json.Decoder(dict[str, Any], float_hook=_number).decode
    rows = [decode_line(line) for line in data.splitlines() if line.strip()]
    columns: list[Any] = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        convert = _from_json(field.type)
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        columns.append(pa.array(values, field.type))
    yield batch_of(columns, schema, len(rows))


_NOT_FINITE = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
"""What Spark reads as numbers that JSON has no number for. It writes NaN, Infinity, -Infinity."""


class _Number(float):
    """A float that keeps its original digits, so that decimals lose none."""

    __slots__ = ("text",)
    text: str


def _number(text: str) -> _Number:
    number = _Number(text)
    number.text = text
    return number


def _from_json(kind: Any) -> Callable[[Any], Any] | None:
    """The conversion from a JSON value to one that pyarrow accepts for `kind`; None if none is
    needed."""
    if pa.types.is_timestamp(kind):
        return lambda value: _parse_timestamp(value, utc=kind.tz is not None)
    if pa.types.is_date(kind):
        return dt.date.fromisoformat
    if pa.types.is_floating(kind):
        return lambda value: _NOT_FINITE.get(value, value) if isinstance(value, str) else value
    if pa.types.is_decimal(kind):
        return lambda value: Decimal(getattr(value, "text", None) or str(value))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64.b64decode
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        convert_element = _from_json(kind.value_type)
        if convert_element is None:
            return None
        return lambda value: [each if each is None else convert_element(each) for each in value]
    if pa.types.is_map(kind):
        convert_item = _from_json(kind.item_type)
        return lambda value: [
            (key, convert_item(each) if convert_item and each is not None else each)
            for key, each in value.items()
        ]
    if pa.types.is_struct(kind):
        fields = {field.name: _from_json(field.type) for field in kind}
        return lambda value: {
            name: convert(value[name])
            if convert and value.get(name) is not None
            else value.get(name)
            for name, convert in fields.items()
        }
    return None


def _parse_timestamp(text: str, *, utc: bool) -> dt.datetime:
    parsed = dt.datetime.fromisoformat(text)
    if utc and parsed.tzinfo is None:
        return parsed.replace(tzinfo=dt.UTC)
    return parsed


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return batch_of(columns, schema, batch.num_rows)


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
