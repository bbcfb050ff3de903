"""The Kafka source without an engine: what it reads, where it starts, what it refuses."""

from __future__ import annotations

import json
import select
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.integration.kafka_reading import (
    age_out,
    options,
    read_all,
    reading,
    send,
    source,
    take,
    texts,
    values_of,
)
from tests.integration.kafka_world import admin, make_topic, unique, wait_for

from epochal.errors import KafkaDataLossError, KafkaTopicError
from epochal.testing.kafka import Kafka

T0 = 1_700_000_000_000


@pytest.fixture
def topic(broker: Kafka) -> str:
    """Two partitions, the first with ten records a second apart, the second with five."""
    name = make_topic(broker, unique("orders"))
    counts = {0: 10, 1: 5}
    send(
        broker,
        [
            (name, partition, {"value": f"{partition}-{n}".encode(), "timestamp": T0 + 1000 * n})
            for partition, count in counts.items()
            for n in range(count)
        ],
    )
    return name


def start_of(home: Path, given: dict[str, str]) -> dict[str, str]:
    with closing(source(home, given)) as opened:
        return dict(opened.initial())


def at(topic: str, *offsets: int) -> dict[str, str]:
    return {f"{topic}-{n}": str(offset) for n, offset in enumerate(offsets)}


def test_rows_have_sparks_columns_with_nulls_headers_and_times(
    broker: Kafka, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("rows"), 1)
    send(
        broker,
        [
            (topic, 0, {"key": b"k", "value": b"\xff\x00", "timestamp": T0 + 1}),
            (topic, 0, {"key": None, "value": None, "timestamp": T0}),
            (topic, 0, {"value": b"", "headers": [("a", b"1"), ("a", None)], "timestamp": T0}),
        ],
    )
    given = options(broker, subscribe=topic, includeHeaders="true")
    with closing(source(tmp_path, given)) as opened:
        rows = read_all(opened, opened.initial())
    assert [row["key"] for row in rows] == [b"k", None, None]
    assert [row["value"] for row in rows] == [b"\xff\x00", None, b""]
    assert [row["headers"] for row in rows] == [
        None,
        None,
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    ]
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [
        (topic, 0, n) for n in range(3)
    ]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [T0 + 1, T0, T0]
    assert [row["timestampType"] for row in rows] == [0, 0, 0]


def test_a_reader_that_waits_moves_past_records_that_are_aborted(
    broker: Kafka, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("aborted"), partitions=1)
    given = options(broker, subscribe=topic) | {"kafka.isolation.level": "read_committed"}
    with (
        closing(source(tmp_path, given)) as opened,
        closing(opened.readers.open(opened.initial())) as reader,
    ):
        assert reader.fd >= 0  # from now on a thread waits for it
        assert take(reader) == []
        names = {"transactional.id": uuid.uuid4().hex, "log_level": "0"}
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **names})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, b"never seen")
        assert producer.flush(30) == 0
        producer.abort_transaction(30)
        wait_for(lambda: reader.positions() == {f"{topic}-0": "2"})  # the record and its marker
        assert take(reader) == []


@pytest.mark.parametrize("wrong", [2, 50], ids=["aged-out", "beyond-the-end"])
def test_without_fail_on_data_loss_reading_goes_on_with_the_oldest(
    broker: Kafka, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: int
) -> None:
    age_out(broker, topic, 6)
    given = options(broker, subscribe=topic, failOnDataLoss="false")
    with reading(tmp_path, given, at(topic, wrong, 5)) as (_, reader):
        assert values_of(reader, 4) == ["0-6", "0-7", "0-8", "0-9"]
        assert reader.positions() == at(topic, 10, 5)
        texts(broker, topic, ["later"])
        assert values_of(reader, 1) == ["later"]
    assert f"offset {wrong} of {topic}-0 is not there" in caplog.text


@pytest.mark.parametrize(
    ("offset", "moved"), [(2, 6), (50, 10)], ids=["aged-out", "beyond-the-end"]
)
def test_a_start_out_of_range_is_an_error_or_moved_to_the_nearest_end(
    broker: Kafka,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    offset: int,
    moved: int,
) -> None:
    age_out(broker, topic, 6)
    text = json.dumps({topic: {"0": offset, "1": 0}})
    given = options(broker, subscribe=topic, startingOffsets=text)
    with pytest.raises(KafkaDataLossError, match=f"has offsets from 6 to 10.* start at {offset}"):
        start_of(tmp_path, given)
    lenient = given | {"failOnDataLoss": "false"}
    assert start_of(tmp_path, lenient) == at(topic, moved, 0)
    assert f"it cannot start at {offset}" in caplog.text


def deleted(broker: Kafka, topic: str) -> None:
    client = admin(broker)
    client.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in client.list_topics(timeout=10).topics)


def test_a_topic_that_is_deleted_and_made_anew_is_read_from_its_beginning(
    broker: Kafka, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = options(broker, subscribe=topic, failOnDataLoss="false")
    with reading(tmp_path, given) as (opened, reader):
        values_of(reader, 15)
        deleted(broker, topic)
        assert opened.discover(reader.positions()) == {}
        assert "have been deleted" in caplog.text
        assert take(reader) == []
        make_topic(broker, topic)
        texts(broker, topic, ["new-0", "new-1"])
        assert values_of(reader, 2) == ["new-0", "new-1"]
        wait_for(lambda: take(reader) == [] and reader.positions()[f"{topic}-0"] == "2")


def test_a_topic_that_does_not_exist_is_named(broker: Kafka, topic: str, tmp_path: Path) -> None:
    with pytest.raises(KafkaTopicError, match="shows no topic nowhere to this user"):
        start_of(tmp_path, options(broker, subscribe=f"{topic},nowhere"))


def test_a_woken_reader_never_names_a_position_after_a_row_that_it_has_not_returned(
    broker: Kafka, tmp_path: Path
) -> None:
    topic, count = make_topic(broker, unique("woken")), 400
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    with reading(tmp_path, options(broker, subscribe=topic)) as (_, reader):
        assert reader.fd is not None
        wakes = [reader.fd]
        assert take(reader) == []
        found: dict[int, list[str]] = {0: [], 1: []}
        for number in range(count):
            producer.produce(topic, str(number // 2).encode(), partition=number % 2)
            producer.poll(0)
            assert sum(map(len, found.values())) == number or select.select(wakes, [], [], 30)[0]
            while sum(map(len, found.values())) <= number:
                before = at(topic, len(found[0]), len(found[1]))
                assert reader.positions() == before
                batch = reader.read(1000)
                for row in [] if batch is None else batch.to_pylist():
                    found[row["partition"]].append(row["value"].decode())
        every = [str(number) for number in range(count // 2)]
        assert found == {0: every, 1: every}
