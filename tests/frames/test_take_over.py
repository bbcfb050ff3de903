"""Spark and Epochal take turns on one checkpoint; the output is that of Spark alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.streams_of_words import PATIENCE_SECONDS, add_file, rows_of, stream, words
from tests.frames.turns import publish
from tests.waiting import eventually

import epochal
from epochal.checkpoint import Checkpoint, OffsetLog
from epochal.checkpoint.layout import SINK_LOG
from epochal.state import read_state

pytestmark = pytest.mark.usefixtures("nothing_left_running")

SPARK, OURS = "spark", "ours"


def stateless(rows: DataFrame) -> DataFrame:
    return rows.filter("id % 2 = 0").select("id", F.upper("word").alias("word"))


def windowed(rows: DataFrame) -> DataFrame:
    marked = rows.withWatermark("at", "3 seconds")
    grouped = marked.groupBy(F.window("at", "5 seconds"), "word")
    totals = grouped.agg(F.count("*").alias("rows"), F.avg("id").alias("mean"))
    return totals.select("window.start", "word", "rows", "mean")


def distinct(rows: DataFrame) -> DataFrame:
    """Each run of a batch has other rows."""
    return rows.select("id", F.expr("uuid()").alias("name")).dropDuplicates(["name"])


def stamped(rows: DataFrame) -> DataFrame:
    return rows.select("id", F.current_timestamp().alias("now"), F.current_date().alias("today"))


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "stateless": stateless,
    "windowed": windowed,
    "distinct": distinct,
    "stamped": stamped,
}


class Case:
    """A query over files, its checkpoint and its output."""

    def __init__(self, spark: SparkSession, base: Path, query: str) -> None:
        self.spark, self.query = spark, QUERIES[query]
        self.source, self.checkpoint, self.out = base / "in", base / "ck", base / "out"
        self.source.mkdir(parents=True)

    def frame(self) -> DataFrame:
        # One reader, so that an epoch has all rows of a file or none.
        return self.query(stream(self.spark, self.source, numPartitions=1))

    def run(self, engine: str) -> None:
        """Process what is there and stop."""
        frame = self.frame()
        writer: Any = frame.writeStream if engine == SPARK else epochal.write_stream(frame)
        writer = writer.format("parquet").option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start(str(self.out))
        assert query.awaitTermination(PATIENCE_SECONDS) is not False
        assert query.exception() is None

    def rows(self) -> list[tuple[Any, ...]]:
        return rows_of(self.spark.read.parquet(str(self.out)))


def output(case: Case, engines: tuple[str, ...]) -> list[tuple[Any, ...]]:
    for turn, engine in enumerate(engines):
        add_file(case.source, str(turn), words(10, turn * 10))
        case.run(engine)
    return case.rows()


def forget_last_batch(case: Case) -> int:
    """Undo the newest batch as if Spark had been killed while it ran; return its number."""
    found = Checkpoint(str(case.checkpoint))
    newest = max(found.offsets.batch_ids())
    (case.checkpoint / "commits" / str(newest)).unlink()
    (case.out / "_spark_metadata" / str(newest)).unlink()
    for state in case.checkpoint.glob(f"state/*/*/{newest + 1}.*"):
        state.unlink()
    for checksum in case.checkpoint.rglob(f".{newest}*.crc"):
        checksum.unlink()
    return newest


def test_such_a_batch_has_the_time_that_spark_planned(spark: SparkSession, tmp_path: Path) -> None:
    case = Case(spark, tmp_path, "stamped")
    expected = output(case, (SPARK,))
    forget_last_batch(case)
    case.run(OURS)
    assert case.rows() == expected


def forget_epochs_after(case: Case, epoch: int) -> None:
    for log in (case.checkpoint / "offsets", case.checkpoint / "commits", case.out / SINK_LOG):
        for path in log.glob("[0-9]*"):
            if int(path.name) > epoch:
                path.unlink()
    for path in case.checkpoint.glob("state/*/*/[0-9]*.*"):
        if int(path.stem) > epoch + 1:
            path.unlink()


def test_a_batch_that_spark_runs_after_our_decision_has_sparks_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    case = Case(spark, tmp_path, "distinct")
    output(case, (SPARK, OURS))
    entries = dict(Checkpoint(str(case.checkpoint)).offsets.get_range())
    with_rows = min(n for n in entries if entries[n].offsets == entries[max(entries)].offsets)
    forget_epochs_after(case, with_rows)
    for log in (case.checkpoint / "commits", case.out / SINK_LOG):
        (log / str(with_rows)).unlink()  # as if we had been killed after the decision
    for snapshot in case.checkpoint.glob(f"state/*/*/{with_rows + 1}.snapshot"):
        snapshot.unlink()  # it is written after the commit
    publish(case.checkpoint)
    case.run(SPARK)
    assert max(Checkpoint(str(case.checkpoint)).commits.batch_ids()) == with_rows
    add_file(case.source, "2", words(10, 20))
    case.run(OURS)
    rows = read_state(str(case.checkpoint), 0).to_pylist()
    assert sorted(row["key"]["name"] for row in rows) == sorted(name for _, name in case.rows())
    assert len(rows) == 30


def test_both_read_each_second_of_a_rate_source_once(spark: SparkSession, tmp_path: Path) -> None:
    numbers = spark.readStream.format("rate").option("rowsPerSecond", 50).load().select("value")
    out = str(tmp_path / "out")
    for engine in (SPARK, OURS, SPARK, OURS):
        writer: Any = numbers.writeStream if engine == SPARK else epochal.write_stream(numbers)
        writer = writer.format("parquet").option("checkpointLocation", str(tmp_path / "ck"))
        query = writer.start(out)
        newest = Checkpoint(str(tmp_path / "ck")).commits.latest_batch_id() or 0

        def has_gone_on(known: int = newest) -> bool:
            found = Checkpoint(str(tmp_path / "ck")).commits.latest_batch_id() or 0
            return found >= known + 2

        eventually(has_gone_on, seconds=PATIENCE_SECONDS)
        query.stop()
    values = sorted(row.value for row in spark.read.parquet(out).collect())
    assert values == list(range(len(values)))
    assert len(values) > 200


def test_a_new_checkpoint_pins_what_spark_pins(spark: SparkSession, tmp_path: Path) -> None:
    pinned = {}
    for engine in (SPARK, OURS):
        case = Case(spark, tmp_path / engine, "windowed")
        add_file(case.source, "0", words(10))
        case.run(engine)
        entry = OffsetLog(str(case.checkpoint / "offsets")).get(0)
        assert entry is not None
        pinned[engine] = entry.conf
    assert pinned[OURS] == pinned[SPARK]
