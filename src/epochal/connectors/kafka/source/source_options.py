"""What Spark's Kafka source takes, as far as it means something without batches. Pure.

Names, values and what is refused are Spark's (KafkaSourceProvider). What a reader would get wrong:
the three forms of a start have an order, Spark's, and are not exclusive: `startingTimestamp` beats
`startingOffsetsByTimestamp`, which beats `startingOffsets`. And each counts in the first run of a
checkpoint only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from epochal.connectors.kafka.consumer_settings import ADVICE, consumer_settings
from epochal.connectors.kafka.kafka_settings import connection_settings
from epochal.connectors.kafka.offsets import Place
from epochal.connectors.kafka.source.starting_offsets import (
    NoMatch,
    Starting,
    parse_assigned,
    parse_starting,
)
from epochal.errors import OptionError
from epochal.options import read_options

GROUP_OPTION = "consumer.commit.groupid"
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")

_TRIGGERS = "epochs are cut by time, not by offsets: set trigger(epoch=…) and leave it out"
_SPLITS = "a partition of a topic is read by one task, in order: set parallelism, or leave it out"
_ENDS = "a continuous query has no end: stop it, or filter by offset or timestamp"
_CLIENT = "it tunes Spark's own calls to Kafka: set kafka.* settings of the client, or leave it out"
REFUSED = {
    "endingOffsets": _ENDS,
    "endingOffsetsByTimestamp": _ENDS,
    "endingTimestamp": _ENDS,
    "maxOffsetsPerTrigger": _TRIGGERS,
    "minOffsetsPerTrigger": _TRIGGERS,
    "maxTriggerDelay": _TRIGGERS,
    "minPartitions": _SPLITS,
    "maxRecordsPerPartition": _SPLITS,
    "kafkaConsumer.pollTimeoutMs": _CLIENT,
    "fetchOffset.numRetries": _CLIENT,
    "fetchOffset.retryIntervalMs": _CLIENT,
    "partition.metadata.cache.ttl.ms": "how often partitions are looked for is the query's "
    "discoverInterval",
    "topic": "it is the sink's: a source takes subscribe, subscribePattern or assign",
}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: all of some topics, of those that match, or some partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    places: tuple[Place, ...] = ()

    @property
    def wanted_topics(self) -> tuple[str, ...] | None:
        """The topics that must be there; None if any that match will do."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(dict.fromkeys(topic for topic, _ in self.places))

    def includes(self, place: Place) -> bool:
        """Whether a partition of the wanted topics is to be read."""
        if self.pattern is not None:
            # Anywhere in the name, as Spark searches.
            return place[0] not in INTERNAL and re.search(self.pattern, place[0]) is not None
        return not self.places or place in self.places


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceOptions:
    """Where a Kafka source reads, and from which offsets."""

    kafka: Mapping[str, str] = field(metadata={"prefix": "kafka."}, repr=False)
    """Settings of the client, in Java's or librdkafka's names; bootstrap.servers must be there."""

    subscribe: str | None = None
    subscribe_pattern: str | None = None
    assign: str | None = None

    starting_offsets: str = "latest"
    starting_offsets_by_timestamp: str | None = None
    starting_timestamp: int | None = None
    starting_offsets_by_timestamp_strategy: NoMatch = NoMatch.ERROR

    fail_on_data_loss: bool = True
    """Whether records that were not read and are gone end the query. Without it a warning says
    which, and reading goes on with the oldest that are there."""

    include_headers: bool = False
    group_id_prefix: str | None = None
    """Of the client's group id, which brokers see but which never is a member of a group."""

    def __post_init__(self) -> None:
        if not self.servers:
            raise OptionError("kafka: option kafka.bootstrap.servers must be given.")
        given = [
            name
            for name, value in (
                ("subscribe", self.subscribe),
                ("subscribePattern", self.subscribe_pattern),
                ("assign", self.assign),
            )
            if value is not None
        ]
        if len(given) != 1:
            found = f"not {' and '.join(given)}" if given else "and none is"
            raise OptionError(
                f"kafka: one of subscribe, subscribePattern and assign must be given, {found}."
            )
        _ = self.subscription, self.starting, self.settings, self.commit_group

    @property
    def servers(self) -> str:
        return self._java().get("bootstrap.servers", "")

    @property
    def subscription(self) -> Subscription:
        if self.assign is not None:
            return Subscription(places=parse_assigned(self.assign))
        if self.subscribe_pattern is not None:
            return Subscription(pattern=_checked_pattern(self.subscribe_pattern))
        topics = tuple(name.strip() for name in (self.subscribe or "").split(",") if name.strip())
        if not topics:
            raise OptionError(f"kafka: subscribe must name a topic, and is {self.subscribe!r}.")
        return Subscription(topics=topics)

    @property
    def starting(self) -> Starting:
        return parse_starting(
            self.starting_offsets,
            self.starting_offsets_by_timestamp,
            self.starting_timestamp,
            self.starting_offsets_by_timestamp_strategy,
        )

    @property
    def settings(self) -> dict[str, str]:
        """The reading client's settings in librdkafka's names."""
        java = self._java()
        return consumer_settings({key: java[key] for key in java if key != GROUP_OPTION})

    @property
    def connection(self) -> dict[str, str]:
        """What a client needs that only asks, in librdkafka's names."""
        return connection_settings(self._java(), where=ADVICE)

    @property
    def commit_group(self) -> str | None:
        """The consumer group that shows how far the query is; None for none."""
        group = self._java().get(GROUP_OPTION)
        if group == "":
            raise OptionError(f"kafka: kafka.{GROUP_OPTION} must name a group, or be left out.")
        return group

    def _java(self) -> dict[str, str]:
        return {key.lower(): value for key, value in self.kafka.items()}


def read_source_options(given: Mapping[str, str]) -> KafkaSourceOptions:
    """The options of a source; what Spark knows and this source refuses, with the reason."""
    refused = {name.lower(): (name, reason) for name, reason in REFUSED.items()}
    for key in given:
        if key.lower() in refused:
            name, reason = refused[key.lower()]
            raise OptionError(f"kafka: option {name} does not apply: {reason}.")
    return read_options(KafkaSourceOptions, given, of="kafka")


def _checked_pattern(text: str) -> str:
    pattern = text.strip()
    if not pattern:
        raise OptionError(f"kafka: subscribePattern must be a pattern, and is {text!r}.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"kafka: subscribePattern {pattern!r} is no pattern: {error}.") from None
    return pattern
