"""Runs the embedded server on its own event loop until SIGINT or SIGTERM; serves StreamingPull.

In a StreamingPull, one task per stream reads acknowledgements and one writes messages.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from google.pubsub_v1.types import pubsub

from epochal.clock import Clock, SystemClock
from epochal.connectors.pubsub.protobuf_wire import encode_field
from epochal.connectors.pubsub.server import refusals
from epochal.connectors.pubsub.server.broker import (
    DEFAULT_MAX_BYTES,
    SEEDS,
    MessageBroker,
    Subscription,
)
from epochal.connectors.pubsub.server.parts import SECOND_US, AckRefusals, Consumer
from epochal.connectors.pubsub.server.refusals import CallChecks, SubscriptionPb, TopicPb
from epochal.connectors.pubsub.server.service import Service, abort
from epochal.errors import ComponentError, PubSubRefusedError

# `service` checks the size of requests. gRPC's limit only has to be larger than Pub/Sub's.
MAX_REQUEST_BYTES = 32 << 20
STOP_SECONDS = 0.5
GC_THRESHOLD = (100_000, 50, 1000)
OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    # Never disconnect clients that ping often, as Google's emulator does.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where to listen, and which topics and subscriptions to create at the start."""

    host: str = "127.0.0.1"
    port: int = 8085
    max_bytes: int = DEFAULT_MAX_BYTES
    seed: int | None = None
    """Determines message and acknowledgement ids; None for ids that no earlier start has used."""
    topics: Sequence[str] = ()
    """Full names."""
    subscriptions: Sequence[tuple[str, str]] = field(default=())
    """Full names of subscriptions and of their topics."""
    checks: CallChecks = field(default_factory=CallChecks)


def serve(wanted: ServerSettings, *, started: Callable[[str], None]) -> signal.Signals:
    """Serve until SIGINT or SIGTERM, and return which one ended it.

    `started` is called with the address once the server listens.
    """
    # A backlog can be a million live objects, none of them in a cycle. With the default thresholds,
    # the garbage collector would scan them again and again and take half of the server's time.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    return asyncio.run(_serve(wanted, SystemClock(), started))


def method_names() -> list[str]:
    """Return the names of all calls that the server knows."""
    service = Service(MessageBroker(), SystemClock())
    return sorted([*service.publisher(), *service.subscriber(), STREAMING_PULL])


async def _serve(
    wanted: ServerSettings, clock: Clock, started: Callable[[str], None]
) -> signal.Signals:
    # A client must never take a new message for one that it got before a restart.
    seed = secrets.randbelow(SEEDS) if wanted.seed is None else wanted.seed
    service = Service(MessageBroker(seed=seed, max_bytes=wanted.max_bytes), clock, wanted.checks)
    for topic in wanted.topics:
        service.create_topic(TopicPb(name=topic))
    for name, topic in wanted.subscriptions:
        service.create_subscription(SubscriptionPb(name=name, topic=topic))
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(handlers(service))
    try:
        port = server.add_insecure_port(f"{wanted.host}:{wanted.port}")
    except RuntimeError as error:
        raise ComponentError(
            f"The Pub/Sub server cannot listen on {wanted.host}:{wanted.port} ({error}). Another "
            f"process may be using the port. Choose another --port, or 0 for any free one."
        ) from error
    await server.start()
    ticking = asyncio.create_task(service.run_clock())
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    started(f"{wanted.host}:{port}")
    ended_by = await signals.get()
    ticking.cancel()
    service.close()
    await server.stop(STOP_SECONDS)
    with suppress(asyncio.CancelledError):
        await ticking
    return ended_by


def handlers(service: Service) -> tuple[Any, ...]:
    """Return the gRPC handlers of the Publisher and the Subscriber service."""

    async def stream(requests: AsyncIterator[Any], context: Any) -> None:
        await streaming_pull(service, requests, context)

    publisher, subscriber = (
        {
            name: grpc.unary_unary_rpc_method_handler(
                service.unary(name, decide),
                request_deserializer=_request_type(name).pb().FromString,
                response_serializer=_serialize,
            )
            for name, decide in table.items()
        }
        for table in (service.publisher(), service.subscriber())
    )
    subscriber[STREAMING_PULL] = grpc.stream_stream_rpc_method_handler(
        stream, request_deserializer=pubsub.StreamingPullRequest.pb().FromString
    )
    return (
        grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
        grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
    )


def _request_type(method: str) -> Any:
    """Return the type of a call's request; most have the call's name."""
    kinds: dict[str, Any] = {"CreateTopic": pubsub.Topic, "CreateSubscription": pubsub.Subscription}
    return kinds.get(method) or getattr(pubsub, f"{method}Request")


def _serialize(response: Any) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()


Response: Any = pubsub.StreamingPullResponse.pb()
STREAMING_PULL = "StreamingPull"
BATCH_MESSAGES = 1000
BATCH_BYTES = 1 << 20
"""Well below the 4 MiB that gRPC clients accept by default. A larger message is sent alone."""


async def streaming_pull(service: Service, requests: AsyncIterator[Any], context: Any) -> None:
    """Serve one stream until it ends."""
    try:
        first = await anext(aiter(requests), None)
        if first is None:
            raise refusals.invalid("The stream ended before its first request.")
        service.checks.check(STREAMING_PULL, first, context.invocation_metadata() or ())
        stream = _Stream(service, first)
        with service.waiting(stream.subscription.name) as event:
            reader = asyncio.create_task(stream.read(requests, event))
            try:
                await context.send_initial_metadata(())
                await stream.write(context, event)
            finally:
                reader.cancel()
    except PubSubRefusedError as refused:
        await abort(context, refused)


# The writer sends what the broker leases to the stream's consumer until its limits are reached, and
# then waits until it is woken. When the client half-closes the stream, its requests are still
# handled, and the stream ends with OK.
#
# Leases outlive their stream, as Google's do. A client should nack its messages before it closes
# the stream. Otherwise they are redelivered only after their deadlines.
class _Stream:
    """What a stream's reader and writer share."""

    def __init__(self, service: Service, first: Any) -> None:
        self.subscription: Subscription = service.broker.attached(first.subscription)
        self._service = service
        self._set_deadline(first.stream_ack_deadline_seconds)
        self._consumer = Consumer(
            max(first.max_outstanding_messages, 0), max(first.max_outstanding_bytes, 0)
        )
        self._confirmations: list[bytes] = []
        self._ended = False
        self._refused: PubSubRefusedError | None = None
        self._handle(first)

    async def read(self, requests: AsyncIterator[Any], event: asyncio.Event) -> None:
        try:
            async for request in requests:
                if request.subscription:
                    raise refusals.invalid(
                        "Only the first request of a stream may name the subscription."
                    )
                if request.stream_ack_deadline_seconds:
                    self._set_deadline(request.stream_ack_deadline_seconds)
                self._handle(request)
                self._service.wake()
                if self._confirmations:
                    event.set()
        except PubSubRefusedError as refused:
            self._refused = refused
        finally:
            self._ended = True
            event.set()

    async def write(self, context: Any, event: asyncio.Event) -> None:
        service, subscription = self._service, self.subscription
        deliveries, wrap = subscription.deliveries, subscription.envelopes.wrap
        while True:
            while self._confirmations:
                await context.write(self._confirmations.pop(0))
            if self._refused is not None:
                raise self._refused
            if self._ended:
                return
            service.check_open()
            if service.broker.attached(subscription.name) is not subscription:
                raise refusals.not_found(subscription.name)
            entries = deliveries.pull(
                BATCH_MESSAGES,
                service.now_us(),
                limit_bytes=BATCH_BYTES,
                consumer=self._consumer,
                deadline_us=self._deadline_us,
            )
            if entries:
                counted = bool(deliveries.settings.max_attempts)
                await context.write(wrap(entries, count_attempts=counted) + self._properties())
            else:
                event.clear()
                service.wake()
                await event.wait()

    def _properties(self) -> bytes:
        settings = self.subscription.deliveries.settings
        flags = b"\x08\x01" * settings.exactly_once + b"\x10\x01" * settings.ordered
        return encode_field(4, flags) if flags else b""

    def _handle(self, request: Any) -> None:
        """Apply a request's acks and deadlines; with exactly-once delivery, also confirm them."""
        if len(request.modify_deadline_ack_ids) != len(request.modify_deadline_seconds):
            raise refusals.invalid(
                f"The request has {len(request.modify_deadline_ack_ids)} values of "
                f"modify_deadline_ack_ids but {len(request.modify_deadline_seconds)} of "
                f"modify_deadline_seconds. Send one of each per message."
            )
        if request.ack_ids:
            self._ack(request.ack_ids)
        if request.modify_deadline_ack_ids:
            self._modify(request.modify_deadline_ack_ids, request.modify_deadline_seconds)

    def _ack(self, ack_ids: Sequence[str]) -> None:
        serials = self._serials(ack_ids)
        outcome = self.subscription.deliveries.ack(serials, self._service.now_us())
        self._confirm("acknowledge_confirmation", ack_ids, serials, outcome)

    def _modify(self, ack_ids: Sequence[str], seconds: Sequence[int]) -> None:
        deliveries, now_us = self.subscription.deliveries, self._service.now_us()
        serials = self._serials(ack_ids)
        groups: dict[int, list[int]] = {}
        for serial, wanted in zip(serials, seconds, strict=True):
            refusals.check_range("modify_deadline_seconds", wanted, 0, 600)
            groups.setdefault(wanted, []).append(serial)
        wrong = AckRefusals([], [])
        for wanted, group in groups.items():
            wrong.invalid.extend(deliveries.modify(group, wanted * SECOND_US, now_us).invalid)
        self._confirm("modify_ack_deadline_confirmation", ack_ids, serials, wrong)

    def _confirm(
        self, field: str, ack_ids: Sequence[str], serials: Sequence[int], outcome: AckRefusals
    ) -> None:
        if not self.subscription.deliveries.settings.exactly_once:
            return
        wrong, unordered = set(outcome.invalid), set(outcome.unordered)
        response = Response()
        confirmed = getattr(response, field)
        for ack_id, serial in zip(ack_ids, serials, strict=True):
            if serial in wrong:
                confirmed.invalid_ack_ids.append(ack_id)
            elif serial in unordered:
                confirmed.unordered_ack_ids.append(ack_id)
            else:
                confirmed.ack_ids.append(ack_id)
        self._confirmations.append(response.SerializeToString() + self._properties())

    def _serials(self, ack_ids: Sequence[str]) -> list[int]:
        """Return the serials; 0 for a malformed id, because one bad id must not end the stream."""
        serial, serials = self.subscription.envelopes.serial, []
        for ack_id in ack_ids:
            try:
                serials.append(serial(ack_id))
            except ValueError:
                serials.append(0)
        return serials

    def _set_deadline(self, seconds: int) -> None:
        refusals.check_range("stream_ack_deadline_seconds", seconds, 10, 600)
        self._deadline_us = seconds * SECOND_US
