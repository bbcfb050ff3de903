"""Reads and writes group offsets, and reads the start and end offsets of partitions.

Offsets are committed without joining the group, as Kafka's own admin tools do. The broker rejects
such a commit while the group has live members, so there is no race that a check here could lose.

Note: do not read groups through librdkafka's admin client. Its ListConsumerGroupOffsets (2.16.0)
dereferences a null pointer when a broker answers NOT_COORDINATOR, as every broker does for a moment
after it starts. That would kill the process, which is the Spark driver. A consumer that joins
nothing can ask the same question safely, but needs one client per group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from epochal.clock import Clock
from epochal.connectors.kafka.offsets import Cluster, CommittedOffset, KafkaPartition
from epochal.errors import (
    GroupRefusedError,
    KafkaError,
    KafkaRejectedError,
    KafkaUnavailableError,
    OptionError,
)

REQUEST_SECONDS = 10.0
COORDINATOR_SECONDS = 0.2
NAMED_MEMBERS = 3

# librdkafka prints nothing on its own; it reports errors through callbacks.
QUIET = {"log_level": "0"}


class KafkaClient:
    """A connection to one cluster. Calls block for at most a few times `request_seconds`.

    With `read_committed` a partition ends where its first open transaction begins.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        request_seconds: float = REQUEST_SECONDS,
        read_committed: bool = False,
    ) -> None:
        self._kafka = import_kafka()
        self._servers = cluster.bootstrap_servers
        self._seconds = request_seconds
        levels = self._kafka.IsolationLevel
        self._level = levels.READ_COMMITTED if read_committed else levels.READ_UNCOMMITTED
        self._settings = dict(cluster.settings)
        self._consumers: dict[str, Any] = {}
        self._connection = ConnectionErrors(self._kafka)
        if not self._servers:
            raise OptionError(
                "No Kafka cluster is named. Set kafka.bootstrap.servers (or --bootstrap-servers)."
            )
        settings = {**QUIET, **self._settings, "error_cb": self._connection.note}
        try:
            self._admin = self._kafka.admin.AdminClient(settings)
        except self._kafka.KafkaException as error:
            raise rejected_settings(error) from error

    def committed_offsets(
        self, group: str, partitions: Iterable[KafkaPartition] | None = None
    ) -> dict[KafkaPartition, CommittedOffset]:
        """The group's offsets, for these partitions or for all partitions of the cluster."""
        kafka = self._kafka
        wanted = self.partitions(None) if partitions is None else partitions
        asked = [kafka.TopicPartition(*tp) for tp in wanted]
        if not asked:
            return {}
        consumer = self._consumer(group)
        try:
            answer = self._ask(lambda: consumer.committed(asked, timeout=self._seconds), group)
        except _NoSuchPartitionError:
            answer = []
        # Errors of one partition that mean that the group has no visible offset there.
        ignored = missing_partition_codes(kafka)
        if partitions is None:
            ignored = (*ignored, kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)
        committed: dict[KafkaPartition, CommittedOffset] = {}
        for partition in answer:
            if partition.error is not None:
                if partition.error.code() not in ignored:
                    raise self._error(partition.error, group)
            elif partition.offset >= 0:
                committed[partition.topic, partition.partition] = CommittedOffset(
                    partition.offset, partition.metadata or ""
                )
        return committed

    def commit(
        self, group: str, offsets: Mapping[KafkaPartition, int], metadata: str
    ) -> list[KafkaPartition]:
        """Set the group's offsets; return the partitions that do not exist (any more)."""
        try:
            self._commit(group, offsets, metadata)
            return []
        except _NoSuchPartitionError:  # the answer does not name the partition
            existing = set(self.partitions({topic for topic, _ in offsets}))
        left = {tp: offset for tp, offset in offsets.items() if tp in existing}
        try:
            if left:
                self._commit(group, left, metadata)
        except _NoSuchPartitionError:
            raise KafkaUnavailableError(
                self._servers, "its brokers do not agree on which partitions exist"
            ) from None
        return [tp for tp in offsets if tp not in existing]

    def latest(self, partitions: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        """The end offsets; partitions that do not exist are missing from the result."""
        return self._log_offsets(dict.fromkeys(partitions, self._kafka.admin.OffsetSpec.latest()))

    def earliest(self, partitions: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        """The oldest offsets that still exist; partitions that do not exist are missing."""
        return self._log_offsets(dict.fromkeys(partitions, self._kafka.admin.OffsetSpec.earliest()))

    def at_times(self, times_ms: Mapping[KafkaPartition, int]) -> dict[KafkaPartition, int | None]:
        """The offset of the first record at or after the time; None if all records are older."""
        spec = self._kafka.admin.OffsetSpec.for_timestamp
        offsets = self._log_offsets({tp: spec(time_ms) for tp, time_ms in times_ms.items()})
        return {tp: None if offset < 0 else offset for tp, offset in offsets.items()}

    def partitions(self, topics: Iterable[str] | None) -> list[KafkaPartition]:
        """Every partition of those of these topics that exist; None means all topics."""
        try:
            topics_by_name = self._admin.list_topics(timeout=self._seconds).topics
        except self._kafka.KafkaException as error:
            raise self._error(error.args[0], None) from error
        return [
            (topic, partition)
            for topic in sorted(
                topics_by_name if topics is None else set(topics) & set(topics_by_name)
            )
            for partition in sorted(topics_by_name[topic].partitions)
        ]

    def timestamps_ms(
        self, positions: Mapping[KafkaPartition, int]
    ) -> dict[KafkaPartition, int | None]:
        """The timestamp of the first record at or after each position; None if there is none.

        Positions that were not answered in time are missing from the result.
        """
        kafka = self._kafka
        consumer = kafka.Consumer(
            {
                **self._consumer_settings("epochal-lag"),  # never joined: partitions are assigned
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.message.max.bytes": 4096,  # one record is enough
            }
        )
        timestamps: dict[KafkaPartition, int | None] = {}
        try:
            consumer.assign([kafka.TopicPartition(*tp, offset) for tp, offset in positions.items()])
            deadline = time.monotonic() + self._seconds
            while len(timestamps) < len(positions) and time.monotonic() < deadline:
                for record in consumer.consume(500, timeout=0.2):
                    tp = (record.topic(), record.partition())
                    if tp in timestamps or tp not in positions:
                        continue
                    kind, moment = record.timestamp()
                    no_time = record.error() is not None or kind == kafka.TIMESTAMP_NOT_AVAILABLE
                    timestamps[tp] = None if no_time else moment
                    consumer.pause([kafka.TopicPartition(*tp)])
        finally:
            consumer.close()
        return timestamps

    def _log_offsets(self, wanted: Mapping[KafkaPartition, Any]) -> dict[KafkaPartition, int]:
        kafka = self._kafka
        request = {kafka.TopicPartition(*tp): which for tp, which in wanted.items()}
        if not request:
            return {}
        offsets: dict[KafkaPartition, int] = {}
        for tp, future in self._admin.list_offsets(
            request, isolation_level=self._level, request_timeout=self._seconds
        ).items():
            try:
                answer = future.result(self._seconds * 2)
            except TimeoutError as error:
                raise KafkaUnavailableError(self._servers, "no answer in time") from error
            except kafka.KafkaException as error:
                if error.args[0].code() not in missing_partition_codes(kafka):
                    raise self._error(error.args[0], None) from error
            else:
                offsets[tp.topic, tp.partition] = answer.offset
        return offsets

    def _commit(self, group: str, offsets: Mapping[KafkaPartition, int], metadata: str) -> None:
        kafka = self._kafka
        wanted = [
            kafka.TopicPartition(topic, partition, offset, metadata)
            for (topic, partition), offset in offsets.items()
        ]
        consumer = self._consumer(group)
        answer = self._ask(lambda: consumer.commit(offsets=wanted, asynchronous=False), group)
        for partition in answer:
            if partition.error is not None:
                if partition.error.code() in missing_partition_codes(kafka):
                    raise _NoSuchPartitionError
                raise self._error(partition.error, group)

    def _consumer(self, group: str) -> Any:
        consumer = self._consumers.get(group)
        if consumer is None:
            settings = {
                "socket.timeout.ms": int(self._seconds * 1000),
                # How long a commit waits for the group's coordinator to be found.
                "session.timeout.ms": int(self._seconds * 1000),
                **self._consumer_settings(group),
            }
            consumer = self._consumers[group] = self._kafka.Consumer(settings)
        return consumer

    def _consumer_settings(self, group: str) -> dict[str, Any]:
        own = {"group.id": group, "enable.auto.commit": False, "error_cb": self._connection.note}
        return {**QUIET, **self._settings, **own}

    def _ask(self, ask: Callable[[], Any], group: str) -> Any:
        """Make a request; retry while the group's coordinator is starting, or moving."""
        codes = self._kafka.KafkaError
        moving = (
            codes.COORDINATOR_LOAD_IN_PROGRESS,
            codes.COORDINATOR_NOT_AVAILABLE,
            codes.NOT_COORDINATOR,
        )
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                return ask()
            except self._kafka.KafkaException as error:
                code = error.args[0].code()
                if code in missing_partition_codes(self._kafka):
                    raise _NoSuchPartitionError from error
                if code not in moving or time.monotonic() > deadline:
                    raise self._error(error.args[0], group) from error
            time.sleep(COORDINATOR_SECONDS)

    def _error(self, error: Any, group: str | None) -> KafkaError:
        """Translate the client's KafkaError into one of ours.

        librdkafka reports the cause of a failed connection through `error_cb`, which `poll` calls.
        """
        self._connection.forget()
        self._admin.poll(0)
        for consumer in self._consumers.values():
            consumer.poll(0)
        codes = self._kafka.KafkaError
        reason = error.str() or error.name()
        if group is not None and error.code() in (codes.UNKNOWN_MEMBER_ID, codes.NON_EMPTY_GROUP):
            return GroupRefusedError(
                self._servers,
                group,
                f"it has live members{self._members(group)}. Committing would move the position "
                f"of a running consumer. Give the query its own group",
            )
        denied = (
            codes.GROUP_AUTHORIZATION_FAILED,
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
        )
        if group is not None and error.code() in denied:
            return GroupRefusedError(
                self._servers,
                group,
                f"{reason}. The committer needs READ on the group and DESCRIBE and READ on its "
                f"topics",
            )
        return self._connection.error(self._servers, reason)

    def _members(self, group: str) -> str:
        try:
            answer = self._admin.describe_consumer_groups([group], request_timeout=self._seconds)
            members = answer[group].result(self._seconds * 2).members
        except (self._kafka.KafkaException, TimeoutError):
            return ""
        named = ", ".join(f"{m.client_id} on {m.host}" for m in members[:NAMED_MEMBERS])
        more = f" and {len(members) - NAMED_MEMBERS} more" if len(members) > NAMED_MEMBERS else ""
        return f" ({named}{more})" if named else ""


class ConnectionErrors:
    """Why connections to brokers failed, as librdkafka reports it to `error_cb`."""

    def __init__(self, kafka: Any) -> None:
        codes = kafka.KafkaError
        self._rejecting = (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes._SSL)
        self._all_down = codes._ALL_BROKERS_DOWN
        self._last, self._is_rejected = "", False

    def note(self, error: Any) -> None:
        # A rejection says more than other errors, and each says more than "all brokers are down",
        # which may come before or after it.
        if self._is_rejected and error.code() not in self._rejecting:
            return
        if self._last and error.code() == self._all_down:
            return
        self._last, self._is_rejected = error.str(), error.code() in self._rejecting

    def forget(self) -> None:
        self._last, self._is_rejected = "", False

    def error(self, servers: str, reason: str) -> KafkaError:
        if self._is_rejected:
            return KafkaRejectedError(servers, self._last.rstrip("."))
        detail = f" ({self._last})" if self._last and self._last not in reason else ""
        return KafkaUnavailableError(servers, f"{reason}{detail}".rstrip("."))


class _NoSuchPartitionError(Exception):
    """At least one of the partitions does not exist."""


def missing_partition_codes(kafka: Any) -> tuple[int, ...]:
    """The error codes of brokers and client for a partition that does not exist."""
    codes = kafka.KafkaError
    return (
        codes.UNKNOWN_TOPIC_OR_PART,
        codes._UNKNOWN_PARTITION,
        codes._UNKNOWN_TOPIC,
        codes.UNKNOWN_TOPIC_ID,
    )


def error_text(error: BaseException) -> str:
    """The reason in an exception of the client, without the final period."""
    first = error.args[0] if error.args else error
    return str(first.str() if hasattr(first, "str") else first).rstrip(".")


def rejected_settings(error: BaseException) -> OptionError:
    return OptionError(
        f"kafka: the client rejected its settings: {error_text(error)}. Correct it in the "
        f"options that start with kafka., or in --client-config."
    )


def import_kafka() -> Any:
    """Import the client on demand: it is an optional dependency, and slow to import."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise OptionError(
            "Kafka needs its client, which is not installed. Run `pip install 'epochal[kafka]'`."
        ) from None
    return confluent_kafka


logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 1.0
LOG_SECONDS = 10.0


def await_brokers(ask: Callable[[], T], *, seconds: float, clock: Clock) -> T:
    """The answer to the first request; it is repeated for up to `seconds` while nobody answers.

    Only silence is waited for. A rejected password, an unknown topic or a wrong setting would be
    the same a minute later, so those errors are raised at once.
    """
    began = clock.monotonic()
    logged: float | None = None
    while True:
        try:
            answer = ask()
            break
        except KafkaUnavailableError as error:
            now = clock.monotonic()
            left = began + seconds - now
            if left <= 0:
                raise
            if logged is None or now - logged >= LOG_SECONDS:
                logged = now
                logger.warning("%s The query starts when they answer within %.0f s", error, left)
            clock.sleep(min(RETRY_SECONDS, left))
    if logged is not None:
        logger.info("the brokers answer after %.0f s", clock.monotonic() - began)
    return answer
