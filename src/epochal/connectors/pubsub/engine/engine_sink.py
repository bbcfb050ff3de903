"""Pub/Sub sink of the continuous engine. It delivers at least once.

Messages are published as soon as a batch is full or has lingered, without waiting for the epoch's
end. An epoch is prepared once Pub/Sub has confirmed all of its messages. So readers see messages
before the epoch is decided, and see them again if the epoch is repeated. `epochAttributes` marks
each message with its epoch.

Note: a repeated epoch need not contain the same rows. A duplicate has the same marks for query and
epoch, but the mark for the row names the same row only if the query is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.contract import BadRows, Prepare, SinkWriter, WriterContext
from epochal.connectors.formats import COMPLETE, SinkRequest
from epochal.connectors.pubsub.connection import Connection
from epochal.connectors.pubsub.publish.encode import Encoded, Encoder, Marks, plan_layout
from epochal.connectors.pubsub.publish.publisher import Publisher, publish_settings
from epochal.connectors.pubsub.pubsub_options import SinkOptions, settle_options, sink_options
from epochal.errors import OptionError, PayloadError


@dataclass(frozen=True, slots=True)
class PubSubWriters:
    """Opens writers in tasks."""

    options: SinkOptions
    query_id: str

    def open(self, context: WriterContext) -> PubSubWriter:
        return PubSubWriter(self.options, self.query_id, context)


class PubSubSink(AtLeastOnceSink):
    """The driver's side. It checks options and columns before any task starts."""

    def __init__(self, options: SinkOptions, schema: pa.Schema, query_id: str) -> None:
        options = settle_options(options)
        plan_layout(schema, options)
        super().__init__(PubSubWriters(options, query_id))


def open_pubsub_sink(request: SinkRequest) -> PubSubSink:
    """Open the sink."""
    if request.output_mode == COMPLETE:
        raise OptionError(
            "pubsub: output mode complete would publish the whole result in every epoch. Use "
            "append or update."
        )
    return PubSubSink(sink_options(request.options), request.schema, request.query_id)


REFUSED = (PayloadError, ValueError, OverflowError)
"""Raised for a row that cannot become a message. Python's dates end with the year 9999."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """The batch that was checked last and had no bad row, and its messages."""

    batch: pa.RecordBatch | None
    encoded: Encoded


_NOTHING = _Checked(None, Encoded([], None))


class PubSubWriter(SinkWriter):
    """Publishes the rows of one task."""

    checks_rows = True

    def __init__(self, options: SinkOptions, query_id: str, context: WriterContext) -> None:
        self._options, self._query_id, self._task = options, query_id, context.task
        self._encoder = Encoder(context.schema, options)
        self._publisher = Publisher(Connection(options), publish_settings(options))
        self._epoch, self._row = context.epoch, 0
        self._checked = _NOTHING

    def write(self, batch: pa.RecordBatch) -> None:
        encoded = self._checked.encoded if self._checked.batch is batch else self._encode(batch)
        self._checked = _NOTHING
        self._row += batch.num_rows
        self._publisher.add(encoded.messages, encoded.keys)

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        try:
            # If all rows are good, `write` gets the same batch.
            self._checked = _Checked(batch, self._encode(batch))
            return {}
        except REFUSED:
            self._checked = _NOTHING
        bad = {}
        for index in range(batch.num_rows):
            try:
                self._encode(batch.slice(index, 1))
            except REFUSED as error:
                bad[index] = str(error).rstrip(".")
        return bad

    def _encode(self, batch: pa.RecordBatch) -> Encoded:
        marks = None
        if self._options.epoch_attributes:
            marks = Marks(self._query_id, self._epoch, self._task)
        return self._encoder.encode(batch, marks, self._row)

    def cut(self, epoch: int) -> Prepare:
        mark = self._publisher.mark()
        self._epoch, self._row = epoch + 1, 0

        def prepare() -> bytes:
            self._publisher.flush(mark)
            return b""

        return prepare

    def close(self) -> None:
        self._publisher.close()
