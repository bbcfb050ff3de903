"""The same test on the driver and on a real session."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.conftest import Make

from epochal import testing
from epochal.errors import OptionError

ORDERS = "user string, amount bigint"
EVENTS = "at timestamp, user string"


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def frame_windows(events: DataFrame) -> DataFrame:
    marked = events.withWatermark("at", "10 seconds")
    return marked.groupBy(F.window("at", "1 minute"), "user").count()


def test_a_data_frame_gives_the_same_rows_on_spark(driven: Make, spark: SparkSession) -> None:
    driver = driven(frame_windows(testing.frame(EVENTS, "events", spark=spark)))
    driver.feed("events", [(at(1), "ada"), (at(2), "ada")])
    assert driver.run() == []
    driver.feed("events", [(at(100), "eve")])
    window = {"start": at(0), "end": at(60)}
    assert driver.run() == [{"window": window, "user": "ada", "count": 2}]
    assert driver.watermark_ms == 90_000


def test_what_only_the_driver_can_is_refused_with_the_reason(spark: SparkSession) -> None:
    del spark
    stream = testing.stream(ORDERS)
    with testing.SparkDriver(stream) as driver:
        for call in (
            lambda: driver.crash(at="log"),
            lambda: driver.fuzz([("a", 1)]),
            lambda: driver.advance(5),
            lambda: driver.clock,
            lambda: driver.disturb("lost"),
        ):
            with pytest.raises(OptionError, match=r"is only in epochal\.testing\.Driver"):
                call()
    with pytest.raises(OptionError, match="checkpoint is only in"):
        testing.SparkDriver(stream, checkpoint="somewhere")
    with pytest.raises(OptionError, match="foreach is only in"):
        testing.SparkDriver(stream.write_stream.foreach(lambda row: None))


def test_a_source_that_cannot_be_fed_is_refused(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate").load()
    with testing.SparkDriver(rates) as driver, pytest.raises(OptionError, match=r"testing\.frame"):
        driver.run()


def test_a_refusal_can_skip_the_test(spark: SparkSession) -> None:
    del spark
    reasons: list[str] = []

    class Skipped(Exception):
        pass

    def skip(reason: str) -> NoReturn:
        reasons.append(reason)
        raise Skipped

    driver = testing.SparkDriver(testing.stream(ORDERS), refuse=skip)
    with driver, pytest.raises(Skipped):
        driver.crash(at="commit")
    assert re.match(r"crash\(at='commit'\) is only in", reasons[0])


def test_a_checkpoint_of_a_real_query_is_continued_in_memory(
    spark: SparkSession, tmp_path: Path
) -> None:
    del spark
    totals = testing.stream(ORDERS).group_by("user").agg(total=("sum", "amount"))
    with testing.SparkDriver(totals, tasks=2, state_partitions=3) as real:
        real.feed([("ada", 1), ("bob", 2)])
        real.run()
        real.save(tmp_path)
    driver = testing.Driver(totals, checkpoint=tmp_path, tasks=3)
    assert driver.state() == {"ada": {"sum": 1}, "bob": {"sum": 2}}
    driver.feed([("ada", 4)])
    driver.crash(at="log")
    driver.restart()
    assert driver.run() == [{"user": "ada", "total": 5}]
