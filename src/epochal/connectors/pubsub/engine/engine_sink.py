"""Pub/Sub as a sink of the continuous engine: at least once, without waiting for the epoch's end.

Messages leave as soon as they have gathered or lingered; an epoch is prepared when all of its
messages are confirmed. So they are seen before the epoch is decided, and seen again if it is cut
anew: `epochAttributes` marks each with its epoch.

What a reader would get wrong: rows of an epoch that is cut anew need not be the same ones. The
marks of a repetition tell query and epoch; its row is not the same row unless the query is
deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.contract import Prepare, WriterContext
from epochal.connectors.pubsub.connection import Connection
from epochal.connectors.pubsub.publish.encode import Encoder, Marks, plan_layout
from epochal.connectors.pubsub.publish.publisher import Publisher, PublishSettings
from epochal.connectors.pubsub.pubsub_options import SinkOptions, settled


@dataclass(frozen=True, slots=True)
class PubSubWriters:
    """Opens writers in tasks."""

    options: SinkOptions
    query_id: str

    def open(self, context: WriterContext) -> PubSubWriter:
        return PubSubWriter(self.options, self.query_id, context)


class PubSubSink(AtLeastOnceSink):
    """The driver's side; it looks at options and columns before a task does."""

    def __init__(self, options: SinkOptions, schema: pa.Schema, query_id: str) -> None:
        options = settled(options)
        plan_layout(schema, options)
        super().__init__(PubSubWriters(options, query_id))


class PubSubWriter:
    """One task's messages."""

    def __init__(self, options: SinkOptions, query_id: str, context: WriterContext) -> None:
        self._options, self._query_id, self._task = options, query_id, context.task
        self._encoder = Encoder(context.schema, options)
        self._publisher = Publisher(
            Connection(options),
            PublishSettings(
                topic=options.topic,
                batch_size=options.batch_size,
                linger_s=options.linger_ms / 1000,
                max_batch_bytes=options.max_batch_bytes,
                max_in_flight=options.max_in_flight,
            ),
        )
        self._epoch, self._row = context.epoch, 0

    def write(self, batch: pa.RecordBatch) -> None:
        marks = None
        if self._options.epoch_attributes:
            marks = Marks(self._query_id, self._epoch, self._task)
        encoded = self._encoder.encode(batch, marks, self._row)
        self._row += batch.num_rows
        self._publisher.add(encoded.messages, encoded.keys)

    def cut(self, epoch: int) -> Prepare:
        mark = self._publisher.mark()
        self._epoch, self._row = epoch + 1, 0

        def prepare() -> bytes:
            self._publisher.flush(mark)
            return b""

        return prepare

    def close(self) -> None:
        self._publisher.close()
