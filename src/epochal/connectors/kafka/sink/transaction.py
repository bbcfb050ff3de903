"""One transactional producer, and the marker that its transactions carry.

The transactional id is the query's, not the attempt's: to claim it is what shuts out every earlier
attempt. The marker is an offset in a consumer group of the query's own, which nobody ever joins,
at partition 0 of some topic of the cluster; it is the newest of those that are found.

What a reader would get wrong: the marker may only be read after the claim. Before it, an earlier
attempt may still be about to commit, and what was read would be wrong a moment later. And a
producer is never used again after a transaction that failed: librdkafka may still have an answer
under way that would end the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from epochal.connectors.kafka.kafka_client import KafkaClient, import_kafka
from epochal.connectors.kafka.kafka_settings import connection_settings
from epochal.connectors.kafka.offsets import Cluster
from epochal.connectors.kafka.producer_settings import transactional_settings
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.sink_marker import Marker
from epochal.connectors.kafka.sink.sink_rows import Record
from epochal.errors import (
    GroupRefusedError,
    KafkaError,
    KafkaFencedError,
    KafkaUnavailableError,
    MarkerError,
)

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 120.0
CALL_SECONDS = 5.0
"""How long one call waits before it is asked again."""
HANG_SECONDS = 5.0
"""How much longer it may take to return. librdkafka 2.16 does not keep to the time limit where it
waits for a group's coordinator (its issues 5456 and 5511), and may wait for ever."""


class MarkerText(msgspec.Struct, frozen=True):
    """What is kept as metadata beside the marker's offset."""

    token: str
    v: int = 1


class KafkaTransactions:
    """Transactions of one query, one after the other."""

    def __init__(self, java: Mapping[str, str], name: str, marker_topic: str) -> None:
        """`name` is the transactional id, and the group of the marker."""
        self._kafka = import_kafka()
        self._name, self._topic = name, marker_topic
        self._settings = transactional_settings(java, name)
        self._servers = self._settings["bootstrap.servers"]
        self._connection = connection_settings(java)
        self._seconds = int(self._settings["transaction.timeout.ms"]) / 1000
        self._producer: RecordProducer | None = None
        self._group: Any = None

    def claim(self) -> None:
        """Shut out whoever had the transactional id before; their open transaction is aborted."""
        self.close()
        producer = RecordProducer(self._settings)
        self._call(producer, producer.client.init_transactions, CLAIM_SECONDS, "be claimed")
        self._producer = producer

    def marker(self) -> Marker | None:
        """The newest marker; None if there is none. Only after `claim`."""
        client = KafkaClient(Cluster.of(self._connection))
        # Whatever topic the query wrote to before, the marker is found.
        topics = {topic for topic, _ in client.partitions(None) if not topic.startswith("__")}
        held = client.held(self._name, [(topic, 0) for topic in sorted(topics)])
        if not held:
            return None
        newest = max(held.values(), key=lambda each: each.offset)
        try:
            text = msgspec.json.decode(newest.metadata, type=MarkerText)
        except msgspec.DecodeError:
            raise MarkerError(
                self._name,
                f"offset {newest.offset} has metadata {newest.metadata[:60]!r}, which is no marker",
                "Somebody else commits to this group: give it back, or set idPrefix.",
            ) from None
        return Marker(newest.offset - 1, text.token)

    def begin(self) -> None:
        """Begin a transaction."""
        producer = self._now()
        self._call(producer, lambda _: producer.client.begin_transaction(), 0, "begin")

    def send(self, places: Mapping[str, int], records: Iterable[Record]) -> None:
        """Add records to the transaction; `places` are the topics and partitions they name."""
        producer = self._now()
        producer.check_places(places)
        producer.send(records)

    def mark(self, marker: Marker) -> None:
        """Add the marker to the transaction."""
        producer = self._now()
        text = msgspec.json.encode(MarkerText(marker.token)).decode()
        place = self._kafka.TopicPartition(self._topic, 0, marker.epoch + 1, text)
        self._call(
            producer,
            lambda seconds: producer.client.send_offsets_to_transaction(
                [place], self._metadata(), seconds
            ),
            self._seconds,
            "be marked",
        )

    def commit(self) -> None:
        """Make all of the transaction visible.

        If that raises, whether it is visible is known only after the next claim.
        """
        producer = self._now()
        self._call(producer, producer.client.commit_transaction, self._seconds, "commit")

    def abandon(self) -> None:
        """Give the producer up after a failure; abort what it left open, if that can be done."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.close()
            producer.client.abort_transaction(CALL_SECONDS)
        except (self._kafka.KafkaException, SystemError) as error:
            logger.info("a transaction of %s could not be aborted: %s", self._name, error)

    def close(self) -> None:
        """Leave."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _now(self) -> RecordProducer:
        if self._producer is None:
            raise KafkaFencedError(self._servers, self._name, "its producer was given up")
        return self._producer

    def _metadata(self) -> Any:
        """Who commits the marker: the group, and nobody in it."""
        if self._group is None:
            settings = {"log_level": "0", **self._connection, "group.id": self._name}
            consumer = self._kafka.Consumer(settings)
            self._group = consumer.consumer_group_metadata()
            consumer.close()
        return self._group

    def _call(
        self,
        producer: RecordProducer,
        call: Callable[[float], object],
        seconds: float,
        what: str,
    ) -> None:
        """Call until it is done: librdkafka goes on where it was, if asked again."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if returns_in_time(call, min(CALL_SECONDS, seconds)):
                    return
                self._producer = None  # not to be closed either: that would not return
                raise KafkaUnavailableError(
                    self._servers,
                    f"the client does not return from a call to let transactional id {self._name} "
                    f"{what}. Another producer takes its place",
                )
            except self._kafka.KafkaException as error:
                first = error.args[0]
                if first.fatal() or first.txn_requires_abort() or not first.retriable():
                    raise self._error(producer, first) from error
                if time.monotonic() > deadline:
                    raise KafkaUnavailableError(
                        self._servers,
                        f"transactional id {self._name} could not {what} within {seconds:g} s "
                        f"({first.str().rstrip('.')})",
                    ) from error
            except SystemError as error:  # a callback met a fatal error
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
                f"{error.str().rstrip('.')}. To write exactly once the sink needs WRITE and "
                f"DESCRIBE on the transactional id and READ on the group, both of this name, or "
                f"of its prefix",
            )
        if not error.fatal():
            producer.client.poll(0)
            try:
                producer.raise_failure()  # it says which record, and why
            except KafkaError as failure:
                return failure
        return producer.error(error, self._topic)


def returns_in_time(
    call: Callable[[float], object], seconds: float, *, hang_seconds: float = HANG_SECONDS
) -> bool:
    """Make a call that waits for so many seconds; False if it does not return from it."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            call(seconds)
            outcome.append(None)
        except BaseException as error:  # noqa: BLE001  raised again where the call was asked for
            outcome.append(error)

    thread = threading.Thread(target=run, name="epochal-kafka-call", daemon=True)
    thread.start()
    thread.join(seconds + hang_seconds)
    if not outcome:
        return False
    if outcome[0] is not None:
        raise outcome[0]
    return True
