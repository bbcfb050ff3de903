"""One subscription's leases, deadlines, order and limits."""

from __future__ import annotations

from tests.unit.connectors.pubsub.worlds import NAME, World, bodies

from epochal.connectors.pubsub.server.parts import SECOND_US, Consumer, Settings

ORDERED = Settings(ordered=True)
ONCE = Settings(exactly_once=True)


def test_messages_are_delivered_in_the_order_of_publication() -> None:
    world = World()
    world.publish("a", "b", "c")
    assert world.pull(2) == ["a", "b"]
    assert world.pull(2) == ["c"]
    assert world.pull(2) == []


def test_an_acknowledged_message_never_returns() -> None:
    world = World()
    world.publish("a")
    assert world.ack(*world.entries()) == []
    world.wait(1000)
    assert world.pull() == []
    assert world.broker.memory.used == 0


def test_a_message_returns_when_its_deadline_has_passed_and_not_before() -> None:
    world = World()
    world.publish("a")
    assert world.pull() == ["a"]
    world.wait(9.999)
    assert world.pull() == []
    world.wait(0.001)
    assert world.pull() == ["a"]


def test_an_extended_lease_ends_when_the_extension_does() -> None:
    world = World()
    world.publish("a")
    (entry,) = world.entries()
    world.wait(8)
    assert world.modify(30, entry.serial) == []
    world.wait(29)
    assert world.pull() == []
    world.wait(1)
    assert world.pull() == ["a"]


def test_a_shortened_lease_ends_early() -> None:
    world = World()
    world.publish("a")
    (entry,) = world.entries()
    world.modify(2, entry.serial)
    world.wait(2)
    assert world.pull() == ["a"]


def test_a_message_given_back_is_available_at_once_behind_the_others() -> None:
    world = World()
    world.publish("a", "b")
    world.nack(*world.entries(1))
    assert world.pull() == ["b", "a"]


def test_every_delivery_has_an_id_of_its_own_and_counts_as_an_attempt() -> None:
    world = World()
    world.publish("a")
    seen = set()
    for attempt in range(1, 4):
        (entry,) = world.entries()
        assert entry.attempts == attempt
        seen.add(entry.serial)
        world.nack(entry)
    assert len(seen) == 3


def test_a_late_acknowledgement_counts_until_the_message_is_leased_again() -> None:
    world = World()
    world.publish("a", "b")
    first, second = (entry.serial for entry in world.entries())
    world.wait(10)
    assert world.subscription.deliveries.ack([first], world.now_us).invalid == []
    assert world.pull() == ["b"]
    assert world.subscription.deliveries.ack([second], world.now_us).invalid == [second]
    assert world.counts() == (0, 1)


def test_with_exactly_once_delivery_a_late_acknowledgement_is_invalid() -> None:
    world = World(ONCE)
    world.publish("a")
    (entry,) = world.entries()
    serial = entry.serial
    world.wait(10)
    assert world.subscription.deliveries.ack([serial], world.now_us).invalid == [serial]
    assert world.pull() == ["a"]


def test_the_id_of_a_message_given_back_is_void() -> None:
    world = World()
    world.publish("a")
    (entry,) = world.entries()
    serial = entry.serial
    world.nack(entry)
    assert world.subscription.deliveries.ack([serial], world.now_us).invalid == [serial]
    assert world.modify(20, serial) == [serial]
    assert world.pull() == ["a"]


def test_an_unknown_id_is_invalid_and_changes_nothing() -> None:
    world = World()
    world.publish("a")
    world.pull()
    assert world.subscription.deliveries.ack([0, 99], world.now_us).invalid == [0, 99]
    assert world.counts() == (0, 1)


def test_a_key_is_leased_in_order_and_only_to_the_one_who_holds_it() -> None:
    world = World(ORDERED)
    deliveries = world.subscription.deliveries
    world.publish("a1", "a2", "a3", key="a")
    world.publish("b1", key="b")
    one, other = Consumer(), Consumer()
    assert bodies(deliveries.pull(1, world.now_us, consumer=one)) == ["a1"]
    assert bodies(deliveries.pull(9, world.now_us, consumer=other)) == ["b1"]
    assert world.pull() == []
    assert bodies(deliveries.pull(9, world.now_us, consumer=one)) == ["a2", "a3"]


def test_a_key_is_free_for_anybody_once_nothing_of_it_is_leased() -> None:
    world = World(ORDERED)
    deliveries = world.subscription.deliveries
    world.publish("a1", "a2", key="a")
    first = deliveries.pull(1, world.now_us, consumer=Consumer())
    world.ack(*first)
    assert bodies(deliveries.pull(9, world.now_us, consumer=Consumer())) == ["a2"]


def test_unary_pulls_get_the_next_of_a_key_only_after_the_acknowledgement() -> None:
    world = World(ORDERED)
    world.publish("a1", "a2", "a3", key="a")
    first = world.entries(2)
    assert bodies(first) == ["a1", "a2"]
    assert world.pull() == []
    world.ack(first[0])
    assert world.pull() == []
    world.ack(first[1])
    assert world.pull() == ["a3"]


def test_when_one_of_a_key_returns_all_after_it_return_acknowledged_or_not() -> None:
    world = World(ORDERED)
    world.publish("a1", "a2", "a3", "a4", key="a")
    entries = world.entries()
    world.ack(entries[0], entries[2])
    world.nack(entries[1])
    assert world.pull() == ["a2", "a3", "a4"]


def test_an_acknowledgement_ahead_of_its_turn_counts_when_the_turn_comes() -> None:
    world = World(ORDERED)
    world.publish("a1", "a2", key="a")
    one, two = world.entries()
    assert world.ack(two) == []
    assert world.counts() == (0, 2)
    world.ack(one)
    assert world.counts() == (0, 0)
    assert world.broker.memory.used == 0


def test_exactly_once_refuses_an_acknowledgement_ahead_of_its_turn() -> None:
    world = World(Settings(ordered=True, exactly_once=True))
    world.publish("a1", "a2", key="a")
    one, two = world.entries()
    deliveries = world.subscription.deliveries
    assert deliveries.ack([two.serial], world.now_us).unordered == [two.serial]
    assert deliveries.ack([one.serial], world.now_us).unordered == []
    assert deliveries.ack([two.serial], world.now_us).unordered == []
    assert world.counts() == (0, 0)


def test_without_ordering_keys_mean_nothing_to_deliveries() -> None:
    world = World()
    world.publish("a1", "a2", key="a")
    world.pull(1)
    assert world.pull(1) == ["a2"]


def test_messages_without_a_key_are_not_starved_by_those_with_one() -> None:
    world = World(ORDERED)
    for n in range(10):
        world.publish("keyed", key=f"k{n}")
    world.publish("loose")
    assert "loose" in world.pull(4)


def test_a_stream_holds_at_most_the_messages_it_allows() -> None:
    world = World()
    deliveries, consumer = world.subscription.deliveries, Consumer(max_messages=3)
    world.publish(*"abcdef")
    first = deliveries.pull(100, world.now_us, consumer=consumer)
    assert bodies(first) == ["a", "b", "c"]
    assert deliveries.pull(100, world.now_us, consumer=consumer) == []
    world.ack(first[0])
    assert bodies(deliveries.pull(100, world.now_us, consumer=consumer)) == ["d"]


def test_a_stream_gets_no_more_once_it_holds_the_bytes_it_allows() -> None:
    world = World()
    deliveries, consumer = world.subscription.deliveries, Consumer(max_bytes=1)
    world.publish("a", "b")
    first = deliveries.pull(100, world.now_us, consumer=consumer)
    assert bodies(first) == ["a"]
    assert deliveries.pull(100, world.now_us, consumer=consumer) == []
    world.nack(first[0])
    assert bodies(deliveries.pull(100, world.now_us, consumer=consumer)) == ["b"]


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
