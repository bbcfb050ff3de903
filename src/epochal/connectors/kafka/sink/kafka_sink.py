"""Opens `write_stream.format("kafka")`: its options, and the choice of how rows are delivered.

Note: `exactly-once` is the default, but consumers need `isolation.level=read_committed` to benefit
from it. Other consumers also see records of transactions that are aborted later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

import pyarrow as pa

from epochal.clock import SystemClock
from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.formats import SinkRequest
from epochal.connectors.kafka.kafka_client import await_brokers
from epochal.connectors.kafka.kafka_settings import MAX_MESSAGE_BYTES, producer_settings
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.record_writers import VALUE, RecordWriters, staged_records
from epochal.connectors.kafka.sink.sink_rows import record_plan
from epochal.connectors.kafka.sink.transaction import KAFKA_OUTPUT, KafkaEpochs, KafkaTransactions
from epochal.connectors.schema_registry.value_schemas import split_registry_options, writing_spec
from epochal.connectors.staging.deciding_sink import DecidingSink
from epochal.errors import OptionError
from epochal.options import read_options

RECORD_OVERHEAD_BYTES = 512
"""Room for the parts of a record besides key and value that count against the size limit."""


class KafkaDelivery(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkOptions:
    """The options of Spark's Kafka sink, and the delivery guarantee."""

    kafka: Mapping[str, str] = field(
        default_factory=dict, repr=False, metadata={"prefix": "kafka."}
    )
    topic: str | None = None
    delivery: KafkaDelivery = KafkaDelivery.EXACTLY_ONCE

    marker_topic: str | None = None
    """The topic that the marker's offset belongs to; required if each row names its topic."""

    id_prefix: str = "epochal-"
    """This prefix and the query's id make the transactional id and the marker's group."""

    marker_refresh: timedelta = timedelta(hours=1)
    """How often an idle query renews its marker; brokers forget it after 7 days by default."""

    broker_timeout: timedelta = timedelta(minutes=2)
    """How long a start waits for brokers that do not answer."""

    reset_marker: int | None = None
    """Continue although the marker does not match, if this is the newest committed epoch."""


def open_kafka_sink(request: SinkRequest) -> DecidingSink | AtLeastOnceSink:
    """Open the sink that the options choose; ask the brokers whether its topic exists."""
    about_values, rest = split_registry_options(request.options)
    options = read_options(KafkaSinkOptions, rest, of="kafka")
    schema, checkpoint = request.schema, request.checkpoint
    dead_letter_topic, values = request.dead_letter_topic, None
    if VALUE in schema.names:
        values = writing_spec(about_values, options.topic, schema.field(VALUE).type)
    java = {key.lower(): value for key, value in options.kafka.items()}
    settings = producer_settings(java)
    written = schema
    if values is not None:
        written = schema.set(schema.get_field_index(VALUE), pa.field(VALUE, pa.binary()))
    plan = record_plan(written, options.topic, dead_letter_topic)
    marker_topic = options.marker_topic or options.topic
    exactly_once = options.delivery is KafkaDelivery.EXACTLY_ONCE
    if exactly_once and marker_topic is None:
        raise OptionError(
            "kafka: each row names its topic, so exactly-once delivery needs another topic for its "
            "transaction marker. Name one with the option markerTopic. No record is written to it; "
            "any topic that exists as long as the query will do. Or choose delivery=at-least-once."
        )
    largest = int(settings.get("message.max.bytes", MAX_MESSAGE_BYTES)) - RECORD_OVERHEAD_BYTES
    clock, probe = SystemClock(), RecordProducer(settings)
    topics = {topic: 0 for topic in (options.topic, marker_topic, dead_letter_topic) if topic}
    await_brokers(
        lambda: probe.check_topics(topics),
        seconds=options.broker_timeout.total_seconds(),
        clock=clock,
    )
    probe.close()
    if not exactly_once:
        return AtLeastOnceSink(RecordWriters(plan, largest, settings, values))
    name = f"{options.id_prefix}{request.query_id}"
    return DecidingSink(
        KafkaEpochs(KafkaTransactions(java, name, str(marker_topic)), plan),
        staged_records(plan, checkpoint.url, largest, settings, values),
        checkpoint,
        KAFKA_OUTPUT,
        clock,
        refresh_seconds=options.marker_refresh.total_seconds(),
        reset_marker=options.reset_marker,
    )
