"""Paths mean what they mean to Spark, whatever characters they have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.frames.streams_of_words import PATIENCE_SECONDS, add_file, rows_of, stream, words

import epochal
from epochal.connectors.contract import WriterContext
from epochal.continuous.api.dataframe_writer import batch_sink
from epochal.files.local import LocalFiles

pytestmark = pytest.mark.usefixtures("nothing_left_running")

ODD = [
    *("[", "]", "a[b]", "*", "a*", "?", "{", "}", "{a,b}", "\\", "a\\b", "\\*", "a b", "%20", "%"),
    *("a,b", "a:b", "ünï", "e\u0301", "日本", "#", "'", '"', "$x", "^", "|", "<>", "x=1", "a\nb"),
]
NO_PATTERN = "a b%20:ü'\"#"
ALL_ODD = f"{NO_PATTERN}[b]*?{{c,d}}\\e"


@pytest.mark.parametrize("name", ODD)
def test_a_batch_has_its_rows_once_wherever_the_checkpoint_is(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    for other in ("a", "b", "ab", "aa", name):
        (tmp_path / other).mkdir(exist_ok=True)
    calls: list[Any] = []
    columns: list[tuple[str, Any]] = [("id", pa.int64())]
    schema = pa.schema(columns)
    definition = batch_sink(
        spark.range(0), lambda rows, _: calls.append(rows_of(rows)), complete=False
    )
    sink = definition.open(LocalFiles(tmp_path / name), "query", schema)
    messages = []
    for task in range(3):
        writer = sink.writers.open(WriterContext(task, 1, "run", schema, 0))
        writer.write(pa.record_batch([pa.array([task])], schema=schema))
        messages.append(writer.cut(0)())
    sink.commit(0, messages)
    assert calls == [[(0,), (1,), (2,)]]


def test_a_table_may_be_where_spark_lets_it_be_and_a_checkpoint_anywhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    add_file(tmp_path / "in", "0", words(10))
    writer = epochal.write_stream(stream(spark, tmp_path / "in").select("id"))
    writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / ALL_ODD / "ck"))
    try:
        query = writer.toTable("odd_table", path=str(tmp_path / NO_PATTERN))
        assert query.awaitTermination(PATIENCE_SECONDS)
        assert rows_of(spark.table("odd_table")) == [(n,) for n in range(10)]
        assert (tmp_path / NO_PATTERN / "_spark_metadata").is_dir()
    finally:
        spark.sql("DROP TABLE IF EXISTS odd_table")


def test_relative_paths_are_below_the_directory_of_sparks_jvm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(spark._jvm.System.getProperty("user.dir"))
    relative = Path(os.path.relpath(tmp_path, home))
    add_file(tmp_path / "in", "0", words(10))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    def run(engine: str, frame: Any) -> list[Any]:
        writer = frame.writeStream if engine == "spark" else epochal.write_stream(frame)
        writer.option("checkpointLocation", str(relative / f"{engine}-ck"))
        query = (
            writer.trigger(availableNow=True)
            .format("parquet")
            .start(str(relative / f"{engine}-out"))
        )
        assert query.awaitTermination(PATIENCE_SECONDS)
        assert (tmp_path / f"{engine}-ck" / "commits").is_dir()
        return rows_of(spark.read.parquet(str(tmp_path / f"{engine}-out")))

    rows = stream(spark, relative / "in").select("id")
    assert run("epochal", rows) == run("spark", rows) == [(n,) for n in range(10)]
    reader = epochal.read_stream(spark).format("json").schema("id bigint")
    query = (
        reader.load(str(relative / "in"))
        .write_stream.format("csv")
        .option("checkpointLocation", str(relative / "stream-ck"))
        .trigger(availableNow=True)
        .start(str(relative / "stream-out"))
    )
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert spark.read.csv(str(tmp_path / "stream-out")).count() == 10
    assert list(elsewhere.iterdir()) == []
