"""Nexmark: what Spark runs, Epochal runs with the same result, which an oracle confirms."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.nexmark.suite import KINDS, SETTINGS, events, expected, register_views
from benchmarks.nexmark.texts import REFUSED, NexmarkQuery, queries
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from tests.corpus.running import Output, Row
from tests.frames.streams_of_words import plain, sparks
from tests.frames.test_corpus import about, state_of

import epochal
from epochal.errors import EpochalError

COUNT, PER_SECOND, PARTS = 6_000, 300, 3
PROCESSING_TIME = 12
CLOSING = -1
"""The id of events that only close windows."""

RUNS = [
    pytest.param(each, marks=pytest.mark.full, id=str(each))
    for each in queries()
    if each.number not in REFUSED
]


@cache
def rows() -> pa.Table:
    return events(0, COUNT, PER_SECOND)


def closing() -> pa.Table:
    """A far later event of each kind, which closes all windows. No query joins them."""
    found = rows().slice(0, len(KINDS)).to_pylist()
    later = found[0]["ts"] + datetime.timedelta(hours=1)
    for kind, row in zip(KINDS, found, strict=True):
        row |= {"kind": kind, "ts": later, "id": CLOSING, "who": CLOSING, "price": 0}
        row |= {"category": 0, "state": "none"}
    return pa.Table.from_pylist(found, rows().schema)


def run(
    spark: SparkSession, query: NexmarkQuery, home: Path, write: Callable[[DataFrame], Any]
) -> tuple[list[Row], Path]:
    source, checkpoint, output = home / "events", home / "checkpoint", Output()
    source.mkdir(parents=True)
    stream = spark.readStream.schema(from_arrow_schema(rows().schema)).parquet(str(source))
    register_views(spark, stream)
    writer = write(spark.sql(query.spark)).outputMode(query.mode)
    started = writer.foreachBatch(output.take).option("checkpointLocation", str(checkpoint)).start()
    size = COUNT // PARTS
    parts = [*(rows().slice(number * size, size) for number in range(PARTS)), closing()]
    try:
        for number, part in enumerate(parts):
            pq.write_table(part, source / f".{number}")
            (source / f".{number}").rename(source / f"{number}.parquet")
            started.processAllAvailable()
    finally:
        started.stop()
    found = (tuple(about(row)) for row in output.result(query))
    return [row for row in found if row[0] != CLOSING], checkpoint


def told(query: NexmarkQuery) -> list[Row]:
    """The oracle's rows."""
    found = expected(query, rows()).to_pylist()
    return sorted((tuple(about(plain(value)) for value in row.values()) for row in found), key=repr)


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        spark.conf.set(name, str(old))


@pytest.mark.usefixtures("nothing_left_running", "settings")
@pytest.mark.parametrize("query", RUNS)
def test_epochal_spark_and_an_oracle_agree(
    query: NexmarkQuery, spark: SparkSession, tmp_path: Path
) -> None:
    ours, checkpoint = run(spark, query, tmp_path / "epochal", epochal.write_stream)
    if query.number == PROCESSING_TIME:
        assert bids_by_bidder(ours) == bids_by_bidder(told(query))
        return
    theirs, their_checkpoint = run(spark, query, tmp_path / "spark", sparks)
    assert ours == theirs
    assert state_of(checkpoint) == state_of(their_checkpoint)
    assert numbers(ours) == numbers(told(query))


@pytest.mark.parametrize("query", [each for each in queries() if each.number in REFUSED], ids=str)
def test_epochal_refuses_what_spark_refuses(
    query: NexmarkQuery, spark: SparkSession, tmp_path: Path
) -> None:
    schema = from_arrow_schema(rows().schema)
    register_views(spark, spark.readStream.schema(schema).parquet(str(tmp_path)))
    frame = spark.sql(query.spark)
    for write, refusal in ((sparks, AnalysisException), (epochal.write_stream, EpochalError)):
        checkpoint = tmp_path / refusal.__name__
        writer = write(frame).outputMode(query.mode).format("noop")
        with pytest.raises(refusal):
            writer.option("checkpointLocation", str(checkpoint)).start()


def bids_by_bidder(found: list[Row]) -> dict[Any, int]:
    """Processing time windows differ from run to run, but not how many bids there are in all."""
    totals: dict[Any, int] = {}
    for bidder, _, bids in found:
        totals[bidder] = totals.get(bidder, 0) + bids
    return totals


def numbers(found: list[Row]) -> list[Row]:
    """Rows with decimals as doubles: the oracle's decimals have other scales."""
    return sorted(
        (tuple(float(v) if hasattr(v, "as_tuple") else v for v in row) for row in found), key=repr
    )
