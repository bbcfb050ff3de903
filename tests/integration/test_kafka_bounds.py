"""Bounds of an epoch over Kafka: the same records, epoch by epoch, as in Spark's batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.integration.kafka_reading import options, texts
from tests.integration.kafka_world import make_topic, unique

import epochal
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
