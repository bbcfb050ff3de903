"""Exactly-once delivery to Kafka: the driver writes each epoch in one transaction.

`epochal.connectors.staging.deciding_sink` has the protocol. The marker is the offset `epoch + 1` in
a consumer group that belongs to the query.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from epochal.checkpoint.layout import EPOCHAL
from epochal.connectors.arrow_stream import encode_stream
from epochal.connectors.contract import BadRows, Prepare, SinkWriter, WriterContext
from epochal.connectors.kafka.sink.producer import RowPlaces
from epochal.connectors.kafka.sink.sink_rows import Record, RecordPlan
from epochal.connectors.staging.deciding_sink import Transactions
from epochal.connectors.staging.epoch_marker import MarkedOutput, Marker, Staged
from epochal.connectors.staging.staged_rows import RowEncoder, StagedWriters, staged_table
from epochal.files import Files
from epochal.record_batches import batch_of

STAGING = f"{EPOCHAL}/kafka"
KAFKA_OUTPUT = MarkedOutput(
    magic=b"EKS1",
    noun="topic",
    how_lost="Kafka has forgotten it, because the group was idle for longer than "
    "offsets.retention.minutes (7 days by default) or the topic was deleted, or these are not the "
    "brokers that the query wrote to",
    how_behind="The group was reset, or these are not the brokers that the query wrote to",
    how_to_look="with a consumer that has isolation.level=read_committed",
)


class ProducerTransactions(Protocol):
    """The calls to Kafka; see `transaction.KafkaTransactions`."""

    @property
    def place(self) -> str: ...

    def claim(self) -> None: ...
    def marker(self) -> Marker | None: ...
    def begin(self) -> None: ...
    def send(self, highest_partitions: Mapping[str, int], records: Iterable[Record]) -> None: ...
    def mark(self, marker: Marker) -> None: ...
    def commit(self) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...


LETTERS = pa.schema({"dead letter": pa.large_binary()}.items())


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


@dataclass(frozen=True, slots=True)
class RecordWriters:
    """Opens writers in tasks."""

    rows: RecordRows
    staged: StagedWriters
    settings: Mapping[str, str] = field(repr=False)
    """Of a client that asks for topics which rows name, to find bad rows."""

    @property
    def staging(self) -> str:
        return self.staged.staging

    def open(self, context: WriterContext) -> RecordWriter:
        return RecordWriter(self, context)


class RecordWriter(SinkWriter):
    """Collects the records of a task, and its dead letters if they go to a topic."""

    checks_rows = True

    def __init__(self, options: RecordWriters, context: WriterContext) -> None:
        self.max_dead_letter_bytes = options.rows.max_message_bytes
        self._collected = options.staged.open(context)
        self._places = RowPlaces(options.rows.plan, options.settings)

    def write(self, batch: pa.RecordBatch) -> None:
        self._collected.write(batch)

    def cut(self, epoch: int) -> Prepare:
        return self._collected.cut(epoch)

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        return self._places.bad_rows(batch, self.max_dead_letter_bytes)

    def write_dead_letters(self, letters: Sequence[bytes]) -> None:
        self.write(batch_of([pa.array(letters, pa.large_binary())], LETTERS, len(letters)))

    def close(self) -> None:
        self._collected.close()
        self._places.close()


def staged_records(
    plan: RecordPlan, checkpoint: str, max_message_bytes: int, settings: Mapping[str, str]
) -> RecordWriters:
    """The writers of tasks."""
    rows = RecordRows(plan, max_message_bytes)
    staged = StagedWriters(rows, checkpoint, STAGING, KAFKA_OUTPUT.magic)
    return RecordWriters(rows, staged, settings)


Call: TypeAlias = Callable[[], None]


def in_thread(call: Call) -> Call:
    """Start a call in a thread; return a function that waits for its end and raises its error."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  raised again by whoever waits
            done.set_exception(error)
        else:
            done.set_result(None)

    target = copy_context().run
    threading.Thread(target=target, args=(run,), name="epochal-kafka-begin", daemon=True).start()
    return done.result


class KafkaEpochs(Transactions):
    """Writes epochs as Kafka transactions.

    The rows of an epoch can be sent before the epoch may be committed, while the driver logs it.
    They are invisible until then. If the epoch is not logged, its transaction is aborted.
    """

    can_begin = True

    def __init__(
        self,
        transactions: ProducerTransactions,
        plan: RecordPlan,
        start: Callable[[Call], Call] = in_thread,
    ) -> None:
        self._transactions, self._plan, self._start = transactions, plan, start
        self._begun: tuple[Marker, Call] | None = None
        """The marker of the open transaction, and what waits until it is complete."""

    @property
    def place(self) -> str:
        return self._transactions.place

    def claim(self, attempt: int) -> Marker | None:
        del attempt  # Kafka orders claims by itself
        self._abort_begun()
        self._transactions.claim()
        return self._transactions.marker()

    def begin(self, marker: Marker, staging: Files, staged: Sequence[Staged]) -> None:
        self._begun = marker, self._start(partial(self._send, marker, staging, staged))

    def write(self, marker: Marker, staging: Files, staged: Sequence[Staged]) -> None:
        begun, self._begun = self._begun, None
        try:
            if begun is None:
                self._send(marker, staging, staged)
            else:
                assert begun[0] == marker, f"{begun[0]} was begun, but {marker} is written"
                begun[1]()
            self._transactions.commit()
        except Exception:
            self._transactions.abandon()
            raise

    def close(self) -> None:
        self._abort_begun()
        self._transactions.close()

    def _send(self, marker: Marker, staging: Files, staged: Sequence[Staged]) -> None:
        transactions, plan = self._transactions, self._plan
        transactions.begin()
        for staged_file in staged:
            for batch in staged_table(staging, staged_file, plan.schema).to_batches():
                transactions.send(plan.highest_partitions(batch), plan.records(batch))
        transactions.mark(marker)

    def _abort_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            with suppress(Exception):  # its rows are not needed any more
                begun[1]()
            self._transactions.abandon()
