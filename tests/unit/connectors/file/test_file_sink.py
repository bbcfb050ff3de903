"""The file sink: names, leftovers, partitions, and the rows that each format refuses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.checkpoint.file_log import FileSinkLog
from epochal.connectors.contract import WriterContext
from epochal.connectors.file.file_formats import Csv, FileFormat, ParquetCodec, bad_rows, encoder
from epochal.connectors.file.file_names import partition_directory, split
from epochal.connectors.file.file_sink import FileSink, FileSinkOptions
from epochal.connectors.file.part_files import attempt_of, file_uuid, find_leftovers, mark_of
from epochal.errors import OptionError, SinkConflictError
from epochal.options import read_options

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def sink(out: Path, query: str = "query", **options: int) -> FileSink:
    given = FileSinkOptions(path=str(out), **options)  # type: ignore[arg-type]
    return FileSink(FileFormat.PARQUET, given, SCHEMA, query)


def wrote(files: FileSink, epoch: int, *numbers: int, attempt: int = 1) -> bytes:
    with closing(files.writers.open(WriterContext(3, attempt, "run", SCHEMA))) as writer:
        for number in numbers:
            writer.write(pa.record_batch([pa.array([number])], schema=SCHEMA))
        return writer.cut(epoch)()


def names(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if not path.name.startswith("_"))


def test_a_file_name_identifies_the_query_and_the_attempt_that_wrote_it(tmp_path: Path) -> None:
    files = sink(tmp_path)
    wrote(files, 0, 1, attempt=4097)
    (name,) = names(tmp_path)
    assert name.startswith("part-00003-")
    assert name.endswith("-c000.snappy.parquet")
    assert attempt_of(name, mark_of("query")) == 4097
    assert attempt_of(name, mark_of("another")) is None


@pytest.mark.parametrize(
    "name",
    [
        "part-00000-3f4b1c1e-0c62-4f0e-9d2c-b0f5a2d1e111-c000.snappy.parquet",
        "part-00000.parquet",
        "_SUCCESS",
        "part-x-y",
    ],
)
def test_names_of_other_writers_have_no_attempt(name: str) -> None:
    assert attempt_of(name, mark_of("query")) is None


def test_uuids_are_well_formed() -> None:
    uuid = file_uuid(mark_of("q"), 2**24 - 1, b"\xff" * 7)
    assert (uuid.version, uuid.variant) == (8, "specified in RFC 4122")
    assert attempt_of(f"part-0-{uuid}-c000", mark_of("q")) == 2**24 - 1


def test_only_unknown_files_of_earlier_attempts_are_leftovers() -> None:
    files = [("p/old", 1), ("p/known", 1), ("p/new", 2), ("foreign", None)]
    assert find_leftovers(files, attempt=2, known={"known"}) == ["p/old"]


def test_leftovers_are_removed_only_after_the_new_attempt_has_committed(tmp_path: Path) -> None:
    first = sink(tmp_path)
    first.fence(1)
    first.commit(0, [wrote(first, 0, 10)])
    decided = wrote(first, 1, 11)
    wrote(first, 2, 666)
    foreign = "part-00000-3f4b1c1e-0c62-4f0e-9d2c-b0f5a2d1e111-c000.snappy.parquet"
    (tmp_path / foreign).write_bytes(b"")
    half = names(tmp_path)[1]
    (tmp_path / f".{half}.0123.tmp").write_bytes(b"half")

    second = sink(tmp_path)
    second.fence(2)
    assert len(names(tmp_path)) == 5
    second.commit(1, [decided])
    assert len(names(tmp_path)) == 5
    second.commit(2, [wrote(second, 2, 12, attempt=2)])
    log = FileSinkLog(str(tmp_path / "_spark_metadata"), read_only=True)
    logged = {entry.path.rpartition("/")[2] for entry in log.all_files()}
    assert set(names(tmp_path)) == logged | {foreign}
    assert len(logged) == 3


def test_two_checkpoints_on_one_directory_are_an_error_not_a_loss(tmp_path: Path) -> None:
    first, second = sink(tmp_path, "first"), sink(tmp_path, "second")
    first.commit(0, [wrote(first, 0, 1)])
    with pytest.raises(SinkConflictError, match="epoch 0, and it does not list"):
        second.commit(0, [wrote(second, 0, 2)])


def test_rows_beyond_the_file_size_are_written_before_the_epoch_ends(tmp_path: Path) -> None:
    files = sink(tmp_path, max_file_bytes=20)
    message = wrote(files, 0, *range(7))
    assert len(names(tmp_path)) == 3
    files.commit(0, [message])
    log = FileSinkLog(str(tmp_path / "_spark_metadata"), read_only=True)
    assert len(log.all_files()) == 3


@pytest.mark.parametrize(
    ("partition_by", "said"),
    [
        (["x"], "partitionBy names column x, which does not exist"),
        (["n"], "partitionBy names all columns"),
    ],
)
def test_partition_columns_must_be_some_of_the_columns(
    tmp_path: Path, partition_by: list[str], said: str
) -> None:
    options = FileSinkOptions(path=str(tmp_path))
    with pytest.raises(OptionError, match=said):
        FileSink(FileFormat.PARQUET, options, SCHEMA, "q", partition_by=partition_by)


def test_text_takes_one_column_of_strings(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="one column of strings"):
        FileSink(FileFormat.TEXT, FileSinkOptions(path=str(tmp_path)), SCHEMA, "q")


KINDS: dict[str, pa.DataType] = {
    "text": pa.string(),
    "number": pa.int32(),
    "real": pa.float64(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "price": pa.decimal128(10, 2),
    "row": pa.int64(),
}
PARTITIONED = pa.schema(KINDS)
VALUES = st.fixed_dictionaries(
    {
        "text": st.sampled_from([None, "", "a", "a/b", "ä=", "50%"]),
        "number": st.sampled_from([None, 0, -1, 7]),
        "real": st.sampled_from([None, 0.0, -0.0, 1.5, float("nan"), float("inf")]),
        "flag": st.sampled_from([None, True, False]),
        "day": st.sampled_from([None, date(2026, 1, 2), date(1, 1, 1)]),
        "at": st.sampled_from([None, *(datetime(2026, 1, 2, n, tzinfo=UTC) for n in (0, 3))]),
        "price": st.sampled_from([None, Decimal("1.50"), Decimal("-3.00")]),
    }
)


def split_row_by_row(table: pa.Table, columns: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in table.to_pylist():
        name = partition_directory(columns, [row[column] for column in columns])
        found.setdefault(name, []).append(row["row"])
    return found


@given(
    st.lists(VALUES, min_size=1, max_size=30),
    st.lists(st.sampled_from(PARTITIONED.names[:-1]), min_size=1, max_size=4, unique=True),
    st.integers(1, 5),
)
def test_rows_are_split_as_their_directories_say(
    rows: list[dict[str, Any]], columns: list[str], chunks: int
) -> None:
    numbered = [{**each, "row": number} for number, each in enumerate(rows)]
    table = pa.concat_tables(
        pa.Table.from_pylist(numbered[start::chunks], schema=PARTITIONED) for start in range(chunks)
    )
    parts = split(table, columns)
    assert [name for name, _ in parts] == list(split_row_by_row(table, columns))
    assert {name: part["row"].to_pylist() for name, part in parts} == split_row_by_row(
        table, columns
    )
    left = [name for name in PARTITIONED.names if name not in columns]
    assert all(part.schema.names == left for _, part in parts)


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


def test_the_size_of_files_may_have_a_unit() -> None:
    options = read_options(FileSinkOptions, {"path": "/x", "maxFileBytes": "1m"}, of="parquet")
    assert options.max_file_bytes == 1 << 20
