"""The state of the whole server: topics, subscriptions and snapshots, and how they interact. Pure.

Time comes in as `now_us`, randomness as `seed`. Messages take at most `max_bytes`. A topic or a
subscription has a `description`: opaque bytes that `service` stores and gets back. Only `Settings`
affects deliveries.

Note: a topic does not keep messages. Each subscription has its own, and the topic has a log only
while a retention or a snapshot allows a seek into it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from epochal.connectors.pubsub.protobuf_wire import encode_attribute
from epochal.connectors.pubsub.server.deliveries import Deliveries
from epochal.connectors.pubsub.server.filters import Predicate
from epochal.connectors.pubsub.server.parts import (
    NUMBER_LENGTH,
    SECOND_US,
    Entry,
    Envelopes,
    Memory,
    PublishedMessage,
    Settings,
    ack_prefix,
    message_id,
    publish_time,
)
from epochal.connectors.pubsub.server.refusals import (
    already_exists,
    full,
    not_found,
    precondition,
    project_of,
    short,
)

WEEK_US = 7 * 86_400 * SECOND_US
HOUR_US = 3600 * SECOND_US
ISO = "%Y-%m-%dT%H:%M:%S.%fZ"
DEFAULT_MAX_BYTES = 1 << 30
MESSAGES_PER_SEED = 1_000_000_000
SEEDS = 9 * 10 ** (NUMBER_LENGTH - 1) // MESSAGES_PER_SEED
"""How many seeds have message ids of their own."""

Draft = tuple[bytes, str, Mapping[str, str]]
"""A message before it is numbered: the publisher's PubsubMessage, ordering key and attributes."""


@dataclass(slots=True, eq=False)
class Topic:
    """A topic, with the log of its messages if one is needed."""

    name: str
    description: bytes
    retention_us: int = 0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    log: deque[PublishedMessage] = field(default_factory=deque)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Subscription:
    """A subscription. `topic` is None once the topic is deleted."""

    name: str
    description: bytes
    topic: Topic | None
    matches: Predicate | None
    deliveries: Deliveries
    envelopes: Envelopes
    detached: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A subscription's unsettled messages at one time, and the last message number by then."""

    name: str
    description: bytes
    topic: str
    unsettled: tuple[PublishedMessage, ...]
    after: int
    expires_us: int


class MessageBroker:
    """Decides what every call does.

    `woken` names the subscriptions that may have something new for their consumers.
    """

    def __init__(self, *, seed: int = 0, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.memory = Memory()
        self.woken: set[str] = set()
        self._seed, self._max_bytes = seed, max_bytes
        self._number = 10 ** (NUMBER_LENGTH - 1) + seed % SEEDS * MESSAGES_PER_SEED
        self._incarnations = 0

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise not_found(name)
        return topic

    def subscription(self, name: str) -> Subscription:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise not_found(name)
        return subscription

    def attached(self, name: str) -> Subscription:
        """Return a subscription that is not detached."""
        subscription = self.subscription(name)
        if subscription.detached:
            raise precondition(f"Subscription is detached (resource={short(name)}).")
        return subscription

    def snapshot(self, name: str) -> Snapshot:
        snapshot = self.snapshots.get(name)
        if snapshot is None:
            raise not_found(name)
        return snapshot

    def create_topic(self, name: str, description: bytes, *, retention_us: int = 0) -> Topic:
        if name in self.topics:
            raise already_exists(name)
        topic = self.topics[name] = Topic(name, description, retention_us)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its log and snapshots. Its subscriptions keep their messages."""
        topic = self.topic(name)
        for snapshot in list(topic.snapshots.values()):
            self.delete_snapshot(snapshot.name)
        del self.topics[name]
        for subscription in topic.subscriptions.values():
            subscription.topic = None
        for message in topic.log:
            self.memory.drop(message)

    def create_subscription(
        self,
        name: str,
        topic: str,
        description: bytes,
        settings: Settings,
        matches: Predicate | None = None,
    ) -> Subscription:
        if name in self.subscriptions:
            raise already_exists(name)
        source = self.topic(topic)
        self._incarnations += 1
        # A subscription that is created again under an old name must not accept the old one's ids.
        prefix = ack_prefix(self._seed, f"{self._incarnations} {name}")
        deliveries = Deliveries(
            settings,
            self.memory,
            wake=lambda: self.woken.add(name),
            to_dead_letters=lambda entry, now_us: self._to_dead_letters(
                subscription, entry, now_us
            ),
        )
        subscription = Subscription(
            name, description, source, matches, deliveries, Envelopes(prefix)
        )
        self.subscriptions[name] = source.subscriptions[name] = subscription
        return subscription

    def delete_subscription(self, name: str) -> None:
        subscription = self.subscription(name)
        del self.subscriptions[name]
        self._empty(subscription)

    def detach_subscription(self, name: str) -> None:
        subscription = self.subscription(name)
        subscription.detached = True
        self._empty(subscription)

    def _empty(self, subscription: Subscription) -> None:
        if subscription.topic is not None:
            subscription.topic.subscriptions.pop(subscription.name, None)
        subscription.deliveries.reset([])
        self.woken.add(subscription.name)

    def publish(self, topic_name: str, drafts: Sequence[Draft], now_us: int) -> list[int]:
        """Number the messages and offer them to all subscriptions whose filter they pass."""
        topic = self.topic(topic_name)
        self._trim(topic, now_us)
        if self.memory.used >= self._max_bytes:
            raise full(self.memory.used, self._max_bytes)
        return self._deliver(topic, drafts, now_us)

    def _deliver(self, topic: Topic, drafts: Sequence[Draft], now_us: int) -> list[int]:
        first = self._number + 1
        stamp = publish_time(now_us)
        messages = [
            PublishedMessage(
                number, body + message_id(number) + stamp, len(body), key, attributes, now_us
            )
            for number, (body, key, attributes) in enumerate(drafts, first)
        ]
        self._number += len(messages)
        if topic.retention_us or topic.snapshots:
            self.memory.hold(messages)
            topic.log.extend(messages)
        for subscription in topic.subscriptions.values():
            matches = subscription.matches
            subscription.deliveries.offer(
                messages
                if matches is None
                else [message for message in messages if matches(message.attributes)]
            )
        return list(range(first, first + len(messages)))

    def tick(self, now_us: int) -> None:
        """Expire leases and snapshots whose time is over."""
        for subscription in self.subscriptions.values():
            next_us = subscription.deliveries.next_expiry_us()
            if next_us is not None and next_us <= now_us:
                subscription.deliveries.expire(now_us)
        for snapshot in [s for s in self.snapshots.values() if s.expires_us <= now_us]:
            self.delete_snapshot(snapshot.name)

    def create_snapshot(
        self, name: str, subscription_name: str, description: bytes, now_us: int
    ) -> Snapshot:
        """Remember what is unsettled now, until a week after the oldest message was published."""
        if name in self.snapshots:
            raise already_exists(name)
        subscription = self.attached(subscription_name)
        if subscription.topic is None:
            raise precondition(
                f"The topic of the subscription is deleted (resource={short(subscription_name)})."
            )
        unsettled = tuple(subscription.deliveries.unsettled())
        oldest_us = min((m.published_us for m in unsettled), default=now_us)
        expires_us = oldest_us + WEEK_US
        if expires_us - now_us < HOUR_US:
            raise precondition("The snapshot would expire in less than one hour.")
        topic = subscription.topic
        snapshot = Snapshot(name, description, topic.name, unsettled, self._number, expires_us)
        self.memory.hold(unsettled)
        self.snapshots[name] = topic.snapshots[name] = snapshot
        return snapshot

    def delete_snapshot(self, name: str) -> None:
        snapshot = self.snapshot(name)
        del self.snapshots[name]
        topic = self.topics.get(snapshot.topic)
        if topic is not None and name in topic.snapshots:
            del topic.snapshots[name]
            if not topic.snapshots and not topic.retention_us:
                while topic.log:
                    self.memory.drop(topic.log.popleft())
        for message in snapshot.unsettled:
            self.memory.drop(message)

    def seek_to_time(self, name: str, time_us: int, now_us: int) -> None:
        """Make everything published before `time_us` settled, and everything since unsettled."""
        subscription = self.attached(name)
        deliveries = subscription.deliveries
        if subscription.topic is not None:
            self._trim(subscription.topic, now_us)
        messages = _all_messages(subscription)
        since = [m for m in messages if m.published_us >= time_us]
        deliveries.reset(since, [m for m in messages if m.published_us < time_us])

    def seek_to_snapshot(self, name: str, snapshot_name: str) -> None:
        """Make unsettled what was unsettled at the snapshot, and everything published since."""
        subscription = self.attached(name)
        snapshot = self.snapshot(snapshot_name)
        if subscription.topic is None or subscription.topic.name != snapshot.topic:
            raise precondition(
                f"The snapshot and the subscription have different topics "
                f"(resource={short(snapshot_name)})."
            )
        deliveries = subscription.deliveries
        messages = _all_messages(subscription)
        then = {m.number for m in snapshot.unsettled}
        wanted = [m for m in snapshot.unsettled if _passes(subscription, m)]
        wanted += [m for m in messages if m.number > snapshot.after]
        rest = [m for m in messages if m.number <= snapshot.after and m.number not in then]
        deliveries.reset(wanted, rest)

    def _trim(self, topic: Topic, now_us: int) -> None:
        """Drop messages from the log that neither the retention nor a snapshot needs."""
        horizon_us = now_us - topic.retention_us
        after = min((s.after for s in topic.snapshots.values()), default=None)
        log = topic.log
        while (
            log and log[0].published_us < horizon_us and (after is None or log[0].number <= after)
        ):
            self.memory.drop(log.popleft())

    def _to_dead_letters(self, subscription: Subscription, entry: Entry, now_us: int) -> bool:
        """Publish a message with too many attempts to the dead-letter topic, if it exists."""
        settings, message = subscription.deliveries.settings, entry.message
        dead_letter_topic = self.topics.get(settings.dead_letter_topic)
        if dead_letter_topic is None:
            return False
        published = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=message.published_us)
        attributes = {
            "CloudPubSubDeadLetterSourceDeliveryCount": str(entry.attempts),
            "CloudPubSubDeadLetterSourceSubscription": short(subscription.name),
            "CloudPubSubDeadLetterSourceSubscriptionProject": project_of(subscription.name),
            "CloudPubSubDeadLetterSourceTopicPublishTime": published.strftime(ISO),
        }
        body = message.body + b"".join(encode_attribute(*item) for item in attributes.items())
        draft = (body, message.key, {**message.attributes, **attributes})
        # The message only moves, so the memory limit is not checked.
        self._deliver(dead_letter_topic, [draft], now_us)
        return True


def _passes(subscription: Subscription, message: PublishedMessage) -> bool:
    return subscription.matches is None or subscription.matches(message.attributes)


def _all_messages(subscription: Subscription) -> list[PublishedMessage]:
    """What a seek can find: unsettled, retained, or in the topic's log; in order."""
    deliveries, topic = subscription.deliveries, subscription.topic
    logged = [] if topic is None else [m for m in topic.log if _passes(subscription, m)]
    everything = (*deliveries.unsettled(), *deliveries.acked(), *logged)
    messages = {message.number: message for message in everything}
    return [messages[number] for number in sorted(messages)]
