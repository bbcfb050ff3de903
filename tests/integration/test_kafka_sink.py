"""The Kafka sink with a real broker: fencing, markers, keys, and rows that it refuses.

Such rows end the query, or become letters in a directory or in a topic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from tests.contract.sinks import Logging, written
from tests.kafka_topics import create_topic, read_messages, read_topic
from tests.waiting import eventually

from epochal import read_stream
from epochal.connectors.contract import Sink
from epochal.connectors.kafka.sink.sink_rows import HEADERS
from epochal.connectors.memory import MemoryStream
from epochal.connectors.registry import open_sink
from epochal.errors import (
    KafkaFencedError,
    KafkaRecordError,
    KafkaUnavailableError,
    MarkerError,
    OptionError,
)
from epochal.files.local import LocalFiles
from epochal.testing.kafka import Kafka

VALUE = pa.schema([("value", pa.string())])
COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "key": pa.string(),
    "value": pa.binary(),
    "headers": HEADERS,
}
FULL = pa.schema(COLUMNS)


class Place:
    """A topic, a checkpoint, and the query that uses them."""

    def __init__(self, broker: Kafka, folder: Path, **config: str) -> None:
        self.servers = broker.bootstrap_servers
        self.query = str(uuid4())
        self.topic = create_topic(self.servers, f"out-{self.query}", partitions=3, **config)
        self.checkpoint = LocalFiles(folder, durable=False)

    def open(self, schema: pa.Schema = VALUE, /, **options: str) -> Sink:
        given = {"kafka.bootstrap.servers": self.servers, "topic": self.topic, **options}
        sink = open_sink(
            "kafka",
            {key: value for key, value in given.items() if value},
            schema,
            checkpoint=self.checkpoint,
            query_id=self.query,
        )
        found: Sink = Logging(sink, self.checkpoint) if sink.decides else sink
        return found

    @contextmanager
    def started(self, attempt: int, schema: pa.Schema = VALUE, /, **options: str) -> Iterator[Sink]:
        """A sink of this attempt."""
        with closing(self.open(schema, **options)) as sink:
            sink.fence(attempt)
            yield sink

    def values(self, *, committed_only: bool = True) -> list[str]:
        found = read_topic(self.servers, self.topic, committed_only=committed_only)
        return sorted(value.decode() for _, _, value in found)

    def forget_marker(self, prefix: str) -> None:
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": "0"})
        for done in client.delete_consumer_groups([f"{prefix}{self.query}"]).values():
            done.result(30)


@pytest.fixture
def place(broker: Kafka, tmp_path: Path) -> Place:
    return Place(broker, tmp_path)


def prepared(
    sink: Sink, epoch: int, rows: Sequence[Mapping[str, Any] | str], attempt: int = 1
) -> list[bytes]:
    """Write rows as one task; return its report."""
    found = [{"value": row} if isinstance(row, str) else row for row in rows]
    schema = FULL if any(isinstance(row, Mapping) for row in rows) else VALUE
    return written(sink, epoch, [found], schema, attempt=attempt)


def test_rows_of_a_transaction_left_open_are_never_seen(place: Place) -> None:
    with place.started(1) as sink:
        sink.commit(0, prepared(sink, 0, ["w0"]))
    died = Producer(
        {
            "bootstrap.servers": place.servers,
            "transactional.id": f"epochal-{place.query}",
            "log_level": "0",
        }
    )
    died.init_transactions(30)
    died.begin_transaction()
    died.produce(place.topic, b"half")
    assert died.flush(30) == 0
    with place.started(2) as sink:
        sink.commit(1, prepared(sink, 1, ["w1"], 2))
    assert place.values() == ["w0", "w1"]
    assert place.values(committed_only=False) == ["half", "w0", "w1"]


def test_rows_sent_before_their_epoch_is_logged_wait_for_the_commit(place: Place) -> None:
    with closing(place.open()) as opened, closing(place.open()) as new:
        old: Any = opened
        old.fence(1)
        old.commit(0, prepared(old, 0, ["w0"]))
        rows = prepared(old, 1, ["w1"])
        old.begin_commit(1, rows)
        eventually(lambda: place.values(committed_only=False) == ["w0", "w1"], "w1 is sent")
        assert place.values() == ["w0"]
        old.commit(1, rows)
        assert place.values() == ["w0", "w1"]
        lost = prepared(old, 2, ["lost"])
        old.begin_commit(2, lost)
        new.fence(2)
        with pytest.raises(KafkaFencedError):
            old.commit(2, lost)
        assert not new.decided(2)
        new.commit(2, prepared(new, 2, ["w2"], 2))
    assert place.values() == ["w0", "w1", "w2"]


def test_a_sink_that_closes_aborts_what_it_has_begun(place: Place) -> None:
    with closing(place.open()) as opened:
        sink: Any = opened
        sink.fence(1)
        lost = [f"lost {number}" for number in range(20)]
        sink.begin_commit(0, prepared(sink, 0, lost))
        eventually(lambda: len(place.values(committed_only=False)) == len(lost), "all are sent")
    other = Producer({"bootstrap.servers": place.servers, "log_level": "0"})
    for partition in range(3):
        other.produce(place.topic, b"other", partition=partition)
    assert other.flush(30) == 0
    # Readers of committed records would not get past an open transaction.
    assert place.values() == ["other"] * 3


def test_a_missing_marker_stops_the_query_and_says_how_to_go_on(place: Place) -> None:
    prefix = {"idPrefix": f"{place.topic}-"}
    with place.started(1, **prefix) as sink:
        for epoch in range(3):
            sink.commit(epoch, prepared(sink, epoch, [f"w{epoch}"]))
    place.forget_marker(prefix["idPrefix"])
    with closing(place.open(**prefix)) as sink:
        for _ in range(2):
            with pytest.raises(MarkerError, match=r"missing(.|\n)*resetMarker=2"):
                sink.fence(2)
    with closing(place.open(**prefix, resetMarker="1")) as sink, pytest.raises(MarkerError):
        sink.fence(2)
    with place.started(2, **prefix, resetMarker="2") as sink:
        sink.commit(3, prepared(sink, 3, ["w3"], 2))
    with place.started(3, **prefix, resetMarker="2") as sink:
        assert sink.decided(3)
    assert place.values() == ["w0", "w1", "w2", "w3"]


def test_an_epoch_without_rows_writes_nothing_until_the_marker_is_old(place: Place) -> None:
    with place.started(1) as sink:
        sink.commit(0, prepared(sink, 0, ["w0"]))
        ends = len(read_messages(place.servers, place.topic)), offsets_of(place)
        for epoch in range(1, 4):
            sink.commit(epoch, prepared(sink, epoch, []))
        assert (len(read_messages(place.servers, place.topic)), offsets_of(place)) == ends
    with place.started(2, markerRefresh="0 ms") as sink:
        sink.commit(4, prepared(sink, 4, [], 2))
        assert offsets_of(place) == [5]


def offsets_of(place: Place) -> list[int]:
    """Return the offsets of the marker's group, as Kafka's own tools show them."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    client = AdminClient({"bootstrap.servers": place.servers, "log_level": "0"})
    asked = [ConsumerGroupTopicPartitions(f"epochal-{place.query}")]
    (answer,) = client.list_consumer_group_offsets(asked).values()
    return [each.offset for each in answer.result(30).topic_partitions]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_what_cannot_be_written_is_told(place: Place, delivery: str) -> None:
    def written(row: Mapping[str, Any], **options: str) -> None:
        given = {"topic": "", "markerTopic": place.topic, "delivery": delivery, **options}
        with place.started(1, FULL, **given) as sink:
            sink.commit(0, prepared(sink, 0, [row]))

    with pytest.raises(KafkaRecordError, match="no such topic"):
        written({"topic": "nowhere", "value": b"v"})
    with pytest.raises(KafkaRecordError, match="names partition 7, but the topic has 3"):
        written({"topic": place.topic, "value": b"v", "partition": 7})
    with pytest.raises(OptionError, match="column topic is null"):
        written({"value": b"v"})
    with pytest.raises(OptionError, match="key and value have 1500000 bytes"):
        written({"topic": place.topic, "value": b"x" * 1_500_000})
    with pytest.raises(KafkaRecordError, match=r"too large(.|\n)*max.message.bytes"):
        written(
            {"topic": place.topic, "value": os.urandom(2_000_000)},
            **{"kafka.max.request.size": "5000000"},
        )
    assert place.values() == []


def test_a_sink_that_cannot_start_says_why(place: Place) -> None:
    with pytest.raises(KafkaRecordError, match="no such topic"):
        place.open(topic="nowhere")
    with pytest.raises(OptionError, match="markerTopic"):
        place.open(FULL, topic="")
    with pytest.raises(OptionError, match="one of exactly-once, at-least-once, not 'twice'"):
        place.open(delivery="twice")
    with pytest.raises(OptionError, match=r"no option 'topics'(.|\n)*Did you mean topic"):
        place.open(topics="t")
    with pytest.raises(OptionError, match="No such configuration property"):
        place.open(VALUE, **{"kafka.no.such.setting": "1"})
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:1 "):
        place.open(VALUE, **{"kafka.bootstrap.servers": "127.0.0.1:1", "brokerTimeout": "0 s"})


def test_keys_land_where_javas_producer_puts_them(
    place: Place, broker: Kafka, kafka_spark: SparkSession
) -> None:
    keys = [f"key-{n}" for n in range(200)] + ["", "é", "a" * 300]
    java = create_topic(place.servers, f"java-{place.query}", partitions=3)
    frame = kafka_spark.createDataFrame([(key, key) for key in keys], "key string, value string")
    (
        frame.write.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", java)
        .save()
    )
    with place.started(1, FULL) as sink:
        sink.commit(0, prepared(sink, 0, [{"key": key, "value": key.encode()} for key in keys]))
    assert sorted(read_topic(place.servers, place.topic)) == sorted(read_topic(place.servers, java))


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

    def read(self) -> list[Any]:
        files = sorted(self.letter_path.glob("*")) if self.letter_path.exists() else []
        lines = [line for file in files for line in file.read_text().splitlines()]
        lines += [value.decode() for _, _, value in read_topic(self.servers, self.letter_topic)]
        return [json.loads(line) for line in lines]

    def rows(self) -> list[Any]:
        """The number in the value of each letter's row, and the beginning of its reason."""
        return sorted(
            (each["epoch"], each.get("row", {}).get("key", "cut"), each["reason"])
            for each in self.read()
        )


@pytest.fixture
def letters(broker: Kafka, tmp_path: Path) -> Letters:
    return Letters(broker, tmp_path)


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


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("where", ["path", "topic"])
def test_each_refusal_becomes_a_letter_and_the_other_rows_are_written(
    letters: Letters, delivery: str, where: str
) -> None:
    with closing(letters.open_with(where, delivery=delivery)) as sink:
        sink.fence(1)
        sink.commit(0, prepared(sink, 0, rows(letters)))
    assert letters.values() == ["w1", "w2"]
    found = {key: reason for _, key, reason in letters.rows()}
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
def test_letters_are_seen_with_their_epoch_and_once(letters: Letters, where: str) -> None:
    bad = {"key": "bad", "value": b"v"}
    good = {"topic": letters.topic, "value": b"w"}
    with closing(letters.open_with(where)) as sink:
        sink.fence(1)
        messages = prepared(sink, 0, [good, bad])
        assert letters.read() == []
        sink.commit(0, messages)
        sink.commit(0, messages)
        only_letters = prepared(sink, 1, [bad])
        sink.commit(1, only_letters)
        prepared(sink, 2, [bad])  # never decided
    with closing(letters.open_with(where)) as later:
        later.fence(2)
        assert later.decided(1)  # by the log if it has no rows: its letters must not be dropped
        later.commit(1, only_letters)
        later.commit(2, prepared(later, 2, [bad, good], 2))
    assert [(epoch, key) for epoch, key, _ in letters.rows()] == [(n, "bad") for n in range(3)]
    assert letters.values() == ["w", "w"]


@pytest.mark.parametrize("where", ["path", "topic"])
def test_an_attempt_that_is_shut_out_writes_no_letters(letters: Letters, where: str) -> None:
    bad, good = {"key": "bad", "value": b"v"}, {"topic": letters.topic, "value": b"w"}
    with closing(letters.open_with(where)) as old, closing(letters.open_with(where)) as new:
        old.fence(1)
        zombie = prepared(old, 0, [bad, good])
        new.fence(2)
        with pytest.raises(KafkaFencedError):
            old.commit(0, zombie)
        assert letters.read() == []


def test_a_query_counts_its_letters_in_progress_and_metrics(
    letters: Letters, kafka_spark: SparkSession, tmp_path: Path
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
        .option("kafka.bootstrap.servers", letters.servers)
        .option("topic", letters.topic)
        .option("onBadRow", "deadLetter")
        .option("deadLetterPath", str(letters.letter_path))
        .option("badRowColumn", "error")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(epoch="50 milliseconds")
        .start()
    )
    source.add([{"n": n} for n in range(100)])
    query.process_all_available()
    query.stop()
    assert query.exception() is None
    assert sorted(map(int, letters.values())) == [n for n in range(100) if n % 10]
    found = sorted((int(each["row"]["value"]), each["reason"]) for each in letters.read())
    assert found == [(n, f"ten divides {n}") for n in range(0, 100, 10)]
    sinks = [report["sink"] for report in query.recent_progress]
    assert sum(each["numOutputRows"] for each in sinks) == 90
    assert sum(int(each.get("metrics", {}).get("deadLetters", 0)) for each in sinks) == 10
