"""One subscription's leases, deadlines, order and limits."""

from __future__ import annotations

from tests.unit.connectors.pubsub.worlds import NAME, World, bodies

from epochal.connectors.pubsub.server.parts import SECOND_US, Consumer, Settings

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
