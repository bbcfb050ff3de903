"""Rows that the Kafka sink refuses, with a real broker: in a directory or in a topic of letters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.contract.sinks import written
from tests.integration.test_kafka_sink import FULL, VALUE, Place
from tests.kafka_topics import create_topic, read_topic

from epochal import read_stream
from epochal.connectors.contract import Sink
from epochal.connectors.memory import MemoryStream
from epochal.errors import KafkaFencedError
from epochal.testing.kafka import Kafka

DELIVERIES = ["exactly-once", "at-least-once"]
HEADER = [{"key": None, "value": b"1"}]


class Letters(Place):
    """A topic for rows, one for letters and a directory for letters."""

    def __init__(self, broker: Kafka, folder: Path) -> None:
        super().__init__(broker, folder)
        self.letter_topic = create_topic(self.servers, f"letters-{self.query}")
        self.letter_path = folder / "letters"

    def open_with(self, place: str, schema: pa.Schema = FULL, /, **options: str) -> Sink:
        found = {"topic": self.letter_topic, "path": str(self.letter_path)}[place]
        return self.open(
            schema,
            **{
                "onBadRow": "deadLetter",
                f"deadLetter{place.capitalize()}": found,
                "topic": "",
                "markerTopic": self.topic,
                **options,
            },
        )

    def letters(self) -> list[Any]:
        files = sorted(self.letter_path.glob("*")) if self.letter_path.exists() else []
        lines = [line for file in files for line in file.read_text().splitlines()]
        lines += [value.decode() for _, _, value in read_topic(self.servers, self.letter_topic)]
        return [json.loads(line) for line in lines]

    def rows(self) -> list[Any]:
        """The number in the value of each letter's row, and the beginning of its reason."""
        return sorted(
            (each["epoch"], each.get("row", {}).get("key", "cut"), each["reason"])
            for each in self.letters()
        )


@pytest.fixture
def place(broker: Kafka, tmp_path: Path) -> Letters:
    return Letters(broker, tmp_path)


def prepared(
    sink: Sink, epoch: int, rows: Sequence[Mapping[str, Any]], attempt: int = 1
) -> list[bytes]:
    """Write rows as one task; return its report."""
    schema = FULL if any(len(row) > 1 for row in rows) else VALUE
    return written(sink, epoch, [rows], schema, attempt=attempt)


def rows(place: Place) -> Sequence[Mapping[str, Any]]:
    good = {"topic": place.topic, "value": b"v"}
    return [
        {**good, "value": b"w1"},
        {**good, "key": "no topic", "topic": None},
        {**good, "key": "missing topic", "topic": "nowhere"},
        {**good, "key": "partition", "partition": 7},
        {**good, "key": "negative", "partition": -1},
        {**good, "key": "header", "headers": HEADER},
        {**good, "key": "large", "value": b"x" * 1_500_000},
        {**good, "value": b"w2", "partition": 2},
    ]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("where", ["path", "topic"])
def test_each_refusal_becomes_a_letter_and_the_other_rows_are_written(
    place: Letters, delivery: str, where: str
) -> None:
    with closing(place.open_with(where, delivery=delivery)) as sink:
        sink.fence(1)
        sink.commit(0, prepared(sink, 0, rows(place)))
    assert place.values() == ["w1", "w2"]
    found = {key: reason for _, key, reason in place.rows()}
    # A topic takes no letter that is larger than a record may be.
    large = found.pop("large" if where == "path" else "cut")
    assert "key and value have 1500005 bytes" in large
    assert sorted(found) == ["header", "missing topic", "negative", "no topic", "partition"]
    assert "column topic is null" in found["no topic"]
    assert "no such topic or partition" in found["missing topic"]
    assert "names partition 7, but the topic has 3 partitions" in found["partition"]
    assert "names partition -1" in found["negative"]
    assert "a header of a row has no key" in found["header"]


@pytest.mark.parametrize("where", ["path", "topic"])
def test_letters_are_seen_with_their_epoch_and_once(place: Letters, where: str) -> None:
    bad = {"key": "bad", "value": b"v"}
    good = {"topic": place.topic, "value": b"w"}
    with closing(place.open_with(where)) as sink:
        sink.fence(1)
        messages = prepared(sink, 0, [good, bad])
        assert place.letters() == []
        sink.commit(0, messages)
        sink.commit(0, messages)
        only_letters = prepared(sink, 1, [bad])
        sink.commit(1, only_letters)
        prepared(sink, 2, [bad])  # never decided
    with closing(place.open_with(where)) as later:
        later.fence(2)
        assert later.decided(1)  # by the log if it has no rows: its letters must not be dropped
        later.commit(1, only_letters)
        later.commit(2, prepared(later, 2, [bad, good], 2))
    assert [(epoch, key) for epoch, key, _ in place.rows()] == [(n, "bad") for n in range(3)]
    assert place.values() == ["w", "w"]


@pytest.mark.parametrize("where", ["path", "topic"])
def test_an_attempt_that_is_shut_out_writes_no_letters(place: Letters, where: str) -> None:
    bad, good = {"key": "bad", "value": b"v"}, {"topic": place.topic, "value": b"w"}
    with closing(place.open_with(where)) as old, closing(place.open_with(where)) as new:
        old.fence(1)
        zombie = prepared(old, 0, [bad, good])
        new.fence(2)
        with pytest.raises(KafkaFencedError):
            old.commit(0, zombie)
        assert place.letters() == []


def test_a_query_counts_its_letters_in_progress_and_metrics(
    place: Letters, kafka_spark: SparkSession, tmp_path: Path
) -> None:
    source = MemoryStream(pa.schema([("n", pa.int64())]), partitions=2)
    query = (
        read_stream(kafka_spark)
        .format(source)
        .load()
        .select(
            "CAST(n AS string) AS value",
            "CASE WHEN n % 10 = 0 THEN concat('ten divides ', CAST(n AS string)) END AS error",
        )
        .write_stream.format("kafka")
        .option("kafka.bootstrap.servers", place.servers)
        .option("topic", place.topic)
        .option("onBadRow", "deadLetter")
        .option("deadLetterPath", str(place.letter_path))
        .option("badRowColumn", "error")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(epoch="50 milliseconds")
        .start()
    )
    source.add([{"n": n} for n in range(100)])
    query.process_all_available()
    query.stop()
    assert query.exception() is None
    assert sorted(map(int, place.values())) == [n for n in range(100) if n % 10]
    found = sorted((int(each["row"]["value"]), each["reason"]) for each in place.letters())
    assert found == [(n, f"ten divides {n}") for n in range(0, 100, 10)]
    sinks = [report["sink"] for report in query.recent_progress]
    assert sum(each["numOutputRows"] for each in sinks) == 90
    assert sum(int(each.get("metrics", {}).get("deadLetters", 0)) for each in sinks) == 10
