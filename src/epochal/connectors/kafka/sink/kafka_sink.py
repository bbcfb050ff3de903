"""`write_stream.format("kafka")`: its options, and which of the two sinks they mean.

What a reader would get wrong: `exactly-once` is the default, and readers see the difference only
with `isolation.level=read_committed`; others also see what is aborted later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

import pyarrow as pa

from epochal.clock import SystemClock
from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.kafka.producer_settings import MAX_MESSAGE_BYTES, producer_settings
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.sink_exact import ExactKafkaSink
from epochal.connectors.kafka.sink.sink_plain import PlainWriters
from epochal.connectors.kafka.sink.sink_rows import record_plan
from epochal.connectors.kafka.sink.sink_staged import STAGING, StagedWriters
from epochal.connectors.kafka.sink.transaction import KafkaTransactions
from epochal.errors import OptionError
from epochal.files import Files, join_url

RECORD_OVERHEAD_BYTES = 512
"""What a record has besides key and value, as far as it counts against the largest message."""


class Delivery(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkOptions:
    """What Spark's Kafka sink takes, and how often a row may be seen."""

    kafka: Mapping[str, str] = field(default_factory=dict, metadata={"prefix": "kafka."})
    topic: str | None = None
    delivery: Delivery = Delivery.EXACTLY_ONCE

    marker_topic: str | None = None
    """Where the marker of transactions is kept; needed if rows name their topics themselves."""

    id_prefix: str = "epochal-"
    """With the query's id it is the transactional id and the group of the marker."""

    marker_refresh: timedelta = timedelta(hours=1)
    """An idle query renews its marker this often; brokers forget one after 7 days."""

    reset_marker: int | None = None
    """Go on though the marker does not fit, if this is the newest committed epoch."""


def open_kafka_sink(
    options: KafkaSinkOptions, schema: pa.Schema, checkpoint: Files, query_id: str
) -> ExactKafkaSink | AtLeastOnceSink:
    """The sink that the options mean; it asks the brokers for the topic."""
    java = {key.lower(): value for key, value in options.kafka.items()}
    settings = producer_settings(java)
    plan = record_plan(schema, options.topic)
    marker_topic = options.marker_topic or options.topic
    exactly_once = options.delivery is Delivery.EXACTLY_ONCE
    if exactly_once and marker_topic is None:
        raise OptionError(
            "kafka: rows name their topics, so say by the option markerTopic at which topic the "
            "marker of transactions is kept. No record is written there for it; any topic that "
            "lives as long as the query will do. Or choose delivery=at-least-once."
        )
    largest = int(settings.get("message.max.bytes", MAX_MESSAGE_BYTES)) - RECORD_OVERHEAD_BYTES
    first = RecordProducer(settings)
    first.check_places({topic: 0 for topic in (options.topic, marker_topic) if topic})
    first.close()
    if not exactly_once:
        return AtLeastOnceSink(PlainWriters(plan, settings, largest))
    name = f"{options.id_prefix}{query_id}"
    return ExactKafkaSink(
        KafkaTransactions(java, name, str(marker_topic)),
        StagedWriters(plan, join_url(checkpoint.url, STAGING), largest),
        checkpoint,
        name,
        SystemClock(),
        refresh_seconds=options.marker_refresh.total_seconds(),
        reset_marker=options.reset_marker,
    )
