"""Creates topics on a test broker, and reads them as a consumer does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.waiting import eventually

SECONDS = 60.0


def create_topic(servers: str, topic: str, *, partitions: int = 1, **config: str) -> str:
    """Create a topic; return its name."""
    create_topics(servers, {topic: partitions}, **config)
    return topic


def create_topics(servers: str, sizes: Mapping[str, int], **config: str) -> None:
    """Create topics with these numbers of partitions, and wait until the broker lists them.

    The broker answers as soon as its controller knows the topics. On a busy machine a client may
    ask before the broker itself knows them.
    """
    client = AdminClient({"bootstrap.servers": servers, "log_level": "0"})
    wanted = [NewTopic(topic, count, config=config) for topic, count in sizes.items()]
    for made in client.create_topics(wanted).values():
        made.result(SECONDS)
    eventually(
        lambda: _are_led(client.list_topics(timeout=SECONDS).topics, sizes),
        f"the topics {list(sizes)} have leaders",
    )


def _are_led(known: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
    """Whether every partition has a leader."""
    return all(
        topic in known
        and len(known[topic].partitions) == count
        and all(each.leader >= 0 for each in known[topic].partitions.values())
        for topic, count in sizes.items()
    )


def read_messages(servers: str, topic: str, *, committed_only: bool = True) -> list[Any]:
    """Return every message up to the topic's current end, partition by partition."""
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

        def reached_the_end() -> bool:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
            return len(ended) == len(known)

        eventually(reached_the_end, f"the end of {topic}")
    finally:
        consumer.close()
    return sorted(found, key=lambda each: (each.partition(), each.offset()))


def read_topic(
    servers: str, topic: str, *, committed_only: bool = True
) -> list[tuple[int, Any, Any]]:
    """Return (partition, key, value) of every message; key and value are bytes or None."""
    return [
        (each.partition(), each.key(), each.value())
        for each in read_messages(servers, topic, committed_only=committed_only)
    ]
