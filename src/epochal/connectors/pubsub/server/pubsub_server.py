"""Runs the embedded server on its own event loop until SIGINT or SIGTERM."""

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
from epochal.connectors.pubsub.server.broker import DEFAULT_MAX_BYTES, SEEDS, Broker
from epochal.connectors.pubsub.server.descriptions import SubscriptionPb, TopicPb
from epochal.connectors.pubsub.server.pull_stream import STREAMING_PULL, streaming_pull
from epochal.connectors.pubsub.server.refusals import CallChecks
from epochal.connectors.pubsub.server.service import Service
from epochal.errors import ComponentError

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
class Wanted:
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


def serve(wanted: Wanted, *, started: Callable[[str], None]) -> signal.Signals:
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
    service = Service(Broker(), SystemClock())
    return sorted([*service.publisher(), *service.subscriber(), STREAMING_PULL])


async def _serve(wanted: Wanted, clock: Clock, started: Callable[[str], None]) -> signal.Signals:
    # A client must never take a new message for one that it got before a restart.
    seed = secrets.randbelow(SEEDS) if wanted.seed is None else wanted.seed
    service = Service(Broker(seed=seed, max_bytes=wanted.max_bytes), clock, wanted.checks)
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
                request_deserializer=kind.pb().FromString,
                response_serializer=_serialised,
            )
            for name, (kind, decide) in table.items()
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


def _serialised(response: Any) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()
