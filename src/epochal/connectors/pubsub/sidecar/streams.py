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
from epochal.connectors.pubsub.pull.streaming_pull import MAX_QUEUED_BYTES, Puller

MAX_STREAMS = 4
"""A sidecar opens one stream per partition of a batch, up to this many."""
TAKEN_ROWS = 50_000
_SHIFT = 48
"""A stream numbers its messages from its place, shifted to the left by this many bits."""


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
        self.pullers: list[Puller] = []
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        options = self._options
        count = min(options.num_partitions or 1, MAX_STREAMS)
        share = replace(
            options,
            max_outstanding_messages=max(1, options.max_outstanding_messages // count),
            max_outstanding_bytes=max(1, options.max_outstanding_bytes // count),
        )
        queued = MAX_QUEUED_BYTES // count
        self.pullers = [
            Puller(
                Connection(options), share, max_queued_bytes=queued, first_number=place << _SHIFT
            )
            for place in range(count)
        ]
        self._threads = [
            threading.Thread(target=self._take, args=(puller,), name="pubsub-taker", daemon=True)
            for puller in self.pullers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def degraded_s(self) -> float:
        """How long one of the streams has not been able to reach Pub/Sub; 0 if all can."""
        return max((puller.degraded_s for puller in self.pullers), default=0.0)

    def ack(self, spans: Sequence[Span]) -> Future[dict[int, str]]:
        """Acknowledge messages; the future returns the refused numbers when all are answered."""
        parts = list(self._by_stream(spans))
        done: Future[dict[int, str]] = Future()
        refused: dict[int, str] = {}
        if not parts:
            done.set_result(refused)
        left = len(parts)
        lock = threading.Lock()

        def on_part(part: Future[dict[int, str]]) -> None:
            nonlocal left
            error = part.exception()
            with lock:
                left -= 1
                if error is None:
                    refused.update(part.result())
                finished = left == 0
            if error is not None and not done.done():
                done.set_exception(error)
            elif finished and not done.done():
                done.set_result(refused)

        for puller, own in parts:
            puller.ack(own).add_done_callback(on_part)
        return done

    def nack(self, spans: Sequence[Span]) -> None:
        for puller, own in self._by_stream(spans):
            puller.nack(own)

    def close(self) -> None:
        """Give all messages back, and stop."""
        self._closing.set()
        with ThreadPoolExecutor(max(len(self.pullers), 1)) as pool:
            for puller in self.pullers:
                pool.submit(puller.close)
        for thread in self._threads:
            thread.join(2.0)

    def _take(self, puller: Puller) -> None:
        try:
            while not self._closing.is_set():
                pulled = puller.take(TAKEN_ROWS, timeout_s=1.0)
                if pulled is not None:
                    self._arrived(pulled.batch, pulled.first)
        except Exception as error:  # noqa: BLE001 - any error must fail the query
            if not self._closing.is_set():
                self._failed(error)

    def _by_stream(self, spans: Sequence[Span]) -> Iterator[tuple[Puller, list[Span]]]:
        """Yield each stream and its own numbers. No span covers two streams."""
        for place, puller in enumerate(self.pullers):
            own = [span for span in spans if span[0] >> _SHIFT == place]
            if own:
                yield puller, own
