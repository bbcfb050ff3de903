"""At least once into Kafka: every task writes its own rows as they come, and waits for them to
arrive before it reports an epoch.

What a reader would get wrong: while an epoch's rows are awaited, those of the next are not handed
to the client but kept aside. A flush ends when the client's queue is empty, and under load it
never would be.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from epochal.connectors.contract import Prepare, WriterContext
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.sink_rows import RecordPlan


@dataclass(frozen=True, slots=True)
class PlainWriters:
    """Opens writers in tasks."""

    plan: RecordPlan
    settings: Mapping[str, str]
    max_message_bytes: int

    def open(self, context: WriterContext) -> PlainWriter:
        del context
        return PlainWriter(self.plan, RecordProducer(self.settings), self.max_message_bytes)


class PlainWriter:
    """One task's producer. The data thread writes; the one that prepares waits for arrivals."""

    def __init__(self, plan: RecordPlan, producer: RecordProducer, max_message_bytes: int) -> None:
        self._plan, self._producer, self._max_bytes = plan, producer, max_message_bytes
        # The one topic of all rows was asked for when the query started; brokers may be away now.
        self._asks = plan.topic is None or "partition" in plan.columns
        self._lock = threading.Lock()
        self._flushing = False
        self._waiting: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            if self._flushing:
                self._waiting.append(batch)
            else:
                self._send(batch)

    def cut(self, epoch: int) -> Prepare:
        del epoch
        return self._prepare

    def close(self) -> None:
        self._producer.close()

    def _prepare(self) -> bytes:
        """Wait for all that was written so far. Rows of the next epoch among it do no harm."""
        with self._lock:
            self._flushing = True
        try:
            self._producer.flush()
        finally:
            with self._lock:
                self._flushing = False
                waiting, self._waiting = self._waiting, []
                for batch in waiting:
                    self._send(batch)
        return b""

    def _send(self, batch: pa.RecordBatch) -> None:
        chosen = self._plan.chosen(batch)
        self._plan.check(chosen, self._max_bytes)
        if self._asks:
            self._producer.check_places(self._plan.places(chosen))
        self._producer.send(self._plan.records(chosen))
