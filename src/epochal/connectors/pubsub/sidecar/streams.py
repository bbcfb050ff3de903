"""The streams that one sidecar reads for one query, with one number space for their messages.

A single StreamingPull is limited, by Google to about 10 MB per second. So a sidecar opens several
of them, each with its own share of the limits and a thread that takes what arrives. A message's
number says which stream it came from, because that stream must acknowledge it.

Note: Pub/Sub delivers all messages of an ordering key to one stream while any of them is
outstanding. So rows of a key stay in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from epochal.connectors.pubsub.connection import Connection
from epochal.connectors.pubsub.pubsub_options import SourceOptions
from epochal.connectors.pubsub.pull.ack_leases import Span
from epochal.connectors.pubsub.pull.streaming_pull import MAX_QUEUED_BYTES, Puller, PullStats

MAX_STREAMS = 4
TAKEN_ROWS = 50_000
_SHIFT = 48
"""A stream numbers its messages from 0; its place is added in the bits above."""


def stream_count(options: SourceOptions) -> int:
    """Return how many streams a sidecar opens: one per partition of a batch, up to MAX_STREAMS."""
    return min(options.num_partitions or 1, MAX_STREAMS)


class Streams:
    """Reads with several streams. `arrived` gets rows and their first number, on many threads."""

    def __init__(
        self,
        options: SourceOptions,
        arrived: Callable[[pa.RecordBatch, int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._options, self._arrived, self._failed = options, arrived, failed
        self._closing = threading.Event()
        self._pullers: list[Puller] = []
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        options, count = self._options, stream_count(self._options)
        share = replace(
            options,
            max_outstanding_messages=max(1, options.max_outstanding_messages // count),
            max_outstanding_bytes=max(1, options.max_outstanding_bytes // count),
        )
        queued = MAX_QUEUED_BYTES // count
        self._pullers = [
            Puller(Connection(options), share, max_queued_bytes=queued) for _ in range(count)
        ]
        self._threads = [
            threading.Thread(target=self._take, args=(place,), name="pubsub-taker", daemon=True)
            for place in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def degraded_s(self) -> float:
        """How long one of the streams has not been able to reach Pub/Sub; 0 if all can."""
        return max((puller.degraded_s for puller in self._pullers), default=0.0)

    def stats(self) -> list[PullStats]:
        return [puller.stats() for puller in self._pullers]

    def ack(self, spans: Sequence[Span]) -> Future[dict[int, str]]:
        """Acknowledge messages; the future returns the refused numbers when all are answered."""
        parts = dict(self._by_stream(spans))
        done: Future[dict[int, str]] = Future()
        refused: dict[int, str] = {}
        if not parts:
            done.set_result(refused)
        left = len(parts)
        lock = threading.Lock()

        def on_part(place: int, part: Future[dict[int, str]]) -> None:
            nonlocal left
            error = part.exception()
            with lock:
                left -= 1
                if error is None:
                    first = place << _SHIFT
                    refused.update({first + n: why for n, why in part.result().items()})
                finished = left == 0
            if error is not None and not done.done():
                done.set_exception(error)
            elif finished and not done.done():
                done.set_result(refused)

        for place, own in parts.items():
            future = self._pullers[place].ack(own)
            future.add_done_callback(lambda part, place=place: on_part(place, part))  # type: ignore[misc]
        return done

    def nack(self, spans: Sequence[Span]) -> None:
        for place, own in self._by_stream(spans):
            self._pullers[place].nack(own)

    def close(self) -> None:
        """Give all messages back, and stop."""
        self._closing.set()
        with ThreadPoolExecutor(max(len(self._pullers), 1)) as pool:
            for puller in self._pullers:
                pool.submit(puller.close)
        for thread in self._threads:
            thread.join(2.0)

    def _take(self, place: int) -> None:
        try:
            while not self._closing.is_set():
                pulled = self._pullers[place].take(TAKEN_ROWS, timeout_s=1.0)
                if pulled is not None:
                    self._arrived(pulled.batch, (place << _SHIFT) + pulled.first)
        except Exception as error:  # noqa: BLE001 - any error must fail the query
            if not self._closing.is_set():
                self._failed(error)

    def _by_stream(self, spans: Sequence[Span]) -> Iterator[tuple[int, list[Span]]]:
        """Yield each stream's place and its own numbers. No span covers two streams."""
        for place in range(len(self._pullers)):
            first = place << _SHIFT
            own = [(low - first, high - first) for low, high in spans if low >> _SHIFT == place]
            if own:
                yield place, own
