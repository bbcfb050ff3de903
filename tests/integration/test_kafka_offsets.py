"""Moves a Kafka query's offsets with a real broker; a real Spark continues from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from tests.integration.kafka_world import epochal, make_topic, unique

from epochal.testing.kafka import Kafka

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


@pytest.fixture
def topic(broker: Kafka) -> str:
    """A topic of two partitions with ten records each, one hour apart."""
    name = make_topic(broker, unique("orders"))
    produce(broker, name, range(10))
    return name


def produce(broker: Kafka, topic: str, hours: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for partition in (0, 1):
        for hour in hours:
            producer.produce(
                topic,
                f"{partition}-{hour}".encode(),
                partition=partition,
                timestamp=START_MS + hour * HOUR_MS,
            )
    assert producer.flush(30) == 0


def run_query(spark: SparkSession, broker: Kafka, topic: str, home: Path) -> None:
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(value as string) as value")
        .writeStream.format("json")
        .option("path", str(home / "out"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def written(spark: SparkSession, home: Path) -> list[str]:
    rows = spark.read.schema("value string").json(str(home / "out")).collect()
    return sorted(row.value for row in rows)


def shown(home: Path) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(epochal("checkpoint", "show", home / "checkpoint", "--json"))
    return view


def values(hours: range) -> list[str]:
    return [f"{partition}-{hour}" for partition in (0, 1) for hour in hours]


@pytest.mark.parametrize(
    ("target", "read_again"),
    [
        (("--to-earliest",), range(10)),
        (("--to-datetime", "2023-11-15T04:13:20"), range(6, 10)),
        (("--to-latest",), range(0)),
        (("--shift-by", "-3"), range(7, 10)),
    ],
    ids=["earliest", "datetime", "latest", "shift"],
)
def test_a_moved_query_reads_exactly_from_where_it_was_sent(
    kafka_spark: SparkSession,
    broker: Kafka,
    topic: str,
    tmp_path: Path,
    target: tuple[str, ...],
    read_again: range,
) -> None:
    run_query(kafka_spark, broker, topic, tmp_path)
    edit: tuple[str | Path, ...] = (
        "checkpoint",
        "set-offsets",
        tmp_path / "checkpoint",
        "--source",
        "0",
        *target,
    )
    asked = ("--bootstrap-servers", broker.bootstrap_servers, "--sink", tmp_path / "out")
    epochal(*edit, *asked, "--execute")
    produce(broker, topic, range(10, 12))
    run_query(kafka_spark, broker, topic, tmp_path)
    expected = values(range(12)) + values(read_again)
    assert written(kafka_spark, tmp_path) == sorted(expected)
