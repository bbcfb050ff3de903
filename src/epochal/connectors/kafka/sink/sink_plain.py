"""At-least-once delivery to Kafka: each task writes its rows as they come.

Before a task reports an epoch, it waits until the epoch's rows have arrived.

Note: while a task waits for an epoch's rows, it keeps rows of the next epoch aside instead of
giving them to the client. A flush ends when the client's queue is empty, and under load the queue
would never be empty.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.connectors.contract import BadRows, Prepare, SinkWriter, WriterContext
from epochal.connectors.kafka.sink.producer import RecordProducer, RowPlaces
from epochal.connectors.kafka.sink.sink_rows import (
    Record,
    RecordPlan,
    places_of,
    small_batch_records,
)


@dataclass(frozen=True, slots=True)
class PlainWriters:
    """Opens writers in tasks."""

    plan: RecordPlan
    settings: Mapping[str, str] = field(repr=False)
    max_message_bytes: int

    def open(self, context: WriterContext) -> PlainWriter:
        del context
        return PlainWriter(
            self.plan, RecordProducer(self.settings), self.max_message_bytes, self.settings
        )


class PlainWriter(SinkWriter):
    """One task's producer. The data thread writes; the preparing thread waits for the flush."""

    checks_rows = True

    def __init__(
        self,
        plan: RecordPlan,
        producer: RecordProducer,
        max_message_bytes: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._places = RowPlaces(plan, settings or {})
        self._plan, self._producer, self._max_bytes = plan, producer, max_message_bytes
        # A topic from the options was checked when the query started, so it is not checked again:
        # the brokers may be unreachable now.
        self._checks_topics = plan.topic is None or "partition" in plan.columns
        self._lock = threading.Lock()
        self._flushing = False
        self._next_epoch: list[pa.RecordBatch | list[Record]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        few = small_batch_records(self._plan, batch, self._max_bytes)
        self._write(self._plan.chosen(batch) if few is None else few)

    @property
    def max_dead_letter_bytes(self) -> int:
        return self._max_bytes

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        return self._places.bad_rows(batch, self._max_bytes)

    def write_dead_letters(self, letters: Sequence[bytes]) -> None:
        self._write(self._plan.letters(letters))

    def cut(self, epoch: int) -> Prepare:
        del epoch
        return self._prepare

    def close(self) -> None:
        self._producer.close()
        self._places.close()

    def _write(self, rows: pa.RecordBatch | list[Record]) -> None:
        with self._lock:
            if self._flushing:
                self._next_epoch.append(rows)
            else:
                self._send(rows)

    def _prepare(self) -> bytes:
        """Wait for all rows written so far. Rows of the next epoch among them do no harm."""
        with self._lock:
            self._flushing = True
        try:
            self._producer.flush()
        finally:
            with self._lock:
                self._flushing = False
                held_back, self._next_epoch = self._next_epoch, []
                for rows in held_back:
                    self._send(rows)
        return b""

    def _send(self, rows: pa.RecordBatch | list[Record]) -> None:
        """Send records, or rows as `RecordPlan.chosen` returns them."""
        places: Mapping[str, int] = {}
        records: Iterable[Record]
        if isinstance(rows, list):
            records = rows
            if self._checks_topics:
                places = places_of(rows)
        else:
            self._plan.check(rows, self._max_bytes)
            records = self._plan.records(rows)
            if self._checks_topics:
                places = self._plan.highest_partitions(rows)
        if places:
            self._producer.check_topics(places)
        self._producer.send(records)
