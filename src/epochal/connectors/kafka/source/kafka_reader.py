"""Reads some partitions in a task: one client, told what to read and where; no consumer group.

What the client has fetched is taken without waiting (its own threads fetch ahead), and becomes
Arrow column by column. What a reader would get wrong: the next position is not the last offset
plus one. Markers of transactions, aborted records and what compaction removed take offsets too and
are never handed out; the client knows where it is, and says so when it reaches the end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from epochal.connectors.contract import Positions
from epochal.connectors.kafka.kafka_client import QUIET, gone_codes, import_kafka
from epochal.connectors.kafka.offsets import Cluster, Place
from epochal.connectors.kafka.source.reader_rows import RowMaker, kafka_schema
from epochal.connectors.kafka.source.source_offsets import partition_id, to_offsets, to_positions
from epochal.errors import KafkaDataLossError, KafkaError, OptionError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaReaders:
    """Opens readers in tasks."""

    cluster: Cluster
    group_id: str
    include_headers: bool = False
    fail_on_data_loss: bool = True
    wanted: frozenset[str] | None = None
    """The columns that are looked at; None for all of them."""

    @property
    def schema(self) -> pa.Schema:
        return kafka_schema(self.include_headers)

    def only(self, columns: frozenset[str]) -> KafkaReaders:
        """Readers that leave all other columns null."""
        return replace(self, wanted=columns)

    def open(self, partitions: Positions) -> KafkaReader:
        return KafkaReader(self, partitions)

    def consumer(self, **callbacks: Any) -> Any:
        """A client that reads as these settings say; it is told later what."""
        kafka = import_kafka()
        try:
            return kafka.Consumer(
                {
                    **QUIET,
                    "group.id": self.group_id,  # needed, but never joined: partitions are assigned
                    **dict(self.cluster.settings),
                    "enable.auto.commit": "false",
                    "enable.auto.offset.store": "false",
                    "auto.offset.reset": "error",
                    "enable.partition.eof": "true",
                    **callbacks,
                }
            )
        except kafka.KafkaException as error:
            reason = error.args[0].str().rstrip(".")
            raise OptionError(f"kafka: the client refuses its settings: {reason}.") from None


@dataclass(slots=True)
class _At:
    """Where a partition is read."""

    next: int
    end: int | None = None
    """Not to be passed, once there is one."""
    is_lost: bool = False
    """The client was sent to the beginning and has not said yet where that is."""
    is_gone: bool = False
    """Whether it was told that the partition is not there."""

    def reach(self, offset: int) -> None:
        """Everything before `offset` is read, or is not there to be read."""
        if offset > self.next or self.is_lost:
            self.next, self.is_lost, self.is_gone = offset, False, False

    @property
    def shown(self) -> int:
        return self.next if self.end is None else min(self.next, self.end)


class KafkaReader:
    """One client and its partitions. Used by one thread; never waits."""

    def __init__(self, readers: KafkaReaders, partitions: Positions) -> None:
        self._kafka = import_kafka()
        self._readers, self._servers = readers, readers.cluster.bootstrap_servers
        self._at = {place: _At(offset) for place, offset in to_offsets(partitions).items()}
        self._rows = RowMaker(readers.schema, tuple(self._at), readers.wanted)
        self._heard: list[Any] = []
        self._troubles: set[int] = set()
        self._limited = False
        self._consumer = readers.consumer(error_cb=self._heard.append)
        self._consumer.assign(
            [self._kafka.TopicPartition(*place, at.next) for place, at in self._at.items()]
        )

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        messages = self._consumer.consume(max_rows, 0)
        if self._heard:
            self._listen()
        if not messages:
            return None
        if [message for message in messages if message.error() is not None]:
            messages = self._records(messages)
        if self._limited:
            messages = [each for each in messages if self._is_within(each)]
        if not messages:
            return None
        if self._troubles:
            logger.info("Kafka at %s is read again", self._servers)
            self._troubles.clear()
        batch, last = self._rows.make(messages)
        for place, offset in last.items():
            self._at[place].reach(offset + 1)
        return batch

    def positions(self) -> Positions:
        asked = [self._kafka.TopicPartition(*place) for place in self._at]
        for found in self._consumer.position(asked):
            if found.offset >= 0:  # below, nothing of the partition was taken yet
                self._at[found.topic, found.partition].reach(found.offset)
        return to_positions({place: at.shown for place, at in self._at.items()})

    def limit(self, ends: Positions) -> None:
        self._limited = True
        for place, offset in to_offsets(ends).items():
            self._at[place].end = offset

    def close(self) -> None:
        self._consumer.close()

    def _is_within(self, message: Any) -> bool:
        at = self._at[message.topic(), message.partition()]
        at.reach(message.offset())
        return at.end is None or message.offset() < at.end

    def _records(self, messages: Sequence[Any]) -> list[Any]:
        """The records among what the client said; the rest is dealt with."""
        kept = []
        for message in messages:
            error = message.error()
            if error is None:
                kept.append(message)
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._at[message.topic(), message.partition()].reach(message.offset())
            else:
                self._heed(error, (message.topic(), message.partition()))
        return kept

    def _heed(self, error: Any, place: tuple[str | None, int]) -> None:
        """A trouble with one partition: lost records, or the end of the task."""
        codes = self._kafka.KafkaError
        match place:
            case (str(topic), number) if (topic, number) in self._at:
                at, name = self._at[topic, number], partition_id((topic, number))
                if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
                    self._out_of_range((topic, number), at, error)
                    return
                if error.code() in gone_codes(self._kafka):
                    self._deleted(at, name)
                    return
                raise KafkaError(self._servers, f"{name} at offset {at.next}: {error.str()}")
        self._heard.append(error)
        self._listen()

    def _out_of_range(self, place: Place, at: _At, error: Any) -> None:
        told = f"offset {at.next} of {partition_id(place)} is not there ({error.str()})"
        if self._readers.fail_on_data_loss:
            raise KafkaDataLossError(self._servers, "COULD_NOT_READ_OFFSET_RANGE", told)
        logger.warning(
            "Kafka at %s: %s. Some data may have been lost; going on with the oldest that is "
            "there, because failOnDataLoss is false",
            *(self._servers, told),
        )
        at.is_lost = True
        beginning = self._kafka.TopicPartition(*place, self._kafka.OFFSET_BEGINNING)
        self._consumer.incremental_unassign([beginning])
        self._consumer.incremental_assign([beginning])

    def _deleted(self, at: _At, name: str) -> None:
        if self._readers.fail_on_data_loss:
            raise KafkaDataLossError(
                self._servers, "PARTITIONS_DELETED", f"{name} was deleted; {at.next} was next"
            )
        if not at.is_gone:
            at.is_gone = True
            logger.warning(
                "Kafka at %s: %s was deleted, %d was next. Some data may have been lost; going on "
                "without it, because failOnDataLoss is false",
                *(self._servers, name, at.next),
            )

    def _listen(self) -> None:
        """What the client says by the way: it goes on by itself, unless it cannot."""
        codes = self._kafka.KafkaError
        heard = self._heard.copy()
        self._heard.clear()
        for error in heard:
            if error.fatal() or error.code() in (
                codes._AUTHENTICATION,
                codes.SASL_AUTHENTICATION_FAILED,
                codes.TOPIC_AUTHORIZATION_FAILED,
                codes.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise KafkaError(self._servers, error.str().rstrip("."))
            if error.code() not in self._troubles:
                self._troubles.add(error.code())
                logger.warning("Kafka at %s: %s; it is tried again", self._servers, error.str())
