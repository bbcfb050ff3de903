"""The Pub/Sub source with real sidecars and a real server, called as Spark calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.pubsub_engine import Logs, Make, engines, sidecars
from tests.integration.pubsub_world import World, bodies
from tests.waiting import eventually

from epochal.errors import OptionError, PubSubFailedError, PubSubReaderError


@pytest.fixture
def make(world: World, subscription: str, tmp_path: Path) -> Iterator[Make]:
    options = {**world.options, "subscriptionId": subscription, "ackDeadline": "10s"}
    with engines(tmp_path, options) as start:
        yield start


def test_every_reader_of_a_partition_gets_the_same_rows(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    engine = make(numPartitions="2")
    for each in engine.plan():
        engine.rows(each)
    engine.finish()
    sent = world.publish(topic, bodies(100))
    read: list[str] = []
    while len(read) < 100:
        partitions = engine.plan()
        for each in partitions:
            first = engine.rows(each, executor=0)
            world.publish(topic, [b"more"])
            assert engine.rows(each, executor=0) == first
            assert engine.rows(each, executor=1) == first
            read += [row["message_id"] for row in first if row["data"] != b"more"]
        engine.finish()
    assert sorted(read) == sorted(sent)
    engine.settle()
    assert len(sidecars(engine.directory)) == 2


def test_rows_of_another_executor_are_fetched_from_there(
    world: World, topic: str, make: Make
) -> None:
    engine = make()
    engine.rows(engine.plan()[0], executor=0)
    engine.finish()
    sent = world.publish(topic, [b"x" * 1000] * 10_000)
    read: list[str] = []
    while len(read) < len(sent):
        for each in engine.plan():
            read += [row["message_id"] for row in engine.rows(each, executor=1)]
        engine.finish()
    assert sorted(read) == sorted(sent)


def test_what_a_killed_sidecar_held_is_empty_for_retries_and_comes_again(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    sent = world.publish(topic, bodies(50))
    engine = make()
    found: list[str] = []
    while not found:
        partitions = engine.plan()
        found = [row["message_id"] for row in engine.rows(partitions[0], executor=0)]
        if not found:
            engine.finish()
    engine.kill(0)
    assert engine.rows(partitions[0], executor=1) == []
    engine.finish()
    engine.run(lambda: set(engine.ids) >= set(sent))
    engine.settle()
    engine.end()
    assert world.left(subscription) == []


def test_a_driver_that_ends_gives_everything_back_at_once(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    name = world.subscription(topic, ack_deadline_seconds=600)  # no lease ends during the test
    sent = world.publish(topic, bodies(50))
    engine = make(subscriptionId=name, ackDeadline="600s", maxRecordsPerFetch="20")
    engine.run(lambda: bool(engine.ids))
    engine.reader.stop()
    back = world.pull(name, 50)
    assert {each.message.message_id for each in back} == set(sent)


def test_a_replayed_batch_is_empty_and_its_rows_come_in_a_later_one(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    sent = world.publish(topic, bodies(50))
    engine = make()
    while not any(engine.rows(each) for each in engine.plan()):
        engine.finish()
    engine.crash()
    again = make(engine.logs)
    assert again.replay() == []
    again.finish()
    again.run(lambda: set(again.ids) >= set(sent))
    again.settle()
    again.end()
    assert world.left(subscription) == []


def test_older_releases_read_and_go_on_from_their_checkpoint(
    world: World, topic: str, make: Make
) -> None:
    sent = world.publish(topic, bodies(50))
    engine = make(old=True)
    engine.run(lambda: sorted(engine.ids) == sorted(sent))
    assert engine.plan() == []  # the batch that commits the last one
    engine.finish()
    engine.reader.stop()
    more = world.publish(topic, bodies(20))
    again = make(engine.logs, old=True)
    again.run(lambda: sorted(again.ids) == sorted(more))
    numbers = [offset["batch"] for offset in again.logs.offsets]
    assert numbers == sorted(set(numbers))


def test_available_now_drains_acknowledges_and_ends(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    logs = Logs()
    for count in (300, 60):
        sent = world.publish(topic, bodies(count))
        engine = make(logs, numPartitions="2")
        engine.reader.prepareForTriggerAvailableNow()
        while (partitions := engine.poll()) is not None:
            engine.batches.append([r["message_id"] for p in partitions for r in engine.rows(p)])
            engine.finish()
        assert sorted(engine.ids) == sorted(sent)
        engine.reader.stop()
    assert world.left(subscription) == []


def test_nine_megabytes_and_a_limit_of_bytes(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    for _ in range(6):
        world.publish(topic, [b"x" * 9_000_000])
    engine = make(maxBytesPerTrigger="10000000", reservoirBytes="20000000")
    engine.run(lambda: len(engine.ids) == 6)
    assert max(map(len, engine.batches)) == 1
    engine.settle()


def test_a_subscription_that_vanishes_ends_the_query_with_its_name(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    engine = make()
    engine.rows(engine.plan()[0])
    engine.finish()
    world.delete_subscription(subscription)
    with pytest.raises(PubSubReaderError, match=subscription):
        engine.plan()


def test_a_subscription_is_made_and_removed_on_request(
    world: World, topic: str, make: Make
) -> None:
    engine = make(
        subscriptionId="made-by-query",
        topicId=topic,
        createSubscription="true",
        deleteSubscriptionOnStreamStop="true",
    )
    (sent,) = world.publish(topic, [b"one"])
    engine.run(lambda: engine.ids == [sent])
    engine.reader.stop()
    with pytest.raises(PubSubFailedError, match="made-by-query"):
        make(subscriptionId="made-by-query")


def test_a_new_query_may_seek_and_a_restarted_one_does_not(
    world: World, topic: str, make: Make
) -> None:
    name = world.subscription(topic, retain_acked_messages=True)
    sent = world.publish(topic, bodies(20))
    assert len(world.pull(name, 20)) == 20
    engine = make(subscriptionId=name, seekToTimestamp="0")
    engine.run(lambda: sorted(engine.ids) == sorted(sent))
    engine.settle()
    engine.reader.stop()
    again = make(engine.logs, subscriptionId=name, seekToTimestamp="0")
    for each in again.plan():
        assert again.rows(each) == []


def test_two_queries_share_a_subscription(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    sent = world.publish(topic, bodies(500))
    first, second = make(maxOutstandingMessages="100"), make(maxOutstandingMessages="100")
    found: set[str] = set()

    def all_are_read() -> bool:
        for engine in (first, second):
            partitions = engine.poll()
            for each in partitions or ():
                found.update(row["message_id"] for row in engine.rows(each))
            if partitions is not None:
                engine.finish()
        return found >= set(sent)

    eventually(all_are_read, lambda: f"{len(sent)} messages, of which {len(found)} are read")
    assert first.ids is not second.ids
    first.settle()
    second.settle()
    assert len(sidecars(first.directory)) == 1
    for engine in (first, second):
        engine.end()
    assert world.left(subscription) == []


def test_a_driver_that_cannot_be_reached_fails_the_task_with_its_address(make: Make) -> None:
    engine = make()
    partitions = engine.plan()
    engine.crash()
    with pytest.raises(PubSubReaderError, match=r"tcp://127\.0\.0\.1"):
        engine.rows(partitions[0])


def test_exactly_once_needs_a_place_of_its_own(
    world: World, subscription: str, make: Make, tmp_path: Path
) -> None:
    wal = str(tmp_path / "wal")
    engine = make(delivery="exactly-once", walLocation=wal)
    engine.rows(engine.plan()[0])
    engine.finish()
    engine.reader.stop()
    with pytest.raises(OptionError, match="another query"):
        make(delivery="exactly-once", walLocation=wal)
