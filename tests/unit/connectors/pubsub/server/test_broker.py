"""Topics, subscriptions, filters, leases, seeks and dead letters, and the memory they share."""

from __future__ import annotations

import pytest
from google.pubsub_v1.types import pubsub
from tests.unit.connectors.pubsub.worlds import NAME, START, TOPIC, World, bodies

from epochal.connectors.pubsub.server.broker import WEEK_US, MessageBroker
from epochal.connectors.pubsub.server.filters import parse_filter
from epochal.connectors.pubsub.server.parts import (
    ACK_ID_LENGTH,
    HOLD_BYTES,
    SECOND_US,
    Consumer,
    Envelopes,
    Settings,
    ack_prefix,
)
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


MESSAGE = {"domain": "com", "lang": "en", "a b": 'say "hi"', "empty": ""}


def passes(text: str) -> bool:
    predicate = parse_filter(text)
    assert predicate is not None
    return predicate(MESSAGE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("attributes:domain", True),
        ("attributes:missing", False),
        ("attributes:empty", True),
        ('attributes:"a b"', True),
        ('attributes.domain = "com"', True),
        ('attributes.domain="org"', False),
        ('attributes.domain = "COM"', False),
        ('attributes.missing = ""', False),
        ('attributes.domain != "org"', True),
        ('attributes.domain != "com"', False),
        ('attributes.missing != "x"', True),
        ('hasPrefix(attributes.domain, "co")', True),
        ('hasPrefix(attributes.domain, "o")', False),
        ('hasPrefix(attributes.missing, "")', False),
        ('attributes."a b" = "say \\"hi\\""', True),
        ('attributes.lang = "\\x65\\u006e"', True),
        ('attributes.lang = "\\145n"', True),
        ("NOT attributes:domain", False),
        ("NOT attributes:missing", True),
        ("-attributes:missing", True),
        ("NOT NOT attributes:domain", True),
        ('attributes:domain AND attributes.lang = "en"', True),
        ("attributes:domain AND attributes:missing", False),
        ("attributes:missing OR attributes:domain", True),
        ("attributes:missing OR attributes:other", False),
        ("attributes:missing OR attributes:other OR attributes:lang", True),
        ("(attributes:missing OR attributes:lang) AND attributes:domain", True),
        ("NOT (attributes:missing OR attributes:lang)", False),
        ("((attributes:domain))", True),
        ("  attributes:domain\n", True),
    ],
)
def test_a_filter_decides_by_attributes_alone(text: str, expected: bool) -> None:
    assert passes(text) is expected


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_filter_passes_every_message(text: str) -> None:
    assert parse_filter(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "hello(((",
        "attributes",
        "attributes:",
        "attributes.domain",
        "attributes.domain = com",
        'attributes.domain > "com"',
        'attributes.domain = "com',
        'data = "x"',
        "(attributes:domain",
        "attributes:domain)",
        "attributes:domain attributes:lang",
        "attributes:domain AND",
        "NOT",
        "attributes:a AND attributes:b OR attributes:c",
        "hasPrefix(attributes:domain, 'x')",
        'hasPrefix("x", attributes.domain)',
        "attributes:a & attributes:b",
        "(" * 120 + "attributes:a" + ")" * 120,
    ],
)
def test_a_malformed_filter_is_refused_as_an_invalid_argument(text: str) -> None:
    with pytest.raises(PubSubRefusedError) as refused:
        parse_filter(text)
    assert refused.value.code == "INVALID_ARGUMENT"


def test_a_filter_has_at_most_256_bytes() -> None:
    assert parse_filter(f'attributes.k = "{"x" * 239}"') is not None
    with pytest.raises(PubSubRefusedError, match="257 bytes"):
        parse_filter(f'attributes.k = "{"x" * 240}"')


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
