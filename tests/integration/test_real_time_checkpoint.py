"""A checkpoint of Spark's real-time mode: it looks like one of micro-batches, and goes on here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from tests.kafka_topics import create_topics, read_topic
from tests.waiting import eventually

import epochal
from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.testing.kafka import Kafka


class Topics:
    """A topic to read, one to write, and a query between them."""

    def __init__(self, broker: Kafka) -> None:
        self.servers, name = broker.bootstrap_servers, uuid4()
        self.source, self.out = f"in-{name}", f"out-{name}"
        create_topics(self.servers, {self.source: 1, self.out: 1})

    def send(self, *numbers: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for number in numbers:
            producer.produce(self.source, str(number).encode())
        assert producer.flush(30) == 0

    def frame(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("kafka").option("startingOffsets", "earliest")
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": self.source}
        return reader.options(**given).load().selectExpr("value")

    def write(self, writer: Any, checkpoint: Path) -> Any:
        given = {"kafka.bootstrap.servers": self.servers, "topic": self.out}
        writer = writer.format("kafka").outputMode("update").options(**given)
        return writer.option("checkpointLocation", str(checkpoint))

    def written(self) -> list[int]:
        return sorted(int(value) for _, _, value in read_topic(self.servers, self.out))


def newest(checkpoint: Path) -> tuple[OffsetEntry, CommitEntry] | None:
    """The newest batch, if it is committed."""
    found = Checkpoint(str(checkpoint))
    offsets, commit = found.offsets.get_latest(), found.commits.get_latest()
    if offsets is None or commit is None or offsets[0] != commit[0]:
        return None
    return offsets[1], commit[1]


def read_up_to(checkpoint: Path, source: str, count: int) -> bool:
    found = newest(checkpoint)
    offset = None if found is None else found[0].by_source["0"]
    return offset is not None and json.loads(offset) == {source: {"0": count}}


def test_a_query_goes_on_where_real_time_mode_has_stopped(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topics, checkpoint = Topics(broker), tmp_path / "checkpoint"
    topics.send(*range(5))
    writer = topics.write(topics.frame(kafka_spark).writeStream, checkpoint)
    query = writer.trigger(realTime="5 seconds").start()
    try:
        eventually(lambda: read_up_to(checkpoint, topics.source, 5), "a batch of real-time mode")
    finally:
        query.stop()
    topics.send(*range(5, 10))
    ours = topics.write(epochal.write_stream(topics.frame(kafka_spark)), checkpoint)
    running = ours.trigger(epoch="100 milliseconds").start()
    running.processAllAvailable()
    running.stop()
    assert topics.written() == list(range(10))
    assert read_up_to(checkpoint, topics.source, 10)
