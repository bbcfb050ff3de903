"""The writers of tasks: they encode and check rows, and send them or hand them to the driver.

With at-least-once delivery a task sends its rows as they come. Before it reports an epoch, it waits
until the epoch's rows have arrived. With exactly-once delivery the driver sends them, in one
transaction per epoch.

Note: while a task waits for an epoch's rows, it keeps rows of the next epoch aside instead of
giving them to the client. A flush ends when the client's queue is empty, and under load the queue
would never be empty.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from epochal.checkpoint.layout import EPOCHAL
from epochal.connectors.arrow_stream import encode_stream
from epochal.connectors.contract import BadRows, Prepare, SinkWriter, WriterContext
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.sink_rows import (
    Record,
    RecordPlan,
    place_of,
    places_of,
    small_batch_records,
)
from epochal.connectors.kafka.sink.transaction import KAFKA_OUTPUT
from epochal.connectors.payloads.payload_columns import encode_rows
from epochal.connectors.schema_registry.value_schemas import EncodeValues, ValueSpec
from epochal.connectors.staging.staged_rows import RowEncoder, StagedWriters
from epochal.errors import KafkaRecordError, OptionError
from epochal.record_batches import batch_of

STAGING = f"{EPOCHAL}/kafka"
LETTERS = pa.schema({"dead letter": pa.large_binary()}.items())
VALUE = "value"
ASK_AGAIN_SECONDS = 10.0
"""A topic that did not exist may be created."""


@dataclass(frozen=True, slots=True)
class RecordWriters:
    """Opens writers in tasks."""

    plan: RecordPlan
    max_message_bytes: int
    settings: Mapping[str, str] = field(repr=False)
    """Of the producer, or of a client that asks for topics which rows name, to find bad rows."""
    values: ValueSpec | None = None
    """How values are encoded; None if they are bytes or text already."""
    staged: StagedWriters | None = None
    """With exactly-once delivery, what hands the rows to the driver."""

    @property
    def staging(self) -> str:
        assert self.staged is not None, "only exactly-once delivery stages rows"
        return self.staged.staging

    def open(self, context: WriterContext) -> RecordWriter:
        encoder = None
        if self.values is not None:
            encoder = self.values.encoder(cast(Any, context.schema.field(VALUE).type))
        if self.staged is None:
            return PlainWriter(self, RecordProducer(self.settings), encoder)
        return StagedRecordWriter(self, self.staged.open(context), encoder)


def staged_records(
    plan: RecordPlan,
    checkpoint: str,
    max_message_bytes: int,
    settings: Mapping[str, str],
    values: ValueSpec | None = None,
) -> RecordWriters:
    """The writers of tasks with exactly-once delivery."""
    rows = RecordRows(plan, max_message_bytes)
    staged = StagedWriters(rows, checkpoint, STAGING, KAFKA_OUTPUT.magic)
    return RecordWriters(plan, max_message_bytes, settings, values, staged)


@dataclass(frozen=True, slots=True)
class RecordRows(RowEncoder):
    """Checks in the tasks that rows fit into records, and encodes the columns of records."""

    plan: RecordPlan
    max_message_bytes: int
    suffix: str = "arrow"

    def encode(self, rows: Sequence[pa.RecordBatch]) -> bytes:
        records = list(map(self._records, rows))
        return encode_stream(self.plan.schema, records, compression="lz4").to_pybytes()

    def _records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(LETTERS):
            letters: list[Any] = batch.column(0).to_pylist()
            return self.plan.letters(letters)
        chosen = self.plan.chosen(batch)
        self.plan.check(chosen, self.max_message_bytes)
        return chosen


class RecordWriter(SinkWriter):
    """Encodes values if there is a schema for them, and finds rows that cannot be written.

    `write` gets the batch that `bad_rows` got, if all its rows are good. Its values are then not
    encoded again.
    """

    checks_rows = True

    def __init__(self, writers: RecordWriters, encoder: EncodeValues | None) -> None:
        self.max_dead_letter_bytes = writers.max_message_bytes
        self._encoder = encoder
        self._places = RowPlaces(writers.plan, writers.settings)
        self._checked: tuple[pa.RecordBatch, pa.RecordBatch] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(batch if self._encoder is None else self._encoded(batch, self._encoder))

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        if self._encoder is None:
            return self._places.bad_rows(batch, self.max_dead_letter_bytes)
        encoded, bad = _encode(batch, self._encoder)
        rejected = {**self._places.bad_rows(encoded, self.max_dead_letter_bytes), **bad}
        self._checked = None if rejected else (batch, encoded)
        return rejected

    def close(self) -> None:
        self._places.close()

    def _write(self, batch: pa.RecordBatch) -> None:
        """Write rows whose values are bytes or text."""
        raise NotImplementedError

    def _encoded(self, batch: pa.RecordBatch, encoder: EncodeValues) -> pa.RecordBatch:
        checked, self._checked = self._checked, None
        if checked is not None and checked[0] is batch:
            return checked[1]
        encoded, bad = _encode(batch, encoder)
        for reason in bad.values():
            raise OptionError(f"kafka: {reason}.")
        return encoded


def _encode(batch: pa.RecordBatch, encoder: EncodeValues) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Rows with encoded values, and why some of them do not fit the schema."""
    values, errors = encode_rows(batch.column(VALUE), encoder)
    bad = {
        index: f"a value does not fit the schema: {error.rstrip('.')}"
        for index, error in enumerate(errors)
        if error is not None
    }
    column = pa.array(values, pa.binary())
    return batch.set_column(batch.schema.get_field_index(VALUE), VALUE, column), bad


class StagedRecordWriter(RecordWriter):
    """Collects the records of a task, and its dead letters if they go to a topic."""

    def __init__(
        self, writers: RecordWriters, collected: SinkWriter, encoder: EncodeValues | None
    ) -> None:
        super().__init__(writers, encoder)
        self._collected = collected

    def cut(self, epoch: int) -> Prepare:
        return self._collected.cut(epoch)

    def write_dead_letters(self, letters: Sequence[bytes]) -> None:
        self._write(batch_of([pa.array(letters, pa.large_binary())], LETTERS, len(letters)))

    def close(self) -> None:
        self._collected.close()
        super().close()

    def _write(self, batch: pa.RecordBatch) -> None:
        self._collected.write(batch)


class PlainWriter(RecordWriter):
    """One task's producer. The data thread writes; the preparing thread waits for the flush."""

    def __init__(
        self, writers: RecordWriters, producer: RecordProducer, encoder: EncodeValues | None = None
    ) -> None:
        super().__init__(writers, encoder)
        self._plan, self._producer = writers.plan, producer
        # A topic from the options was checked when the query started, so it is not checked again:
        # the brokers may be unreachable now.
        self._checks_topics = writers.plan.topic is None or "partition" in writers.plan.columns
        self._lock = threading.Lock()
        self._flushing = False
        self._next_epoch: list[pa.RecordBatch | list[Record]] = []

    def write_dead_letters(self, letters: Sequence[bytes]) -> None:
        self._add(self._plan.letters(letters))

    def cut(self, epoch: int) -> Prepare:
        del epoch
        return self._prepare

    def close(self) -> None:
        self._producer.close()
        super().close()

    def _write(self, batch: pa.RecordBatch) -> None:
        few = small_batch_records(self._plan, batch, self.max_dead_letter_bytes)
        self._add(self._plan.chosen(batch) if few is None else few)

    def _add(self, rows: pa.RecordBatch | list[Record]) -> None:
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
            self._plan.check(rows, self.max_dead_letter_bytes)
            records = self._plan.records(rows)
            if self._checks_topics:
                places = self._plan.highest_partitions(rows)
        if places:
            self._producer.check_topics(places)
        self._producer.send(records)


class RowPlaces:
    """The topics that rows have named so far, and what the brokers said about them.

    Only the brokers know which topics and partitions exist. They are asked in the task, once per
    topic, and only if rows name topics or partitions. A broker may still refuse a record, for
    example because the topic's max.message.bytes is lower than the producer's limit, or because the
    user may not write to the topic. That fails the query.
    """

    def __init__(self, plan: RecordPlan, settings: Mapping[str, str]) -> None:
        self._plan, self._settings = plan, settings
        self._producer: RecordProducer | None = None
        self._usable: set[tuple[str, int]] = set()
        self._refused: dict[tuple[str, int], tuple[float, str]] = {}
        """When to ask again, on the monotonic clock, and the reason."""

    def bad_rows(self, batch: pa.RecordBatch, max_bytes: int) -> BadRows:
        few = small_batch_records(self._plan, batch, max_bytes)
        if few is not None and (
            not self._plan.names_places or all(place_of(record) in self._usable for record in few)
        ):
            return {}
        chosen = self._plan.chosen(batch)
        bad = self._plan.bad_rows(chosen, max_bytes)
        for index, (topic, partition) in enumerate(self._plan.places(chosen) or ()):
            if index not in bad and (reason := self._reason(topic, partition)) is not None:
                bad[index] = reason
        return bad

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()

    def _reason(self, topic: str, partition: int) -> str | None:
        """Why no record can go there; None if one can. Raises if the brokers do not answer."""
        place = (topic, partition)
        if place in self._usable:
            return None
        now = time.monotonic()
        if place in self._refused and now < self._refused[place][0]:
            return self._refused[place][1]
        if self._producer is None:
            self._producer = RecordProducer(self._settings)
        try:
            self._producer.check_topics({topic: partition})
        except KafkaRecordError as error:
            reason = str(error).rstrip(".")
            self._refused[place] = (now + ASK_AGAIN_SECONDS, reason)
            return reason
        self._usable.add(place)
        return None
