"""A librdkafka producer that reports failures with their reason and topic.

Deliveries are not counted. librdkafka reports only those that failed; an empty queue after a flush
means that all others arrived.

Note: a flush waits for everything in the queue. If records are added meanwhile, it may never end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from epochal.connectors.kafka.kafka_client import ConnectionErrors, import_kafka, rejected_settings
from epochal.connectors.kafka.kafka_settings import MAX_MESSAGE_BYTES
from epochal.connectors.kafka.sink.sink_rows import Record
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
