"""A channel to Pub/Sub and its single calls: each with a deadline, retried by the error protocol.

Requests and answers are bytes here; only the rare calls that manage subscriptions build objects.

What a reader would get wrong: never open one before Spark has started in the same process, nor
fork afterwards. gRPC's threads do not survive a fork; `subprocess` is safe.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

import grpc

from epochal.connectors.pubsub.credentials import find_credentials
from epochal.connectors.pubsub.pubsub_options import Access, SourceOptions, emulator_host
from epochal.connectors.pubsub.statuses import Backoff, failure, judge
from epochal.errors import PubSubClosedError, PubSubFailedError

logger = logging.getLogger(__name__)

PUBLISHER, SUBSCRIBER = "google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber"
MAX_MESSAGE_BYTES = 64 << 20
_LIMITS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 4 << 20),  # confirmations per id come as metadata
    ("grpc.use_local_subchannel_pool", 1),
)
# Google's emulator throws out who pings every 30 s; a dead peer on loopback is noticed anyway.
_KEEPALIVE: tuple[tuple[str, Any], ...] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


@dataclass(frozen=True, slots=True)
class Retry:
    """How single calls are retried; tests inject the chance and the clock."""

    backoff: Backoff = field(default_factory=Backoff)
    chance: Callable[[], float] = field(default_factory=lambda: Random().random)
    monotonic: Callable[[], float] = time.monotonic


class Connection:
    """One channel. Any thread may use it; `close` wakes those that wait for a retry."""

    def __init__(self, access: Access, *, retry: Retry | None = None) -> None:
        self._access = access
        self._retry = retry or Retry()
        self._closed = threading.Event()
        self._channel = open_channel(access)
        self._calls: dict[str, Any] = {}

    @property
    def retry(self) -> Retry:
        return self._retry

    @property
    def retry_timeout_s(self) -> float:
        return self._access.retry_timeout / timedelta(seconds=1)

    @property
    def request_timeout_s(self) -> float:
        return self._access.request_timeout / timedelta(seconds=1)

    def stream(self, path: str) -> Any:
        """A bidirectional call over raw bytes."""
        return self._channel.stream_stream(path)

    def future(self, service: str, method: str, request: bytes) -> Any:
        """Start a single call; the caller waits for it and judges its status."""
        return self._call(service, method).future(request, timeout=self.request_timeout_s)

    def call(self, service: str, method: str, request: bytes, *, what: str, resource: str) -> bytes:
        """Make a single call, again if it may be; raises PubSubFailedError once it may not."""
        retry, failures = self._retry, 0
        start = retry.monotonic()
        while True:
            if self._closed.is_set():
                raise PubSubClosedError(f"{what} {resource}: the connection is closed.")
            try:
                answer: bytes = self._call(service, method)(request, timeout=self.request_timeout_s)
                return answer
            except grpc.RpcError as error:
                failures += 1
                status = status_of(error)
                self.wait_after(status, failures, start, what=what, resource=resource)

    def wait_after(
        self, status: tuple[str, str], failures: int, start: float, *, what: str, resource: str
    ) -> None:
        """Wait as the error protocol says before trying again, or raise: it says not to."""
        code, text = status
        tried_s = self._retry.monotonic() - start
        if not judge(code, text).retryable:
            raise failure(what, resource, code, text)
        wait_s = self._retry.backoff.wait_s(failures, self._retry.chance())
        if tried_s + wait_s > self.retry_timeout_s:
            raise failure(what, resource, code, text, tried_s=tried_s)
        logger.info(
            "%s %s: %s: %s; trying again in %.2f s (failure %d)",
            *(what, resource, code, text, wait_s, failures),
        )
        self._closed.wait(wait_s)

    def close(self) -> None:
        self._closed.set()
        self._channel.close()

    def _call(self, service: str, method: str) -> Any:
        path = f"/{service}/{method}"
        found = self._calls.get(path)
        if found is None:
            found = self._calls[path] = self._channel.unary_unary(path)
        return found


def open_channel(access: Access) -> Any:
    """A channel to the emulator without encryption, or to Google with credentials."""
    emulator = emulator_host(access)
    if emulator:
        return grpc.insecure_channel(emulator, _LIMITS)
    import google.auth.transport.grpc
    import google.auth.transport.requests

    credentials, _ = find_credentials(access)
    return google.auth.transport.grpc.secure_authorized_channel(
        credentials,
        google.auth.transport.requests.Request(),
        access.endpoint,
        options=_LIMITS + _KEEPALIVE,
    )


def status_of(error: Any) -> tuple[str, str]:
    """gRPC's name of a status, and what was said with it."""
    code = error.code()
    return ("UNKNOWN" if code is None else code.name), error.details() or ""


def refused_ids(error: Any) -> Mapping[str, str]:
    """Why single acknowledgement ids were refused, as exactly-once delivery reports it."""
    from google.rpc import error_details_pb2, status_pb2

    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        status = status_pb2.Status.FromString(value)
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                return dict(info.metadata)
    return {}


class Subscriptions:
    """The calls that manage a subscription: on the driver, at the start and the end of a query."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ensure(self, options: SourceOptions) -> Any:
        """The subscription's description; created if that was asked for and it does not exist."""
        try:
            return self.describe(options.subscription)
        except PubSubFailedError as error:
            if error.code != "NOT_FOUND" or not options.create_subscription:
                raise
        from google.pubsub_v1.types import pubsub

        wanted = pubsub.Subscription(
            name=options.subscription,
            topic=options.topic,
            ack_deadline_seconds=int(options.ack_deadline / timedelta(seconds=1)),
        )
        try:
            answer = self._ask("CreateSubscription", wanted, "creating", options.subscription)
        except PubSubFailedError as error:
            if error.code != "ALREADY_EXISTS":  # somebody was faster
                raise
            return self.describe(options.subscription)
        return pubsub.Subscription.deserialize(answer)

    def describe(self, name: str) -> Any:
        from google.pubsub_v1.types import pubsub

        request = pubsub.GetSubscriptionRequest(subscription=name)
        answer = self._ask("GetSubscription", request, "looking at", name)
        return pubsub.Subscription.deserialize(answer)

    def delete(self, name: str) -> None:
        """Delete a subscription; that it is gone already is fine."""
        from google.pubsub_v1.types import pubsub

        request = pubsub.DeleteSubscriptionRequest(subscription=name)
        try:
            self._ask("DeleteSubscription", request, "deleting", name)
        except PubSubFailedError as error:
            if error.code != "NOT_FOUND":
                raise

    def seek(self, name: str, target: datetime | str) -> None:
        """Go to a moment, or to a snapshot by its full name."""
        from google.pubsub_v1.types import pubsub

        where = {"snapshot": target} if isinstance(target, str) else {"time": target}
        self._ask("Seek", pubsub.SeekRequest(subscription=name, **where), "seeking in", name)

    def _ask(self, method: str, request: Any, what: str, resource: str) -> bytes:
        payload = type(request).serialize(request)
        return self._connection.call(SUBSCRIBER, method, payload, what=what, resource=resource)
