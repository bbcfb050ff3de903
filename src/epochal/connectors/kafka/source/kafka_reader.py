"""Reads some partitions in a task, with one client that has assigned partitions and no group.

The client's own threads fetch ahead; `read` takes what they have fetched without waiting and turns
it into Arrow columns. When there is nothing, `RecordWaiter` waits for the next record. While
records come often, `wait` is cheaper: it waits in the calling thread, so no other is woken.

Note: the next position is not always the last offset plus one. Transaction markers, aborted records
and records that compaction removed have offsets too, but are never delivered. The client knows its
real position and reports it at the end of a partition.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from epochal.connectors.contract import Positions, ReaderFactory, SourceReader
from epochal.connectors.kafka.kafka_client import (
    QUIET,
    import_kafka,
    missing_partition_codes,
    rejected_settings,
)
from epochal.connectors.kafka.offsets import Cluster, KafkaPartition
from epochal.connectors.kafka.source.reader_rows import ParsedValues, RowMaker, kafka_schema
from epochal.connectors.kafka.source.source_offsets import partition_id, to_offsets, to_positions
from epochal.connectors.schema_registry.value_schemas import ValueSpec
from epochal.errors import KafkaDataLossError, KafkaError

logger = logging.getLogger(__name__)

MOST_LATER = 1_000
"""How many records behind its end a partition may keep while others have not reached theirs."""


@dataclass(frozen=True, slots=True)
class KafkaReaders(ReaderFactory):
    """Opens readers in tasks."""

    cluster: Cluster
    group_id: str
    include_headers: bool = False
    fail_on_data_loss: bool = True
    wanted: frozenset[str] | None = None
    """The columns that the query uses; None means all."""
    values: ValueSpec | None = None
    """How values are decoded; None if they stay bytes."""

    @property
    def schema(self) -> pa.Schema:
        return kafka_schema(self.include_headers, self.values)

    def only(self, columns: frozenset[str]) -> KafkaReaders:
        """Readers that leave all other columns null."""
        return replace(self, wanted=columns)

    def open(self, partitions: Positions) -> KafkaReader:
        return KafkaReader(self, partitions)

    def consumer(self, **callbacks: Any) -> Any:
        """A client with these settings; the caller assigns its partitions."""
        kafka = import_kafka()
        try:
            return kafka.Consumer(
                {
                    **QUIET,
                    "group.id": self.group_id,  # required, but never joined
                    **dict(self.cluster.settings),
                    "enable.auto.commit": "false",
                    "enable.auto.offset.store": "false",
                    "auto.offset.reset": "error",
                    "enable.partition.eof": "true",
                    **callbacks,
                }
            )
        except kafka.KafkaException as error:
            raise rejected_settings(error) from None


@dataclass(slots=True)
class _PartitionState:
    """How far one partition has been read."""

    next: int
    """All records before it have come from the client."""
    end: int | None = None
    """Once set, no record at or after this offset is delivered."""
    later: deque[Any] = field(default_factory=deque)
    """Records at or after the end that the client has delivered already."""
    is_paused: bool = False
    """Whether the client fetches no more, because too many are kept."""
    is_resetting: bool = False
    """The client was sent to the beginning and has not reported that offset yet."""
    is_reported_deleted: bool = False
    """Whether the log already says that the partition was deleted."""
    eof: int | None = None
    """Where the client found the end of the partition last."""
    known_end: int = -1
    """Where the broker said last that it ends, with open transactions; -1 if it has not said."""

    def reach(self, offset: int) -> None:
        """Note that every record before `offset` was read or does not exist."""
        # After a reset the beginning may be *before* `next`: the topic may be a new one.
        if offset > self.next or self.is_resetting:
            self.next, self.is_resetting, self.is_reported_deleted = offset, False, False

    def is_before_end(self, message: Any) -> bool:
        return self.end is None or message.offset() < self.end

    @property
    def position(self) -> int:
        at = self.later[0].offset() if self.later else self.next
        return at if self.end is None else min(at, self.end)


class KafkaReader(SourceReader):
    """One client and its partitions. Used by one thread; never waits."""

    reads_all = True
    """The client has one queue for all its partitions."""

    def __init__(self, readers: KafkaReaders, partitions: Positions) -> None:
        self._kafka = import_kafka()
        self._readers, self._servers = readers, readers.cluster.bootstrap_servers
        self._states = {
            tp: _PartitionState(offset) for tp, offset in to_offsets(partitions).items()
        }
        self._values = (
            None if readers.values is None else ParsedValues(readers.values, readers.wanted)
        )
        schema = kafka_schema(readers.include_headers)
        wanted = readers.wanted if self._values is None else self._values.needed
        self._rows = RowMaker(schema, tuple(self._states), wanted)
        self._client_errors: list[Any] = []
        self._reported_codes: set[int] = set()
        self._limited = False
        """Whether there was ever a limit."""
        self._consumer = readers.consumer(error_cb=self._client_errors.append)
        self._waiter: RecordWaiter | None = None
        self.last_read: tuple[str, ...] = ()
        self._hides_open = dict(readers.cluster.settings).get("isolation.level") == "read_committed"
        self._ids = {tp: partition_id(tp) for tp in self._states}
        self._places = {tp: self._kafka.TopicPartition(*tp) for tp in self._states}
        self._first: Any = None
        """A message that `wait` has taken from the client, for the next read."""
        self._consumer.assign(
            [self._kafka.TopicPartition(*tp, state.next) for tp, state in self._states.items()]
        )

    @property
    def fd(self) -> int:
        """Readable when records come after a read that returned None; from the first call on."""
        if self._waiter is None:
            self._waiter = RecordWaiter(self._consumer, self._is_end)
        return self._waiter.fd

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        messages = self._take_kept(max_rows) if self._limited else []
        if not messages:
            messages = self._take(max_rows)
            if self._client_errors:
                self._handle_client_errors()
            if not messages:
                return None
            if [message for message in messages if message.error() is not None]:
                messages = self._take_records(messages)
            if self._limited:
                messages = self._before_ends(messages)
            if not messages:
                return None
        if self._reported_codes:
            logger.info("Kafka at %s is read again", self._servers)
            self._reported_codes.clear()
        batch, last = self._rows.make(messages)
        if self._values is not None:
            batch = self._values.parsed(batch)
        for tp, offset in last.items():
            self._states[tp].reach(offset + 1)
        self.last_read = tuple([self._ids[tp] for tp in last])
        return batch

    def wait(self, seconds: float) -> bool:
        """Wait for the next record in this thread; False, at once, if it need not or must not."""
        if self._first is not None or (self._waiter is not None and self._waiter.is_waiting):
            return False
        while (message := self._consumer.poll(seconds)) is not None:
            if not self._is_end(message):
                self._first = message
                break
            self._take_records([message])
        return True

    def positions(self) -> Positions:
        waiter = self._waiter
        if waiter is not None:
            self._take_records(waiter.take_ends())
        # The client's position is behind a record that it has delivered but no read has returned.
        if self._first is None and (waiter is None or not waiter.is_waiting):
            asked = [self._kafka.TopicPartition(*tp) for tp in self._states]
            for place in self._consumer.position(asked):
                if place.offset >= 0:  # negative until the first record of the partition is taken
                    self._states[place.topic, place.partition].reach(place.offset)
        return to_positions({tp: state.position for tp, state in self._states.items()})

    def waiting(self) -> Positions:
        """Where partitions end that have more records; empty text if the client does not know."""
        ends: dict[str, str] = {}
        if self._waiter is None or not self._waiter.is_waiting:
            self._learn_ends()
        for tp, state in self._states.items():
            is_at_end, end = state.eof == state.position, state.known_end
            if state.is_reported_deleted or (is_at_end and (end < 0 or self._hides_open)):
                continue
            if end < 0:
                ends[self._ids[tp]] = ""
            elif state.position < end:
                ends.update(to_positions({tp: end}))
        return ends

    def _learn_ends(self) -> None:
        """Note the ends that the broker's last answer named: no request.

        The client lets only one thread in, so never while the waiter is there.
        """
        for tp, state in self._states.items():
            watermarks = self._consumer.get_watermark_offsets(self._places[tp], cached=True)
            state.known_end = -1 if watermarks is None else watermarks[1]

    def limit(self, ends: Positions) -> None:
        self._limited = True
        for tp, offset in to_offsets(ends).items():
            self._states[tp].end = offset
        self._pause(False, [tp for tp, state in self._states.items() if state.is_paused])

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.close()
        self._consumer.close()

    def _take(self, most: int) -> list[Any]:
        """Return the client's next messages; if there are none, let the waiter wait for them."""
        waiter, messages = self._waiter, []
        if self._first is not None:
            messages, self._first = [self._first], None
        elif waiter is not None and waiter.is_waiting:
            taken = waiter.take()
            if taken is None:
                return []
            messages = taken
        if len(messages) < most:
            messages += self._consumer.consume(most - len(messages), 0)
        if waiter is not None and not messages:
            self._learn_ends()
            waiter.wait()
        return messages

    def _is_end(self, message: Any) -> bool:
        error = message.error()
        return error is not None and error.code() == self._kafka.KafkaError._PARTITION_EOF

    def _take_kept(self, most: int) -> list[Any]:
        """Return kept records that are before the ends of now."""
        records: list[Any] = []
        for state in self._states.values():
            while state.later and len(records) < most and state.is_before_end(state.later[0]):
                records.append(state.later.popleft())
        if not records:
            many = [tp for tp, state in self._states.items() if len(state.later) > MOST_LATER]
            self._pause(True, [tp for tp in many if not self._states[tp].is_paused])
        return records

    def _before_ends(self, messages: Sequence[Any]) -> list[Any]:
        """Return the records before the ends; keep the others, which the next limit may allow."""
        records = []
        for message in messages:
            state = self._states[message.topic(), message.partition()]
            state.reach(message.offset() + 1)
            if state.later or not state.is_before_end(message):
                state.later.append(message)
            else:
                records.append(message)
        return records

    def _pause(self, paused: bool, partitions: Sequence[KafkaPartition]) -> None:
        """Let the client fetch no more of these partitions, or go on where it was."""
        if partitions:
            act = self._consumer.pause if paused else self._consumer.resume
            act([self._kafka.TopicPartition(*tp) for tp in partitions])
        for tp in partitions:
            self._states[tp].is_paused = paused

    def _take_records(self, messages: Sequence[Any]) -> list[Any]:
        """Return the records among the client's messages; handle the errors."""
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif self._is_end(message):
                state = self._states[message.topic(), message.partition()]
                state.reach(message.offset())
                state.eof = message.offset()
            else:
                self._handle_partition_error(error, (message.topic(), message.partition()))
        return records

    def _handle_partition_error(self, error: Any, tp: tuple[str | None, int]) -> None:
        """Handle lost records as configured; raise for any other error of the partition."""
        codes = self._kafka.KafkaError
        match tp:
            case (str(topic), number) if (topic, number) in self._states:
                state, name = self._states[topic, number], partition_id((topic, number))
                if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
                    self._out_of_range((topic, number), state, error)
                    return
                if error.code() in missing_partition_codes(self._kafka):
                    self._deleted(state, name)
                    return
                raise KafkaError(self._servers, f"{name} at offset {state.next}: {error.str()}")
        self._client_errors.append(error)
        self._handle_client_errors()

    def _out_of_range(self, tp: KafkaPartition, state: _PartitionState, error: Any) -> None:
        loss = f"offset {state.next} of {partition_id(tp)} is not there ({error.str()})"
        if self._readers.fail_on_data_loss:
            raise KafkaDataLossError(self._servers, "COULD_NOT_READ_OFFSET_RANGE", loss)
        logger.warning(
            "Kafka at %s: %s. Some data may have been lost. Reading continues with the oldest "
            "record that exists, because failOnDataLoss is false",
            *(self._servers, loss),
        )
        # Until the client reports an offset again, `reach` accepts a lower one: of a new topic.
        state.is_resetting = True
        beginning = self._kafka.TopicPartition(*tp, self._kafka.OFFSET_BEGINNING)
        self._consumer.incremental_unassign([beginning])
        self._consumer.incremental_assign([beginning])

    def _deleted(self, state: _PartitionState, name: str) -> None:
        if self._readers.fail_on_data_loss:
            raise KafkaDataLossError(
                self._servers, "PARTITIONS_DELETED", f"{name} was deleted; {state.next} was next"
            )
        if not state.is_reported_deleted:
            state.is_reported_deleted = True
            logger.warning(
                "Kafka at %s: %s was deleted, %d was next. Some data may have been lost. Reading "
                "continues without this partition, because failOnDataLoss is false",
                *(self._servers, name, state.next),
            )

    def _handle_client_errors(self) -> None:
        """Raise errors that the client cannot recover from; log the others once."""
        codes = self._kafka.KafkaError
        errors = self._client_errors.copy()
        self._client_errors.clear()
        for error in errors:
            if error.fatal() or error.code() in (
                codes._AUTHENTICATION,
                codes.SASL_AUTHENTICATION_FAILED,
                codes.TOPIC_AUTHORIZATION_FAILED,
                codes.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise KafkaError(self._servers, error.str().rstrip("."))
            if error.code() not in self._reported_codes:
                self._reported_codes.add(error.code())
                logger.warning("Kafka at %s: %s; the client retries", self._servers, error.str())


POLL_SECONDS = 0.05
"""How often the waiting thread looks whether it should end."""


class RecordWaiter(threading.Thread):
    """Takes the first record after a pause, and wakes the reader by a descriptor.

    A client's queue has no descriptor that one could wait for together with sockets. So when a
    reader has found the queue empty, this thread waits for the next record. Without it the record
    would wait for the reader's next look, half a millisecond on average.

    The client also reports that the end of a partition was reached; with several partitions it does
    so about once per record. The thread keeps these reports and goes on waiting: they are no reason
    to wake the reader.

    Note: reader and thread never take records at the same time, because records must not overtake
    each other. The thread takes them from `wait` until the reader has received the byte by which
    the thread hands them over.
    """

    def __init__(self, consumer: Any, is_end: Callable[[Any], bool]) -> None:
        super().__init__(name="epochal-kafka-waiter", daemon=True)
        self._consumer, self._is_end = consumer, is_end
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wakes, self._waker = socket.socketpair()
        self._wakes.setblocking(False)
        self._closed = False
        self._taken: Any = None
        self._ends: deque[Any] = deque()
        self._failure: BaseException | None = None
        self.is_waiting = False
        """Whether the thread waits for a record, or has one for the reader, who must take none from
        the client meanwhile. Only the reader sets this."""

    @property
    def fd(self) -> int:
        """Readable once the wait is over."""
        return self._wakes.fileno()

    def wait(self) -> None:
        if not self.is_alive():
            self.start()
        self.is_waiting = True
        self._asked.put(None)

    def take(self) -> list[Any] | None:
        """Return what the wait has brought, in order; None while it goes on.

        There is at most one record, and it is the last. Raises what has ended the wait otherwise.
        """
        if self._taken is None and self._failure is None:
            return None
        try:
            self._wakes.recv(1)
        except BlockingIOError:
            return None  # the byte comes right after the record
        self.is_waiting = False
        if self._failure is not None:
            raise self._failure
        taken, self._taken = self._taken, None
        return [*self.take_ends(), taken]

    def take_ends(self) -> list[Any]:
        """Return the ends of partitions that were reached since the last call, also during a wait.

        A record that the thread holds comes after them.
        """
        return [self._ends.popleft() for _ in range(len(self._ends))]

    def run(self) -> None:
        while not self._closed:
            self._asked.get()
            taken = None
            try:
                while taken is None and not self._closed:
                    taken = self._consumer.poll(POLL_SECONDS)
                    if taken is not None and self._is_end(taken):
                        self._ends.append(taken)
                        taken = None
            except BaseException as error:  # noqa: BLE001 - the reader raises it
                self._failure = error
            # The byte last: whoever has received it sees what was taken. After it this thread
            # touches the client only when it is asked again.
            self._taken = taken
            self._waker.send(b"\0")

    def close(self) -> None:
        self._closed = True
        self._asked.put(None)
        if self.is_alive():
            self.join()
        self._wakes.close()
        self._waker.close()
