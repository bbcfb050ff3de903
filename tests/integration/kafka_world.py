"""Helpers for the Kafka tests: topics, records, queries, and waiting for offsets."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from tests.kafka_topics import create_topic
from tests.waiting import eventually

from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.offsets import Cluster, KafkaPartition
from epochal.testing.kafka import Kafka

EPOCHAL = str(Path(sys.executable).parent / "epochal")


def admin(broker: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": "0"})


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def make_topic(broker: Kafka, name: str, partitions: int = 2) -> str:
    return create_topic(broker.bootstrap_servers, name, partitions=partitions)


def produce(broker: Kafka, topic: str, count: int, *, partitions: int = 2) -> None:
    """Produce `count` records into each partition."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": "0"})
    for partition in range(partitions):
        for number in range(count):
            producer.produce(topic, f"{partition}-{number}".encode(), partition=partition)
    assert producer.flush(60) == 0


def read(
    spark: SparkSession, broker: Kafka, how: tuple[str, str], group: str | None, **options: str
) -> DataFrame:
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("startingOffsets", "earliest")
        .option(*how)
        .options(**options)
    )
    if group is not None:
        reader = reader.option("kafka.consumer.commit.groupid", group)
    return reader.load()


def start(frame: DataFrame, home: Path, **trigger: Any) -> Any:
    return (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(home))
        .trigger(**(trigger or {"processingTime": "200 milliseconds"}))
        .start()
    )


def held(broker: Kafka, group: str) -> dict[KafkaPartition, int]:
    cluster = Cluster.of({"bootstrap.servers": broker.bootstrap_servers})
    return {
        place: each.offset for place, each in KafkaClient(cluster).committed_offsets(group).items()
    }


def wait_for(what: Callable[[], bool], said: Callable[[], object] = lambda: "") -> None:
    eventually(what, said, pause=0.2)


def processed(home: Path) -> dict[KafkaPartition, int]:
    """Return the offsets in a query's checkpoint, over all its sources."""
    run = epochal("checkpoint", "show", home, "--json")
    finished = [batch for batch in json.loads(run)["batches"] if batch["committed"]]
    return {
        (topic, int(partition)): offset
        for source in finished[-1]["offsets"]
        for topic, partitions in source.items()
        for partition, offset in partitions.items()
    }


def epochal(*words: str | Path, status: int = 0) -> str:
    run = subprocess.run([EPOCHAL, *map(str, words)], capture_output=True, text=True, check=False)
    assert run.returncode == status, (run.returncode, run.stdout, run.stderr)
    return run.stdout if status == 0 else run.stdout + run.stderr


def described(broker: Kafka, group: str) -> dict[KafkaPartition, tuple[int, int, int]]:
    """Return a group's current offset, log end and lag as Kafka's own tool prints them."""
    lines = broker.consumer_groups("--describe", "--group", group).splitlines()
    rows = [line.split() for line in lines if line.startswith(f"{group} ")]
    return {(row[1], int(row[2])): (int(row[3]), int(row[4]), int(row[5])) for row in rows}
