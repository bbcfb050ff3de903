"""`delivery=exactly-once` with real sidecars: replayed batches come from copies, no duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.pubsub_engine import Engine, Make, engines
from tests.integration.pubsub_world import World, bodies, pubsub_world
from tests.waiting import eventually

from epochal.connectors.pubsub.connection import Connection
from epochal.connectors.pubsub.pubsub_options import Access
from epochal.testing.pubsub import running_server


@pytest.fixture
def make(world: World, subscription: str, tmp_path: Path) -> Iterator[Make]:
    options = {
        **world.options,
        "subscriptionId": subscription,
        "ackDeadline": "10s",
        "delivery": "exactly-once",
        "walLocation": str(tmp_path / "wal"),
    }
    with engines(tmp_path, options) as start:
        yield start


def first_rows(engine: Engine) -> list[str]:
    """Read the first partition of the first batch with rows, without finishing the batch."""
    while True:
        found = [row["message_id"] for each in engine.plan() for row in engine.rows(each)]
        if found:
            return found
        engine.finish()


def test_a_batch_is_replayed_with_the_rows_it_had(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    sent = world.publish(topic, bodies(200))
    engine = make(numPartitions="2", maxRecordsPerFetch="30")
    output: list[str] = []
    for _ in range(3):
        found = first_rows(engine)
        engine.crash()
        engine = make(engine.logs, numPartitions="3", maxRecordsPerFetch="30")
        replayed = [row["message_id"] for each in engine.replay() for row in engine.rows(each)]
        assert replayed == found
        again = [row["message_id"] for each in engine.replay() for row in engine.rows(each)]
        assert again == found
        output += replayed
        engine.finish()
    engine.run(lambda: len(output) + len(engine.ids) >= len(sent))
    engine.settle()
    engine.end()
    assert sorted(output + engine.ids) == sorted(sent)
    assert world.left(subscription) == []


@pytest.mark.long
def test_a_retry_reads_the_copy_of_a_killed_sidecar(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    sent = world.publish(topic, bodies(50))
    engine = make()
    found: list[str] = []
    while not found:
        (partition,) = engine.plan()
        found = [row["message_id"] for row in engine.rows(partition, executor=0)]
        if not found:
            engine.finish()
    engine.kill(0)
    assert [row["message_id"] for row in engine.rows(partition, executor=1)] == found
    engine.batches.append(found)
    engine.finish()
    world.publish(topic, [b"last"])
    engine.run(lambda: len(engine.ids) > len(sent))
    # The leases of the killed one end after 10 s. Then its messages come again and are dropped.
    engine.run(lambda: not world.unacknowledged(subscription))
    engine.settle()
    engine.end()
    assert len(engine.ids) == len(set(engine.ids)) == len(sent) + 1
    assert world.left(subscription) == []


def test_what_was_committed_and_not_acknowledged_is_not_processed_again(
    world: World, topic: str, subscription: str, make: Make
) -> None:
    sent = world.publish(topic, bodies(100))
    engine = make()
    engine.run(lambda: len(engine.ids) == len(sent))
    engine.crash()
    again = make(engine.logs)
    (last,) = world.publish(topic, [b"last"])
    again.run(lambda: last in again.ids)
    again.settle()
    again.end()
    assert again.ids == [last]
    assert world.left(subscription) == []


def test_copies_go_when_their_window_is_over(
    world: World, topic: str, make: Make, tmp_path: Path
) -> None:
    engine = make(dedupWindow="1s")
    sent = world.publish(topic, bodies(10))
    engine.run(lambda: len(engine.ids) == len(sent))
    engine.settle()
    eventually(lambda: not any((tmp_path / "wal").rglob("*.arrow")), "the copies are removed")


def test_new_messages_with_the_ids_of_old_ones_are_processed(tmp_path: Path) -> None:
    topic, subscription = "projects/test/topics/top", "projects/test/subscriptions/sub"
    server = ("--seed", "7", "--subscription", "sub:top")
    options = {
        "subscriptionId": subscription,
        "delivery": "exactly-once",
        "walLocation": str(tmp_path / "wal"),
    }
    with engines(tmp_path, options) as make:
        with pubsub_world(*server) as before:
            sent = before.publish(topic, bodies(5))
            engine = make(**before.options)
            engine.run(lambda: sorted(engine.ids) == sent)
            engine.settle()
            engine.reader.stop()
        with pubsub_world(*server) as after:
            assert after.publish(topic, bodies(5)) == sent
            again = make(engine.logs, **after.options)
            again.run(lambda: sorted(again.ids) == sent)
            again.settle()


def test_two_starts_of_the_embedded_server_give_other_ids() -> None:
    ids = []
    for seed in ((), (), ("--seed", "7"), ("--seed", "7")):
        with running_server("--project", "test", "--topic", "top", *seed) as server:
            connection = Connection(Access(emulator_host=server.address, project_id="test"))
            ids += World(server.address, connection).publish("projects/test/topics/top", [b"x"])
            connection.close()
    assert len(set(ids)) == 3
    assert ids[2] == ids[3]
