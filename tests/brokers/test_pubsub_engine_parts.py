"""The engine's Pub/Sub reader and writer alone, called as a task calls them."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.pubsub_world import World
from tests.waiting import eventually

from epochal.connectors.contract import WriterContext
from epochal.connectors.pubsub.continuous_pubsub import PubSubReader, PubSubSink, PubSubSource
from epochal.connectors.pubsub.parse import parse_spec
from epochal.connectors.pubsub.pubsub_options import sink_options, source_options
from epochal.connectors.registry import open_sink
from epochal.errors import PubSubRejectedError
from epochal.files.local import LocalFiles

ROWS = pa.schema([("data", pa.string())])


def source(world: World, subscription: str, **more: Any) -> PubSubSource:
    given = {**world.options, "subscriptionId": subscription, "ackDeadline": "600s"}
    options = source_options({**given, **{key: str(text) for key, text in more.items()}})
    return PubSubSource(options, parse_spec(options))


def read(reader: PubSubReader, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def is_enough() -> bool:
        batch = reader.read(5000)
        found.extend([] if batch is None else batch.to_pylist())
        return len(found) >= count

    eventually(is_enough, lambda: f"{count} rows, of which {len(found)} have come")
    return found


def test_only_what_is_committed_is_acknowledged(world: World) -> None:
    topic, subscription = world.pair(ack_deadline_seconds=600)
    opened = source(world, subscription, numPartitions=2)
    positions = opened.initial()
    reader = opened.readers.open(positions)
    for epoch in range(3):
        world.publish(topic, [b"%d" % epoch] * 100)
        assert {row["data"] for row in read(reader, 100)} == {b"%d" % epoch}
        reader.ended(epoch)
    assert sum(map(int, reader.positions().values())) == 300
    assert opened.resume(opened.offset(reader.positions())) == reader.positions()
    reader.committed(1)
    reader.close()
    assert [m.message.data for m in world.pull(subscription, 100)] == [b"2"] * 100
    assert world.left(subscription) == []


def test_nothing_more_is_read_after_a_limit(world: World) -> None:
    topic = world.topic()
    opened = source(world, world.subscription(topic))
    reader = opened.readers.open(opened.initial())
    world.publish(topic, [b"1"])
    assert len(read(reader, 1)) == 1
    reader.limit(opened.boundary(reader.positions()))
    world.publish(topic, [b"2"])
    for _ in range(50):
        assert reader.read(5000) is None
        time.sleep(0.01)  # 0.5 s in all: a message is there within milliseconds, if it is read
    reader.close()


def test_dead_letters_are_published_before_their_messages_are_acknowledged(world: World) -> None:
    topic, dead = world.topic(), world.topic()
    subscription, letters = world.subscription(topic), world.subscription(dead)
    opened = source(world, subscription, parse="json", parseSchema="id int", deadLetterTopicId=dead)
    assert opened.schema.names[-1] == "parsed"
    reader = opened.readers.open(opened.initial())
    world.publish(topic, [b'{"id": 1}', b"bad", b"{}"])
    rows = read(reader, 2)
    assert sorted(row["data"] for row in rows) == [b'{"id": 1}', b"{}"]
    reader.ended(0)
    reader.committed(0)
    reader.close()
    assert world.left(letters) == [b"bad"]
    assert world.left(subscription) == []


def test_a_dead_letter_topic_that_is_gone_is_an_error_and_nothing_is_acknowledged(
    world: World,
) -> None:
    topic, dead = world.topic(), world.topic()
    subscription = world.subscription(topic)
    opened = source(world, subscription, parse="json", parseSchema="id int", deadLetterTopicId=dead)
    reader = opened.readers.open(opened.initial())
    world.delete_topic(dead)
    world.publish(topic, [b"bad", b"{}"])
    assert len(read(reader, 1)) == 1
    reader.ended(0)

    def acknowledge() -> None:
        reader.committed(0)

    with pytest.raises(PubSubRejectedError, match=dead):
        eventually(acknowledge, "the dead letter is refused")
    reader.close()
    assert sorted(m.message.data for m in world.pull(subscription, 2)) == [b"bad", b"{}"]


def test_more_partitions_are_discovered_and_none_are_dropped(world: World) -> None:
    subscription = world.subscription(world.topic())
    assert source(world, subscription, numPartitions=3).discover({"0": "5"}) == {"1": "0", "2": "0"}
    assert source(world, subscription, numPartitions=1).discover({"0": "5", "1": "7"}) == {}
    world.delete_subscription(subscription)
    with pytest.raises(PubSubRejectedError, match=subscription):
        source(world, subscription).discover({"0": "5"})


def test_a_subscription_is_made_at_the_first_start_and_deleted_at_the_end(world: World) -> None:
    options = {"topicId": world.topic(), "createSubscription": "true"}
    opened = source(world, "made-for-a-query", deleteSubscription="true", **options)
    opened.initial()
    world.publish(options["topicId"], [b"x"])
    reader = opened.readers.open({"0": "0"})
    assert len(read(reader, 1)) == 1
    reader.close()
    opened.close()
    with pytest.raises(PubSubRejectedError, match="NOT_FOUND"):
        opened.discover({"0": "1"})


def test_an_epoch_is_prepared_when_all_its_messages_are_confirmed(world: World) -> None:
    topic, subscription = world.pair()
    options = sink_options({**world.options, "topicId": topic, "epochAttributes": "true"})
    sink = PubSubSink(options, ROWS, "query")
    writer = sink.writers.open(WriterContext(3, 1, "run", ROWS, 7))
    writer.write(pa.RecordBatch.from_pydict({"data": ["a", "b"]}))
    first = writer.cut(7)
    writer.write(pa.RecordBatch.from_pydict({"data": ["c"]}))
    second = writer.cut(8)
    assert (first(), second()) == (b"", b"")
    found = {
        m.message.data: (m.message.attributes["epochal-epoch"], m.message.attributes["epochal-row"])
        for m in world.pull(subscription, 3)
    }
    assert found == {b"a": ("7", "3-0"), b"b": ("7", "3-1"), b"c": ("8", "3-0")}
    world.delete_topic(topic)
    writer.write(pa.RecordBatch.from_pydict({"data": ["d"]}))
    with pytest.raises(PubSubRejectedError, match=topic):
        writer.cut(9)()
    writer.close()


def test_messages_that_pubsub_refuses_become_letters(world: World, tmp_path: Path) -> None:
    topic, subscription = world.pair()
    attributes = pa.map_(pa.string(), pa.string())
    schema = pa.schema([("data", pa.binary()), ("attributes", attributes)])
    options = {
        **world.options,
        "topicId": topic,
        "onBadRow": "deadLetter",
        "deadLetterPath": str(tmp_path / "letters"),
    }
    checkpoint = LocalFiles(tmp_path / "checkpoint", durable=False)
    rows: list[dict[str, object]] = [
        {"data": b"w1", "attributes": None},
        {"data": b"", "attributes": None},
        {"data": b"x", "attributes": [("googname", "v")]},
        {"data": b"y", "attributes": [("a", "v" * 2000)]},
        {"data": b"z" * 10_000_001, "attributes": None},
        {"data": b"w2", "attributes": [("a", "b")]},
    ]
    with closing(
        open_sink("pubsub", options, schema, checkpoint=checkpoint, query_id="query")
    ) as sink:
        sink.fence(1)
        with closing(sink.writers.open(WriterContext(0, 1, "run", schema))) as writer:
            writer.write(pa.RecordBatch.from_pylist(rows[:1], schema=schema))
            writer.write(pa.RecordBatch.from_pylist(rows[1:], schema=schema))
            sink.commit(0, [writer.cut(0)()])
    assert sorted(m.message.data for m in world.pull(subscription, 2)) == [b"w1", b"w2"]
    (file,) = (tmp_path / "letters").iterdir()
    reasons = [json.loads(line)["reason"] for line in file.read_text().splitlines()]
    said = ["neither data nor attributes", "reserves names", "has 2000 bytes", "at most 10000000"]
    assert [part in reason for part, reason in zip(said, reasons, strict=True)] == [True] * 4
