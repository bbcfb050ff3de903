"""Publishes messages in batches, with several requests in flight.

A background thread sends a request when `batchSize` messages or `maxBatchBytes` bytes are queued,
`lingerMs` after the first of them was queued, or at once if a `flush` waits for it. It then waits
for the answer, while further threads send what is due; there are as many of them as requests were
ever in flight. (gRPC's own way to have several requests in flight starts a thread for nearly every
request, if requests are rare.) `add` blocks only while the queue is full.

Messages with an ordering key are sent in requests for that key alone, as Pub/Sub requires. Only one
request per key is in flight at a time, so messages of a key arrive in order.

Note: when `add` returns, nothing is published yet. A message is published once a `flush` that was
called after its `add` has returned. If any request fails for good, `flush` and the next `add` raise
the error. Requests may end in any order, so unpublished messages are counted per mark: each message
belongs to the first mark set after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from epochal.connectors.pubsub.connection import PUBLISHER, Connection, status_of
from epochal.connectors.pubsub.protobuf_wire import encode_field
from epochal.connectors.pubsub.pubsub_options import SinkOptions
from epochal.errors import PubSubClosedError

logger = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 32 << 20
CLOSE_S = 2.0


@dataclass(slots=True)
class _Queue:
    """Messages of one ordering key (or of none) that are not sent yet."""

    since: float
    messages: deque[bytes] = field(default_factory=deque)
    runs: deque[tuple[int, int]] = field(default_factory=deque)
    """(mark, number of messages that belong to it), in the order of the messages."""
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """The messages of one request."""

    key: str
    messages: list[bytes]
    runs: list[tuple[int, int]]
    size: int


class Publisher:
    """Sends one writer's messages to one topic. It owns the connection and closes it."""

    def __init__(self, connection: Connection, options: SinkOptions) -> None:
        self._connection, self._options, self._topic = connection, options, options.topic
        self._linger_s = options.linger_ms / 1000
        self._head = encode_field(1, self._topic.encode())
        self._lock = threading.Lock()
        # Each side waits on its own condition, because a needless wake-up costs more than a row:
        # threads for something to send, callers for answers.
        self._work = threading.Condition(self._lock)
        self._answered = threading.Condition(self._lock)
        self._queues: dict[str, _Queue] = {}
        # Ordering keys that have a request in flight.
        self._busy: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._idle = 0  # threads that wait
        self.requests = self.retries = 0
        self._queued_bytes = 0
        # The mark that messages added now belong to. Those of earlier marks do not linger.
        self._mark = 0
        # Unpublished messages per mark. A mark with none has no entry.
        self._pending: Counter[int] = Counter()
        self._failure: Exception | None = None
        self._closing = False

    def add(self, messages: Sequence[bytes], keys: Sequence[str] | None = None) -> None:
        """Queue messages that `Encoder` has encoded."""
        size = sum(map(len, messages))
        with self._lock:
            # An empty queue accepts any size. Otherwise one large call could never proceed.
            while self._queued_bytes > 0 and self._queued_bytes + size > MAX_QUEUED_BYTES:
                self._check()
                self._answered.wait(1.0)
            self._check()
            now = time.monotonic()
            if keys is None:
                wake = self._enqueue("", messages, size, now)
            else:
                wake = False
                for message, key in zip(messages, keys, strict=True):
                    wake |= self._enqueue(key, (message,), len(message), now)
            self._pending[self._mark] += len(messages)
            self._queued_bytes += size
            if wake:
                self._wake()

    def mark(self) -> int:
        """Set a mark after everything added so far, and send that without lingering."""
        with self._lock:
            self._mark += 1
            self._wake()
            return self._mark - 1

    def flush(self, mark: int | None = None) -> None:
        """Wait until everything up to a mark (default: up to now) is published, or raise."""
        mark = self.mark() if mark is None else mark
        with self._lock:
            while not self._is_published(mark):
                self._check()
                self._answered.wait(1.0)
            self._check()

    def is_published(self, mark: int) -> bool:
        """Whether everything up to a mark is published; raises if any request failed for good."""
        with self._lock:
            self._check()
            return self._is_published(mark)

    def close(self) -> None:
        """Stop. Messages that were not flushed may or may not be published."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
            self._answered.notify_all()
        self._connection.close()
        end = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))

    def _is_published(self, mark: int) -> bool:
        return not any(number <= mark for number in self._pending)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise PubSubClosedError(f"The writer to {self._topic} is closed.")

    def _enqueue(self, key: str, messages: Sequence[bytes], size: int, now: float) -> bool:
        """Queue messages of a key. Return whether a thread must look: it is new or full."""
        queue = self._queues.get(key)
        new = queue is None
        if queue is None:
            queue = self._queues[key] = _Queue(now)
        queue.messages.extend(messages)
        queue.runs.append((self._mark, len(messages)))
        queue.size += size
        return new or self._is_full(queue)

    def _is_full(self, queue: _Queue) -> bool:
        options = self._options
        return len(queue.messages) >= options.batch_size or queue.size >= options.max_batch_bytes

    def _wake(self) -> None:
        """Let a thread look at the queues, if there are any; a new one, if all are busy."""
        if not self._queues:
            return
        if self._idle:
            self._work.notify()
        elif len(self._threads) < self._options.max_in_flight:
            thread = threading.Thread(target=self._run, name="pubsub-publisher", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._send(batch)
        except Exception as error:  # noqa: BLE001 - `add` and `flush` must raise any error
            with self._lock:
                if not self._closing:
                    logger.error("%s: %s", self._topic, error)
                self._failure = self._failure or error
                self._work.notify_all()
                self._answered.notify_all()

    def _next(self) -> _Batch | None:
        """Wait for the next request to send; None if there will be none."""
        with self._lock:
            while not self._closing and self._failure is None:
                batch = self._due()
                if batch is not None:
                    self._wake()  # this thread is busy now, so another one must watch the rest
                    return batch
                self._idle += 1
                self._work.wait(self._wait_s())
                self._idle -= 1
            return None

    def _due(self) -> _Batch | None:
        """Take the next request that is full or old enough and allowed now; None if none is."""
        now = time.monotonic()
        for key, queue in self._queues.items():
            ready = (
                queue.runs[0][0] < self._mark
                or self._is_full(queue)
                or now - queue.since >= self._linger_s
            )
            if ready and key not in self._busy:
                return self._take(key, queue)
        return None

    def _take(self, key: str, queue: _Queue) -> _Batch:
        options, waiting = self._options, queue.messages
        taken: list[bytes] = []
        size = 0
        while waiting and len(taken) < options.batch_size:
            message = waiting[0]
            if taken and size + len(message) > options.max_batch_bytes:
                break
            taken.append(waiting.popleft())
            size += len(message)
        queue.size -= size
        if not waiting:
            del self._queues[key]
        if key:
            self._busy.add(key)
        self.requests += 1
        return _Batch(key, taken, _first_runs(queue.runs, len(taken)), size)

    def _wait_s(self) -> float | None:
        """Seconds until a queue has lingered long enough; None if only an event can unblock us."""
        free = [queue.since for key, queue in self._queues.items() if key not in self._busy]
        if not free:
            return None
        return max(min(free) + self._linger_s - time.monotonic(), 0.0)

    def _send(self, batch: _Batch) -> None:
        """Send a request, and retry while that is allowed.

        It counts as in flight all the time, so that no later request of the same ordering key
        overtakes it.
        """
        request, topic = b"".join((self._head, *batch.messages)), self._topic
        connection, failures = self._connection, 0
        began = connection.retry.monotonic()
        while True:
            try:
                connection.once(PUBLISHER, "Publish", request, resource=topic)
                break
            except grpc.RpcError as error:
                failures += 1
                status = status_of(error)
            connection.wait_after(status, failures, began, what="publishing to", resource=topic)
            with self._lock:
                self.retries += 1
        with self._lock:
            # A queue of the same key may be due now: this thread looks for it next.
            self._busy.discard(batch.key)
            for mark, count in batch.runs:
                self._pending[mark] -= count
                if not self._pending[mark]:
                    del self._pending[mark]
            self._queued_bytes -= batch.size
            self._answered.notify_all()


def _first_runs(runs: deque[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Remove and return the runs of the first `count` messages."""
    taken = []
    while count:
        mark, length = runs.popleft()
        if length > count:
            runs.appendleft((mark, length - count))
            length = count
        taken.append((mark, length))
        count -= length
    return taken
