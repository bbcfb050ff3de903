"""Helpers for tests of the Kafka source: produce records, open sources, read rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from tests.integration.kafka_world import admin
from tests.waiting import eventually

from epochal.connectors.contract import Positions, SourceReader
from epochal.connectors.kafka.source.kafka_source import KafkaSource
from epochal.connectors.kafka.source.source_options import read_source_options
from epochal.files.local import LocalFiles
from epochal.testing.kafka import Kafka


def send(broker: Kafka, records: Iterable[tuple[str, int, dict[str, Any]]]) -> None:
    """Produce records, each a (topic, partition, arguments of `produce`)."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": "0"})
    refused: list[str] = []

    def note(error: Any, _: Any) -> None:
        if error is not None:
            refused.append(error.str())

    for topic, partition, record in records:
        producer.produce(topic, partition=partition, on_delivery=note, **record)
    assert producer.flush(60) == 0
    assert refused == []


def texts(broker: Kafka, topic: str, values: Sequence[str], partition: int = 0) -> None:
    send(broker, [(topic, partition, {"value": value.encode()}) for value in values])


def age_out(broker: Kafka, topic: str, before: int, partition: int = 0) -> None:
    """Delete the records of a partition before an offset, as retention does."""
    place, client = TopicPartition(topic, partition, before), admin(broker)
    client.delete_records([place])[place].result(30)


def options(broker: Kafka, **given: str) -> dict[str, str]:
    usual = {"kafka.bootstrap.servers": broker.bootstrap_servers, "startingOffsets": "earliest"}
    return {**usual, **given}


def source(home: Path, given: dict[str, str]) -> KafkaSource:
    files = LocalFiles(home / "checkpoint", durable=False)
    return KafkaSource(read_source_options(given), files, 0)


@contextmanager
def reading(
    home: Path, given: dict[str, str], start: Positions | None = None
) -> Iterator[tuple[KafkaSource, SourceReader]]:
    """Open a reader of all partitions of a source, at its start or at given positions."""
    with (
        closing(source(home, given)) as opened,
        closing(opened.readers.open(opened.initial() if start is None else start)) as reader,
    ):
        yield opened, reader


def values_of(reader: SourceReader, count: int) -> list[str]:
    """Read until there are at least `count` values; return all of them."""
    found: list[str] = []

    def enough() -> bool:
        found.extend(take(reader))
        return len(found) >= count

    eventually(enough, lambda: f"{count} values, of which {found} have come")
    return found


def take(reader: SourceReader) -> list[str]:
    """What is there now."""
    batch = reader.read(1000)
    return [] if batch is None else [row["value"].decode() for row in batch.to_pylist()]


def read_all(opened: KafkaSource, start: Positions) -> list[dict[str, Any]]:
    """Every row from here to where the topics end now, by topic, partition and offset."""
    end = opened.latest()
    rows: list[dict[str, Any]] = []
    with closing(opened.readers.open(start)) as reader:

        def is_at_the_end() -> bool:
            if opened.lag(reader.positions(), end) <= 0:
                return True
            batch = reader.read(1000)
            rows.extend([] if batch is None else batch.to_pylist())
            return False

        eventually(is_at_the_end, lambda: f"{reader.positions()} becomes {end}", pause=0.001)
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
