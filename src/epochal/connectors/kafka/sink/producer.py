"""A librdkafka producer that reports failures with their reason and topic, and rows refused before.

Deliveries are not counted. librdkafka reports only those that failed; an empty queue after a flush
means that all others arrived.

Note: a flush waits for everything in the queue. If records are added meanwhile, it may never end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from epochal.connectors.contract import BadRows
from epochal.connectors.kafka.kafka_client import ConnectionErrors, import_kafka, rejected_settings
from epochal.connectors.kafka.kafka_settings import MAX_MESSAGE_BYTES
from epochal.connectors.kafka.sink.sink_rows import (
    Record,
    RecordPlan,
    place_of,
    small_batch_records,
)
from epochal.errors import KafkaError, KafkaFencedError, KafkaRecordError

FULL_SECONDS = 0.02
METADATA_SECONDS = 10.0
RETRY_SECONDS = 0.1
FLUSH_STEP_SECONDS = 0.001
"""The client checks whether its queue is empty at the end of each call, and within a longer call
only every few tens of milliseconds, because an arrived record does not wake it up."""


class _Failures:
    """The deliveries that failed. The client refers to this and not to its owner: in a cycle it
    would live on, with threads and connections, until Python happens to look for cycles."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.first: tuple[Any, str] | None = None
        self.count = 0

    def note(self, error: Any, message: Any) -> None:
        self.count += 1
        if self.first is None:
            self.first = error, message.topic()


class RecordProducer:
    """Sends records. Only one thread at a time may use it."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._kafka = import_kafka()
        self._servers = settings["bootstrap.servers"]
        self._transactional_id = settings.get("transactional.id", "")
        self._max_bytes = int(settings.get("message.max.bytes", MAX_MESSAGE_BYTES))
        self._failures = _Failures()
        self._connection = ConnectionErrors(self._kafka)
        self._partition_counts: dict[str, int] = {}
        try:
            self.client: Any = self._kafka.Producer(
                {
                    "log_level": "0",
                    **settings,
                    "delivery.report.only.error": True,
                    "on_delivery": self._failures.note,
                    "error_cb": self._connection.note,
                }
            )
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise rejected_settings(error) from error

    def send(self, records: Iterable[Record]) -> None:
        """Queue records; wait while the queue is full."""
        produce, poll = self.client.produce, self.client.poll
        topic = ""
        try:
            for record in records:
                topic = record[0]
                while True:
                    try:
                        produce(*record)
                        break
                    except BufferError:
                        poll(FULL_SECONDS)
                        self.raise_failure()
            poll(0)
        except self._kafka.KafkaException as error:
            raise self.error(error.args[0], topic) from error
        except SystemError as error:  # raised if a callback meets a fatal error
            raise self._fenced(str(error)) from error
        self.raise_failure()

    def flush(self) -> None:
        """Wait until all records have arrived; raise if one could not be delivered."""
        # This loop ends, because each message has its own timeout.
        try:
            while self.client.flush(FLUSH_STEP_SECONDS):
                self.raise_failure()
        except self._kafka.KafkaException as error:
            raise self.error(error.args[0], "") from error
        self.raise_failure()

    def check_topics(self, highest_partitions: Mapping[str, int]) -> None:
        """Check that these topics exist and have the partitions that rows name.

        Brokers are asked once per topic. Without this check librdkafka would wait half a minute for
        a missing topic to appear.
        """
        for topic, partition in highest_partitions.items():
            if topic not in self._partition_counts or partition >= self._partition_counts[topic]:
                self._partition_counts[topic] = count = self.partitions_of(topic)
                if partition >= count:
                    raise KafkaRecordError(
                        self._servers,
                        topic,
                        f"a row names partition {partition}, but the topic has {count} partitions, "
                        f"numbered from 0. Correct the column partition; if it is null, the key "
                        f"decides",
                    )

    def partitions_of(self, topic: str) -> int:
        """The number of partitions of a topic. Brokers with auto.create.topics.enable create it."""
        codes = self._kafka.KafkaError
        deadline = time.monotonic() + METADATA_SECONDS
        while True:
            try:
                metadata = self.client.list_topics(topic, timeout=METADATA_SECONDS).topics[topic]
            except self._kafka.KafkaException as error:
                self.client.poll(0)  # receives why no connection could be made
                raise self.error(error.args[0], topic) from error
            if metadata.error is None and metadata.partitions:
                return len(metadata.partitions)
            code = None if metadata.error is None else metadata.error.code()
            late = time.monotonic() > deadline
            if late or code not in (None, codes.LEADER_NOT_AVAILABLE):
                raise self.error(metadata.error, topic)
            time.sleep(RETRY_SECONDS)

    def raise_failure(self) -> None:
        """Raise the error of the first delivery that failed, if any did."""
        if self._failures.first is not None:
            (error, topic), more = self._failures.first, self._failures.count - 1
            self._failures.clear()
            raise self.error(error, topic, more)

    def error(self, error: Any, topic: str, more: int = 0) -> KafkaError:
        """Translate one of librdkafka's errors about a topic into one of ours."""
        codes = self._kafka.KafkaError
        code = None if error is None else error.code()
        others = f" ({more} more records failed)" if more > 0 else ""
        if self._transactional_id and error is not None:
            # After the first fatal error, every call fails with _FATAL.
            fenced = (
                codes._FENCED,
                codes._FATAL,
                codes.PRODUCER_FENCED,
                codes.INVALID_PRODUCER_EPOCH,
            )
            if error.fatal() or code in fenced:
                return self._fenced(error.str())
        match code:
            case codes.UNKNOWN_TOPIC_OR_PART | codes._UNKNOWN_TOPIC | codes._UNKNOWN_PARTITION:
                reason = "there is no such topic or partition. Create it, or correct its name"
            case codes.MSG_SIZE_TOO_LARGE:
                reason = (
                    f"a record is too large. The producer's limit is {self._max_bytes} bytes "
                    f"(kafka.max.request.size), the topic's limit is its max.message.bytes. Make "
                    f"the record smaller, or raise both limits"
                )
            case codes.TOPIC_AUTHORIZATION_FAILED:
                reason = (
                    "this user may not write to it. The sink needs WRITE and DESCRIBE on the topic"
                )
            case codes.TOPIC_EXCEPTION:
                reason = "this is not a valid topic name. Correct the name"
            case _:
                text = "no answer" if error is None else error.str() or error.name()
                return self._connection.error(self._servers, f"{text.rstrip('.')}{others}")
        return KafkaRecordError(self._servers, topic, f"{reason}{others}.")

    def close(self) -> None:
        """Drop records that have not arrived, and the client with its threads and connections."""
        client, self.client = self.client, None
        if client is not None:
            client.purge(blocking=False)

    def _fenced(self, reason: str) -> KafkaFencedError:
        return KafkaFencedError(self._servers, self._transactional_id, reason.rstrip("."))


ASK_AGAIN_SECONDS = 10.0
"""A topic that did not exist may be created."""


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
        """Return the rows that cannot be written, with the reason."""
        few = small_batch_records(self._plan, batch, max_bytes)
        if few is not None and self._are_usable(few):
            return {}
        chosen = self._plan.chosen(batch)
        bad = self._plan.bad_rows(chosen, max_bytes)
        for index, (topic, partition) in enumerate(self._plan.places(chosen) or ()):
            if index not in bad and (reason := self._reason(topic, partition)) is not None:
                bad[index] = reason
        return bad

    def _are_usable(self, records: Sequence[Record]) -> bool:
        return not self._plan.names_places or all(
            place_of(record) in self._usable for record in records
        )

    def close(self) -> None:
        """Close the client."""
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
