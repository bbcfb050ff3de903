"""Deliveries that are encoded by hand, decoded with Google's own classes."""

from __future__ import annotations

import pytest
from google.pubsub_v1.types import pubsub
from tests.unit.connectors.pubsub.worlds import NAME, START, TOPIC, World

from epochal.connectors.pubsub.server.parts import ACK_ID_LENGTH, Envelopes, Settings, ack_prefix


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
