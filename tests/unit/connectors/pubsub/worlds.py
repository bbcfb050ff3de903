"""Builders for tests of the embedded server's core."""

from __future__ import annotations

from collections.abc import Sequence

from epochal.connectors.pubsub.server.broker import MessageBroker, Subscription
from epochal.connectors.pubsub.server.filters import parse_filter
from epochal.connectors.pubsub.server.parts import SECOND_US, Entry, Settings

TOPIC = "projects/p/topics/topic"
NAME = "projects/p/subscriptions/sub"
START = 1_700_000_000 * SECOND_US


class World:
    """A broker with one topic and one subscription, and a clock that tests set."""

    def __init__(self, settings: Settings | None = None, *, filter_text: str = "") -> None:
        self.now_us = START
        self.broker = MessageBroker(seed=7)
        self.broker.create_topic(TOPIC, b"")
        self.add(NAME, settings or Settings(), filter_text=filter_text)

    def add(
        self, name: str, settings: Settings, *, topic: str = TOPIC, filter_text: str = ""
    ) -> None:
        self.broker.create_subscription(name, topic, b"", settings, parse_filter(filter_text))

    @property
    def subscription(self) -> Subscription:
        return self.broker.subscriptions[NAME]

    def publish(
        self, *bodies: str, key: str = "", topic: str = TOPIC, **attributes: str
    ) -> list[int]:
        drafts = [(body.encode(), key, attributes) for body in bodies]
        return self.broker.publish(topic, drafts, self.now_us)

    def pull(self, limit: int = 100, name: str = NAME) -> list[str]:
        return bodies(self.entries(limit, name))

    def entries(self, limit: int = 100, name: str = NAME) -> list[Entry]:
        return self.broker.subscriptions[name].deliveries.pull(limit, self.now_us)

    def ack(self, *entries: Entry, name: str = NAME) -> list[int]:
        serials = [entry.serial for entry in entries]
        return self.broker.subscriptions[name].deliveries.ack(serials, self.now_us).invalid

    def nack(self, *entries: Entry) -> list[int]:
        return self.modify(0, *(entry.serial for entry in entries))

    def modify(self, seconds: int, *serials: int) -> list[int]:
        deliveries = self.subscription.deliveries
        return deliveries.modify(serials, seconds * SECOND_US, self.now_us).invalid

    def wait(self, seconds: float) -> None:
        self.now_us += round(seconds * SECOND_US)
        self.broker.tick(self.now_us)

    def counts(self, name: str = NAME) -> tuple[int, int]:
        """Return the numbers of available and outstanding messages."""
        deliveries = self.broker.subscriptions[name].deliveries
        return deliveries.available, deliveries.outstanding


def bodies(entries: Sequence[Entry]) -> list[str]:
    return [entry.message.body.decode() for entry in entries]
