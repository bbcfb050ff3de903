"""A librdkafka producer that tells what went wrong, and of which topic.

Deliveries are not counted: librdkafka reports only those that failed, and an empty queue after a
flush means that all others arrived. What a reader would get wrong: a flush waits for everything
that is in the queue, so whoever goes on adding to it may never see it empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from epochal.connectors.kafka.kafka_client import import_kafka
from epochal.connectors.kafka.producer_settings import MAX_MESSAGE_BYTES
from epochal.connectors.kafka.sink.sink_rows import Record
from epochal.errors import (
    KafkaError,
    KafkaFencedError,
    KafkaRecordError,
    KafkaUnavailableError,
    OptionError,
)

FULL_SECONDS = 0.02
METADATA_SECONDS = 10.0
RETRY_SECONDS = 0.1
FLUSH_STEP_SECONDS = 0.001
"""The client looks whether its queue is empty once in a step and, in longer ones, in tens of
milliseconds, because nothing tells it of records that have arrived."""


class RecordProducer:
    """Sends records. Used by one thread at a time."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._kafka = import_kafka()
        self._servers = settings["bootstrap.servers"]
        self._transactional_id = settings.get("transactional.id", "")
        self._max_bytes = int(settings.get("message.max.bytes", MAX_MESSAGE_BYTES))
        self._failures: list[tuple[Any, str]] = []
        self._failed = 0
        self._said = ""
        self._known: dict[str, int] = {}
        try:
            self.client = self._kafka.Producer(
                {
                    "log_level": "0",
                    **settings,
                    "delivery.report.only.error": True,
                    "on_delivery": self._note,
                    "error_cb": self._hear,
                }
            )
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise OptionError(f"kafka: the producer's settings: {reason_of(error)}.") from error

    def send(self, records: Iterable[Record]) -> None:
        """Queue records; waits while the queue is full."""
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
        except SystemError as error:  # a callback met a fatal error
            raise self._fenced(str(error)) from error
        self.raise_failure()

    def flush(self) -> None:
        """Wait until all that was sent has arrived; raise if some of it never will."""
        # Each message has its own deadline, so this ends.
        try:
            while self.client.flush(FLUSH_STEP_SECONDS):
                self.raise_failure()
        except self._kafka.KafkaException as error:
            raise self.error(error.args[0], "") from error
        self.raise_failure()

    def check_places(self, places: Mapping[str, int]) -> None:
        """That these topics exist, and have the partitions that are named: each is asked once.

        Without it librdkafka would wait half a minute for a topic to appear.
        """
        for topic, partition in places.items():
            if topic not in self._known or partition >= self._known[topic]:
                self._known[topic] = count = self.partitions_of(topic)
                if partition >= count:
                    raise KafkaRecordError(
                        self._servers,
                        topic,
                        f"a row names partition {partition}, and it has {count}. Partitions begin "
                        f"at 0; null lets the key decide",
                    )

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has. Asking makes it, where brokers are set to do so."""
        codes = self._kafka.KafkaError
        deadline = time.monotonic() + METADATA_SECONDS
        while True:
            try:
                found = self.client.list_topics(topic, timeout=METADATA_SECONDS).topics[topic]
            except self._kafka.KafkaException as error:
                raise self.error(error.args[0], topic) from error
            if found.error is None and found.partitions:
                return len(found.partitions)
            code = None if found.error is None else found.error.code()
            late = time.monotonic() > deadline
            if late or code not in (None, codes.LEADER_NOT_AVAILABLE):
                raise self.error(found.error, topic)
            time.sleep(RETRY_SECONDS)

    def raise_failure(self) -> None:
        """Raise the first delivery that failed, if any did."""
        if self._failures:
            (error, topic), more = self._failures[0], self._failed - 1
            self._failures, self._failed = [], 0
            raise self.error(error, topic, more)

    def error(self, error: Any, topic: str, more: int = 0) -> KafkaError:
        """One of librdkafka's errors about a topic as one of ours."""
        codes = self._kafka.KafkaError
        code = None if error is None else error.code()
        others = f" ({more} more like this)" if more > 0 else ""
        if self._transactional_id and error is not None:
            shut_out = (codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH)
            if error.fatal() or code in shut_out:
                return self._fenced(error.str())
        match code:
            case codes.UNKNOWN_TOPIC_OR_PART | codes._UNKNOWN_TOPIC | codes._UNKNOWN_PARTITION:
                reason = "there is no such topic or partition. Create it, or correct its name"
            case codes.MSG_SIZE_TOO_LARGE:
                reason = (
                    f"a record is too large: the producer takes {self._max_bytes} bytes "
                    f"(kafka.max.request.size), the topic what its max.message.bytes says. Make it "
                    f"smaller, or raise both"
                )
            case codes.TOPIC_AUTHORIZATION_FAILED:
                reason = "not authorised to write. The sink needs WRITE and DESCRIBE on the topic"
            case codes.TOPIC_EXCEPTION:
                reason = "this cannot be the name of a topic"
            case _:
                said = f" ({self._said})" if self._said else ""
                text = "no answer" if error is None else error.str() or error.name()
                return KafkaUnavailableError(self._servers, f"{text.rstrip('.')}{said}{others}")
        return KafkaRecordError(self._servers, topic, f"{reason}{others}.")

    def close(self) -> None:
        """Leave; what has not arrived is dropped."""
        self.client.purge(blocking=False)

    def _fenced(self, reason: str) -> KafkaFencedError:
        return KafkaFencedError(self._servers, self._transactional_id, reason.rstrip("."))

    def _note(self, error: Any, message: Any) -> None:
        self._failed += 1
        if len(self._failures) < 1:
            self._failures.append((error, message.topic()))

    def _hear(self, error: Any) -> None:
        self._said = error.str()


def reason_of(error: BaseException) -> str:
    """What a client's exception says."""
    first = error.args[0] if error.args else error
    return str(first.str() if hasattr(first, "str") else first).rstrip(".")
