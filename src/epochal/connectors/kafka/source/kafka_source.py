"""The driver's side of the Kafka source: finds partitions and starting offsets.

Offsets are logged in Spark's form, and the initial offsets in `sources/N` as Spark logs them. So a
query can switch between Spark's micro-batch mode and continuous mode at any epoch, in both
directions, with the same checkpoint.

Note: a deleted partition keeps its position. If its topic is created again, that position is out of
range, and the reader notices that the data is different. If the position were dropped, the new
partition would be read from its beginning without any warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from uuid import uuid4

import pyarrow as pa

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.file_log import KafkaInitialOffsetLog, KafkaInitialOffsets
from epochal.checkpoint.layout import source_log_path
from epochal.clock import Clock, SystemClock
from epochal.connectors.contract import BoundedSource, Offset, Positions
from epochal.connectors.formats import SourceRequest
from epochal.connectors.kafka.cluster_worker import ClusterWorker
from epochal.connectors.kafka.kafka_client import KafkaClient, await_brokers
from epochal.connectors.kafka.offsets import Cluster, CommitRequest, KafkaPartition
from epochal.connectors.kafka.source.kafka_reader import KafkaReaders
from epochal.connectors.kafka.source.source_offsets import (
    by_partition,
    parse_logged,
    partition_id,
    partition_names,
    settle_start,
    spark_json,
    spark_order,
    to_offsets,
    to_positions,
    wanted_offsets,
)
from epochal.connectors.kafka.source.source_options import (
    EpochBounds,
    KafkaSourceOptions,
    read_with_values,
)
from epochal.connectors.schema_registry.value_schemas import ValueSpec
from epochal.errors import ConcurrentUpdateError, KafkaDataLossError, KafkaTopicError
from epochal.files import Files
from epochal.metrics.query_metrics import records_behind

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 8.0
"""How long a broker may take to answer before it counts as unreachable."""

LIST_ATTEMPTS = 3
LIST_RETRY_SECONDS = 1.0
"""A broker that has just started may not know all topics yet. If a partition seems to be
missing, the list is requested again, as often as Spark does."""

FLUSH_SECONDS = 5.0


def open_kafka_source(request: SourceRequest) -> KafkaSource:
    options, values = read_with_values(request.options)
    return KafkaSource(options, request.checkpoint, request.index, values=values)


class KafkaSource(BoundedSource):
    """Implements the `Source` contract for Kafka topics."""

    acknowledges_in_tasks = False
    tells_waiting = True

    def __init__(
        self,
        options: KafkaSourceOptions,
        checkpoint: Files,
        index: int,
        *,
        client: KafkaClient | None = None,
        clock: Clock | None = None,
        values: ValueSpec | None = None,
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
            values=values,
        )
        self._readers.consumer().close()  # raises now if the settings are wrong
        self._client = client or KafkaClient(
            self._cluster,
            request_seconds=REQUEST_SECONDS,
            read_committed=settings["isolation.level"] == "read_committed",
        )
        self._has_answered = False
        """Whether the brokers have answered since the query was started."""
        self._topics: set[str] = set()
        """The topics of all partitions that were ever read. If one is missing, it was deleted."""
        self._reported_deleted: set[KafkaPartition] = set()
        self._reported_shrunk: set[KafkaPartition] = set()
        metadata = Checkpoint(checkpoint).metadata()
        self._query_id = "" if metadata is None else metadata.id
        self._worker: ClusterWorker | None = None
        self._planned_at: float | None = None
        """When the last epoch with a bound was planned."""

    @property
    def schema(self) -> pa.Schema:
        return self._readers.schema

    @property
    def readers(self) -> KafkaReaders:
        return self._readers

    def initial(self) -> Positions:
        logged = self._log.get(0)
        if logged is not None:
            return to_positions(by_partition(logged.offsets))
        offsets = self._first_offsets()
        if not self._log.add(0, KafkaInitialOffsets(spark_order(offsets))):
            raise ConcurrentUpdateError(self._log.url, 0)
        logger.info("kafka: initial offsets %s", spark_json(offsets))
        return to_positions(offsets)

    def resume(self, offset: Offset) -> Positions:
        return to_positions(parse_logged(offset))

    def discover(self, known: Positions) -> Positions:
        ours = set(to_offsets(known))
        existing = self._list_partitions(ours)
        deleted = ours - existing
        if deleted - self._reported_deleted:
            self._report_loss(
                "PARTITIONS_DELETED", f"partitions {partition_names(deleted)} have been deleted"
            )
        self._reported_deleted = deleted
        earliest = self._client.earliest(sorted(existing - ours))
        for tp, offset in earliest.items():
            if offset > 0:
                self._report_loss(
                    "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                    f"added partition {partition_id(tp)} starts from {offset} instead of 0",
                )
        return to_positions(earliest)

    def offset(self, positions: Positions) -> Offset:
        return spark_json(to_offsets(positions))

    def latest(self) -> Positions:
        return to_positions(self._client.latest(sorted(self._list_partitions(set()))))

    @property
    def bounded(self) -> KafkaSource:
        return self

    @property
    def bounds_epochs(self) -> bool:
        return self._options.bounds.are_set

    def last_end(self, at: Positions) -> Positions:
        start = to_offsets(at)
        until = {**start, **to_offsets(self.latest())}
        self._check_ranges(start, until)
        return to_positions({tp: max(offset, until[tp]) for tp, offset in start.items()})

    def next_end(self, at: Positions, last: Positions | None, *, bounded: bool = True) -> Positions:
        """As Spark: at once in the first epoch, or if the end of the query is fixed."""
        bounds = self._options.bounds if bounded else EpochBounds()
        now, start = self._clock.monotonic(), to_offsets(at)
        until = {**start, **to_offsets(self.latest() if last is None else last)}
        self._check_ranges(start, until)
        if last is None and self._planned_at is not None:
            waited = timedelta(seconds=now - self._planned_at)
            if bounds.waits(start, until, waited):
                return at
        self._planned_at = now
        return to_positions(bounds.ends(start, until))

    def unit_end(self, at: Positions, latest: Positions) -> Positions:
        bounds = EpochBounds(most=self._options.max_offsets_per_unit)
        start = to_offsets(at)
        return to_positions(bounds.ends(start, {**start, **to_offsets(latest)}))

    def lag(self, positions: Positions, latest: Positions) -> int:
        """Total distance in offsets; a partition that is not read yet counts from offset 0."""
        at = to_offsets(positions)
        lags = (records_behind(at.get(tp, 0), end) for tp, end in to_offsets(latest).items())
        return sum(lag or 0 for lag in lags)

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        group = self._options.commit_group
        if group is None or not positions:
            return
        if self._worker is None:
            self._worker = ClusterWorker(self._cluster, KafkaClient, clock=self._clock)
        self._worker.put(
            CommitRequest(self._cluster, group, self._query_id, epoch, to_offsets(positions))
        )

    def close(self) -> None:
        if self._worker is not None:
            if not self._worker.flush(FLUSH_SECONDS):
                logger.warning(
                    "kafka: the query has ended, but consumer group %s could not be brought up to "
                    "its position",
                    self._options.commit_group,
                )
            self._worker.close(FLUSH_SECONDS)

    def _first_offsets(self) -> dict[KafkaPartition, int]:
        partitions = sorted(self._list_partitions(set()))
        wanted = wanted_offsets(self._options.starting, partitions, self._client.at_times)
        ranges = self._client.earliest(wanted), self._client.latest(wanted)
        offsets, outside = settle_start(wanted, *ranges)
        for kind, reason in outside:
            self._report_loss(kind, reason)
        return offsets

    def _list_partitions(self, listed: set[KafkaPartition]) -> set[KafkaPartition]:
        """The partitions to read; the request is repeated while one seems to be missing."""
        subscription = self._subscription
        self._topics |= {topic for topic, _ in listed}
        for attempt in range(LIST_ATTEMPTS):
            if attempt > 0:
                self._clock.sleep(LIST_RETRY_SECONDS)
            wanted = subscription.wanted_topics
            existing = {tp for tp in self._partitions(wanted) if subscription.includes(tp)}
            topics = {topic for topic, _ in existing}
            missing = set(wanted or ()) - topics
            if not missing and listed <= existing:
                break
        # A topic that was read before was deleted; one that was never seen is a wrong name.
        if missing - self._topics:
            raise KafkaTopicError(self._options.servers, tuple(sorted(missing - self._topics)))
        self._topics |= topics
        return existing

    def _partitions(self, wanted: Iterable[str] | None) -> list[KafkaPartition]:
        # Only a start waits. Later the engine asks between other work, and asks again by itself.
        timeout = self._options.broker_timeout.total_seconds()
        partitions = await_brokers(
            lambda: self._client.partitions(wanted),
            seconds=0 if self._has_answered else timeout,
            clock=self._clock,
        )
        self._has_answered = True
        return partitions

    def _check_ranges(
        self, start: Mapping[KafkaPartition, int], until: Mapping[KafkaPartition, int]
    ) -> None:
        """Report partitions that end before their start: they were deleted and created again."""
        shrunk = {tp for tp, offset in start.items() if until[tp] < offset}
        for tp in sorted(shrunk - self._reported_shrunk):
            reason = f"the end of {partition_id(tp)} is {until[tp]}, but {start[tp]} was next"
            self._report_loss("PARTITION_OFFSET_CHANGED", reason)
        self._reported_shrunk = shrunk

    def _report_loss(self, kind: str, reason: str) -> None:
        """Raise, or log a warning and continue if failOnDataLoss is false."""
        if self._options.fail_on_data_loss:
            raise KafkaDataLossError(self._options.servers, kind, reason)
        logger.warning(
            "Kafka at %s: %s. Some data may have been lost. The query continues, because "
            "failOnDataLoss is false",
            *(self._options.servers, reason),
        )
