"""Topics, subscriptions and messages on the embedded Pub/Sub server, for tests.

It uses our own connection and plain requests, so that Google's high-level client is not started.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from google.pubsub_v1.types import pubsub
from tests.waiting import SECONDS

from epochal.connectors.pubsub.connection import PUBLISHER, SUBSCRIBER, Connection
from epochal.connectors.pubsub.pubsub_options import Access
from epochal.testing.pubsub import running_server

PROJECT = "test"


@dataclass(frozen=True, slots=True)
class World:
    """A server and a connection to it."""

    address: str
    connection: Connection

    @property
    def access(self) -> Access:
        return Access(emulator_host=self.address, project_id=PROJECT)

    @property
    def options(self) -> dict[str, str]:
        """Options with which a source or a sink reaches the server."""
        return {"emulatorHost": self.address, "projectId": PROJECT}

    def ask(self, service: str, method: str, request: Any) -> bytes:
        payload = type(request).serialize(request)
        fields = ("name", "subscription", "topic", "snapshot")
        resource = next(filter(None, (getattr(request, field, "") for field in fields)))
        return self.connection.call(service, method, payload, what=method, resource=resource)

    def topic(self) -> str:
        name = f"projects/{PROJECT}/topics/t-{uuid.uuid4().hex}"
        self.ask(PUBLISHER, "CreateTopic", pubsub.Topic(name=name))
        return name

    def delete_topic(self, name: str) -> None:
        self.ask(PUBLISHER, "DeleteTopic", pubsub.DeleteTopicRequest(topic=name))

    def subscription(self, topic: str, **settings: Any) -> str:
        name = f"projects/{PROJECT}/subscriptions/s-{uuid.uuid4().hex}"
        self.ask(
            SUBSCRIBER,
            "CreateSubscription",
            pubsub.Subscription(name=name, topic=topic, **settings),
        )
        return name

    def pair(self, **settings: Any) -> tuple[str, str]:
        """A topic and a subscription of it."""
        topic = self.topic()
        return topic, self.subscription(topic, **settings)

    def delete_subscription(self, name: str) -> None:
        request = pubsub.DeleteSubscriptionRequest(subscription=name)
        self.ask(SUBSCRIBER, "DeleteSubscription", request)

    def publish(self, topic: str, messages: Iterable[bytes | dict[str, Any]]) -> list[str]:
        """Publish messages; return their ids, in order."""
        given = [each if isinstance(each, dict) else {"data": each} for each in messages]
        found: list[str] = []
        for start in range(0, len(given), 500):
            request = pubsub.PublishRequest(topic=topic, messages=given[start : start + 500])
            answer = self.ask(PUBLISHER, "Publish", request)
            found += pubsub.PublishResponse.deserialize(answer).message_ids
        return found

    def pull(self, subscription: str, count: int, *, seconds: float = SECONDS) -> list[Any]:
        """Received messages, acknowledged, until there are `count` or time is up."""
        found: list[Any] = []
        end = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < end:
            received = self._pull(subscription)
            if not received:
                time.sleep(0.02)  # the server answers at once, also with nothing
            found += received
        return found

    def left(self, subscription: str, *, seconds: float = 0.5) -> list[bytes]:
        """Receive one more message within `seconds`; empty if none is left."""
        return [each.message.data for each in self.pull(subscription, 1, seconds=seconds)]

    def unacknowledged(self, subscription: str) -> list[str]:
        """The ids of all messages that are not acknowledged, also of those under a lease.

        A snapshot keeps exactly these, and another subscription of the topic can be set to it.
        """
        request = pubsub.GetSubscriptionRequest(subscription=subscription)
        answer = self.ask(SUBSCRIBER, "GetSubscription", request)
        copy = self.subscription(pubsub.Subscription.deserialize(answer).topic)
        snapshot = f"projects/{PROJECT}/snapshots/s-{uuid.uuid4().hex}"
        create = pubsub.CreateSnapshotRequest(name=snapshot, subscription=subscription)
        self.ask(SUBSCRIBER, "CreateSnapshot", create)
        self.ask(SUBSCRIBER, "Seek", pubsub.SeekRequest(subscription=copy, snapshot=snapshot))
        found: list[str] = []
        while some := self._pull(copy):
            found += [each.message.message_id for each in some]
        self.ask(SUBSCRIBER, "DeleteSnapshot", pubsub.DeleteSnapshotRequest(snapshot=snapshot))
        self.delete_subscription(copy)
        return found

    def _pull(self, subscription: str) -> list[Any]:
        """What the server delivers at once, which may be nothing; it is acknowledged."""
        request = pubsub.PullRequest(
            subscription=subscription, max_messages=1000, return_immediately=True
        )
        answer = self.ask(SUBSCRIBER, "Pull", request)
        received = list(pubsub.PullResponse.deserialize(answer).received_messages)
        if received:
            ids = [each.ack_id for each in received]
            acks = pubsub.AcknowledgeRequest(subscription=subscription, ack_ids=ids)
            self.ask(SUBSCRIBER, "Acknowledge", acks)
        return received


def bodies(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


@contextmanager
def pubsub_world(*options: str) -> Iterator[World]:
    """Start a server that refuses calls without the header by which Google routes them."""
    with running_server("--project", PROJECT, "--require-routing", *options) as server:
        connection = Connection(Access(emulator_host=server.address, project_id=PROJECT))
        try:
            yield World(server.address, connection)
        finally:
            connection.close()
