"""Files are read as Spark reads them, with their hidden column `_metadata`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.fuzz_files import FILES_PER_CASE, difference, drained, read_ours, read_theirs
from tests.frames.odd_files import Case, make_case
from tests.frames.streams_of_words import emitted, sparks
from tests.spark.sessions import session_with

import epochal
from epochal.connectors.file import plain_parquet
from epochal.connectors.file.file_source import FileSource, FileSourceOptions
from epochal.connectors.file.plain_parquet import ROWS_PER_BATCH
from epochal.connectors.file.spark_reader import make_reader
from epochal.errors import OptionError, StorageError
from epochal.evaluator.evaluator_client import CLIENT
from epochal.files.local import LocalFiles

pytestmark = pytest.mark.usefixtures("nothing_left_running")

_TYPES: dict[str, pa.DataType] = {"n": pa.int64(), "s": pa.string()}
SCHEMA = pa.schema(_TYPES)


@pytest.mark.parametrize("seed", range(18))
def test_random_files_are_read_as_in_spark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    case = make_case(seed, FILES_PER_CASE)
    assert difference(session_with(case.settings), case, tmp_path) is None


COLUMNS = {
    "id": "long",
    "i": "int",
    "s": "string",
    "x": "decimal(20,3)",
    "t": "timestamp",
    "n": "timestamp_ntz",
    "d": "date",
    "a": "array<long>",
    "m": "map<string,long>",
    "st": "struct<p: long, q: array<struct<z: string>>>",
    "f": "double",
    "b": "binary",
    "o": "boolean",
    "y": "byte",
}
ROWS = """
    SELECT id, if(id % 3 = 0, null, int(id)) i, concat('s', id) s, decimal(id / 7) x,
      timestamp_micros(id * 1000003) t, timestamp_ntz '1700-01-01 00:00:00' n,
      date_add(date'1500-01-01', int(id) * 100) d, if(id % 4 = 0, null, array(id, null)) a,
      map('k', id, 'n', null) m, named_struct('p', id, 'q', array(named_struct('z', 'z'))) st,
      double(id) / 3 f, binary('x') b, id % 2 = 0 o, tinyint(id % 100) y
    FROM range(300)
"""
READS: dict[str, tuple[dict[str, str], dict[str, str], tuple[str, ...]]] = {
    "all columns": (COLUMNS, {}, tuple(COLUMNS)),
    "row by row": (
        COLUMNS,
        {
            "spark.sql.orc.enableVectorizedReader": "false",
            "spark.sql.parquet.enableVectorizedReader": "false",
        },
        tuple(COLUMNS),
    ),
    "columns that the file lacks": ({"s": "string", "z": "int", "id": "long"}, {}, ("z", "id")),
    "other case": ({"ID": "long", "S": "string"}, {}, ("ID", "S")),
    "no column": ({"id": "long"}, {}, ()),
    "a wider type": ({"i": "long", "y": "int"}, {}, ("i", "y")),
    "a wrong type": ({"s": "long"}, {}, ("s",)),
    "another zone": ({"t": "timestamp"}, {"spark.sql.session.timeZone": "Asia/Tokyo"}, ("t",)),
}


@pytest.mark.parametrize("form", ["orc", "parquet"])
@pytest.mark.parametrize("name", READS)
def test_columns_of_binary_formats_are_read_as_in_spark(
    spark: SparkSession, tmp_path: Path, form: str, name: str
) -> None:
    columns, settings, wanted = READS[name]
    spark.sql(ROWS).coalesce(2).write.format(form).save(str(tmp_path / "written"))
    files = {path.name: path.read_bytes() for path in (tmp_path / "written").glob("part-*")}
    case = Case(0, form, columns, {}, files, wanted, settings)
    assert difference(session_with(settings), case, tmp_path) is None


PLAIN = {"n": "long", "i": "int", "s": "string", "t": "timestamp", "d": "date", "x": "decimal(9,2)"}


def parquet_file(path: Path, **options: Any) -> bytes:
    rows = pa.table(
        {
            "n": pa.array([1, None, 3], pa.int64()),
            "i": pa.array([1, None, -3], pa.int32()),
            "s": ["a", None, "ü"],
            "t": pa.array([-(10**17), None, 1], pa.timestamp("us", "UTC")),
            "d": pa.array([-200_000, None, 19_000], pa.date32()),
            "x": pa.array([Decimal("1.25"), None, Decimal(-2)], pa.decimal128(9, 2)),
        }
    )
    pq.write_table(rows.replace_schema_metadata(options.pop("about", None)), path, **options)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, True),
        ({"compression": "zstd", "version": "1.0"}, True),
        ({"use_deprecated_int96_timestamps": True}, False),
        ({"coerce_timestamps": "ms", "allow_truncated_timestamps": True}, False),
        ({"about": {"org.apache.spark.version": "2.4.8"}}, False),
        ({"about": {"org.apache.spark.version": "3.5.1"}}, True),
        (
            {"about": {"org.apache.spark.version": "4", "org.apache.spark.legacyDateTime": ""}},
            False,
        ),
    ],
)
def test_arrow_reads_parquet_only_where_it_is_the_same_as_in_spark(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], plain: bool
) -> None:
    data = parquet_file(tmp_path / "written.parquet", **options)
    case = Case(0, "parquet", PLAIN, {}, {"a.parquet": data}, tuple(PLAIN))
    assert difference(spark, case, tmp_path) is None
    fields = [SCHEMA.field("n"), pa.field("t", pa.timestamp("us", "UTC"))]
    if plain:
        assert sum(batch.num_rows for batch in plain_parquet.plain_batches(data, fields, [])) == 3
    else:
        with pytest.raises(plain_parquet.NotPlain):
            list(plain_parquet.plain_batches(data, fields, []))


def source(spark: SparkSession, tmp_path: Path, form: str = "json", **options: str) -> FileSource:
    (tmp_path / "in").mkdir(exist_ok=True)
    given = FileSourceOptions(path=str(tmp_path / "in"), reader_options=options)
    files = LocalFiles(tmp_path / "state", durable=False)
    return FileSource(form, given, SCHEMA, files, 0, spark=spark, watch=False)


def numbers(count: int, text: str = "x") -> str:
    return "".join(f'{{"n": {n}, "s": "{text}"}}\n' for n in range(count))


def test_a_large_file_comes_in_parts_and_its_rows_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = source(spark, tmp_path)
    (tmp_path / "in" / "a.json").write_text(numbers(30_000, "x" * 300))
    end = found.latest()
    with closing(found.readers.open(found.initial())) as reader:
        batches = drained(reader, end)
    assert max(batch.nbytes for batch in batches) < 4 << 20
    assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(30_000))


def test_rows_are_exact_if_the_evaluator_is_killed_while_a_file_is_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text(numbers(50_000))
    reader = make_reader(spark, "json", {}, SCHEMA, SCHEMA.names, None, str(tmp_path))
    rows: list[Any] = []
    for number, batch in enumerate(reader.rows(f"file://{path}", path.stat().st_size, 0, 0, {})):
        rows += batch.column(0).to_pylist()
        if number in (0, 2):
            pid = CLIENT._connection().evaluator
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
    assert rows == list(range(50_000))


@pytest.mark.parametrize(
    ("options", "error"),
    [({}, r"/in/a\.json: .* it no longer exists"), ({"ignoreMissingFiles": "true"}, None)],
)
def test_a_file_that_is_gone_is_named_unless_it_may_be_missing(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], error: str | None
) -> None:
    found = source(spark, tmp_path, **options)
    (tmp_path / "in" / "a.json").write_text(numbers(3))
    end = found.latest()
    (tmp_path / "in" / "a.json").unlink()
    with closing(found.readers.open(found.initial())) as reader:
        if error is None:
            assert drained(reader, end) == []
        else:
            with pytest.raises(StorageError, match=error):
                drained(reader, end)


def test_a_broken_file_is_sparks_error_unless_it_may_be_corrupt(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = {"n": "long", "s": "string"}
    for options in ({}, {"ignoreCorruptFiles": "true"}):
        for form in ("orc", "parquet"):
            case = Case(0, form, schema, options, {"a": b"PAR1 no, ORC"}, ("n", "s"))
            folder = tmp_path / f"{form}{len(options)}"
            assert difference(spark, case, folder) is None
            theirs = read_theirs(spark, case, folder / "in")
            assert isinstance(theirs, dict) == bool(options)


@pytest.mark.parametrize(
    ("form", "options", "error"),
    [
        ("xml", {}, r"\[XML_ROW_TAG_MISSING\]"),
        ("json", {"lineSep": ""}, "lineSep"),
        ("csv", {"quote": "ab"}, "quote"),
        ("avro", {}, "avro"),
    ],
)
def test_options_that_spark_refuses_are_refused_in_its_words(
    spark: SparkSession, tmp_path: Path, form: str, options: dict[str, str], error: str
) -> None:
    with pytest.raises(OptionError, match=f"^{form}: .*{error}"):
        source(spark, tmp_path, form, **options).readers.only(frozenset({"n"}))


def csv_in_partitions(spark: SparkSession, folder: Path) -> DataFrame:
    for day, at in (("2024-5-4", "2024-05-04 01%3A00%3A00"), ("2024-12-31", "x%2Fy")):
        place = folder / f"day={day}" / f"at={at}" / "k=__HIVE_DEFAULT_PARTITION__"
        place.mkdir(parents=True)
        (place / "a.csv").write_text('n;s\n1;"a;b"\n2;"it\'\'s"\nx;y\n', newline="\r\n")
    return (
        spark.readStream.schema("n int, s string, c string, day date, at string, k int")
        .options(header=True, delimiter=";", mode="PERMISSIVE", maxRecordsPerFile=7)
        .option("columnNameOfCorruptRecord", "c")
        .csv(str(folder))
    )


@pytest.mark.parametrize(
    ("make", "columns"),
    [(csv_in_partitions, ("n", "s", "c", "day", "at", "k")), (csv_in_partitions, ("day",))],
)
def test_a_query_has_the_rows_of_spark(
    spark: SparkSession,
    tmp_path: Path,
    make: Callable[[SparkSession, Path], DataFrame],
    columns: tuple[str, ...],
) -> None:
    frame = make(spark, tmp_path / "in").selectExpr(*columns)
    theirs = emitted(frame.writeStream, tmp_path / "theirs")
    assert theirs
    assert emitted(epochal.write_stream(frame), tmp_path / "ours") == theirs


def test_files_are_read_with_the_settings_of_the_querys_own_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    legacy = session_with({"spark.sql.legacy.timeParserPolicy": "LEGACY"})
    written = b"2024-05-24T15:03:20.123456Z\n"
    case = Case(0, "csv", {"at": "timestamp"}, {}, {"a.csv": written}, ("at",))
    case.write(tmp_path / "in")
    theirs = read_theirs(legacy, case, tmp_path / "in")
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    assert read_ours(legacy, case, tmp_path / "in", tmp_path / "state") == theirs


def output(frame: DataFrame, engine: str, folder: Path, mode: str = "append") -> list[Any]:
    """All rows that a query emits."""
    writer = sparks(frame) if engine == "spark" else epochal.write_stream(frame)
    return emitted(writer.outputMode(mode), folder / f"ck-{engine}")


@pytest.mark.parametrize("form", ["json", "csv", "text", "parquet"])
def test_all_fields_are_sparks(spark: SparkSession, tmp_path: Path, form: str) -> None:
    place = tmp_path / "i n%20ü'#^"
    rows = spark.range(ROWS_PER_BATCH + 10).selectExpr("string(id) value", "id % 2 part")
    rows.coalesce(1).write.partitionBy("part").format(form).save(str(place))
    (part,) = place.glob("part=1/part-*")
    part.rename(part.with_name(f"a b%20ü'#&+{part.suffix}"))
    stream = spark.readStream.schema("value string, part long").format(form).load(str(place))
    frame = stream.where("_metadata.file_size > 0 AND int(value) % 1000 < 2").select(
        "value", "_metadata", "part", "_metadata.file_name"
    )
    assert output(frame, "epochal", tmp_path) == output(frame, "spark", tmp_path)


def test_a_column_of_the_file_hides_it(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"_metadata": {"file_name": "mine"}}\n')
    source = spark.readStream.schema("_metadata struct<file_name: string>").json(
        str(tmp_path / "in")
    )
    frame = source.select("_metadata", source.metadataColumn("_metadata").alias("hidden"))
    found = output(frame, "epochal", tmp_path)
    assert found == output(frame, "spark", tmp_path)
    assert [(mine.file_name, hidden.file_name) for mine, hidden in found] == [("mine", "a.json")]


FILE_OF_A_ROW = ("input_file_name()", "input_file_block_start()", "input_file_block_length()")


def test_functions_of_the_file_of_a_row_are_sparks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a b%20ü'#&+", "c"):
        lines = [f'{{"id": {number}, "text": "t{number}"}}\n' for number in range(3)]
        (tmp_path / "in" / f"{name}.json").write_text("".join(lines))
    source = spark.readStream.schema("id long, text string, at timestamp").json(
        str(tmp_path / "in")
    )
    source.withWatermark("at", "1 hour").createOrReplaceTempView("lines")
    frame = (
        source.select("id", F.upper("text").alias("text"))
        .where("input_file_name() LIKE '%/c.json' OR id > 0")
        .selectExpr("id + 1 AS id", "explode(array(text, input_file_name())) AS both")
        .selectExpr("*", *FILE_OF_A_ROW)
        .union(source.selectExpr("id", "_metadata.file_path", *FILE_OF_A_ROW))
        .union(spark.table("lines").alias("l").selectExpr("l.id", "text", *FILE_OF_A_ROW))
    )
    found = output(frame, "epochal", tmp_path)
    assert found == output(frame, "spark", tmp_path)
    assert len(found) == 22
    assert all(row[2].startswith("file:///") for row in found)


def test_above_an_exchange_no_file_is_known(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(6).coalesce(1).write.json(str(tmp_path / "in"))
    source = spark.readStream.schema("id long").json(str(tmp_path / "in"))
    counts = source.groupBy(F.input_file_name().alias("file")).count()
    frame = counts.selectExpr("*", *FILE_OF_A_ROW)
    found = output(frame, "epochal", tmp_path, "complete")
    assert found == output(frame, "spark", tmp_path, "complete")
    ((file, *rest),) = found
    assert file.startswith("file:///")
    assert rest == [6, "", -1, -1]
