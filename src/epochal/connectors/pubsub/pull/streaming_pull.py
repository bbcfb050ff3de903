"""Pulls one subscription's messages as Arrow batches and holds their leases until they are settled.

Three threads run beside gRPC's own:

    stream   reads raw responses into a bounded queue and decodes them when many have gathered;
             reconnects when the stream ends
    leases   extends the leases of everything held, three times per deadline
    settler  sends the acks and nacks that were requested since its last round

`take` decodes smaller amounts on the caller's thread. The leases thread decodes too: a message has
no lease to extend until it is decoded, and there may be no call of `take` for a long time. One lock
guards the queues, another the decoding. Each thread waits on its own condition, because a needless
wake-up costs more than a message.

Note: only the bytes in the queue are bounded here. Messages that were taken are held by the caller;
the server stops sending at `max_outstanding_messages` until some are settled. After a fatal error,
the next `take` raises it and drops what is still queued. Nothing is lost, because those messages
were not acknowledged. That Pub/Sub cannot be reached is not fatal unless `retryTimeout` says so,
and only the stream decides it: an acknowledgement that gets no answer just means a redelivery.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import grpc
import pyarrow as pa

from epochal.connectors.pubsub.connection import Connection, status_of
from epochal.connectors.pubsub.protobuf_wire import encode_field, encode_varint
from epochal.connectors.pubsub.pubsub_options import SourceOptions
from epochal.connectors.pubsub.pull.ack_leases import LeaseBook, Span, id_rows
from epochal.connectors.pubsub.pull.hand_back import HandBack
from epochal.connectors.pubsub.pull.received_rows import decode
from epochal.connectors.pubsub.pull.send_acks import Settler
from epochal.errors import PubSubClosedError, PubSubUnavailableError

logger = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
LIVED_S = 60.0
"""A stream that lasted this long counts as a success, even without a message."""
DECODE_BYTES = 4 << 20
GATHER_RESPONSES, GATHER_BYTES = 40, 4 << 20
GATHER_S, BUSY_GATHER_S, BUSY_BYTES = 0.002, 0.01, 256 << 10
"""Decoding one response costs as much as decoding ten small ones. So on a busy stream responses
gather first, and longer if the last decoding had BUSY_BYTES: then throughput matters more than
latency."""
HALF_CLOSE_S = 3.0
MAX_QUEUED_BYTES = 64 << 20
"""The limit of what is received but not taken yet."""
READING = "reading"
"""What the stream does, for errors."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """Messages in ACK_SCHEMA, numbered from `first`."""

    first: int
    batch: pa.RecordBatch
    size: int = 0
    """Bytes of the responses that contained them. Arrow takes longer to count its own."""

    @property
    def span(self) -> Span:
        return self.first, self.first + self.batch.num_rows

    def split(self, rows: int) -> tuple[Pulled, Pulled]:
        """Return the first `rows` messages, and the rest."""
        size = self.size * rows // self.batch.num_rows
        head = Pulled(self.first, self.batch.slice(0, rows), size)
        return head, Pulled(self.first + rows, self.batch.slice(rows), self.size - size)


class Puller:
    """One StreamingPull and the leases of its messages. It owns the connection and closes it.

    `hand_back` is told what this stream, number `stream` of the process, holds. Its messages are
    numbered from `first_number`.
    """

    def __init__(
        self,
        connection: Connection,
        options: SourceOptions,
        *,
        hand_back: HandBack | None = None,
        stream: int = 0,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        first_number: int = 0,
    ) -> None:
        self._connection, self._subscription = connection, options.subscription
        self._ack_deadline_s = int(options.ack_deadline / timedelta(seconds=1))
        self._max_messages = options.max_outstanding_messages
        self._max_bytes, self._max_queued_bytes = options.max_outstanding_bytes, max_queued_bytes
        self._hand_back, self._stream = hand_back, stream
        self._settler = Settler(connection, self._subscription)
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._to_settle = threading.Condition(self._lock)
        self._decoding = threading.Lock()
        self._raw: deque[bytes] = deque()
        self._ready: deque[Pulled] = deque()
        self._raw_bytes = self._ready_bytes = 0
        self._decoded_at, self._gather_s = 0.0, GATHER_S
        self.book = LeaseBook(first_number)
        self._acks: list[tuple[Sequence[Span], Future[dict[int, str]]]] = []
        self._nacks: list[Span] = []
        self._failure: Exception | None = None
        self._closing = self._settled_all = False
        self._client_id = str(uuid.uuid4())
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = None
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"pubsub-{name}", daemon=True)
            for name, work in (
                ("stream", self._run_stream),
                ("leases", self._run_leases),
                ("settler", self._run_settler),
            )
        ]
        for thread in self._threads:
            thread.start()

    def take(self, max_rows: int, *, timeout_s: float = 0.0) -> Pulled | None:
        """Return the next messages, or None after `timeout_s`. Raises the stream's fatal error."""
        end = time.monotonic() + timeout_s
        with self._lock:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._closing:
                    raise _closed_error(self._subscription)
                now = time.monotonic()
                due = self._due(now)
                if due <= now:
                    break
                if now >= end:
                    return None
                self._arrived.wait(min(due, end) - now)
        # Without the lock: the stream goes on receiving while this thread decodes.
        if not self._ready:
            self._decode()
        with self._lock:
            if not self._ready:
                return None
            pulled = self._ready.popleft()
            if pulled.batch.num_rows > max_rows:
                pulled, rest = pulled.split(max_rows)
                self._ready.appendleft(rest)
            self._ready_bytes -= pulled.size
            self._room.notify_all()
            return pulled

    def ack(self, spans: Sequence[Span]) -> Future[dict[int, str]]:
        """Acknowledge on the settler's thread. The future returns the numbers that were refused.

        Without exactly-once delivery Pub/Sub never refuses an ack, and never confirms one either.
        """
        future: Future[dict[int, str]] = Future()
        with self._lock:
            if self._failure is not None or self._settled_all:
                future.set_exception(self._failure or _closed_error(self._subscription))
                return future
            # Still accepted after `close` began: it sends these before it nacks what is left.
            self._acks.append((spans, future))
            self._to_settle.notify_all()
        return future

    def nack(self, spans: Sequence[Span]) -> None:
        """Give messages back for immediate redelivery, on the settler's thread."""
        with self._lock:
            self._nacks += spans
            self._to_settle.notify_all()

    @property
    def queued_bytes(self) -> int:
        """How much has been received but not taken yet."""
        return self._raw_bytes + self._ready_bytes

    @property
    def degraded_s(self) -> float:
        """How long Pub/Sub has not been reachable; 0 if it is. Retries go on meanwhile."""
        trouble = self._connection.trouble()
        return 0.0 if trouble is None else max(time.monotonic() - trouble.since_s, 0.001)

    @property
    def failure(self) -> Exception | None:
        """The fatal error of the stream, if there was one."""
        return self._failure

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Half-close the stream, send the acks that were requested, and nack the rest.

        The half-close comes first: the server would redeliver nacked messages to a stream that is
        still open.
        """
        end = time.monotonic() + timeout_s
        stream, leases, settler = self._threads
        with self._lock:
            if self._closing and self._settled_all:
                return
            self._closing = True
            self._requests.put(None)
            self._wake_all()
        stream.join(min(HALF_CLOSE_S, timeout_s))
        if stream.is_alive() and self._call is not None:
            self._call.cancel()
            stream.join(1.0)
        try:
            self._decode(everything=True)
        except Exception as error:  # noqa: BLE001 - still nack the messages that were decoded
            logger.warning("%s: the last messages cannot be decoded: %s", self._subscription, error)
        with self._lock:
            self._nacks += self.book.spans()
            self._settled_all = True
            self._wake_all()
        self._stop.set()
        settler.join(max(end - time.monotonic(), 0.1))
        self._connection.close()
        settler.join(1.0)
        leases.join(1.0)

    def _wake_all(self) -> None:
        for condition in (self._arrived, self._room, self._to_settle):
            condition.notify_all()

    def _due(self, now: float) -> float:
        """When the next messages can be taken. Raw responses gather while the stream is busy."""
        if self._ready:
            return now
        return self._decoded_at + self._gather_s if self._raw else math.inf

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if self._failure is None and not self._closing:
                logger.error("%s: %s", self._subscription, error)
                self._failure = error
            self._requests.put(None)
            self._wake_all()

    # The stream's thread.

    def _run_stream(self) -> None:
        try:
            self._stream_and_reconnect()
        except Exception as error:  # noqa: BLE001 - `take` must raise any error
            self._fail(error)

    def _stream_and_reconnect(self) -> None:
        retry, failures, start = self._connection.retry, 0, 0.0
        while not self._closing:
            opened, good = retry.monotonic(), False
            try:
                for raw in self._open():
                    good = True
                    self._receive(raw)
                status = ("OK", "the server ended the stream")
            except grpc.RpcError as error:
                status = status_of(error)
            if self._closing or self._failure is not None:
                return
            if good or retry.monotonic() - opened > LIVED_S:
                failures = 0
            if failures == 0:
                start = retry.monotonic()
            failures += 1
            resource = self._subscription
            self._connection.wait_after(status, failures, start, what=READING, resource=resource)

    def _open(self) -> Iterator[bytes]:
        # Each stream has its own queue: gRPC's thread for the one before may still wait at the old
        # one, and would swallow the request that ends this stream.
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(
            encode_field(1, self._subscription.encode())
            + (b"\x28" + encode_varint(self._ack_deadline_s))
            + encode_field(6, self._client_id.encode())
            + (b"\x38" + encode_varint(self._max_messages))
            + (b"\x40" + encode_varint(self._max_bytes))
        )
        with self._lock:
            if self._closing:
                return iter(())
            self._requests = requests
            call = self._connection.stream(_heartbeats(requests), self._subscription)
            self._call = call
        # The server sends metadata once it has accepted the stream, or with its first message.
        call.initial_metadata()
        if call.is_active():
            self._connection.recovered(READING)
        return cast(Iterator[bytes], iter(call))

    def _receive(self, raw: bytes) -> None:
        with self._lock:
            self._raw.append(raw)
            self._raw_bytes += len(raw)
            gathered = len(self._raw) >= GATHER_RESPONSES or self._raw_bytes >= GATHER_BYTES
            if len(self._raw) == 1:
                self._arrived.notify_all()
            # Not every server respects the limits it was given; Google's emulator does not.
            while (
                self.queued_bytes > self._max_queued_bytes
                or self.book.held > 2 * self._max_messages
            ) and not (self._closing or self._failure):
                self._room.wait(1.0)
        if gathered:
            self._decode()

    def _decode(self, *, everything: bool = False) -> None:
        """Decode raw responses into batches: about DECODE_BYTES, or everything.

        `_decoding` keeps two threads from decoding at once, so batches stay in the order in which
        their responses arrived.
        """
        with self._decoding:
            while True:
                with self._lock:
                    responses, size = [], 0
                    while self._raw and size < DECODE_BYTES:
                        responses.append(self._raw.popleft())
                        size += len(responses[-1])
                if not responses:
                    return
                batch = decode(responses)
                ids = id_rows(batch.column("ack_id"))
                # Before anyone can take the messages: else one could be settled there before it is
                # known. Both books number them in the order of these calls.
                if self._hand_back is not None and len(ids):
                    self._hand_back.held(self._stream, ids)
                with self._lock:
                    self._decoded_at = time.monotonic()
                    self._gather_s = GATHER_S if size < BUSY_BYTES else BUSY_GATHER_S
                    self._raw_bytes -= size
                    if len(ids):
                        self._ready.append(Pulled(self.book.add(ids), batch, size))
                        self._ready_bytes += size
                        self._arrived.notify_all()
                    self._room.notify_all()
                if not everything:
                    return

    # The threads of leases and acknowledgements.

    def _run_leases(self) -> None:
        every_s = self._ack_deadline_s / 3
        while not self._stop.wait(every_s):
            try:
                self._decode(everything=True)
                with self._lock:
                    lots = self.book.all_held()
                refused = self._settler.extend(lots, self._ack_deadline_s)
            except PubSubUnavailableError as error:
                logger.warning("leases were not extended: %s", error)
                continue
            except Exception as error:  # noqa: BLE001 - `take` must raise any error
                self._fail(error)
                return
            if refused:
                logger.warning(
                    "%s: %d leases were lost; their messages will be redelivered",
                    *(self._subscription, len(refused)),
                )

    def _run_settler(self) -> None:
        while True:
            with self._lock:
                while not (self._acks or self._nacks or self._settled_all):
                    self._to_settle.wait()
                acks, self._acks = self._acks, []
                nacks, self._nacks = self._nacks, []
                if not acks and not nacks:
                    return
                # Acks before nacks: a message in both is acknowledged, because it is processed.
                to_ack = self.book.settle([span for spans, _ in acks for span in spans])
                to_nack = self.book.settle(nacks)
                self._room.notify_all()
            try:
                refused = self._settler.acknowledge(to_ack)
                self._settler.extend(to_nack, 0)
                if self._hand_back is not None:
                    done = [span for spans, _ in acks for span in spans]
                    self._hand_back.settled(self._stream, [*done, *nacks])
            except Exception as error:  # noqa: BLE001 - the futures and `take` must raise any error
                for _, future in acks:
                    future.set_exception(error)
                if not isinstance(error, PubSubUnavailableError):
                    self._fail(error)
                continue
            for spans, future in acks:
                future.set_result(_within(refused, spans))


def _within(refused: dict[int, str], spans: Sequence[Span]) -> dict[int, str]:
    if not refused:
        return {}
    return {
        number: reason
        for number, reason in refused.items()
        if any(low <= number < high for low, high in spans)
    }


def _heartbeats(requests: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    """Yield the stream's requests, and an empty one every HEARTBEAT_S.

    Google ends streams on which the client stays silent.
    """
    while True:
        try:
            request = requests.get(timeout=HEARTBEAT_S)
        except queue.Empty:
            request = b""
        if request is None:
            return
        yield request


def _closed_error(subscription: str) -> PubSubClosedError:
    return PubSubClosedError(f"The reader of {subscription} is closed.")
