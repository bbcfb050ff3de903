"""Worlds of the Kafka source, on a real broker: plain topics, and topics full of transactions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.contract.sources import World

from epochal.connectors.contract import Positions, Source
from epochal.connectors.kafka.source import KafkaSource
from epochal.connectors.kafka.source_options import read_source_options
from epochal.files.local import LocalFiles
from epochal.testing.kafka import Kafka

PARTITIONS = 3


class KafkaWorld:
    """Two topics, one of them with several partitions."""

    def __init__(self, tmp: Path, broker: Kafka) -> None:
        self._tmp, self._broker, self._next = tmp, broker, 0
        name = uuid.uuid4().hex[:8]
        self._places = [(f"many-{name}", n) for n in range(PARTITIONS)] + [(f"one-{name}", 0)]
        admin = AdminClient(self._client())
        topics = [NewTopic(f"many-{name}", PARTITIONS), NewTopic(f"one-{name}", 1)]
        for made in admin.create_topics(topics).values():
            made.result(30)
        self._producer = Producer(self._client())

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

    def _client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self._broker.bootstrap_servers, "log_level": "0"}

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
        settings = {"transactional.id": uuid.uuid4().hex, "retry.backoff.ms": "10"}
        self._producer = Producer(self._client() | settings)
        self._producer.init_transactions(60)

    def feed(self, source: Source) -> None:
        for commit in (True, False, True, False):
            self._producer.begin_transaction()
            self._produce(4)
            if commit:
                self._producer.commit_transaction(60)
            else:
                self._producer.abort_transaction(60)

    def _options(self) -> dict[str, str]:
        return super()._options() | {"kafka.isolation.level": "read_committed"}


KAFKA_WORLDS: dict[str, Callable[[Path, Kafka], World]] = {
    "kafka": KafkaWorld,
    "kafka-transactions": TransactionsWorld,
}
