"""Spark's Kafka source: partitions are those of the topics, positions are offsets.

Offsets are logged in Spark's form, and the first ones in `sources/N` as Spark does, so a checkpoint
may go from Spark's micro-batches to a continuous query and back, anywhere.

What a reader would get wrong: a partition that was deleted keeps its position. When its topic is
made anew, that position is out of range, and the reader sees that the data is another; a partition
that was forgotten would be read from its beginning without a word.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol
from uuid import uuid4

import pyarrow as pa

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.layout import source_log_path
from epochal.checkpoint.source_logs import KafkaInitialOffsetLog, KafkaInitialOffsets
from epochal.clock import Clock, SystemClock
from epochal.connectors.contract import Offset, Positions
from epochal.connectors.kafka.cluster_worker import Lane
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.offsets import Cluster, Place, Want
from epochal.connectors.kafka.source.kafka_reader import KafkaReaders
from epochal.connectors.kafka.source.source_offsets import (
    named,
    parse_logged,
    spark_json,
    spark_order,
    to_offsets,
    to_positions,
)
from epochal.connectors.kafka.source.source_options import KafkaSourceOptions
from epochal.connectors.kafka.source.starting_offsets import (
    AtOffsets,
    AtTimes,
    Everywhere,
    asked_times,
    check_named,
    found_offsets,
    settled,
)
from epochal.errors import (
    ConcurrentUpdateError,
    KafkaDataLossError,
    KafkaTopicError,
)
from epochal.files import Files

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 8.0
"""How long a broker may take to answer; one that cannot be reached is told of after this."""

LOOKS = 3
LOOK_AGAIN_SECONDS = 1.0
"""A broker that has just started may not know all topics yet: what seems gone is looked for again,
as often as Spark does."""

FLUSH_SECONDS = 5.0


class LogClient(Protocol):
    """What a source asks of a cluster."""

    def partitions(self, topics: Iterable[str] | None) -> list[Place]: ...
    def earliest(self, places: Iterable[Place]) -> dict[Place, int]: ...
    def latest(self, places: Iterable[Place]) -> dict[Place, int]: ...
    def at_times(self, times_ms: Mapping[Place, int]) -> dict[Place, int | None]: ...


class KafkaSource:
    """The driver's side."""

    acknowledges_in_tasks = False

    def __init__(
        self,
        options: KafkaSourceOptions,
        checkpoint: Files,
        index: int,
        *,
        client: LogClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options, self._clock = options, clock or SystemClock()
        self._subscription, self._cluster = options.subscription, Cluster.of(options.connection)
        self._log = KafkaInitialOffsetLog(checkpoint.at(source_log_path(index)))
        settings = options.settings
        prefix = options.group_id_prefix or "epochal-kafka-source"
        self._readers = KafkaReaders(
            Cluster.of(settings),
            settings.get("group.id", f"{prefix}-{uuid4()}"),
            options.include_headers,
            options.fail_on_data_loss,
        )
        self._readers.consumer().close()  # says now what is wrong with the settings
        self._client = client or KafkaClient(
            self._cluster,
            request_seconds=REQUEST_SECONDS,
            read_committed=settings["isolation.level"] == "read_committed",
        )
        self._topics: set[str] = set()
        """Of all partitions that were ever read: one of them that is missing was deleted."""
        self._told: set[Place] = set()
        metadata = Checkpoint(checkpoint).metadata()
        self._query_id = "" if metadata is None else metadata.id
        self._lane: Lane | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._readers.schema

    @property
    def readers(self) -> KafkaReaders:
        return self._readers

    def initial(self) -> Positions:
        logged = self._log.get(0)
        if logged is not None:
            found = [((t, n), at) for t, of in logged.offsets.items() for n, at in of.items()]
            return to_positions(dict(found))
        offsets = self._first_offsets()
        if not self._log.add(0, KafkaInitialOffsets(spark_order(offsets))):
            raise ConcurrentUpdateError(self._log.url, 0)
        logger.info("kafka: initial offsets %s", spark_json(offsets))
        return to_positions(offsets)

    def resume(self, offset: Offset) -> Positions:
        return to_positions(parse_logged(offset))

    def discover(self, known: Positions) -> Positions:
        ours = set(to_offsets(known))
        there = self._look(ours)
        gone = ours - there
        if gone - self._told:
            self._lose("PARTITIONS_DELETED", f"partitions {named(gone)} have been deleted")
        self._told = gone
        found = self._client.earliest(sorted(there - ours))
        for place, offset in found.items():
            if offset > 0:
                self._lose(
                    "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                    f"added partition {named([place])} starts from {offset} instead of 0",
                )
        return to_positions(found)

    def offset(self, positions: Positions) -> Offset:
        return spark_json(to_offsets(positions))

    def boundary(self, positions: Positions) -> Positions:
        return positions

    def latest(self) -> Positions:
        return to_positions(self._client.latest(sorted(self._look(set()))))

    def lag(self, positions: Positions, latest: Positions) -> int:
        """Offsets between; a partition that nobody reads yet counts from its beginning."""
        at = to_offsets(positions)
        return sum(max(0, end - at.get(place, 0)) for place, end in to_offsets(latest).items())

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        group = self._options.commit_group
        if group is None or not positions:
            return
        if self._lane is None:
            self._lane = Lane(self._cluster, KafkaClient, clock=self._clock)
        self._lane.put(Want(self._cluster, group, self._query_id, epoch, to_offsets(positions)))

    def close(self) -> None:
        if self._lane is not None:
            if not self._lane.flush(FLUSH_SECONDS):
                logger.warning("kafka: the query ends, and its consumer group is behind it")
            self._lane.close(FLUSH_SECONDS)

    def _first_offsets(self) -> dict[Place, int]:
        places = sorted(self._look(set()))
        match self._options.starting:
            case Everywhere(offset):
                wanted = dict.fromkeys(places, offset)
            case AtOffsets(offsets):
                check_named("START", "startingOffsets", offsets, places)
                wanted = dict(offsets)
            case AtTimes() as times:
                asked = asked_times(times, places)
                wanted = found_offsets(times, asked, self._client.at_times(asked))
        ranges = self._client.earliest(wanted), self._client.latest(wanted)
        offsets, outside = settled(wanted, *ranges)
        for kind, reason in outside:
            self._lose(kind, reason)
        return offsets

    def _look(self, known: set[Place]) -> set[Place]:
        """The partitions to read; asked for again while something seems to be missing."""
        subscription = self._subscription
        self._topics |= {topic for topic, _ in known}
        for look in range(LOOKS):
            if look > 0:
                self._clock.sleep(LOOK_AGAIN_SECONDS)
            wanted = subscription.wanted_topics
            there = {p for p in self._client.partitions(wanted) if subscription.includes(p)}
            topics = {topic for topic, _ in there}
            missing = set(wanted or ()) - topics
            if not missing and known <= there:
                break
        if missing - self._topics:
            raise KafkaTopicError(self._options.servers, tuple(sorted(missing - self._topics)))
        self._topics |= topics
        return there

    def _lose(self, kind: str, reason: str) -> None:
        """Some data may be lost: fail, or say so and go on, as was chosen."""
        if self._options.fail_on_data_loss:
            raise KafkaDataLossError(self._options.servers, kind, reason)
        logger.warning(
            "Kafka at %s: %s. Some data may have been lost; going on, because failOnDataLoss is "
            "false",
            *(self._options.servers, reason),
        )
