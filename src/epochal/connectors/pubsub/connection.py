"""A gRPC channel to Pub/Sub and its unary calls, each with a deadline and retried by `statuses`.

Requests and responses are raw bytes. Only the rare calls that manage subscriptions build objects.

Note: do not open a connection before Spark has started in the same process, and do not fork after
opening one. gRPC's threads do not survive a fork. `subprocess` is safe.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any
from urllib.parse import quote

import grpc

from epochal.connectors.pubsub.pubsub_options import (
    ROUTING_HEADER,
    Access,
    SourceOptions,
    emulator_host,
    find_credentials,
)
from epochal.connectors.pubsub.statuses import Backoff, failure, judge
from epochal.errors import PubSubClosedError, PubSubFailedError

logger = logging.getLogger(__name__)

PUBLISHER, SUBSCRIBER = "google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber"
MAX_MESSAGE_BYTES = 64 << 20
CALL_RETRY_S = 30.0
_LIMITS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 4 << 20),  # exactly-once delivery reports each id as metadata
    ("grpc.use_local_subchannel_pool", 1),
)
# Not used with an emulator: Google's disconnects clients that ping every 30 s. On loopback a dead
# peer is noticed without pings.
_KEEPALIVE: tuple[tuple[str, Any], ...] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


@dataclass(frozen=True, slots=True)
class Retry:
    """How unary calls are retried. Tests inject the randomness and the clock."""

    backoff: Backoff = field(default_factory=Backoff)
    chance: Callable[[], float] = field(default_factory=lambda: Random().random)
    monotonic: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class FailingCall:
    """A kind of call that keeps failing, and is being retried."""

    since_s: float
    text: str


class Connection:
    """One channel. It is thread-safe; `close` wakes threads that wait to retry."""

    def __init__(self, access: Access, *, retry: Retry | None = None) -> None:
        self.retry = retry or Retry()
        timeout = access.retry_timeout
        self.retry_timeout_s = math.inf if timeout is None else timeout / timedelta(seconds=1)
        """How long to retry; infinity for ever."""
        self._request_timeout_s = access.request_timeout / timedelta(seconds=1)
        self._closed = threading.Event()
        self._channel = open_channel(access)
        self._calls: dict[str, Any] = {}
        self._troubles: dict[str, FailingCall] = {}

    def stream(self, requests: Iterator[bytes], subscription: str) -> Any:
        call = self._channel.stream_stream(f"/{SUBSCRIBER}/StreamingPull")
        return call(requests, metadata=routing("StreamingPull", subscription))

    def future(self, service: str, method: str, request: bytes, *, resource: str) -> Any:
        """Start a unary call. The caller waits for it and handles its status."""
        return self._call(service, method).future(
            request, timeout=self._request_timeout_s, metadata=routing(method, resource)
        )

    def once(self, service: str, method: str, request: bytes, *, resource: str) -> bytes:
        """Make a unary call without retries; raises gRPC's own error."""
        answer: bytes = self._call(service, method)(
            request, timeout=self._request_timeout_s, metadata=routing(method, resource)
        )
        return answer

    def call(self, service: str, method: str, request: bytes, *, what: str, resource: str) -> bytes:
        """Make a unary call, with retries; raises PubSubFailedError when they end.

        `resource` is the full name of the resource in the request. These calls are made when a
        query starts and ends, so they are never retried for ever: somebody waits for them.
        """
        limit_s = CALL_RETRY_S if math.isinf(self.retry_timeout_s) else self.retry_timeout_s
        retry, failures = self.retry, 0
        start = retry.monotonic()
        while True:
            if self._closed.is_set():
                raise PubSubClosedError(f"{what} {resource}: the connection is closed.")
            try:
                return self.once(service, method, request, resource=resource)
            except grpc.RpcError as error:
                failures += 1
                status = status_of(error)
                self.wait_after(
                    status, failures, start, what=what, resource=resource, limit_s=limit_s
                )

    def wait_after(
        self,
        status: tuple[str, str],
        failures: int,
        start: float,
        *,
        what: str,
        resource: str,
        limit_s: float | None = None,
    ) -> None:
        """Wait before the next retry, or raise if the status or the time limit forbids one.

        `start` is the time of the first failure, or of the call. The limit is `retryTimeout`,
        unless another one is given.
        """
        limit_s = self.retry_timeout_s if limit_s is None else limit_s
        code, text = status
        tried_s = self.retry.monotonic() - start
        if not judge(code, text).retryable:
            raise failure(what, resource, code, text)
        wait_s = self.retry.backoff.wait_s(failures, self.retry.chance())
        if tried_s + wait_s > limit_s:
            raise failure(what, resource, code, text, tried_s=tried_s)
        trouble = FailingCall(time.monotonic(), f"{what} {resource}: {code}: {text}")
        if self._troubles.setdefault(what, trouble) is trouble:
            logger.warning("%s; retrying until it works again", trouble.text)
        logger.info(
            "%s %s: %s: %s; retrying in %.2f s (failure %d)",
            *(what, resource, code, text, wait_s, failures),
        )
        self._closed.wait(wait_s)

    def recovered(self, what: str) -> None:
        """Note that this kind of call works again."""
        trouble = self._troubles.pop(what, None)
        if trouble is not None:
            seconds = time.monotonic() - trouble.since_s
            logger.warning("works again after %.1f s: %s", seconds, trouble.text)

    def trouble(self) -> FailingCall | None:
        """Return what has been failing for the longest time and is being retried, if anything."""
        return min(list(self._troubles.values()), key=lambda call: call.since_s, default=None)

    def close(self) -> None:
        self._closed.set()
        self._channel.close()

    def _call(self, service: str, method: str) -> Any:
        path = f"/{service}/{method}"
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(path)
        return call


def routing(method: str, resource: str) -> tuple[tuple[str, str], ...]:
    """Return the header by which Google routes a call without reading the request.

    It names the request's field with the resource, and the resource. Requests that create something
    call the field `name`, all others call it by the kind of resource.
    """
    kind = resource.rpartition("/")[0].rpartition("/")[2]
    field = "name" if method.startswith("Create") else kind.removesuffix("s")
    return ((ROUTING_HEADER, f"{field}={quote(resource)}"),)


def open_channel(access: Access) -> Any:
    """Open a plaintext channel to the emulator, or an authenticated one to Google."""
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
    """Return the name of a gRPC status and its message."""
    code = error.code()
    return ("UNKNOWN" if code is None else code.name), error.details() or ""


def refused_ids(error: Any) -> Mapping[str, str]:
    """Return refused acknowledgement ids and the reasons, which exactly-once delivery reports."""
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


def prepare_subscription(options: SourceOptions, *, new: bool) -> None:
    """Fail now if the subscription cannot be read; create it if that is wanted.

    Only a new query seeks.
    """
    with closing(Connection(options)) as connection:
        calls = Subscriptions(connection)
        calls.ensure(options)
        if new and options.seek_target is not None:
            calls.seek(options.subscription, options.seek_target)


def delete_subscription(options: SourceOptions) -> None:
    """Delete the subscription, if it still exists."""
    with closing(Connection(options)) as connection:
        Subscriptions(connection).delete(options.subscription)


class Subscriptions:
    """Manages a subscription. The driver does this at the start and the end of a query."""

    def __init__(self, connection: Connection) -> None:
        from google.pubsub_v1.types import pubsub

        self._connection, self._types = connection, pubsub

    def ensure(self, options: SourceOptions) -> Any:
        """Look at the subscription; create it if it is missing and that is wanted.

        Returns its description, or None if the account may not read it.
        """
        try:
            description = self.look(options.subscription)
            if description is not None or not options.create_subscription:
                return description
        except PubSubFailedError as error:
            if error.code != "NOT_FOUND" or not options.create_subscription:
                raise
        wanted = self._types.Subscription(
            name=options.subscription,
            topic=options.topic,
            ack_deadline_seconds=int(options.ack_deadline / timedelta(seconds=1)),
        )
        try:
            response = self._ask("CreateSubscription", wanted, "creating", options.subscription)
        except PubSubFailedError as error:
            if error.code != "ALREADY_EXISTS":
                raise
            # Another process created it since `look`, or it existed and we may not look.
            return self.look(options.subscription)
        return self._types.Subscription.deserialize(response)

    def look(self, name: str) -> Any:
        """Return the subscription's description; None if the account may not read that.

        Reading does not need that permission, and roles/pubsub.subscriber does not include it. If
        the account may not read either, the stream fails with the reason.
        """
        try:
            request = self._types.GetSubscriptionRequest(subscription=name)
            response = self._ask("GetSubscription", request, "describing", name)
            return self._types.Subscription.deserialize(response)
        except PubSubFailedError as error:
            if error.code != "PERMISSION_DENIED":
                raise
            logger.info("%s is read without checking that it exists: %s", name, error)
            return None

    def delete(self, name: str) -> None:
        """Delete a subscription, if it still exists."""
        request = self._types.DeleteSubscriptionRequest(subscription=name)
        try:
            self._ask("DeleteSubscription", request, "deleting", name)
        except PubSubFailedError as error:
            if error.code != "NOT_FOUND":
                raise

    def seek(self, name: str, target: datetime | str) -> None:
        """Seek to a timestamp, or to a snapshot by its full name."""
        to = {"snapshot": target} if isinstance(target, str) else {"time": target}
        self._ask("Seek", self._types.SeekRequest(subscription=name, **to), "seeking in", name)

    def _ask(self, method: str, request: Any, what: str, resource: str) -> bytes:
        payload = type(request).serialize(request)
        return self._connection.call(SUBSCRIBER, method, payload, what=what, resource=resource)
