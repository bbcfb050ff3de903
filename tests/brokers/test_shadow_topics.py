"""`epochal shadow` compares what two queries have written to Kafka topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.kafka_topics import create_topic

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog, QueryMetadata
from epochal.cli.main import main
from epochal.errors import OptionError
from epochal.files.local import LocalFiles
from epochal.testing.kafka import Kafka
from epochal.tools.switch.whole_outputs import KafkaOutput, row_of


class Query:
    """A query that writes each epoch to its topic in a transaction."""

    def __init__(self, broker: Kafka, folder: Path) -> None:
        self.files = LocalFiles(folder, durable=False)
        self.topic = create_topic(broker.bootstrap_servers, f"t-{uuid4().hex}", partitions=2)
        self.address = f"kafka://{broker.bootstrap_servers}/{self.topic}"
        QueryMetadata(str(uuid4())).write(self.files)
        settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": "0"}
        self._producer = Producer({**settings, "transactional.id": self.topic})
        self._producer.init_transactions(60)

    def send(self, *records: tuple[str, Any], commit: bool = True) -> None:
        self._producer.begin_transaction()
        for key, value in records:
            text = value if isinstance(value, bytes) else json.dumps(value).encode()
            self._producer.produce(self.topic, value=text, key=key.encode())
        self._producer.flush(60)
        if commit:
            self._producer.commit_transaction(60)
        else:
            self._producer.abort_transaction(60)

    def commit(self, epoch: int, end: int) -> None:
        OffsetLog(self.files.at("offsets")).add(epoch, OffsetEntry(1, (str(end),)))
        CommitLog(self.files.at("commits")).add(epoch, CommitEntry())


def shadow(a: Query, b: Query, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    outputs = ("--output-a", a.address, "--output-b", b.address)
    capsys.readouterr()
    status = main(("shadow", a.files.url, b.files.url, *outputs, *words, "--json"))
    shown = capsys.readouterr()
    assert status in (0, 1), shown
    return json.loads(shown.out)


def test_committed_records_are_compared_from_the_offsets_that_are_given(
    broker: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = Query(broker, tmp_path / "a"), Query(broker, tmp_path / "b")
    a.send(*((f"k{n}", {"n": n}) for n in range(20)))  # before the clone
    begun = {a.topic: {str(each): _end(broker, a.topic, each) for each in (0, 1)}}
    for query, at in ((a, 1), (b, 2)):
        query.send(("wrong", {"n": -1}), commit=False)
        query.send(("x", {"n": 1, "at": at}), ("y", b"\xff\x00"), ("z", "text"))
        query.send(("x", {"n": 2, "at": at}))
        query.commit(0, 4)
    a.address += f"?startingOffsets={json.dumps(begun)}"
    found = shadow(a, b, capsys, "--ignore-columns", "value.at")
    assert (found["verdict"], [each["rows"] for each in found["same"]]) == ("same", [4])

    b.send(("z", "more"))
    found = shadow(a, b, capsys, "--ignore-columns", "value.at")
    assert found["difference"]["rows"] == [{"a": None, "b": '{"key": "z", "value": "\\"more\\""}'}]


def _end(broker: Kafka, topic: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), 60)[1])
    finally:
        consumer.close()


def test_fields_of_a_json_object_are_columns_and_other_values_are_not() -> None:
    assert row_of({"key": b"k", "value": b'{"n": 1}', "offset": 7}) == {"key": "k", "value.n": 1}
    assert row_of({"key": None, "value": b"[1]"}) == {"value": "[1]"}
    assert row_of({"key": None, "value": b"\xff"}) == {"value": b"\xff"}
    assert row_of({"key": b"k", "value": None}) == {"key": "k"}


@pytest.mark.parametrize("address", ["kafka://topic", "kafka:///topic"])
def test_an_address_without_a_topic_or_a_broker_is_refused(address: str) -> None:
    with pytest.raises(OptionError, match="kafka://HOST:PORT/TOPIC"):
        KafkaOutput(address)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(OptionError, match="startingOffset"):
        KafkaOutput("kafka://localhost:9092/topic?startingOffset=earliest")
