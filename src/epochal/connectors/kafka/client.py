"""The one client of a Kafka cluster that reads and writes group offsets, and asks for log ends.

Offsets are written as Kafka's own admin tools write them, without being a member of the group: the
broker refuses that as long as the group has live members, so no check of ours can be too late.
`confluent-kafka` (extra `kafka`) is imported when the first client is opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from epochal.connectors.kafka.decide import Held
from epochal.connectors.kafka.offsets import Cluster, Place
from epochal.errors import GroupRefusedError, KafkaError, KafkaUnavailableError, OptionError

REQUEST_SECONDS = 10.0
NAMED_MEMBERS = 3

# What librdkafka would print by itself; it comes back to us as errors.
QUIET = {"log_level": "0"}


class KafkaClient:
    """A connection to one cluster. Calls block for at most a few `request_seconds`."""

    def __init__(self, cluster: Cluster, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self._kafka = _import_kafka()
        self._servers = cluster.bootstrap_servers
        self._seconds = request_seconds
        self._settings = dict(cluster.settings)
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
        """What the group holds, for some partitions or for all it has."""
        kafka = self._kafka
        asked = kafka.ConsumerGroupTopicPartitions(
            group,
            None if places is None else [kafka.TopicPartition(*place) for place in places],
        )
        answer = self._answer(
            lambda: self._admin.list_consumer_group_offsets([asked], request_timeout=self._seconds)[
                group
            ],
            group,
        )
        found: dict[Place, Held] = {}
        for each in answer.topic_partitions:
            if each.error is not None:
                if each.error.code() not in _gone(kafka):
                    raise self._error(each.error, group)
            elif each.offset >= 0:
                found[each.topic, each.partition] = Held(each.offset, each.metadata or "")
        return found

    def commit(self, group: str, offsets: Mapping[Place, int], metadata: str) -> list[Place]:
        """Set the group's offsets; return the places that the cluster does not have (any more)."""
        kafka = self._kafka
        wanted = [
            kafka.TopicPartition(topic, partition, offset, metadata)
            for (topic, partition), offset in offsets.items()
        ]
        request = [kafka.ConsumerGroupTopicPartitions(group, wanted)]
        answer = self._answer(
            lambda: self._admin.alter_consumer_group_offsets(
                request, request_timeout=self._seconds
            )[group],
            group,
        )
        gone: list[Place] = []
        for each in answer.topic_partitions:
            if each.error is None:
                continue
            if each.error.code() not in _gone(kafka):
                raise self._error(each.error, group)
            gone.append((each.topic, each.partition))
        return gone

    def latest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The log ends; places that do not exist are missing from the answer."""
        return self._log_offsets(places, self._kafka.admin.OffsetSpec.latest())

    def earliest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The oldest offsets still there; places that do not exist are missing."""
        return self._log_offsets(places, self._kafka.admin.OffsetSpec.earliest())

    def partitions(self, topics: Iterable[str]) -> list[Place]:
        """Every partition of these topics, as far as they exist."""
        wanted = set(topics)
        try:
            known = self._admin.list_topics(timeout=self._seconds).topics
        except self._kafka.KafkaException as error:
            raise self._error(error.args[0], None) from error
        return [
            (topic, partition)
            for topic in sorted(wanted & set(known))
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

    def _log_offsets(self, places: Iterable[Place], which: Any) -> dict[Place, int]:
        kafka = self._kafka
        request = {kafka.TopicPartition(*place): which for place in places}
        if not request:
            return {}
        found: dict[Place, int] = {}
        for place, future in self._admin.list_offsets(
            request, request_timeout=self._seconds
        ).items():
            try:
                answer = future.result(self._seconds * 2)
            except (kafka.KafkaException, TimeoutError) as error:
                if isinstance(error, TimeoutError) or error.args[0].code() not in _gone(kafka):
                    raise self._raised(error, None) from error
                continue
            found[place.topic, place.partition] = answer.offset
        return found

    def _answer(self, ask: Callable[[], Future[Any]], group: str) -> Any:
        try:
            return ask().result(self._seconds * 2)
        except (self._kafka.KafkaException, TimeoutError) as error:
            raise self._raised(error, group) from error

    def _raised(self, error: Exception, group: str | None) -> KafkaError:
        if isinstance(error, self._kafka.KafkaException):
            return self._error(error.args[0], group)
        return KafkaUnavailableError(self._servers, "no answer in time")

    def _error(self, error: Any, group: str | None) -> KafkaError:
        """A KafkaError of the client as one of ours, with what the client said by the way."""
        self._said = ""
        self._admin.poll(0)
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


def _gone(kafka: Any) -> tuple[int, ...]:
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


def _import_kafka() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise OptionError(
            "Writing consumer groups needs the Kafka client: pip install 'epochal[kafka]'."
        ) from None
    return confluent_kafka
