"""The unary calls of Pub/Sub's Publisher and Subscriber: decode, call the broker, encode.

Everything runs on one event loop in one thread, so calls of the broker never overlap. Waiting pulls
and streams look for messages again when the broker names their subscription in `woken`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from google.pubsub_v1.types import pubsub
from google.rpc import error_details_pb2, status_pb2

from epochal.clock import Clock
from epochal.connectors.pubsub.server import refusals
from epochal.connectors.pubsub.server.broker import (
    Draft,
    MessageBroker,
    Snapshot,
    Subscription,
    Topic,
)
from epochal.connectors.pubsub.server.parts import AckRefusals
from epochal.connectors.pubsub.server.refusals import (
    MUTABLE,
    MUTABLE_IN_TOPICS,
    CallChecks,
    SnapshotPb,
    SubscriptionPb,
    TopicPb,
    check_subscription,
    check_topic,
    merge_description,
)
from epochal.errors import PubSubRefusedError

MAX_PUBLISH_MESSAGES = 1000
MAX_PUBLISH_BYTES = 10_485_760
MAX_PULL_BYTES = 3 << 20
MAX_PAGE = 1000
PULL_SECONDS = 30.0
TICK_SECONDS = 0.02

NO_ATTRIBUTES: Mapping[str, str] = {}
Decide = Callable[[Any], Any]
"""From a request to its response, as an object or as bytes; None for one without fields."""


class Service:
    """All calls except StreamingPull."""

    def __init__(
        self, broker: MessageBroker, clock: Clock, checks: CallChecks | None = None
    ) -> None:
        self.broker = broker
        self.checks = checks or CallChecks()
        self._clock = clock
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._closing = False

    def now_us(self) -> int:
        return self._clock.now_ms() * 1000

    def wake(self) -> None:
        """Wake the pulls and streams whose subscription may have something new."""
        woken = self.broker.woken
        if woken:
            for name in woken:
                for event in self._waiting.get(name, ()):
                    event.set()
            woken.clear()

    @contextmanager
    def waiting(self, subscription: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever the subscription may have something new."""
        event = asyncio.Event()
        self._waiting.setdefault(subscription, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[subscription].discard(event)
            if not self._waiting[subscription]:
                del self._waiting[subscription]

    def close(self) -> None:
        """Make waiting pulls and streams end with UNAVAILABLE, so that clients retry."""
        self._closing = True
        self.broker.woken.update(self._waiting)
        self.wake()

    def check_open(self) -> None:
        if self._closing:
            raise PubSubRefusedError("UNAVAILABLE", "The server is shutting down.")

    async def run_clock(self) -> None:
        """Expire leases on time, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.broker.tick(self.now_us())
            self.wake()

    def unary(self, name: str, decide: Decide) -> Callable[[Any, Any], Any]:
        """Wrap a decision as a gRPC method: refusals become statuses, and waiters are woken."""

        async def answer(request: Any, context: Any) -> Any:
            try:
                self.checks.check(name, request, context.invocation_metadata() or ())
                response = decide(request)
                if asyncio.iscoroutine(response):
                    response = await response
                return b"" if response is None else response
            except PubSubRefusedError as refused:
                await abort(context, refused)
            finally:
                self.wake()

        return answer

    def publisher(self) -> dict[str, Decide]:
        """Return the decisions of the Publisher's calls, by name."""
        broker = self.broker
        return {
            "CreateTopic": self.create_topic,
            "UpdateTopic": self.update_topic,
            "Publish": self.publish,
            "GetTopic": lambda r: broker.topic(r.topic).description,
            "ListTopics": lambda r: _page(
                r, pubsub.ListTopicsResponse, broker.topics, _describe_topic
            ),
            "ListTopicSubscriptions": lambda r: _page(
                r,
                pubsub.ListTopicSubscriptionsResponse,
                broker.topic(r.topic).subscriptions,
                _named,
            ),
            "ListTopicSnapshots": lambda r: _page(
                r, pubsub.ListTopicSnapshotsResponse, broker.topic(r.topic).snapshots, _named
            ),
            "DeleteTopic": lambda r: broker.delete_topic(r.topic),
            "DetachSubscription": lambda r: broker.detach_subscription(r.subscription),
        }

    def subscriber(self) -> dict[str, Decide]:
        """Return the decisions of the Subscriber's unary calls, by name."""
        broker = self.broker
        return {
            "CreateSubscription": self.create_subscription,
            "GetSubscription": lambda r: _describe_subscription(
                broker.subscription(r.subscription)
            ),
            "UpdateSubscription": self.update_subscription,
            "ListSubscriptions": lambda r: _page(
                r, pubsub.ListSubscriptionsResponse, broker.subscriptions, _describe_subscription
            ),
            "DeleteSubscription": lambda r: broker.delete_subscription(r.subscription),
            "ModifyAckDeadline": self.modify_ack_deadline,
            "Acknowledge": self.acknowledge,
            "Pull": self.pull,
            "ModifyPushConfig": self.modify_push_config,
            "GetSnapshot": lambda r: _describe_snapshot(broker.snapshot(r.snapshot)),
            "ListSnapshots": lambda r: _page(
                r, pubsub.ListSnapshotsResponse, broker.snapshots, _describe_snapshot
            ),
            "CreateSnapshot": self.create_snapshot,
            "UpdateSnapshot": self.update_snapshot,
            "DeleteSnapshot": lambda r: broker.delete_snapshot(r.snapshot),
            "Seek": self.seek,
        }

    def create_topic(self, topic: Any) -> bytes:
        retention_us = check_topic(topic)
        description = topic.SerializeToString()
        self.broker.create_topic(topic.name, description, retention_us=retention_us)
        return bytes(description)

    def update_topic(self, request: Any) -> bytes:
        topic = self.broker.topic(request.topic.name)
        old = TopicPb.FromString(topic.description)
        new = merge_description(old, request.topic, request.update_mask, MUTABLE_IN_TOPICS)
        topic.retention_us = check_topic(new)
        topic.description = new.SerializeToString()
        return topic.description

    def publish(self, request: Any) -> bytes:
        self.broker.topic(request.topic)
        refusals.check_range("message_count", len(request.messages), 1, MAX_PUBLISH_MESSAGES)
        if request.ByteSize() > MAX_PUBLISH_BYTES:
            raise refusals.invalid(
                f"Request payload size exceeds the limit: {MAX_PUBLISH_BYTES} bytes."
            )
        drafts = [_draft(message) for message in request.messages]
        numbers = self.broker.publish(request.topic, drafts, self.now_us())
        return b"".join([b"\x0a\x10%016d" % number for number in numbers])

    def create_subscription(self, subscription: Any) -> bytes:
        settings, matches = check_subscription(subscription)
        description = subscription.SerializeToString()
        self.broker.create_subscription(
            subscription.name, subscription.topic, description, settings, matches
        )
        return bytes(description)

    def update_subscription(self, request: Any) -> Any:
        subscription = self.broker.subscription(request.subscription.name)
        old = SubscriptionPb.FromString(subscription.description)
        new = merge_description(old, request.subscription, request.update_mask, MUTABLE)
        settings, _ = check_subscription(new)
        subscription.description = new.SerializeToString()
        subscription.deliveries.change(settings)
        return _describe_subscription(subscription)

    def modify_push_config(self, request: Any) -> None:
        self.broker.subscription(request.subscription)
        if request.push_config.push_endpoint:
            raise refusals.unimplemented("push delivery")

    def acknowledge(self, request: Any) -> None:
        subscription = self.broker.attached(request.subscription)
        serials = _serials(subscription, request.ack_ids)
        _check(subscription, subscription.deliveries.ack(serials, self.now_us()))

    def modify_ack_deadline(self, request: Any) -> None:
        subscription = self.broker.attached(request.subscription)
        seconds = request.ack_deadline_seconds
        refusals.check_range("ack_deadline_seconds", seconds, 0, 600)
        serials = _serials(subscription, request.ack_ids)
        outcome = subscription.deliveries.modify(serials, seconds * 1_000_000, self.now_us())
        _check(subscription, outcome)

    async def pull(self, request: Any) -> bytes:
        """Return messages at once if there are any, else wait up to PULL_SECONDS for some."""
        self.broker.attached(request.subscription)
        refusals.check_range("max_messages", request.max_messages, 1, 1 << 31)
        wait = 0.0 if request.return_immediately else PULL_SECONDS
        with self.waiting(request.subscription) as event:
            end = self._clock.monotonic() + wait
            while True:
                self.check_open()
                subscription = self.broker.attached(request.subscription)
                entries = subscription.deliveries.pull(
                    min(request.max_messages, MAX_PUBLISH_MESSAGES),
                    self.now_us(),
                    limit_bytes=MAX_PULL_BYTES,
                )
                left = end - self._clock.monotonic()
                if entries or left <= 0:
                    counted = bool(subscription.deliveries.settings.max_attempts)
                    return subscription.envelopes.wrap(entries, count_attempts=counted)
                event.clear()
                self.wake()
                try:
                    await asyncio.wait_for(event.wait(), left)
                except TimeoutError:
                    continue

    def create_snapshot(self, request: Any) -> Any:
        refusals.check_name(request.name, "snapshots")
        description = SnapshotPb(name=request.name, labels=request.labels).SerializeToString()
        snapshot = self.broker.create_snapshot(
            request.name, request.subscription, description, self.now_us()
        )
        return _describe_snapshot(snapshot)

    def update_snapshot(self, request: Any) -> Any:
        self.broker.snapshot(request.snapshot.name)
        raise refusals.unimplemented("updates of snapshots")

    def seek(self, request: Any) -> None:
        match request.WhichOneof("target"):
            case "time":
                micros = request.time.ToMicroseconds()
                self.broker.seek_to_time(request.subscription, micros, self.now_us())
            case "snapshot":
                self.broker.seek_to_snapshot(request.subscription, request.snapshot)
            case _:
                raise refusals.invalid(
                    "The request names neither a time nor a snapshot to seek to."
                )


def _page(request: Any, kind: Any, by_name: Mapping[str, Any], shown: Callable[[Any], Any]) -> Any:
    """Return one page of resources, by name; the token is the last name on the page before."""
    prefix = f"{request.project}/" if hasattr(request, "project") else ""
    names = sorted(n for n in by_name if n.startswith(prefix) and n > request.page_token)
    size = min(request.page_size or MAX_PAGE, MAX_PAGE)
    response = kind.pb()()
    resources = getattr(response, response.DESCRIPTOR.fields[0].name)
    resources.extend(shown(by_name[name]) for name in names[:size])
    if len(names) > size:
        response.next_page_token = names[size - 1]
    return response


async def abort(context: Any, refused: PubSubRefusedError) -> None:
    """End a call with the refusal's status, and its reasons in the metadata that clients read."""
    code = grpc.StatusCode[refused.code]
    metadata: tuple[tuple[str, bytes], ...] = ()
    if refused.reasons:
        status = status_pb2.Status(code=code.value[0], message=refused.text)
        info = error_details_pb2.ErrorInfo(
            reason="ACKNOWLEDGE_FAILED", domain="pubsub.googleapis.com", metadata=refused.reasons
        )
        status.details.add().Pack(info)
        metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(code, refused.text, metadata)


def _draft(message: Any) -> Draft:
    body = message.SerializeToString()
    attributes = message.attributes
    attribute_map = dict(attributes) if attributes else NO_ATTRIBUTES
    # `data` is the first field of the serialised message, and is omitted if empty.
    if body[:1] != b"\x0a" and not attribute_map:
        raise refusals.invalid(
            "One or more messages in the publish request is empty. Each message must contain "
            "either non-empty data, or at least one attribute."
        )
    key = message.ordering_key
    if attribute_map:
        refusals.check_range("attribute_count", len(attribute_map), 0, 100)
    for name, text in attribute_map.items():
        if not name or name.lower().startswith("goog"):
            raise refusals.invalid(f"The attribute key {name!r} is empty or starts with goog.")
        refusals.check_range("attribute_key_size", len(name.encode()), 1, 256)
        refusals.check_range("attribute_value_size", len(text.encode()), 0, 1024)
    if key:
        refusals.check_range("ordering_key_size", len(key.encode()), 0, 1024)
    return body, key, attribute_map


def _serials(subscription: Subscription, ack_ids: Iterable[str]) -> list[int]:
    serial, serials = subscription.envelopes.serial, []
    for ack_id in ack_ids:
        try:
            serials.append(serial(ack_id))
        except ValueError:
            raise refusals.malformed_ack_id(ack_id) from None
    return serials


def _check(subscription: Subscription, outcome: AckRefusals) -> None:
    """Raise for bad ids if the subscription has exactly-once delivery; otherwise ignore them."""
    if subscription.deliveries.settings.exactly_once and (outcome.invalid or outcome.unordered):
        ack_id = subscription.envelopes.ack_id
        reasons = {ack_id(s): refusals.INVALID_ACK_ID for s in outcome.invalid}
        reasons |= {ack_id(s): refusals.UNORDERED_ACK_ID for s in outcome.unordered}
        raise refusals.bad_ack_ids(reasons)


def _named(resource: Subscription | Snapshot) -> str:
    return resource.name


def _describe_topic(topic: Topic) -> Any:
    return TopicPb.FromString(topic.description)


def _describe_subscription(subscription: Subscription) -> Any:
    shown = SubscriptionPb.FromString(subscription.description)
    shown.detached = subscription.detached
    if subscription.topic is None:
        shown.topic = refusals.DELETED_TOPIC
    elif subscription.topic.retention_us:
        shown.topic_message_retention_duration.FromMicroseconds(subscription.topic.retention_us)
    return shown


def _describe_snapshot(snapshot: Snapshot) -> Any:
    shown = SnapshotPb.FromString(snapshot.description)
    shown.topic = snapshot.topic
    shown.expire_time.FromMicroseconds(snapshot.expires_us)
    return shown
