"""One subscription's leases, deadlines, order and limits, and what is delivered."""

from __future__ import annotations

import pytest
from google.pubsub_v1.types import pubsub
from tests.unit.connectors.pubsub.worlds import NAME, START, TOPIC, World, bodies

from epochal.connectors.pubsub.server.parts import (
    ACK_ID_LENGTH,
    SECOND_US,
    Consumer,
    Envelopes,
    Settings,
    ack_prefix,
)

ORDERED = Settings(ordered=True)


def test_messages_without_a_key_are_not_starved_by_those_with_one() -> None:
    world = World(ORDERED)
    for n in range(10):
        world.publish("keyed", key=f"k{n}")
    world.publish("loose")
    assert "loose" in world.pull(4)


def test_expiry_gives_a_stream_its_room_back_and_wakes_it() -> None:
    world = World()
    deliveries, consumer = world.subscription.deliveries, Consumer(max_messages=1)
    world.publish("a", "b")
    deliveries.pull(100, world.now_us, consumer=consumer)
    world.broker.woken.clear()
    world.wait(10)
    assert world.broker.woken == {NAME}
    assert (consumer.messages, consumer.size) == (0, 0)


def test_a_retry_waits_longer_each_time_up_to_the_maximum() -> None:
    world = World(Settings(backoff_us=(SECOND_US, 3 * SECOND_US)))
    world.publish("a")
    for seconds in (1, 2, 3, 3):
        world.nack(*world.entries())
        world.wait(seconds - 0.001)
        assert world.pull() == []
        world.wait(0.001)
        assert world.counts() == (1, 0)


def test_a_retry_holds_up_the_rest_of_its_key_but_nothing_else() -> None:
    world = World(Settings(ordered=True, backoff_us=(SECOND_US, SECOND_US)))
    world.publish("a1", "a2", key="a")
    world.nack(*world.entries(1))
    world.publish("b1", key="b")
    world.publish("a3", key="a")
    assert world.pull() == ["b1"]
    world.wait(1)
    assert world.pull() == ["a1", "a2", "a3"]


def test_messages_older_than_the_retention_are_gone() -> None:
    world = World(Settings(retention_us=600 * SECOND_US, ordered=True))
    world.publish("old")
    world.publish("old too", key="k")
    world.wait(601)
    world.publish("new")
    assert world.pull() == ["new"]
    assert world.counts() == (0, 1)


def test_deadlines_of_settled_messages_do_not_pile_up() -> None:
    world = World()
    world.publish("one", "two", "three")
    held = world.entries()
    for _ in range(200):
        world.publish(*(["x"] * 100))
        world.ack(*world.entries(100))
    assert world.subscription.deliveries._watched < 10_000
    assert world.counts() == (0, 3)
    world.modify(30, held[0].serial)
    world.wait(10)
    assert world.pull() == ["two", "three"]
    world.wait(20)
    assert "one" in world.pull()


def test_a_pull_stops_before_its_bytes_are_too_many_unless_one_message_is() -> None:
    for settings, key in ((Settings(), ""), (ORDERED, "k")):
        world = World(settings)
        world.publish("x" * 300, "y" * 300, "z" * 2000, "end", key=key)
        deliveries = world.subscription.deliveries
        sizes = []
        while entries := deliveries.pull(100, world.now_us, limit_bytes=1000, consumer=None):
            sizes.append([len(body) for body in bodies(entries)])
            world.ack(*entries)
        assert sizes == [[300, 300], [2000], [3]]


def published(message: pubsub.PubsubMessage, *, settings: Settings | None = None) -> World:
    world = World(settings)
    body = pubsub.PubsubMessage.serialize(message)
    world.broker.publish(TOPIC, [(body, message.ordering_key, dict(message.attributes))], START)
    return world


def delivered(world: World, name: str = NAME, *, counted: bool = False) -> pubsub.ReceivedMessage:
    envelopes = world.broker.subscriptions[name].envelopes
    payload = envelopes.wrap(world.entries(name=name), count_attempts=counted)
    (received,) = pubsub.StreamingPullResponse.deserialize(payload).received_messages
    assert list(pubsub.PullResponse.deserialize(payload).received_messages) == [received]
    return received


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16_383, 16_384, 3_000_000])
def test_a_delivery_is_what_was_published_with_id_and_time(size: int) -> None:
    sent = pubsub.PubsubMessage(data=b"x" * size, attributes={"a": "ä"}, ordering_key="k")
    world = published(sent)
    received = delivered(world)
    message = received.message
    assert (message.data, dict(message.attributes)) == (b"x" * size, {"a": "ä"})
    assert (message.ordering_key, received.delivery_attempt) == ("k", 0)
    assert message.message_id == "1000007000000001"
    assert message.publish_time.timestamp() == START / 1_000_000
    assert received.ack_id == world.subscription.envelopes.ack_id(1)
    assert len(received.ack_id) == ACK_ID_LENGTH


def test_an_id_and_a_time_that_the_publisher_sets_are_overwritten() -> None:
    sent = pubsub.PubsubMessage(
        data=b"x", message_id="mine", publish_time={"seconds": 5, "nanos": 7}
    )
    message = delivered(published(sent)).message
    assert message.message_id == "1000007000000001"
    assert message.publish_time.timestamp() == START / 1_000_000


@pytest.mark.parametrize("attempts", [1, 127, 128])
def test_attempts_are_sent_where_they_are_counted(attempts: int) -> None:
    world = published(pubsub.PubsubMessage(data=b"x"))
    for _ in range(attempts - 1):
        world.nack(*world.entries())
    assert delivered(world, counted=True).delivery_attempt == attempts


def test_a_dead_letter_says_where_it_came_from() -> None:
    grave, graves = "projects/p/topics/grave", "projects/p/subscriptions/graves"
    settings = Settings(dead_letter_topic=grave, max_attempts=1)
    world = published(pubsub.PubsubMessage(data=b"x", attributes={"a": "b"}), settings=settings)
    world.broker.create_topic(grave, b"")
    world.add(graves, Settings(), topic=grave)
    world.nack(*world.entries())
    message = delivered(world, graves).message
    assert dict(message.attributes) == {
        "a": "b",
        "CloudPubSubDeadLetterSourceDeliveryCount": "1",
        "CloudPubSubDeadLetterSourceSubscription": "sub",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
        "CloudPubSubDeadLetterSourceTopicPublishTime": "2023-11-14T22:13:20.000000Z",
    }
    assert message.message_id == "1000007000000002"


def test_ids_of_another_subscription_have_no_serial_and_other_text_is_malformed() -> None:
    one, other = (Envelopes(ack_prefix(7, name)) for name in ("one", "other"))
    assert one.serial(one.ack_id(255)) == 255
    assert one.serial(other.ack_id(255)) == 0
    for text in ("", "bogus-id", "z" * ACK_ID_LENGTH):
        with pytest.raises(ValueError):  # noqa: PT011
            one.serial(text)
