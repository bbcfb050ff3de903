"""Compares the server's core with a naive model, step by step, under random calls.

No message is lost: after each step every published message is settled, leased or available, in
both. Order holds: no message of a key is leased while an earlier one is available. A message is
redelivered if and only if its lease has ended.
"""

from __future__ import annotations

import random

import pytest
from tests.unit.connectors.pubsub.naive import Naive
from tests.unit.connectors.pubsub.worlds import NAME, World

from epochal.connectors.pubsub.server.parts import (
    HOLD_BYTES,
    MESSAGE_BYTES,
    SECOND_US,
    Consumer,
    Settings,
)

STEPS = 120


class Pair:
    """The core and the model, which get the same calls."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        settings = Settings(
            ordered=rng.random() < 0.7,
            exactly_once=rng.random() < 0.4,
            retain_acked=rng.random() < 0.4,
        )
        self.world = World(settings)
        self.model = Naive(settings.ordered, settings.exactly_once, settings.retain_acked)
        limits = [(0, 0), (3, 0), (0, 120)]
        self.consumers: list[Consumer | None] = [None, *(Consumer(*limit) for limit in limits)]
        self.serials = [99_999]
        self.published: set[int] = set()

    def step(self) -> None:
        actions = [self.publish, self.pull, self.pull, self.ack, self.ack, self.modify, self.wait]
        if self.rng.random() < 0.02:
            actions = [self.seek]
        self.rng.choice(actions)()
        self.compare()

    def publish(self) -> None:
        key = self.rng.choice(["", "", "a", "b"])
        numbers = self.world.publish(*(["x"] * self.rng.randrange(1, 4)), key=key)
        self.published.update(numbers)
        for number in numbers:
            self.model.publish(number, key, self.world.now_us)

    def pull(self) -> None:
        consumer = self.rng.choice(self.consumers)
        now_us, deliveries = self.world.now_us, self.world.subscription.deliveries
        self.model.pass_time(now_us)
        wanted = self.model.deliverable(consumer)
        limit = self.rng.choice([1, 2, 1000])
        room = consumer.max_messages - consumer.messages if consumer else 0
        entries = deliveries.pull(limit, now_us, consumer=consumer)
        assert {e.message.number for e in entries} <= set(wanted)
        if consumer is None or not (consumer.max_messages or consumer.max_bytes):
            assert len(entries) == min(limit, len(wanted)) or limit == 2
        elif consumer.max_messages:
            assert len(entries) <= room
        for entry in entries:
            deadline_us = now_us + 10 * SECOND_US
            self.model.deliver(entry.message.number, entry.serial, deadline_us, consumer)
            self.serials.append(entry.serial)

    def ack(self) -> None:
        serial = self.rng.choice(self.serials[-12:])
        self.model.pass_time(self.world.now_us)
        expected = self.model.ack(serial)
        outcome = self.world.subscription.deliveries.ack([serial], self.world.now_us)
        got = "invalid" if outcome.invalid else "unordered" if outcome.unordered else "ok"
        assert got == expected

    def modify(self) -> None:
        serial, seconds = self.rng.choice(self.serials[-12:]), self.rng.choice([0, 0, 5, 20])
        now_us = self.world.now_us
        self.model.pass_time(now_us)
        deadline_us = now_us + seconds * SECOND_US if seconds else None
        expected = self.model.modify(serial, deadline_us)
        assert (self.world.modify(seconds, serial) == [serial]) is (expected == "invalid")

    def wait(self) -> None:
        self.world.wait(self.rng.choice([0.5, 1, 5, 10, 30]))

    def seek(self) -> None:
        self.model.pass_time(self.world.now_us)
        time_us = self.world.now_us - self.rng.randrange(60) * SECOND_US
        self.world.broker.seek_to_time(NAME, time_us, self.world.now_us)
        self.model.seek(time_us)

    def compare(self) -> None:
        self.model.pass_time(self.world.now_us)
        self.world.broker.tick(self.world.now_us)
        model, deliveries = self.model, self.world.subscription.deliveries
        available = model.numbers("available")
        leased = model.numbers("leased", "promised")
        assert {m.number for m in deliveries.unsettled()} == available | leased
        assert (deliveries.available, deliveries.outstanding) == (len(available), len(leased))
        kept = {m.number: m for m in (*deliveries.unsettled(), *deliveries.acked())}
        sizes = [len(m.wire) + MESSAGE_BYTES + HOLD_BYTES for m in kept.values()]
        assert self.world.broker.memory.used == sum(sizes)
        held = sum(c.messages for c in self.consumers if c is not None)
        assert held <= len(leased)

    def drain(self) -> None:
        """Check that any consumer can pull and settle everything that is left."""
        self.world.wait(600)
        self.model.pass_time(self.world.now_us)
        for _ in range(len(self.published) + 1):
            entries = self.world.entries(1000)
            for entry in entries:
                deadline_us = self.world.now_us + 10 * SECOND_US
                self.model.deliver(entry.message.number, entry.serial, deadline_us, None)
            for serial in [entry.serial for entry in entries]:
                assert self.model.ack(serial) == "ok"
                outcome = self.world.subscription.deliveries.ack([serial], self.world.now_us)
                assert outcome.invalid == []
            self.compare()
        assert self.model.numbers("settled") == self.published


@pytest.mark.parametrize("seed", range(150), ids=lambda seed: f"seed{seed}")
def test_the_core_does_what_the_naive_model_does(seed: int) -> None:
    pair = Pair(seed)
    for _ in range(STEPS):
        pair.step()
    pair.drain()
