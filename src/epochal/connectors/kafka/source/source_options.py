"""The options of the Kafka source: Spark's, except those that only make sense for batches.

Names, values and rejected values are those of Spark's KafkaSourceProvider.

Note: the three options for a start do not exclude each other. As in Spark, `startingTimestamp`
overrides `startingOffsetsByTimestamp`, which overrides `startingOffsets`. All three count only in
the first run on a checkpoint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa

from epochal.connectors.kafka.kafka_settings import (
    COMMIT_GROUP,
    SOURCE_ADVICE,
    connection_settings,
    consumer_settings,
    require_servers,
)
from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.connectors.kafka.source.reader_rows import kafka_schema
from epochal.connectors.kafka.source.source_offsets import (
    NoMatch,
    Starting,
    parse_assigned,
    parse_starting,
)
from epochal.connectors.schema_registry.value_schemas import (
    ValueSpec,
    pinned_version,
    reading_spec,
    split_registry_options,
)
from epochal.errors import OptionError
from epochal.options import option_name, read_options


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBounds:
    """How many records an epoch has at most, and at least."""

    most: int | None = None
    least: int | None = None
    max_delay: timedelta = timedelta(minutes=15)
    """How long fewer records than `least` may wait."""

    def __post_init__(self) -> None:
        for name, value in (
            ("maxOffsetsPerTrigger", self.most),
            ("minOffsetsPerTrigger", self.least),
        ):
            if value is not None and value <= 0:
                raise OptionError(f"kafka: {name} must be positive, not {value}.")
        if self.most is not None and self.least is not None and self.least > self.most:
            raise OptionError(
                f"kafka: minOffsetsPerTrigger ({self.least}) must not be greater than "
                f"maxOffsetsPerTrigger ({self.most})."
            )

    @property
    def are_set(self) -> bool:
        return self.most is not None or self.least is not None

    def waits(
        self,
        at: Mapping[KafkaPartition, int],
        until: Mapping[KafkaPartition, int],
        waited: timedelta,
    ) -> bool:
        """Whether an epoch must wait for more records, after it has waited for so long."""
        if self.least is None or waited >= self.max_delay:
            return False
        return sum(max(0, until[tp] - offset) for tp, offset in at.items()) < self.least

    def ends(
        self, at: Mapping[KafkaPartition, int], until: Mapping[KafkaPartition, int]
    ) -> dict[KafkaPartition, int]:
        """Return where an epoch ends that starts at `at`, of records up to `until`.

        Each partition gets a share of the epoch in proportion to the records that wait in it, and
        at least one record.
        """
        sizes = {tp: max(0, until[tp] - offset) for tp, offset in at.items()}
        total = sum(sizes.values())
        if self.most is None or not total:
            return {tp: offset + sizes[tp] for tp, offset in at.items()}
        ends = {}
        for tp, offset in at.items():
            share = self.most * (sizes[tp] / total)
            ends[tp] = offset + min(sizes[tp], math.ceil(share) if share < 1 else math.floor(share))
        return ends


INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")

_SPLITS = "one task reads a partition of a topic, in order: remove it, or set parallelism"
_ENDS = "a continuous query has no end: stop it, or filter by offset or timestamp"
_CLIENT = "it tunes Spark's own calls to Kafka: remove it, or set kafka.* options of the client"
REFUSED = {
    "endingOffsets": _ENDS,
    "endingOffsetsByTimestamp": _ENDS,
    "endingTimestamp": _ENDS,
    "minPartitions": _SPLITS,
    "maxRecordsPerPartition": _SPLITS,
    "kafkaConsumer.pollTimeoutMs": _CLIENT,
    "fetchOffset.numRetries": _CLIENT,
    "fetchOffset.retryIntervalMs": _CLIENT,
    "partition.metadata.cache.ttl.ms": "set the query's discoverInterval "
    "instead: it sets how often new partitions are looked for",
    "topic": "it is an option of the sink: use subscribe, subscribePattern or assign",
}


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """Which partitions are read: those of named topics, of matching topics, or named partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[KafkaPartition, ...] = ()

    @property
    def wanted_topics(self) -> tuple[str, ...] | None:
        """The topics that must exist; None for a pattern, which may match any."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(dict.fromkeys(topic for topic, _ in self.partitions))

    def includes(self, tp: KafkaPartition) -> bool:
        """Whether the query reads a partition of the wanted topics."""
        if self.pattern is not None:
            # Like Spark, the pattern may match anywhere in the name.
            return tp[0] not in INTERNAL and re.search(self.pattern, tp[0]) is not None
        return not self.partitions or tp in self.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceOptions:
    """Which partitions a Kafka source reads, and from which offsets."""

    kafka: Mapping[str, str] = field(metadata={"prefix": "kafka."}, repr=False)
    """Settings of the client, in Java's or librdkafka's names; bootstrap.servers is required."""

    subscribe: str | None = None
    subscribe_pattern: str | None = None
    assign: str | None = None

    starting_offsets: str = "latest"
    starting_offsets_by_timestamp: str | None = None
    starting_timestamp: int | None = None
    starting_offsets_by_timestamp_strategy: NoMatch = NoMatch.ERROR

    fail_on_data_loss: bool = True
    """Whether the query fails if records were deleted before it read them. If false, it logs a
    warning and continues with the oldest record that exists."""

    max_offsets_per_trigger: int | None = None
    """Records per epoch, at most. Each partition has a share in proportion to what waits in it."""

    min_offsets_per_trigger: int | None = None
    """Records per epoch, at least, unless they have waited for maxTriggerDelay. It has no effect on
    the first epoch, and none with availableNow."""

    max_trigger_delay: timedelta = timedelta(minutes=15)

    max_offsets_per_unit: int = 2_000_000
    """Records of a backlog after which the watermark may move, at most: a unit, whose windows are
    kept until it has been read. Partitions that are in order lose no rows with any bound."""

    include_headers: bool = False
    group_id_prefix: str | None = None
    """Prefix of the client's group id. Brokers see the id, but the client never joins a group."""

    broker_timeout: timedelta = timedelta(minutes=2)
    """How long a start waits for brokers that do not answer. Tasks that read wait without end; what
    the driver asks, for epochs with a bound and after a restart, may fail up to `outageTimeout`."""

    def __post_init__(self) -> None:
        require_servers(self._java())
        options_set = [
            option_name(name)
            for name in ("subscribe", "subscribe_pattern", "assign")
            if getattr(self, name) is not None
        ]
        if len(options_set) != 1:
            said_instead = f"not {' and '.join(options_set)}" if options_set else "but none is"
            raise OptionError(
                f"kafka: exactly one of subscribe, subscribePattern and assign must be given, "
                f"{said_instead}."
            )
        if self.max_offsets_per_unit <= 0:
            raise OptionError(
                f"kafka: maxOffsetsPerUnit must be positive, not {self.max_offsets_per_unit}."
            )
        # Parse all options now, so that an error shows before the query starts.
        _ = self.subscription, self.starting, self.settings, self.commit_group, self.bounds

    @property
    def servers(self) -> str:
        return self._java().get("bootstrap.servers", "")

    @property
    def subscription(self) -> TopicSelection:
        if self.assign is not None:
            return TopicSelection(partitions=parse_assigned(self.assign))
        if self.subscribe_pattern is not None:
            pattern = self.subscribe_pattern.strip()
            if not pattern:
                raise OptionError(
                    f"kafka: subscribePattern must be a regular expression, but it is "
                    f"{self.subscribe_pattern!r}."
                )
            try:
                re.compile(pattern)
            except re.error as error:
                raise OptionError(
                    f"kafka: subscribePattern {pattern!r} is not a regular expression: {error}."
                ) from None
            return TopicSelection(pattern=pattern)
        topics = tuple(name.strip() for name in (self.subscribe or "").split(",") if name.strip())
        if not topics:
            raise OptionError(
                f"kafka: subscribe must name at least one topic, but it is {self.subscribe!r}."
            )
        return TopicSelection(topics=topics)

    @property
    def only_topic(self) -> str | None:
        """The topic, if the options name exactly one."""
        names = self.subscription.wanted_topics
        return next(iter(names)) if names is not None and len(set(names)) == 1 else None

    @property
    def starting(self) -> Starting:
        return parse_starting(
            self.starting_offsets,
            self.starting_offsets_by_timestamp,
            self.starting_timestamp,
            self.starting_offsets_by_timestamp_strategy,
        )

    @property
    def bounds(self) -> EpochBounds:
        return EpochBounds(
            most=self.max_offsets_per_trigger,
            least=self.min_offsets_per_trigger,
            max_delay=self.max_trigger_delay,
        )

    @property
    def settings(self) -> dict[str, str]:
        """The reading client's settings in librdkafka's names."""
        java = self._java()
        return consumer_settings({key: java[key] for key in java if key != COMMIT_GROUP})

    @property
    def connection(self) -> dict[str, str]:
        """The settings of a client that reads no records, in librdkafka's names."""
        return connection_settings(self._java(), where=SOURCE_ADVICE)

    @property
    def commit_group(self) -> str | None:
        """The consumer group that shows the query's position, if one is set."""
        group = self._java().get(COMMIT_GROUP)
        if group == "":
            raise OptionError(f"kafka: kafka.{COMMIT_GROUP} is empty. Name a group, or remove it.")
        return group

    def _java(self) -> dict[str, str]:
        return {key.lower(): value for key, value in self.kafka.items()}


def read_source_options(options: Mapping[str, str]) -> KafkaSourceOptions:
    """Read the options of a source; reject with a reason what only applies to Spark's batches."""
    refused = {name.lower(): (name, reason) for name, reason in REFUSED.items()}
    for key in options:
        if key.lower() in refused:
            name, reason = refused[key.lower()]
            raise OptionError(f"kafka: option {name} does not apply: {reason}.")
    return read_options(KafkaSourceOptions, options, of="kafka")


def read_with_values(options: Mapping[str, str]) -> tuple[KafkaSourceOptions, ValueSpec | None]:
    """Read the options of a source; ask the registry for the schema of its values, if any."""
    about_values, rest = split_registry_options(options)
    source_options = read_source_options(rest)
    return source_options, reading_spec(about_values, source_options.only_topic)


def kafka_source_schema(
    name: str, options: Mapping[str, str], schema: pa.Schema | None
) -> pa.Schema:
    """The columns of a source. Checks its options too."""
    if schema is not None:
        raise OptionError(
            f"{name}: the columns are always those of a Kafka record. Remove the schema from the "
            f"query."
        )
    source_options, values = read_with_values(options)
    return kafka_schema(source_options.include_headers, values)


def pin_values(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source with the version of its schema."""
    about_values, rest = split_registry_options(options)
    if about_values.value_format is None:
        return dict(options)
    return pinned_version(options, read_source_options(rest).only_topic)
