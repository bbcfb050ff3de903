"""Bounds of an epoch over Kafka: the same records, epoch by epoch, as in Spark's batches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.integration.kafka_reading import options, texts
from tests.integration.kafka_world import admin, make_topic, unique
from tests.waiting import eventually

import epochal
from epochal.errors import KafkaDataLossError
from epochal.testing.kafka import Kafka

SECONDS = 120.0
Batches = list[list[str]]


def records(broker: Kafka, topic: str, turn: int) -> None:
    """Many in one partition and few in the other."""
    texts(broker, topic, [f"{turn}-a{n:02}" for n in range(47)], 0)
    texts(broker, topic, [f"{turn}-b{n:02}" for n in range(9)], 1)


def shown(writer: Any, home: Path, **trigger: Any) -> Batches:
    batches: Batches = []
    writer.foreachBatch(lambda rows, _: batches.append(sorted(row[0] for row in rows.collect())))
    query = writer.option("checkpointLocation", str(home)).trigger(**trigger).start()
    if trigger.get("availableNow"):
        assert query.awaitTermination(SECONDS)
    else:
        query.processAllAvailable()
        query.stop()
    return [batch for batch in batches if batch]


def test_epochs_have_the_shares_of_sparks_batches_after_restarts_too(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("shares"))
    given = options(broker, subscribe=topic) | {"maxOffsetsPerTrigger": "10"}
    frame = kafka_spark.readStream.format("kafka").options(**given).load()
    frame = frame.selectExpr("cast(value as string)")
    expected: Batches = []
    found: Batches = []
    for turn in range(4):
        records(broker, topic, turn)
        expected += shown(frame.writeStream, tmp_path / "spark", availableNow=True)
        ours = turn != 2  # Spark goes on once in between
        writer = epochal.write_stream(frame) if ours else frame.writeStream
        trigger = {"availableNow": True} if turn % 2 == 0 else {"processingTime": "0 seconds"}
        found += shown(writer, tmp_path / "turns", **trigger)
    assert found == expected
    assert len(expected) > 4 * 5


@pytest.mark.full  # waits for ten seconds
def test_few_records_wait_for_more_but_not_longer_than_they_may(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("few"))
    waits = {"minOffsetsPerTrigger": "20", "maxTriggerDelay": "8s"}
    reader = kafka_spark.readStream.format("kafka").options(**options(broker, subscribe=topic))
    sizes: list[tuple[int, float]] = []
    texts(broker, topic, ["first"], 0)
    writer = epochal.write_stream(reader.options(**waits).load().select("value"))
    writer.foreachBatch(lambda rows, _: sizes.append((rows.count(), time.monotonic())))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        eventually(lambda: len(sizes) == 1)
        texts(broker, topic, ["few"] * 3, 0)
        time.sleep(1)  # an epoch that did not wait would be here by now
        texts(broker, topic, ["more"] * 30, 1)
        eventually(lambda: len(sizes) == 2)
        texts(broker, topic, ["late"], 0)
        eventually(lambda: len(sizes) == 3)
    finally:
        query.stop()
    assert [size for size, _ in sizes] == [1, 33, 1]
    assert sizes[2][1] - sizes[1][1] > 7


def test_a_topic_that_was_made_again_is_lost_data_under_available_now(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("again"))
    given = options(broker, subscribe=topic)
    frame = kafka_spark.readStream.format("kafka").options(**given).load()
    frame = frame.selectExpr("cast(value as string)")

    def run() -> Batches:
        return shown(epochal.write_stream(frame), tmp_path, availableNow=True)

    records(broker, topic, 0)
    assert [len(batch) for batch in run()] == [56]
    client = admin(broker)
    client.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in client.list_topics(timeout=10).topics)
    make_topic(broker, topic)
    texts(broker, topic, ["new"] * 5, 0)
    with pytest.raises(KafkaDataLossError, match=r"the end of .*-0 is 5, but 47 was next"):
        run()
