"""Queries written with the builder: what comes out is right, in memory and on a real Spark."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import Make

import epochal
from epochal.connectors.memory import MemoryStream
from epochal.continuous.api.stream import Stream
from epochal.errors import OptionError
from epochal.testing import rows_equal, stream

ORDERS = "user string, amount bigint, at timestamp"


@pytest.fixture
def orders() -> Stream:
    return stream(ORDERS, "orders")


def at(second: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=second)


def test_rows_pass_through_filters_projections_and_functions(driven: Make, orders: Stream) -> None:
    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch(
                [batch["user"], pc.multiply(batch["amount"], 2)], names=["user", "amount"]
            )

    made = (
        orders.filter("amount > 1")
        .filter(pc.field("user") != "z")
        .map_in_arrow(doubled, "user string, amount bigint")
        .with_column("big", "amount >= 6")
        .with_column("more", pc.field("amount") + 1)
        .map_in_pandas(lambda frames: frames, "user string, amount bigint, big boolean, more long")
        .select("upper(user) AS name", "amount", "big", "more")
        .drop("more")
    )
    assert made.columns == ["name", "amount", "big"]
    driver = driven(made)
    driver.feed([("a", 1, at(0)), ("b", 2, at(0)), ("c", 3, at(0))])
    assert rows_equal(driver.run(), [("B", 4, False), ("C", 6, True)])
    driver.restart()
    driver.feed([("d", 1, at(0)), ("z", 5, at(0)), ("e", 5, at(0))])
    assert rows_equal(driver.run(), [("E", 10, True)])


def test_mistakes_are_refused_on_the_line_that_makes_them(
    spark: SparkSession, orders: Stream, tmp_path: Path
) -> None:
    source = MemoryStream(orders.schema, directory=str(tmp_path))
    stream = epochal.read_stream(spark).format(source).load()
    deduplicated = stream.with_watermark("at", "1 second").drop_duplicates(["user", "at"])
    mistakes = {
        "nope": lambda: stream.select("nope"),
        "must be a boolean": lambda: stream.filter("amount + 1"),
        "no column 'nope'": lambda: stream.group_by("nope"),
        "must be a timestamp": lambda: stream.with_watermark("user", "1 second"),
        "duration with its unit": lambda: stream.with_watermark("at", "5"),
        "same columns": lambda: stream.union(stream.select("user")),
        "already cannot get another one": lambda: deduplicated.with_watermark("at", "2 seconds"),
        "needs with_watermark": lambda: stream.drop_duplicates_within_watermark(["user"]),
        "not an aggregate function": lambda: stream.group_by("user").agg(x=("median", "amount")),
        "append": lambda: stream.group_by("user").agg(x="count", output_mode="append"),
        "Output modes": lambda: stream.write_stream.output_mode("upsert"),
        "before .start()": lambda: stream.write_stream.start(),
        "There is no sink": lambda: stream.write_stream.format("parket").start(),
        "There is no source": lambda: epochal.read_stream(spark).format("kafk").load(),
    }
    said = {}
    for expected, mistake in mistakes.items():
        with pytest.raises(OptionError) as caught:
            mistake()  # type: ignore[no-untyped-call]
        said[expected] = str(caught.value)
    assert [key for key, text in said.items() if key not in text] == []
