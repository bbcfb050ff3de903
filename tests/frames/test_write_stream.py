"""`epochal.write_stream(df)`: PySpark's names and behaviour, its sinks, triggers and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.streams_of_words import (
    COLUMNS,
    PATIENCE_SECONDS,
    add_file,
    rows_of,
    stream,
    words,
)
from tests.waiting import eventually

import epochal
from epochal.continuous.api.dataframe_writer import DataFrameWriter
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.errors import ForeachBatchError, OptionError, QueryFailedError

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    add_file(tmp_path / "in", "0", words(10))
    return tmp_path / "in"


def even(spark: SparkSession, source: Path, **options: Any) -> DataFrame:
    found = stream(spark, source, **options).filter("id % 2 = 0")
    return found.select("id", F.upper("word").alias("Word"))


EVEN = [(n, "ABC"[n % 3]) for n in range(0, 20, 2)]


def end(query: StreamingQuery) -> StreamingQuery:
    assert query.awaitTermination(PATIENCE_SECONDS)
    return query


def test_a_joined_table_is_read_again_at_the_refresh_interval(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    spark.createDataFrame([("a", "old")], "word string, age string").write.parquet(table)
    joined = stream(spark, source).join(spark.read.parquet(table), "word").select("id", "age")
    writer = epochal.write_stream(joined).option("staticRefresh", "200 milliseconds")
    query = writer.start(format="memory", queryName="ages")
    query.processAllAvailable()
    assert {row["age"] for row in spark.table("ages").collect()} == {"old"}
    attempt = query.status["attempt"]
    spark.createDataFrame([("a", "new")], "word string, age string").write.parquet(
        table, mode="append"
    )
    eventually(lambda: query.status["attempt"] > attempt + 1, seconds=PATIENCE_SECONDS)
    add_file(source, "1", words(3, 30))
    query.processAllAvailable()
    query.stop()
    added = {row["age"] for row in spark.table("ages").collect() if row["id"] >= 30}
    assert added == {"old", "new"}


def test_columns_may_have_the_same_name_where_they_have_in_spark(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    batches: list[list[Any]] = []
    twice = stream(spark, source).where("id < 2").selectExpr("id", "word", "-id AS id")
    writer = epochal.write_stream(twice).foreachBatch(lambda rows, _: batches.append(rows_of(rows)))
    end(writer.trigger(availableNow=True).start(checkpointLocation=str(tmp_path / "ck")))
    assert batches == [[(0, "a", 0), (1, "b", -1)]]
    writer = epochal.write_stream(twice).format("memory").queryName("twice")
    end(writer.trigger(availableNow=True).start())
    assert spark.table("twice").columns == ["id", "word", "id"]
    assert rows_of(spark.table("twice")) == batches[0]
    with pytest.raises(OptionError, match="2 columns of the result have the name 'id'"):
        epochal.write_stream(twice).start(
            str(tmp_path / "out"), format="json", checkpointLocation=str(tmp_path / "ck2")
        )


def test_a_function_that_fails_gets_the_same_epoch_and_rows_again(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    calls: list[tuple[int, list[Any], str]] = []

    def note(rows: DataFrame, epoch: int) -> None:
        calls.append((epoch, rows_of(rows), rows.schema.simpleString()))
        if len(calls) == 1:
            raise ValueError("after its rows were written")

    def run() -> StreamingQuery:
        writer = epochal.write_stream(even(spark, source)).foreachBatch(note)
        return writer.trigger(once=True).start(checkpointLocation=str(tmp_path / "ck"))

    with pytest.raises(QueryFailedError, match="after its rows were written") as failed:
        end(run())
    assert isinstance(failed.value.__cause__, ForeachBatchError)
    add_file(source, "1", words(10, 10))
    end(run())
    assert calls[0] == calls[1] == (0, sorted(EVEN[:5], key=str), "struct<id:bigint,Word:string>")
    assert [row for _, rows, _ in calls[2:] for row in rows] == sorted(EVEN[5:], key=str)
    assert all(epoch > 0 for epoch, *_ in calls[2:])


@pytest.fixture
def table(spark: SparkSession) -> Any:
    yield "evens_table"
    spark.sql("DROP TABLE IF EXISTS evens_table")


def test_a_table_is_created_and_then_added_to(
    spark: SparkSession, source: Path, tmp_path: Path, table: str
) -> None:
    def run() -> StreamingQuery:
        writer = epochal.write_stream(even(spark, source)).partitionBy("word")
        writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True)
        return end(writer.toTable(table))

    run()
    add_file(source, "1", words(10, 10))
    run()
    assert rows_of(spark.table(table).select("id", "Word")) == sorted(EVEN, key=str)
    created = spark.sql(f"SHOW CREATE TABLE {table}").collect()[0][0]
    assert "USING parquet" in created
    assert "PARTITIONED BY (Word)" in created
    writer = epochal.write_stream(even(spark, source))
    with pytest.raises(OptionError, match="is stored as parquet, but the query writes csv"):
        writer.toTable(table, format="csv")
    with pytest.raises(OptionError, match="is partitioned by"):
        writer.toTable(table, format="parquet", partitionBy="id")


def test_what_cannot_be_a_table_is_refused(spark: SparkSession, source: Path) -> None:
    spark.range(1).createOrReplaceTempView("a_view")
    writer = epochal.write_stream(even(spark, source))
    with pytest.raises(OptionError, match="stored as delta, which cannot be written as a table"):
        writer.toTable("evens_delta", format="delta")
    with pytest.raises(OptionError, match="table of another catalog"):
        writer.toTable("other.space.evens")
    assert not spark.catalog.tableExists("evens_delta")


def test_a_writer_of_rows_gets_rows_as_from_pyspark(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "rows")

    def keep(row: Any) -> None:
        with open(out, "a") as file:
            file.write(f"{row!r}\n")

    def nested(rows: DataFrame) -> DataFrame:
        return rows.filter("id = 4").select("id", F.struct("word", "at").alias("nested"))

    rows = nested(stream(spark, source))
    end(epochal.write_stream(rows).foreach(keep).trigger(availableNow=True).start())
    (wanted,) = nested(spark.read.schema(COLUMNS).json(str(source))).collect()
    assert Path(out).read_text() == f"{wanted!r}\n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w.format("memory"), "memory: the query has no name"),
        (lambda w: w.format("hudi"), "There is no sink 'hudi'"),
        (lambda w: w.format("parquet"), "parquet: the query has no checkpointLocation"),
        (lambda w: w.outputMode("apend"), "Output modes are append, update, complete"),
        (lambda w: w.partitionBy("nothing"), "There is no column 'nothing'"),
        (lambda w: w.format("console").partitionBy("id"), "console does not take partitionBy"),
        (lambda w: w.trigger(epoch="1 second", once=True), "exactly one trigger"),
        (lambda w: w.trigger(realTime="5 minutes"), "real-time mode"),
        (lambda w: w.foreachBatch(1), "foreachBatch takes a function"),
        (lambda w: w.foreachBatch(print).option("x", 1), "foreachBatch takes no option x"),
    ],
)
def test_what_makes_no_query_is_refused_with_a_reason(
    spark: SparkSession, source: Path, change: Any, reason: str
) -> None:
    with pytest.raises(OptionError) as refused:
        change(epochal.write_stream(even(spark, source))).definition()
    assert reason in str(refused.value)


def test_a_dataframe_that_is_no_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="not a stream"):
        epochal.write_stream(spark.range(3))


def test_every_method_has_both_spellings() -> None:
    pairs = {
        DataFrameWriter: ["outputMode", "queryName", "partitionBy", "foreachBatch", "toTable"],
        StreamingQuery: [
            "awaitTermination",
            "isActive",
            "lastProgress",
            "processAllAvailable",
            "recentProgress",
            "runId",
        ],
    }
    for owner, names in pairs.items():
        for name in names:
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
            assert getattr(owner, name) is getattr(owner, snake)
