"""Topics, subscriptions, snapshots, seeks and dead letters, and the memory they share."""

from __future__ import annotations

import pytest
from tests.unit.connectors.pubsub.worlds import NAME, TOPIC, World

from epochal.connectors.pubsub.server.broker import WEEK_US, MessageBroker
from epochal.connectors.pubsub.server.parts import HOLD_BYTES, SECOND_US, Settings
from epochal.errors import PubSubRefusedError

OTHER = "projects/p/subscriptions/other"
GRAVE = "projects/p/topics/grave"
GRAVES = "projects/p/subscriptions/graves"
SNAPSHOT = "projects/p/snapshots/snap"
RETAINING = Settings(retain_acked=True)


def test_a_topic_without_subscriptions_keeps_nothing() -> None:
    broker = MessageBroker()
    broker.create_topic(TOPIC, b"")
    broker.publish(TOPIC, [(b"a", "", {})], 0)
    assert broker.memory.used == 0


def test_a_message_of_two_subscriptions_is_held_once_until_both_are_done() -> None:
    world = World()
    world.add(OTHER, Settings())
    world.publish("a")
    held = world.broker.memory.used
    world.ack(*world.entries())
    assert world.broker.memory.used == held - HOLD_BYTES
    world.ack(*world.entries(name=OTHER), name=OTHER)
    assert world.broker.memory.used == 0


def test_a_full_server_refuses_messages_until_some_are_acknowledged() -> None:
    world = World()
    world.broker._max_bytes = 100
    world.publish("a" * 200)
    with pytest.raises(PubSubRefusedError, match="may hold 100") as refused:
        world.publish("b")
    assert refused.value.code == "RESOURCE_EXHAUSTED"
    world.ack(*world.entries())
    world.publish("b")
    assert world.pull() == ["b"]


def test_ids_of_a_deleted_subscription_mean_nothing_to_its_successor() -> None:
    world = World()
    old = world.subscription.envelopes.ack_id(1)
    world.broker.delete_subscription(NAME)
    world.add(NAME, Settings())
    assert world.subscription.envelopes.serial(old) == 0


def test_deleting_a_subscription_frees_its_messages_and_wakes_its_streams() -> None:
    world = World()
    world.publish("a", "b")
    world.pull(1)
    world.broker.woken.clear()
    world.broker.delete_subscription(NAME)
    assert world.broker.memory.used == 0
    assert world.broker.woken == {NAME}


def test_a_detached_subscription_delivers_nothing_and_says_so() -> None:
    world = World()
    world.publish("a")
    world.broker.detach_subscription(NAME)
    with pytest.raises(PubSubRefusedError, match="FAILED_PRECONDITION"):
        world.broker.attached(NAME)
    assert world.broker.memory.used == 0


def buried_world(settings: Settings) -> World:
    world = World(settings)
    world.broker.create_topic(GRAVE, b"")
    world.add(GRAVES, Settings(), topic=GRAVE)
    return world


def test_a_dead_letter_does_not_block_the_rest_of_its_key() -> None:
    world = buried_world(Settings(ordered=True, dead_letter_topic=GRAVE, max_attempts=1))
    world.publish("a1", "a2", key="a")
    one, _ = world.entries()
    world.nack(one)
    assert world.pull() == ["a2"]
    assert len(world.entries(name=GRAVES)) == 1


def test_without_the_dead_letter_topic_a_message_goes_on_being_delivered() -> None:
    world = World(Settings(dead_letter_topic=GRAVE, max_attempts=1))
    world.publish("a")
    world.nack(*world.entries())
    assert world.pull() == ["a"]


def test_a_retaining_topic_lets_any_subscription_seek_even_before_its_own_creation() -> None:
    world = World()
    world.broker.topics[TOPIC].retention_us = 600 * SECOND_US
    world.publish("a", kind="x")
    world.publish("b")
    world.add(OTHER, Settings(), filter_text="attributes:kind")
    world.broker.seek_to_time(OTHER, 0, world.now_us)
    assert world.pull(name=OTHER) == ["a"]
    world.wait(601)
    world.publish("c")
    world.ack(*world.entries(), *world.entries(name=OTHER))
    world.broker.seek_to_time(NAME, 0, world.now_us)
    assert world.pull() == ["c"]


def test_a_snapshot_can_be_sought_by_another_subscription_of_the_topic_only() -> None:
    world = World()
    world.add(OTHER, Settings())
    world.publish("a")
    world.broker.create_snapshot(SNAPSHOT, NAME, b"", world.now_us)
    world.ack(*world.entries(name=OTHER), name=OTHER)
    world.broker.seek_to_snapshot(OTHER, SNAPSHOT)
    assert world.pull(name=OTHER) == ["a"]
    world.broker.create_topic(GRAVE, b"")
    world.add(GRAVES, Settings(), topic=GRAVE)
    with pytest.raises(PubSubRefusedError, match="different topics"):
        world.broker.seek_to_snapshot(GRAVES, SNAPSHOT)


def test_a_snapshot_holds_its_messages_until_it_is_deleted() -> None:
    world = World()
    world.publish("a")
    held = world.broker.memory.used
    world.broker.create_snapshot(SNAPSHOT, NAME, b"", world.now_us)
    world.publish("b")
    world.ack(*world.entries())
    assert world.broker.memory.used == 2 * held
    world.broker.delete_snapshot(SNAPSHOT)
    assert world.broker.memory.used == 0


def test_a_snapshot_sought_at_once_changes_nothing() -> None:
    world = World(RETAINING)
    world.publish("settled", "a", "b")
    world.ack(*world.entries(1))
    world.broker.create_snapshot(SNAPSHOT, NAME, b"", world.now_us)
    world.broker.seek_to_snapshot(NAME, SNAPSHOT)
    assert world.pull() == ["a", "b"]


def test_the_older_of_two_snapshots_keeps_what_the_newer_does_not_need() -> None:
    world = World()
    newer = "projects/p/snapshots/newer"
    world.broker.create_snapshot(SNAPSHOT, NAME, b"", world.now_us)
    world.publish("a")
    world.ack(*world.entries())
    world.broker.create_snapshot(newer, NAME, b"", world.now_us)
    world.wait(1)
    world.publish("b")
    world.broker.seek_to_snapshot(NAME, newer)
    assert world.pull() == ["b"]
    world.broker.seek_to_snapshot(NAME, SNAPSHOT)
    assert world.pull() == ["a", "b"]


def test_a_snapshot_ends_a_week_after_its_oldest_message() -> None:
    world = World(Settings(retention_us=2 * WEEK_US))
    world.publish("a")
    world.wait(3600)
    made = world.broker.create_snapshot(SNAPSHOT, NAME, b"", world.now_us)
    assert made.expires_us == world.now_us - 3600 * SECOND_US + WEEK_US
    world.wait(WEEK_US // SECOND_US - 3600)
    assert world.broker.snapshots == {}
    with pytest.raises(PubSubRefusedError, match="less than one hour"):
        world.broker.create_snapshot(SNAPSHOT, NAME, b"", world.now_us)


def test_deleting_a_topic_deletes_its_snapshots() -> None:
    world = World()
    world.publish("a")
    world.broker.create_snapshot(SNAPSHOT, NAME, b"", world.now_us)
    world.broker.delete_topic(TOPIC)
    assert world.broker.snapshots == {}
    world.ack(*world.entries())
    assert world.broker.memory.used == 0
