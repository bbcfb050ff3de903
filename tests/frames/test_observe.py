"""`df.observe`: progress reports have Spark's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.streams_of_words import PATIENCE_SECONDS, add_file, stream, words

import epochal
from epochal.errors import UnsupportedPlanError

pytestmark = pytest.mark.usefixtures("nothing_left_running")

ZONE = "spark.sql.session.timeZone"
METRICS = [
    "count(*) AS rows",
    "count_if(id % 3 = 0) AS thirds",
    "sum(id) + max(id) AS `sum and max`",
    "avg(id) AS mean",
    "min(word) AS `first word`",
    "max(at) AS latest",
    "max(to_date(at)) AS day",
    "sum(cast(id AS decimal(20, 2))) AS exact",
    "round(stddev(id), 9) AS deviation",
    "max(named_struct('a', id, 'b', word)) AS nested",
    "approx_count_distinct(id) AS distinct",
]

OF_SPARK = ["median(id) AS median", "mode(word) AS mode", "count(*) AS rows"]


def watched(spark: SparkSession, source: Path) -> DataFrame:
    """Metrics before and after a filter, and of the results of an aggregation."""
    metrics = [F.expr(text) for text in METRICS]
    frame = stream(spark, source).observe("all", *metrics)
    kept = frame.where("word = 'a'").observe("kept", *metrics)
    none = kept.where("id < 0").observe("none", *metrics)
    sparks = none.union(kept).observe("in Spark's code", *map(F.expr, OF_SPARK))
    return sparks.groupBy("word").count().observe("groups", F.max("count").alias("n"))


def reported(query: Any) -> list[dict[str, Any]]:
    assert query.awaitTermination(PATIENCE_SECONDS)
    found = [each.observedMetrics for each in query.recentProgress if each.numInputRows]
    return [{name: row.asDict() for name, row in each.items()} for each in found]


def test_reports_have_sparks_metrics(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        add_file(tmp_path / "in", str(number), words(200, 200 * number))
    frame = watched(spark, tmp_path / "in")

    def run(writer: Any, name: str) -> list[dict[str, Any]]:
        writer.outputMode("update").format("noop").trigger(availableNow=True)
        return reported(writer.start(checkpointLocation=str(tmp_path / name)))

    writer = epochal.write_stream(frame).option("progressInterval", "1 hour")
    assert run(writer, "ours") == run(frame.writeStream, "theirs")


def test_a_report_covers_the_rows_since_the_last_one(spark: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", "0", words(10))
    frame = stream(spark, tmp_path / "in").observe("seen", F.count("*").alias("n"))
    writer = epochal.write_stream(frame).format("noop").option("progressInterval", "1 millisecond")
    query = writer.trigger(epoch="20 milliseconds").start()
    for number in range(1, 4):
        query.processAllAvailable()
        add_file(tmp_path / "in", str(number), words(10, 10 * number))
    query.processAllAvailable()
    query.stop()
    found = [(each.numInputRows, each.observedMetrics["seen"].n) for each in query.recentProgress]
    assert all(rows == seen for rows, seen in found)
    assert sum(rows for rows, _ in found) == 40


@pytest.fixture(params=["America/New_York", "+05:30", "PST"])
def zoned(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session with another time zone. Spark uses that of the thread which asks for reports."""
    before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, request.param)
    yield spark
    spark.conf.set(ZONE, str(before))


def test_times_are_in_the_time_zone_of_the_session(zoned: SparkSession, tmp_path: Path) -> None:
    add_file(tmp_path / "in", "0", words(10))
    frame = stream(zoned, tmp_path / "in").observe("seen", F.max("at").alias("latest"))
    found = []
    for number, writer in enumerate((epochal.write_stream(frame), frame.writeStream)):
        writer.format("noop").trigger(availableNow=True)
        found.append(reported(writer.start(checkpointLocation=str(tmp_path / str(number)))))
    assert found[0] == found[1]


def test_metrics_that_a_report_cannot_have_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    seen = F.create_map(F.lit("a"), F.count("*")).alias("m")
    frame = stream(spark, tmp_path / "in").observe("seen", seen)
    with pytest.raises(UnsupportedPlanError, match="reports cannot have the metrics m"):
        epochal.write_stream(frame).format("noop").start()
