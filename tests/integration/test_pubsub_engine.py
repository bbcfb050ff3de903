"""Pub/Sub in continuous queries on a real Spark, with the embedded server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.integration.pubsub_world import World, pubsub_world
from tests.spark.continuous import workers
from tests.waiting import eventually

from epochal import read_stream, register, streams, write_stream
from epochal.connectors.memory import MemoryOutput
from epochal.connectors.pubsub.connection import Subscriptions
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.continuous.api.stream import Stream
from epochal.errors import UnsupportedPlanError


@pytest.fixture(scope="module")
def spark(kafka_spark: SparkSession) -> SparkSession:
    return kafka_spark


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> Iterator[World]:
    assert spark is not None  # Spark must start before gRPC is used
    with pubsub_world() as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_left_running(spark: SparkSession) -> Iterator[None]:
    yield
    for query in streams(spark).active:
        query.stop()


def read(spark: SparkSession, world: World, subscription: str, **options: Any) -> Stream:
    reader = read_stream(spark).format("pubsub").options(**world.options, **options)
    return reader.option("subscriptionId", subscription).load()


def run(stream: Stream, sink: Any, checkpoint: Path, **options: Any) -> StreamingQuery:
    usual = {"epoch": "50 milliseconds"}
    writer = stream.write_stream.format(sink)
    return writer.options(checkpointLocation=str(checkpoint), **{**usual, **options}).start()


def data(output: MemoryOutput) -> list[bytes]:
    return sorted(bytes(each) for each in output.table()["data"].to_pylist() if each is not None)


def wait_for(output: MemoryOutput, count: int) -> None:
    eventually(lambda: len(data(output)) >= count, f"{count} messages")


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(first, first + count)]


def kill_a_worker() -> bool:
    for worker in workers():
        with suppress(ProcessLookupError):  # Spark ends idle workers of earlier queries
            os.kill(worker, signal.SIGKILL)
            return True
    return False


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_an_idle_stream_acknowledges_what_it_has_committed(
    spark: SparkSession, world: World, tmp_path: Path, delivery: str
) -> None:
    topic, subscription = world.pair(ack_deadline_seconds=600)
    output = MemoryOutput()
    stream = read(spark, world, subscription, numPartitions=2, delivery=delivery)
    query = run(stream, output, tmp_path / "c")
    world.publish(topic, bodies(0, 500))
    eventually(lambda: len(data(output)) >= 500, "the first 500")
    # Nothing more is published, and yet they are acknowledged.
    eventually(lambda: not world.unacknowledged(subscription), "all acknowledged", pause=0.1)
    world.publish(topic, bodies(500, 500))
    eventually(lambda: len(data(output)) >= 1000, "all 1000")
    query.stop()
    assert data(output) == bodies(0, 1000)
    assert world.left(subscription) == []
    again = run(stream, output, tmp_path / "c")
    world.publish(topic, bodies(1000, 10))
    eventually(lambda: len(data(output)) >= 1010, "the rest")
    again.stop()
    assert data(output) == bodies(0, 1010)


def test_a_dataframe_of_messages_runs_with_one_line_changed(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    register(spark)
    topic, subscription = world.pair()
    reader = spark.readStream.format("pubsub").options(**world.options)
    frame = reader.option("subscriptionId", subscription).load().selectExpr("upper(data) AS data")
    writer = write_stream(frame).format("memory").queryName("messages")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    world.publish(topic, [b"a", b"b"])
    eventually(
        lambda: sorted(row["data"] for row in spark.table("messages").collect()) == ["A", "B"],
        "both messages",
    )
    query.stop()
    assert world.left(subscription) == []
    exact = reader.option("delivery", "exactly-once").option("walLocation", str(tmp_path / "w"))
    again = exact.option("subscriptionId", subscription).load()
    with pytest.raises(UnsupportedPlanError, match="leave out delivery=exactly-once"):
        write_stream(again).format("noop").start()


def test_what_comes_again_counts_once(spark: SparkSession, world: World, tmp_path: Path) -> None:
    topic, subscription = world.pair(retain_acked_messages=True)
    output = MemoryOutput()
    stream = read(spark, world, subscription, delivery="exactly-once")
    query = run(stream, output, tmp_path / "c")
    world.publish(topic, bodies(0, 300))
    eventually(lambda: len(data(output)) >= 300, "the first")
    Subscriptions(world.connection).seek(subscription, datetime(2020, 1, 1, tzinfo=UTC))
    world.publish(topic, bodies(300, 50))
    eventually(lambda: len(data(output)) >= 350, "the new ones")
    query.stop()
    Subscriptions(world.connection).seek(subscription, datetime(2020, 1, 1, tzinfo=UTC))
    again = run(stream, output, tmp_path / "c")
    world.publish(topic, bodies(350, 10))
    eventually(lambda: len(data(output)) >= 360, "those after the restart")
    again.stop()
    assert data(output) == bodies(0, 360)
    assert world.left(subscription) == []


def test_a_query_waits_for_pubsub_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    topic, name = "projects/test/topics/top", "projects/test/subscriptions/sub"
    output = MemoryOutput()
    with pubsub_world("--subscription", "sub:top") as before:
        stream = read(spark, before, name, requestTimeout="1s")
        query = run(stream, output, tmp_path / "c", discoverInterval="100 milliseconds")
        before.publish(topic, bodies(0, 10))
        wait_for(output, 10)
        assert query.status["degraded"] == ""
    eventually(lambda: "UNAVAILABLE" in query.status["degraded"], "the sign of the outage")
    port = before.address.rpartition(":")[2]
    with pubsub_world("--subscription", "sub:top", "--port", port) as after:
        after.publish(topic, bodies(10, 10))
        wait_for(output, 20)
        eventually(lambda: query.status["degraded"] == "", "the end of the sign")
        assert query.status["restarts"] == 0
        query.stop()
    assert data(output) == bodies(0, 20)


def test_killed_workers_cost_nothing(spark: SparkSession, world: World, tmp_path: Path) -> None:
    topic, subscription = world.pair(ack_deadline_seconds=10)
    output = MemoryOutput()
    stream = read(
        spark, world, subscription, delivery="exactly-once", numPartitions=3, ackDeadline="10s"
    )
    query = run(stream, output, tmp_path / "c", parallelism=2, maxRestarts=20)
    for turn in range(3):
        world.publish(topic, bodies(turn * 200, 100))
        eventually(kill_a_worker, "a worker")
        world.publish(topic, bodies(turn * 200 + 100, 100))
    eventually(lambda: len(data(output)) >= 600, "all of them")
    query.stop()
    assert data(output) == bodies(0, 600)
    assert world.unacknowledged(subscription) == []
