"""Worlds of the Kafka source, on a real broker: plain topics, and topics full of transactions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.contract.sources import World
from tests.kafka_topics import create_topics

from epochal.connectors.contract import Positions, Source
from epochal.connectors.kafka.source.kafka_source import KafkaSource
from epochal.connectors.kafka.source.source_options import read_source_options
from epochal.files.local import LocalFiles
from epochal.testing.kafka import Kafka

PARTITIONS = 3


def client_settings(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "log_level": "0"}


@cache
def transactional_producer(servers: str) -> Producer:
    """One for all tests: a coordinator takes half a second to let the next one in."""
    own = {"transactional.id": uuid.uuid4().hex, "retry.backoff.ms": "10"}
    producer = Producer(client_settings(servers) | own)
    producer.init_transactions(60)
    return producer


class KafkaWorld:
    """Two topics, one of them with several partitions."""

    def __init__(self, tmp: Path, broker: Kafka) -> None:
        self._tmp, self._broker, self._next = tmp, broker, 0
        name = uuid.uuid4().hex[:8]
        self._places = [(f"many-{name}", n) for n in range(PARTITIONS)] + [(f"one-{name}", 0)]
        sizes = {f"many-{name}": PARTITIONS, f"one-{name}": 1}
        create_topics(broker.bootstrap_servers, sizes)
        self._producer = self._new_producer()

    def open(self) -> Source:
        checkpoint = LocalFiles(self._tmp / "checkpoint", durable=False)
        return KafkaSource(read_source_options(self._options()), checkpoint, 0)

    def feed(self, source: Source) -> None:
        self._produce(7)

    def end(self, source: Source) -> Positions:
        latest = source.latest()
        assert latest is not None
        return latest

    def _options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "subscribe": ",".join(sorted({topic for topic, _ in self._places})),
            "startingOffsets": "earliest",
        }

    def _new_producer(self) -> Producer:
        return Producer(client_settings(self._broker.bootstrap_servers))

    def _produce(self, count: int) -> None:
        """So many records into each partition but the last, which gets a third."""
        for topic, partition in self._places:
            for _ in range(count // 3 if (topic, partition) == self._places[-1] else count):
                number = str(self._next).encode()
                self._producer.produce(topic, number, key=b"k", partition=partition)
                self._next += 1
        assert self._producer.flush(60) == 0


class TransactionsWorld(KafkaWorld):
    """Most records are of transactions, some of them aborted: offsets have holes."""

    def __init__(self, tmp: Path, broker: Kafka) -> None:
        super().__init__(tmp, broker)
        self._admin = AdminClient(client_settings(broker.bootstrap_servers))

    def _new_producer(self) -> Producer:
        return transactional_producer(self._broker.bootstrap_servers)

    def feed(self, source: Source) -> None:
        for commit in (True, False):
            self._producer.begin_transaction()
            self._produce(4)
            if commit:
                self._producer.commit_transaction(60)
            else:
                self._producer.abort_transaction(60)
        self._until_marked()

    def _until_marked(self) -> None:
        """Wait for the markers: the coordinator answers before it has written them everywhere."""
        deadline = time.monotonic() + 30
        while self._ends(IsolationLevel.READ_COMMITTED) != self._ends(
            IsolationLevel.READ_UNCOMMITTED
        ):
            assert time.monotonic() < deadline, "a transaction is still open"
            time.sleep(0.01)  # between two looks

    def _ends(self, isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(*place): OffsetSpec.latest() for place in self._places}
        found = self._admin.list_offsets(asked, isolation_level=isolation)
        return {(each.topic, each.partition): found[each].result(30).offset for each in asked}

    def _options(self) -> dict[str, str]:
        return super()._options() | {"kafka.isolation.level": "read_committed"}


KAFKA_WORLDS: dict[str, Callable[[Path, Kafka], World]] = {
    "kafka": KafkaWorld,
    "kafka-transactions": TransactionsWorld,
}
