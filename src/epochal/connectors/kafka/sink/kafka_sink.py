"""Opens `write_stream.format("kafka")`: its options, the choice between two sinks, and
the encoding of values with a registered schema.

Note: `exactly-once` is the default, but consumers need `isolation.level=read_committed` to benefit
from it. Other consumers also see records of transactions that are aborted later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, cast

import pyarrow as pa

from epochal.clock import SystemClock
from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.contract import BadRows, Prepare, SinkWriter, WriterContext
from epochal.connectors.formats import SinkRequest
from epochal.connectors.kafka.kafka_client import await_brokers
from epochal.connectors.kafka.kafka_settings import MAX_MESSAGE_BYTES, producer_settings
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.sink_exact import (
    KAFKA_OUTPUT,
    KafkaEpochs,
    RecordWriters,
    staged_records,
)
from epochal.connectors.kafka.sink.sink_plain import PlainWriters
from epochal.connectors.kafka.sink.sink_rows import record_plan
from epochal.connectors.kafka.sink.transaction import KafkaTransactions
from epochal.connectors.schema_registry.value_schemas import (
    ValueSpec,
    split_registry_options,
    writing_spec,
)
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
    if "value" in schema.names:
        values = writing_spec(about_values, options.topic, schema.field("value").type)
    java = {key.lower(): value for key, value in options.kafka.items()}
    settings = producer_settings(java)
    written = schema if values is None else encoded_schema(schema)
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
        plain = PlainWriters(plan, settings, largest)
        return AtLeastOnceSink(plain if values is None else EncodingWriters(plain, values))
    name = f"{options.id_prefix}{request.query_id}"
    staged = staged_records(plan, checkpoint.url, largest, settings)
    return DecidingSink(
        KafkaEpochs(KafkaTransactions(java, name, str(marker_topic)), plan),
        staged if values is None else EncodingWriters(staged, values),
        checkpoint,
        KAFKA_OUTPUT,
        clock,
        refresh_seconds=options.marker_refresh.total_seconds(),
        reset_marker=options.reset_marker,
    )


VALUE = "value"


def encoded_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of rows whose values are encoded."""
    return schema.set(schema.get_field_index(VALUE), pa.field(VALUE, pa.binary()))


@dataclass(frozen=True, slots=True)
class EncodingWriters:
    """Opens writers in tasks."""

    writers: RecordWriters | PlainWriters
    spec: ValueSpec

    @property
    def staging(self) -> str:
        assert isinstance(self.writers, RecordWriters), "only exactly-once delivery stages rows"
        return self.writers.staging

    def open(self, context: WriterContext) -> EncodingWriter:
        return EncodingWriter(self, context)


class EncodingWriter(SinkWriter):
    """Passes rows with encoded values on to the sink's writer.

    `write` gets the batch that `bad_rows` got, if all its rows are good. Its values are then not
    encoded again.
    """

    checks_rows = True

    def __init__(self, plan: EncodingWriters, context: WriterContext) -> None:
        self._encoder = plan.spec.encoder(cast(Any, context.schema.field(VALUE).type))
        inner = replace(context, schema=encoded_schema(context.schema))
        self._writer = plan.writers.open(inner)
        self._checked: tuple[pa.RecordBatch, pa.RecordBatch] | None = None

    @property
    def max_dead_letter_bytes(self) -> int:
        return self._writer.max_dead_letter_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        checked, self._checked = self._checked, None
        if checked is not None and checked[0] is batch:
            self._writer.write(checked[1])
            return
        encoded, bad = self._encode(batch)
        for reason in bad.values():
            raise OptionError(f"kafka: {reason}.")
        self._writer.write(encoded)

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        encoded, bad = self._encode(batch)
        rejected = {**self._writer.bad_rows(encoded), **bad}
        self._checked = None if rejected else (batch, encoded)
        return rejected

    def write_dead_letters(self, letters: Sequence[bytes]) -> None:
        self._writer.write_dead_letters(letters)

    def cut(self, epoch: int) -> Prepare:
        return self._writer.cut(epoch)

    def close(self) -> None:
        self._writer.close()

    def _encode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        values, errors = self._encoder.encode(batch.column(VALUE))
        bad = {
            index: f"a value does not fit the schema: {error.rstrip('.')}"
            for index, error in enumerate(errors)
            if error is not None
        }
        column = pa.array(values, pa.binary())
        return batch.set_column(batch.schema.get_field_index(VALUE), VALUE, column), bad
