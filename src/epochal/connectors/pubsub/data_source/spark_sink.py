"""`write` and `writeStream.format("pubsub")`: publishes rows as messages of a topic.

A task returns its commit message once Pub/Sub has confirmed every message of its partition. If it
fails before that, Spark runs it again. So a message may be published twice, but is never lost.
`epochAttributes` marks messages so that readers can drop duplicates.

Note: readers see messages before Spark commits the batch. If the batch fails later, the messages
that its tasks published stay published.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from itertools import chain, islice
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from epochal.connectors.pubsub.publish.encode import Encoder, Marks
from epochal.connectors.pubsub.pubsub_options import SinkOptions, settle_options, sink_options
from epochal.errors import OptionError
from epochal.record_batches import batch_of_dicts
from epochal.state.rows.arrow_types import arrow_type
from epochal.state.rows.types import parse_schema

logger = logging.getLogger(__name__)

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
ROWS_PER_BATCH = 2000


@dataclass(frozen=True, slots=True)
class Published(datasource.WriterCommitMessage):  # type: ignore[misc]
    """The commit message of a task: how much it published."""

    messages: int


class SparkPubSubWriters:
    """The writing side of the data source; `options` and `conf` are the data source's."""

    options: Mapping[str, str]
    conf: ClassVar[Mapping[str, str]]

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        if overwrite:
            raise OptionError(
                "pubsub: a topic cannot be overwritten, because published messages cannot be "
                'deleted. Use mode("append").'
            )
        return BatchWriter(self._settings(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        if overwrite:
            raise OptionError(
                "pubsub: output mode complete would publish the whole result with every batch. "
                "Use append or update."
            )
        return PubSubStreamWriter(self._settings(), schema)

    def _settings(self) -> SinkOptions:
        return settle_options(sink_options(dict(self.options), self.conf))


class _Writer:
    """What both writers share. It is pickled and sent to tasks."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        self.write_id = f"batch-{uuid.uuid4()}"
        # Both lines also check the options: a bad topic or column fails here, not in a task.
        logger.info("publishing to %s", options.topic)
        Encoder(_arrow(schema), options)

    def commit(self, messages: Any, *batch: int) -> None:
        count = sum(message.messages for message in messages if message is not None)
        logger.info("%s: %d messages published, batch %s", self.options.topic, count, batch)

    def abort(self, messages: Any, *batch: int) -> None:
        count = sum(message.messages for message in messages if message is not None)
        logger.warning(
            "%s: batch %s failed; %d of its messages are already published",
            *(self.options.topic, batch, count),
        )

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish all rows of a partition and wait until they are confirmed."""
        from epochal.connectors.pubsub.connection import Connection
        from epochal.connectors.pubsub.publish.publisher import Publisher

        options, encoder, row = self.options, None, 0
        publisher = None
        try:
            for batch in _in_batches(iter(iterator), self.schema):
                if publisher is None or encoder is None:
                    publisher = Publisher(Connection(options), options)
                    encoder = Encoder(batch.schema, options)
                encoded = encoder.encode(batch, self._marks(), row)
                publisher.add(encoded.messages, encoded.keys)
                row += batch.num_rows
            if publisher is not None:
                publisher.flush()
            return Published(row)
        finally:
            if publisher is not None:
                publisher.close()

    def _marks(self) -> Marks | None:
        if not self.options.epoch_attributes:
            return None
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty(BATCH_ID)
        query = context.getLocalProperty(QUERY_ID) or self.write_id
        return Marks(query, int(batch or 0), context.partitionId())


# PySpark 4.0 has no Arrow writers. There we subclass the plain writers, which get rows instead.
_Batch: Any = getattr(datasource, "DataSourceArrowWriter", datasource.DataSourceWriter)
_Stream: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)


class BatchWriter(_Writer, _Batch):  # type: ignore[misc]
    """For `DataFrame.write`."""


class PubSubStreamWriter(_Writer, _Stream):  # type: ignore[misc]
    """For `DataFrame.writeStream`."""


def _in_batches(received: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    first = next(received, None)
    if first is None:
        return
    received = chain([first], received)
    if isinstance(first, pa.RecordBatch):
        yield from (batch for batch in received if batch.num_rows)
        return
    arrow = _arrow(schema)
    kind = pa.struct(list(arrow))
    while some := list(islice(received, ROWS_PER_BATCH)):
        rows = [_add_zone(row.asDict(recursive=True), kind) for row in some]
        yield batch_of_dicts(rows, arrow)


def _add_zone(value: Any, kind: Any) -> Any:
    """Convert timestamps to UTC, at any depth.

    Spark's rows have timestamps in this machine's time zone, without zone information.
    """
    types = pa.types
    if value is None:
        return None
    if types.is_timestamp(kind):
        return value.astimezone(UTC) if kind.tz else value
    if types.is_struct(kind):
        return {field.name: _add_zone(value.get(field.name), field.type) for field in kind}
    if types.is_list(kind):
        return [_add_zone(item, kind.value_type) for item in value]
    if types.is_map(kind):
        pairs = value.items()
        return [(_add_zone(k, kind.key_type), _add_zone(v, kind.item_type)) for k, v in pairs]
    return value


def _arrow(schema: StructType) -> pa.Schema:
    """Convert a schema to Arrow. PySpark's own function takes other arguments in each release."""
    fields = parse_schema(schema.json(), source="the rows to publish").fields
    return pa.schema([pa.field(field.name, arrow_type(field.data_type)) for field in fields])
