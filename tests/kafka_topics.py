"""What tests ask of a broker besides what they test: topics, and what a consumer sees of them."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SECONDS = 60.0


def create_topic(servers: str, topic: str, *, partitions: int = 1, **config: str) -> str:
    """Make a topic, and wait until it is there; returns its name."""
    client = AdminClient({"bootstrap.servers": servers, "log_level": "0"})
    for made in client.create_topics([NewTopic(topic, partitions, config=config)]).values():
        made.result(SECONDS)
    return topic


def read_messages(servers: str, topic: str, *, committed_only: bool = True) -> list[Any]:
    """Every message of a topic up to its end now, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "log_level": "0",
            "group.id": "tests-read-topic",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
        }
    )
    try:
        known = consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in known])
        found: list[Any] = []
        ended: set[int] = set()
        deadline = time.monotonic() + SECONDS
        while len(ended) < len(known):
            assert time.monotonic() < deadline, f"{topic} has no end"
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return sorted(found, key=lambda each: (each.partition(), each.offset()))


def read_topic(
    servers: str, topic: str, *, committed_only: bool = True
) -> list[tuple[int, Any, Any]]:
    """(partition, key, value) of every message; key and value are bytes or None."""
    return [
        (each.partition(), each.key(), each.value())
        for each in read_messages(servers, topic, committed_only=committed_only)
    ]
