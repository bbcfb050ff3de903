"""`readStream.format("pubsub")` with a real Spark and the embedded server."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.integration.pubsub_world import World, pubsub_world
from tests.waiting import eventually

import epochal

Read = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> Iterator[World]:
    epochal.register(spark)  # and Spark starts before anything uses gRPC
    with pubsub_world() as found:
        yield found


@pytest.fixture
def read(spark: SparkSession, world: World, subscription: str) -> Read:
    def make(**options: Any) -> DataFrame:
        given = {"subscriptionId": subscription, "ackDeadline": "10s", **world.options, **options}
        return spark.readStream.format("pubsub").options(**given).load()

    return make


class Sink:
    """Collects batches with `foreachBatch`; each batch is read by two actions."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.newest = -1
        """The last batch that had rows."""
        self.held_s = 0.0

    def __call__(self, frame: DataFrame, batch: int) -> None:
        found = [row.message_id for row in frame.select("message_id").collect()]
        time.sleep(self.held_s)  # a batch that takes its time
        again = [row.message_id for row in frame.select("message_id").collect()]
        assert sorted(found) == sorted(again)
        if found:
            self.newest = batch
        self.batches.append(found)

    @property
    def ids(self) -> list[str]:
        return [each for batch in self.batches for each in batch]


def start(frame: DataFrame, sink: Sink, folder: Path, **trigger: Any) -> Any:
    writer = frame.writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start()


def wait(query: Any, done: Callable[[], bool]) -> None:
    def holds() -> bool:
        if done():
            return True
        assert query.isActive, query.exception()
        return False

    eventually(holds, lambda: f"the newest progress is {query.lastProgress}", 150, pause=0.02)


def settled(query: Any, sink: Sink) -> None:
    """Wait until an idle query has run the batch without rows that commits its last one."""

    def flushed() -> bool:
        progress = query.lastProgress
        return (
            bool(progress)
            and progress["batchId"] > sink.newest
            and bool(re.search(r"partitions\W+0\b", str(progress["sources"][0]["endOffset"])))
        )

    wait(query, flushed)


def test_batches_read_twice_come_once_and_are_acknowledged(
    world: World, topic: str, subscription: str, read: Read, tmp_path: Path
) -> None:
    sink = Sink()
    query = start(read(numPartitions=2), sink, tmp_path)
    sent: list[str] = []
    for _ in range(3):
        sent.extend(world.publish(topic, [b"x"] * 100))
        wait(query, lambda: len(sink.ids) >= len(sent))
    settled(query, sink)
    query.stop()
    assert sorted(sink.ids) == sorted(sent)
    assert world.left(subscription, seconds=1) == []


def test_columns_have_their_types(
    world: World, topic: str, read: Read, tmp_path: Path, spark: SparkSession
) -> None:
    frame = read(includeAckId="true")
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
        ("message_id", "string"),
        ("data", "binary"),
        ("attributes", "map<string,string>"),
        ("publish_time", "timestamp"),
        ("ordering_key", "string"),
        ("delivery_attempt", "int"),
        ("ack_id", "string"),
    ]
    world.publish(topic, [{"data": b"body", "attributes": {"k": "v"}}])
    query = (
        frame.writeStream.format("memory")
        .queryName("columns")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    (row,) = spark.table("columns").collect()
    assert (bytes(row.data), row.attributes, row.ordering_key) == (b"body", {"k": "v"}, None)
    assert abs(row.publish_time.timestamp() - time.time()) < 3600
    assert row.ack_id


def test_payloads_are_parsed_and_bad_ones_do_not_end_the_query(
    world: World, topic: str, read: Read, tmp_path: Path, spark: SparkSession
) -> None:
    world.publish(topic, [b'{"user": "ann", "amount": 3}', b"no json"])
    frame = read(parse="json", parseSchema="user string, amount long")
    query = (
        frame.select("parsed.*", "parse_error")
        .writeStream.format("memory")
        .queryName("parsed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    good, bad = sorted(spark.table("parsed").collect(), key=lambda row: row.parse_error or "")
    assert (good.user, good.amount, good.parse_error) == ("ann", 3, None)
    assert (bad.user, bad.amount) == (None, None)
    assert bad.parse_error


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_empty_stream_for_minutes_still_reads_what_comes(
    world: World, topic: str, subscription: str, read: Read, tmp_path: Path
) -> None:
    sink = Sink()
    query = start(read(), sink, tmp_path)
    time.sleep(150)  # idle workers and, without a query, idle sidecars are gone after a minute
    sent = world.publish(topic, [b"x"] * 10)
    wait(query, lambda: sorted(sink.ids) == sorted(sent))
    settled(query, sink)
    query.stop()
    assert world.left(subscription, seconds=1) == []


def test_a_query_written_for_databricks_runs_with_its_columns_and_sizes(
    world: World, topic: str, read: Read, tmp_path: Path
) -> None:
    frame = read(
        subscriptionId="made-for-databricks",
        topicId=topic,
        createSubscription="true",
        columnNames="databricks",
        maxBytesPerTrigger="10m",
        numFetchPartitions="2",
    )
    assert frame.schema.simpleString() == (
        "struct<messageId:string,payload:binary,attributes:string,publishTimestampInMillis:bigint>"
    )
    found: list[Any] = []
    writer = frame.writeStream.foreachBatch(lambda rows, _: found.extend(rows.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    wait(query, lambda: query.status["isDataAvailable"] or bool(query.lastProgress))
    (sent,) = world.publish(topic, [{"data": b"body", "attributes": {"a": "1"}}])
    wait(query, lambda: bool(found))
    query.stop()
    (row,) = found
    assert (row.messageId, bytes(row.payload), row.attributes) == (sent, b"body", '{"a": "1"}')
    assert abs(row.publishTimestampInMillis / 1000 - time.time()) < 300
