"""Which rows each file format refuses, as the encoders themselves refuse them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.file.file_formats import Csv, FileFormat, ParquetCodec, bad_rows, encoder

DAYS = pa.array([1, 8_000_000, None, -800_000], pa.int32()).cast(pa.date32())
"""1970, 23873, null and before the year 1."""
MICROS = pa.array([1, 700_000_000_000_000_000, None, -70_000_000_000_000_000]).cast(
    pa.timestamp("us", "UTC")
)
TEXTS = pa.array([b"good", b"a\xff", None, b"\xc3"]).view(pa.string())
MAPS = pa.array(
    [[("a", 1)], [("a", 1), ("a", 2)], None, [("b", None), ("b", 1)]],
    pa.map_(pa.string(), pa.int64()),
)
NESTED = pa.StructArray.from_arrays([DAYS], names=["day"])
LISTED = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), DAYS)


def found(form: FileFormat, *columns: Any, by: tuple[str, ...] = ()) -> list[int]:
    batch = pa.record_batch(list(columns), names=[f"c{n}" for n in range(len(columns))])
    in_file = pa.schema([field for field in batch.schema if field.name not in by])
    _, encode = encoder(form, in_file, Csv(), ParquetCodec.SNAPPY)
    return sorted(bad_rows(batch, form, by, encode, 255))


@pytest.mark.parametrize(
    ("form", "column", "refused"),
    [
        (FileFormat.JSON, DAYS, [1, 3]),
        (FileFormat.JSON, MICROS, [1, 3]),
        (FileFormat.JSON, TEXTS, [1, 3]),
        (FileFormat.JSON, MAPS, [1, 3]),
        (FileFormat.JSON, NESTED, [1, 3]),
        (FileFormat.JSON, LISTED, [1, 3]),
        (FileFormat.TEXT, TEXTS, [1, 3]),
        (FileFormat.PARQUET, DAYS, []),
        (FileFormat.PARQUET, MICROS, []),
        (FileFormat.PARQUET, MAPS, []),
    ],
)
def test_rows_that_a_format_cannot_hold_are_found(
    form: FileFormat, column: Any, refused: list[int]
) -> None:
    assert found(form, column) == refused


@pytest.mark.parametrize("form", list(FileFormat))
@pytest.mark.parametrize("column", [DAYS, MICROS, TEXTS], ids=["days", "micros", "texts"])
def test_rows_that_are_not_found_can_be_encoded(form: FileFormat, column: Any) -> None:
    if form is FileFormat.TEXT and column is not TEXTS:
        column = pa.array(["a", "b"])
    schema = pa.schema([("c0", column.type)])
    _, encode = encoder(form, schema, Csv(), ParquetCodec.SNAPPY)
    refused = found(form, column)
    good = [n for n in range(len(column)) if n not in refused]
    assert encode(pa.table([column.take(pa.array(good))], schema=schema))


def test_partition_values_that_cannot_name_a_directory_are_found() -> None:
    ids = pa.array([1, 2, 3, 4])
    assert found(FileFormat.PARQUET, ids, DAYS, by=("c1",)) == [1, 3]
    long = pa.array(["a", "x" * 260, None, "é" * 127])
    assert found(FileFormat.PARQUET, ids, long, by=("c1",)) == [1, 3]
    assert found(FileFormat.PARQUET, ids, pa.array(["a"] * 4), by=("c1",)) == []
