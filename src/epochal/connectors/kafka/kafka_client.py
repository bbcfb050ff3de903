"""The one place that talks to a Kafka cluster about group offsets and log ends.

Offsets are written without being a member of the group, as Kafka's own admin tools do: the broker
refuses that as long as the group has live members, so no check of ours can be too late.

It would be natural to read groups through librdkafka's admin client. Do not: its
ListConsumerGroupOffsets (2.16.0) follows a null pointer when a broker answers NOT_COORDINATOR, as
every broker does for a moment after it starts, and ends the process: the Spark driver. A consumer
that joins nothing asks the same question safely, at the price of one for each group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from epochal.connectors.kafka.commit_rules import Held
from epochal.connectors.kafka.offsets import Cluster, Place
from epochal.errors import GroupRefusedError, KafkaError, KafkaUnavailableError, OptionError

REQUEST_SECONDS = 10.0
COORDINATOR_SECONDS = 0.2
NAMED_MEMBERS = 3

# What librdkafka would print by itself; it comes back to us as errors.
QUIET = {"log_level": "0"}


class KafkaClient:
    """A connection to one cluster. Calls block for at most a few `request_seconds`.

    With `read_committed` a log ends where the first open transaction begins.
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
        self._said = ""
        if not self._servers:
            raise OptionError(
                "No Kafka cluster is named: give kafka.bootstrap.servers (or --bootstrap-servers)."
            )
        settings = {**QUIET, **self._settings, "error_cb": self._hear}
        try:
            self._admin = self._kafka.admin.AdminClient(settings)
        except self._kafka.KafkaException as error:
            raise OptionError(f"Kafka settings: {_reason(error)}.") from error

    def held(self, group: str, places: Iterable[Place] | None = None) -> dict[Place, Held]:
        """What the group holds, for some partitions or for all there are."""
        kafka = self._kafka
        asked = [kafka.TopicPartition(*p) for p in (self._all() if places is None else places)]
        if not asked:
            return {}
        consumer = self._consumer(group)
        try:
            answer = self._answer(lambda: consumer.committed(asked, timeout=self._seconds), group)
        except _GoneError:
            answer = []
        found: dict[Place, Held] = {}
        for each in answer:
            if each.error is not None:
                if each.error.code() not in self._passed_over(places is None):
                    raise self._error(each.error, group)
            elif each.offset >= 0:
                found[each.topic, each.partition] = Held(each.offset, each.metadata or "")
        return found

    def commit(self, group: str, offsets: Mapping[Place, int], metadata: str) -> list[Place]:
        """Set the group's offsets; return the places that the cluster does not have (any more)."""
        try:
            self._commit(group, offsets, metadata)
            return []
        except _GoneError:  # which of them, the answer does not say
            known = set(self.partitions({topic for topic, _ in offsets}))
        left = {place: offset for place, offset in offsets.items() if place in known}
        try:
            if left:
                self._commit(group, left, metadata)
        except _GoneError:
            raise KafkaUnavailableError(
                self._servers, "its brokers do not agree on which partitions there are"
            ) from None
        return [place for place in offsets if place not in known]

    def latest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The log ends; places that do not exist are missing from the answer."""
        return self._log_offsets(dict.fromkeys(places, self._kafka.admin.OffsetSpec.latest()))

    def earliest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The oldest offsets still there; places that do not exist are missing."""
        return self._log_offsets(dict.fromkeys(places, self._kafka.admin.OffsetSpec.earliest()))

    def at_times(self, times_ms: Mapping[Place, int]) -> dict[Place, int | None]:
        """The offset of the first record that is not older than the time; None if all are."""
        spec = self._kafka.admin.OffsetSpec.for_timestamp
        found = self._log_offsets({place: spec(at) for place, at in times_ms.items()})
        return {place: None if offset < 0 else offset for place, offset in found.items()}

    def partitions(self, topics: Iterable[str] | None) -> list[Place]:
        """Every partition of these topics, as far as they exist; of all topics for None."""
        try:
            known = self._admin.list_topics(timeout=self._seconds).topics
        except self._kafka.KafkaException as error:
            raise self._error(error.args[0], None) from error
        return [
            (topic, partition)
            for topic in sorted(known if topics is None else set(topics) & set(known))
            for partition in sorted(known[topic].partitions)
        ]

    def timestamps_ms(self, positions: Mapping[Place, int]) -> dict[Place, int | None]:
        """The timestamp of the first record at or after each position; None if there is none."""
        kafka = self._kafka
        consumer = kafka.Consumer(
            {
                **QUIET,
                **self._settings,
                "error_cb": self._hear,
                "group.id": "epochal-lag",  # needed, but never joined: partitions are assigned
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.message.max.bytes": 4096,  # one record is enough
            }
        )
        found: dict[Place, int | None] = {}
        try:
            consumer.assign([kafka.TopicPartition(*p, offset) for p, offset in positions.items()])
            deadline = time.monotonic() + self._seconds
            while len(found) < len(positions) and time.monotonic() < deadline:
                for record in consumer.consume(500, timeout=0.2):
                    place = (record.topic(), record.partition())
                    if place in found or place not in positions:
                        continue
                    kind, moment = record.timestamp()
                    none = record.error() is not None or kind == kafka.TIMESTAMP_NOT_AVAILABLE
                    found[place] = None if none else moment
                    consumer.pause([kafka.TopicPartition(*place)])
        finally:
            consumer.close()
        return found

    def _log_offsets(self, wanted: Mapping[Place, Any]) -> dict[Place, int]:
        kafka = self._kafka
        request = {kafka.TopicPartition(*place): which for place, which in wanted.items()}
        if not request:
            return {}
        found: dict[Place, int] = {}
        for place, future in self._admin.list_offsets(
            request, isolation_level=self._level, request_timeout=self._seconds
        ).items():
            try:
                answer = future.result(self._seconds * 2)
            except (kafka.KafkaException, TimeoutError) as error:
                if isinstance(error, TimeoutError) or error.args[0].code() not in gone_codes(kafka):
                    raise self._raised(error, None) from error
                continue
            found[place.topic, place.partition] = answer.offset
        return found

    def _commit(self, group: str, offsets: Mapping[Place, int], metadata: str) -> None:
        kafka = self._kafka
        wanted = [
            kafka.TopicPartition(topic, partition, offset, metadata)
            for (topic, partition), offset in offsets.items()
        ]
        consumer = self._consumer(group)
        answer = self._answer(lambda: consumer.commit(offsets=wanted, asynchronous=False), group)
        for each in answer:
            if each.error is not None:
                if each.error.code() in gone_codes(kafka):
                    raise _GoneError
                raise self._error(each.error, group)

    def _consumer(self, group: str) -> Any:
        consumer = self._consumers.get(group)
        if consumer is None:
            settings = {
                **QUIET,
                "socket.timeout.ms": int(self._seconds * 1000),
                # How long a commit waits for the group's coordinator to be found.
                "session.timeout.ms": int(self._seconds * 1000),
                **self._settings,
                "group.id": group,
                "enable.auto.commit": False,
                "error_cb": self._hear,
            }
            consumer = self._consumers[group] = self._kafka.Consumer(settings)
        return consumer

    def _all(self) -> list[Place]:
        return self.partitions(None)

    def _passed_over(self, asked_for_all: bool) -> tuple[int, ...]:
        """Errors of single partitions that mean: nothing of this group is there to be seen."""
        denied = (self._kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,) if asked_for_all else ()
        return (*gone_codes(self._kafka), *denied)

    def _answer(self, ask: Callable[[], Any], group: str) -> Any:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                return ask()
            except self._kafka.KafkaException as error:
                if error.args[0].code() in gone_codes(self._kafka):
                    raise _GoneError from error
                if not self._is_moving(error) or time.monotonic() > deadline:
                    raise self._error(error.args[0], group) from error
            time.sleep(COORDINATOR_SECONDS)

    def _is_moving(self, error: Exception) -> bool:
        """Whether the group's coordinator is only just starting, or has moved elsewhere."""
        codes = self._kafka.KafkaError
        return isinstance(error, self._kafka.KafkaException) and error.args[0].code() in (
            codes.COORDINATOR_LOAD_IN_PROGRESS,
            codes.COORDINATOR_NOT_AVAILABLE,
            codes.NOT_COORDINATOR,
        )

    def _raised(self, error: Exception, group: str | None) -> KafkaError:
        if isinstance(error, self._kafka.KafkaException):
            return self._error(error.args[0], group)
        return KafkaUnavailableError(self._servers, "no answer in time")

    def _error(self, error: Any, group: str | None) -> KafkaError:
        """A KafkaError of the client as one of ours, with what the client said by the way."""
        self._said = ""
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
                f"of a running consumer: give the query a group of its own",
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
        said = f" ({self._said})" if self._said and self._said not in reason else ""
        return KafkaUnavailableError(self._servers, f"{reason}{said}".rstrip("."))

    def _members(self, group: str) -> str:
        try:
            answer = self._admin.describe_consumer_groups([group], request_timeout=self._seconds)
            members = answer[group].result(self._seconds * 2).members
        except (self._kafka.KafkaException, TimeoutError):
            return ""
        named = ", ".join(f"{m.client_id} on {m.host}" for m in members[:NAMED_MEMBERS])
        more = f" and {len(members) - NAMED_MEMBERS} more" if len(members) > NAMED_MEMBERS else ""
        return f" ({named}{more})" if named else ""

    def _hear(self, error: Any) -> None:
        self._said = error.str()


class _GoneError(Exception):
    """Some of the partitions do not exist."""


def gone_codes(kafka: Any) -> tuple[int, ...]:
    """What brokers and client answer for a partition that does not exist."""
    codes = kafka.KafkaError
    return (
        codes.UNKNOWN_TOPIC_OR_PART,
        codes._UNKNOWN_PARTITION,
        codes._UNKNOWN_TOPIC,
        codes.UNKNOWN_TOPIC_ID,
    )


def _reason(error: Any) -> str:
    first = error.args[0]
    return str(first.str() if hasattr(first, "str") else first).rstrip(".")


def import_kafka() -> Any:
    """The client's module; it is an extra, and slow to import."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise OptionError("Kafka needs its client: pip install 'epochal[kafka]'.") from None
    return confluent_kafka
