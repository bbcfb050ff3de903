"""Exactly-once delivery to Kafka: the driver writes each epoch, and a marker, in one transaction.

`epochal.connectors.staging.deciding_sink` has the protocol. The transactional id belongs to the
query, not to the attempt: claiming it fences every earlier attempt. The marker is the offset
`epoch + 1` for partition 0 of some topic, in a consumer group that only this query uses and that
never has members. If there are several, the newest counts.

Note: the marker may only be read after the claim. Before it, an earlier attempt could still commit,
and the marker would be outdated a moment later.

Note: a producer is never used again after a failed transaction. librdkafka may still receive an
answer to it, which would end the next transaction.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

import msgspec

from epochal.connectors.kafka.kafka_client import KafkaClient, import_kafka
from epochal.connectors.kafka.kafka_settings import connection_settings, transactional_settings
from epochal.connectors.kafka.offsets import Cluster
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.sink_rows import Record, RecordPlan
from epochal.connectors.staging.deciding_sink import Transactions
from epochal.connectors.staging.epoch_marker import MarkedOutput, Marker, Staged
from epochal.connectors.staging.staged_rows import staged_table
from epochal.errors import (
    GroupRefusedError,
    KafkaError,
    KafkaFencedError,
    KafkaUnavailableError,
    MarkerError,
)
from epochal.files import Files

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 120.0
CALL_SECONDS = 5.0
"""How long one call waits before it is repeated."""
HANG_SECONDS = 5.0
"""How much longer a call may take to return. librdkafka 2.16 ignores the time limit while it waits
for a group's coordinator (its issues 5456 and 5511), and may wait forever."""
KAFKA_OUTPUT = MarkedOutput(
    magic=b"EKS1",
    noun="topic",
    how_lost="Kafka has forgotten it, because the group was idle for longer than "
    "offsets.retention.minutes (7 days by default) or the topic was deleted, or these are not the "
    "brokers that the query wrote to",
    how_behind="The group was reset, or these are not the brokers that the query wrote to",
    how_to_look="with a consumer that has isolation.level=read_committed",
)


class MarkerText(msgspec.Struct, frozen=True):
    """The metadata that is stored with the marker's offset."""

    token: str
    v: int = 1


class KafkaTransactions:
    """The transactions of one query, one after the other."""

    def __init__(self, java: Mapping[str, str], name: str, marker_topic: str) -> None:
        """`name` is both the transactional id and the marker's group."""
        self._kafka = import_kafka()
        self._name, self._topic = name, marker_topic
        self._settings = transactional_settings(java, name)
        self._servers = self._settings["bootstrap.servers"]
        self._connection = connection_settings(java)
        self._seconds = int(self._settings["transaction.timeout.ms"]) / 1000
        self._producer: RecordProducer | None = None
        self._group: Any = None

    @property
    def place(self) -> str:
        return f"consumer group {self._name!r}"

    def claim(self) -> None:
        """Claim the transactional id: fence earlier producers and abort their open transaction."""
        self.close()
        producer = RecordProducer(self._settings)
        # The coordinator raises the epoch of the id, so it refuses every earlier producer from here
        # on. It answers once their open transaction is aborted, or finished if that was decided. So
        # what `marker` reads next does not change any more.
        self._call(producer, producer.client.init_transactions, CLAIM_SECONDS, "be claimed")
        self._producer = producer

    def marker(self) -> Marker | None:
        """The newest marker; None if there is none. Call `claim` first."""
        client = KafkaClient(Cluster.of(self._connection))
        # Look at all topics: the query may have used another marker topic before.
        topics = {topic for topic, _ in client.partitions(None) if not topic.startswith("__")}
        offsets = client.committed_offsets(self._name, [(topic, 0) for topic in sorted(topics)])
        if not offsets:
            return None
        # A query that had another marker topic has a marker there too, of an older epoch.
        newest = max(offsets.values(), key=lambda offset: offset.offset)
        try:
            text = msgspec.json.decode(newest.metadata, type=MarkerText)
        except msgspec.DecodeError:
            raise MarkerError(
                self.place,
                f"offset {newest.offset} has metadata {newest.metadata[:60]!r}, which is not a "
                f"marker",
                "Another program commits to this group. Stop it, or set another idPrefix.",
            ) from None
        return Marker(newest.offset - 1, text.token)

    def begin(self) -> None:
        producer = self._current()
        self._call(producer, lambda _: producer.client.begin_transaction(), 0, "begin")

    def send(self, highest_partitions: Mapping[str, int], records: Iterable[Record]) -> None:
        """Add records to the transaction, after checking the topics and partitions they name."""
        producer = self._current()
        producer.check_topics(highest_partitions)
        producer.send(records)

    def mark(self, marker: Marker) -> None:
        producer = self._current()
        text = msgspec.json.encode(MarkerText(marker.token)).decode()
        # Group offsets name the next record; the marker follows that convention: epoch + 1. The
        # offset is part of the transaction: it becomes visible with its records, or not at all.
        offset = self._kafka.TopicPartition(self._topic, 0, marker.epoch + 1, text)
        self._call(
            producer,
            lambda seconds: producer.client.send_offsets_to_transaction(
                [offset], self._group_metadata(), seconds
            ),
            self._seconds,
            "be marked",
        )

    def commit(self) -> None:
        """Make the whole transaction visible.

        If this raises, the transaction may or may not be visible; only the marker after the next
        claim tells.
        """
        producer = self._current()
        self._call(producer, producer.client.commit_transaction, self._seconds, "commit")

    def abandon(self) -> None:
        """Discard the producer after a failure, and try to abort its open transaction."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            # Only to free readers sooner: the next claim aborts what is open, and so do the brokers
            # after `transaction.timeout.ms`.
            producer.client.purge(blocking=False)
            producer.client.abort_transaction(CALL_SECONDS)
        except (self._kafka.KafkaException, SystemError) as error:
            logger.info("a transaction of %s could not be aborted: %s", self._name, error)
        producer.close()

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _current(self) -> RecordProducer:
        if self._producer is None:
            raise KafkaFencedError(self._servers, self._name, "its producer was given up")
        return self._producer

    def _group_metadata(self) -> Any:
        """The marker's group without any member, as the client wants it."""
        if self._group is None:
            settings = {"log_level": "0", **self._connection, "group.id": self._name}
            consumer = self._kafka.Consumer(settings)
            self._group = consumer.consumer_group_metadata()
            consumer.close()
        return self._group

    def _call(
        self, producer: RecordProducer, call: Callable[[float], object], seconds: float, action: str
    ) -> None:
        """Repeat a call until it succeeds; librdkafka resumes an operation that timed out."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if returns_in_time(call, min(CALL_SECONDS, seconds)):
                    return
                self._producer = None  # must not be closed either: that would not return
                raise KafkaUnavailableError(
                    self._servers,
                    f"the client did not return from a call to let transactional id {self._name} "
                    f"{action}. A new producer replaces it",
                )
            except self._kafka.KafkaException as error:
                first = error.args[0]
                if first.fatal() or first.txn_requires_abort() or not first.retriable():
                    raise self._error(producer, first) from error
                if time.monotonic() > deadline:
                    raise KafkaUnavailableError(
                        self._servers,
                        f"transactional id {self._name} could not {action} within {seconds:g} s "
                        f"({first.str().rstrip('.')})",
                    ) from error
            except SystemError as error:  # raised if a callback meets a fatal error
                raise KafkaFencedError(self._servers, self._name, str(error)) from error

    def _error(self, producer: RecordProducer, error: Any) -> KafkaError:
        codes = self._kafka.KafkaError
        denied = (
            codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
        )
        if error.code() in denied:
            return GroupRefusedError(
                self._servers,
                self._name,
                f"{error.str().rstrip('.')}. For exactly-once delivery the sink needs WRITE and "
                f"DESCRIBE on the transactional id and READ on the group. Both have this name; a "
                f"permission on its prefix is enough",
            )
        if not error.fatal():
            producer.client.poll(0)
            try:
                producer.raise_failure()  # names the record and the reason
            except KafkaError as failure:
                return failure
        return producer.error(error, self._topic)


Call: TypeAlias = Callable[[], object]


def in_thread(call: Call, name: str = "epochal-kafka-begin") -> Future[None]:
    """Start a call in a thread; the future waits for its end and raises its error."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  raised again by whoever waits
            done.set_exception(error)
        else:
            done.set_result(None)

    target = copy_context().run
    threading.Thread(target=target, args=(run,), name=name, daemon=True).start()
    return done


def returns_in_time(
    call: Callable[[float], object], seconds: float, *, hang_seconds: float = HANG_SECONDS
) -> bool:
    """Make a call with a time limit in a thread; False if the call hangs beyond the limit."""
    done = in_thread(partial(call, seconds), "epochal-kafka-call")
    if not wait([done], seconds + hang_seconds).done:
        return False
    done.result()
    return True


class KafkaEpochs(Transactions):
    """Writes epochs as Kafka transactions.

    The rows of an epoch can be sent before the epoch may be committed, while the driver logs it.
    They are invisible until then. If the epoch is not logged, its transaction is aborted.
    """

    can_begin = True

    def __init__(
        self,
        transactions: KafkaTransactions,
        plan: RecordPlan,
        start: Callable[[Call], Call] = lambda call: in_thread(call).result,
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
        # An error of the thread is raised by `write`, or it ends with the transaction.
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
            # The commit may have succeeded, and its answer was lost. So nothing is written again
            # before the next attempt has claimed the id and read the marker.
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
            # Wait for the thread: only one at a time may use the producer.
            with suppress(Exception):  # its rows are not needed any more
                begun[1]()
            self._transactions.abandon()
