"""Pub/Sub source and sink of the continuous engine. By default both deliver at least once.

Source: tasks read messages and acknowledge committed ones. Each partition is one StreamingPull;
Pub/Sub decides which stream gets which message. A partition's position is the number of messages it
has delivered. It cannot be used to read messages again, and it need not be: messages of an epoch
that was never committed were never acknowledged, so Pub/Sub redelivers them.

Sink: messages are published as soon as a batch is full or has lingered, without waiting for the
epoch's end. An epoch is prepared once Pub/Sub has confirmed all of its messages. So readers see
messages before the epoch is decided, and see them again if the epoch is repeated. `epochAttributes`
marks each message with its epoch.

Note: Pub/Sub may also redeliver a message after its epoch was committed, because the
acknowledgement was lost with the task or for no visible reason. By default the query then processes
a duplicate. With `delivery=exactly-once` the query drops it by its id; see docs/decisions/0008.

Note: a repeated epoch need not contain the same rows. A duplicate of the sink's has the same marks
for query and epoch, but the mark for the row names the same row only if the query is deterministic.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import pyarrow as pa

from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.contract import (
    AcknowledgingReader,
    BadRows,
    FunctionWriters,
    Positions,
    Prepare,
    ReaderFactory,
    SinkWriter,
    Source,
    WriterContext,
)
from epochal.connectors.formats import COMPLETE, Identity, SinkRequest, SourceRequest
from epochal.connectors.pubsub.connection import (
    Connection,
    Subscriptions,
    delete_subscription,
    prepare_subscription,
)
from epochal.connectors.pubsub.parse import DeadLetters, Parser, ParseSpec, parse_spec
from epochal.connectors.pubsub.publish.encode import Encoded, Encoder, Marks, plan_layout
from epochal.connectors.pubsub.publish.publisher import Publisher
from epochal.connectors.pubsub.pubsub_options import (
    ColumnNames,
    Delivery,
    SinkOptions,
    SourceOptions,
    settle_options,
    sink_options,
    source_options,
)
from epochal.connectors.pubsub.pull.ack_leases import Span
from epochal.connectors.pubsub.pull.hand_back import HandBack
from epochal.connectors.pubsub.pull.received_rows import ACK_SCHEMA, MESSAGE_SCHEMA
from epochal.connectors.pubsub.pull.streaming_pull import Puller
from epochal.errors import OptionError, PayloadError, PubSubError

logger = logging.getLogger(__name__)

CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class PubSubReaders(ReaderFactory):
    """Opens readers in tasks."""

    options: SourceOptions
    parse: ParseSpec | None

    def open(self, partitions: Positions) -> PubSubReader:
        options = self.options
        hand_back = HandBack(options) if partitions else None
        pullers = {
            name: Puller(Connection(options), options, hand_back=hand_back, stream=number)
            for number, name in enumerate(partitions)
        }
        return PubSubReader(options, self.parse, partitions, pullers, hand_back)


class PubSubSource(Source):
    """The driver's side. It manages the subscription and decides how many streams read it."""

    acknowledges_in_tasks = True

    def __init__(
        self, options: SourceOptions, parse: ParseSpec | None, *, parallelism: int = 1
    ) -> None:
        self._options = options = settle_options(options)
        self._partitions = options.num_partitions or parallelism
        self._schema, self._readers = row_schema(options, parse), PubSubReaders(options, parse)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def readers(self) -> PubSubReaders:
        return self._readers

    def initial(self) -> Positions:
        prepare_subscription(self._options, new=True)
        return {str(number): "0" for number in range(self._partitions)}

    def resume(self, offset: str) -> Positions:
        partitions: Mapping[str, int] = json.loads(offset)["partitions"]
        return {partition: str(count) for partition, count in partitions.items()}

    def discover(self, known: Positions) -> Positions:
        """Return new streams if the options now ask for more; streams are never removed.

        Raises if the subscription no longer exists, as far as the account may know, and if Pub/Sub
        cannot be reached. The engine then shows the query as degraded; it looks again soon, so the
        call is not retried here.
        """
        options = replace(self._options, retry_timeout=timedelta(0))
        with closing(Connection(options)) as connection:
            Subscriptions(connection).look(options.subscription)
        wanted = (str(number) for number in range(self._partitions))
        return {partition: "0" for partition in wanted if partition not in known}

    def offset(self, positions: Positions) -> str:
        counts = {partition: int(count) for partition, count in sorted(positions.items())}
        return json.dumps({"offset": sum(counts.values()), "partitions": counts})

    def lag(self, positions: Positions, latest: Positions) -> int:
        return 0

    def close(self) -> None:
        if self._options.delete_subscription_on_stream_stop:
            delete_subscription(self._options)


@dataclass(frozen=True, slots=True)
class _Ended:
    """The messages that an epoch read, to be acknowledged when it is committed."""

    epoch: int
    spans: list[tuple[str, Span]]
    dead: int | None
    """The mark up to which dead letters must be published before the messages are acknowledged."""


class PubSubReader(AcknowledgingReader):
    """Reads some partitions in one task. `read` never blocks: acks are sent by other threads."""

    def __init__(
        self,
        options: SourceOptions,
        parse: ParseSpec | None,
        partitions: Positions,
        pullers: Mapping[str, Puller],
        hand_back: HandBack | None = None,
    ) -> None:
        self._hand_back = hand_back
        self._counts = {partition: int(count) for partition, count in partitions.items()}
        self._columns = list((ACK_SCHEMA if options.include_ack_id else MESSAGE_SCHEMA).names)
        self._parser: Parser | None = None if parse is None else parse.open()
        self._dead: DeadLetters | None = None
        if parse is not None and options.dead_letter_topic_id is not None:
            self._dead = DeadLetters(options)
        self._pullers = pullers
        self._turns = deque(self._pullers)
        self._read: list[tuple[str, Span]] = []
        self._ended: deque[_Ended] = deque()
        self._committed = -1
        self._limited = False

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        if self._ended and self._ended[0].epoch <= self._committed:
            self._acknowledge()
        if self._limited:
            return None
        for _ in range(len(self._turns)):
            name = self._turns[0]
            self._turns.rotate(-1)
            pulled = self._pullers[name].take(max_rows)
            if pulled is None:
                continue
            self._counts[name] += pulled.batch.num_rows
            self._read.append((name, pulled.span))
            rows = self._rows(pulled.batch)
            if rows.num_rows:
                return rows
        return None

    def positions(self) -> Positions:
        return {partition: str(count) for partition, count in self._counts.items()}

    def limit(self, ends: Positions) -> None:
        """Stop reading here. `ends` is ignored, because Pub/Sub has no positions to read up to."""
        self._limited = True

    def ended(self, epoch: int) -> None:
        spans, self._read = self._read, []
        dead = None if self._dead is None else self._dead.mark()
        if spans:
            self._ended.append(_Ended(epoch, spans, dead))

    def committed(self, epoch: int) -> None:
        self._committed = epoch
        self._acknowledge()

    def close(self) -> None:
        """Send the acknowledgements that are due, and nack all other messages."""
        try:
            self._acknowledge(wait=True)
        except PubSubError as error:
            logger.warning("some committed messages were not acknowledged: %s", error)
        with ThreadPoolExecutor(max(len(self._pullers), 1)) as pool:
            for puller in self._pullers.values():
                pool.submit(puller.close, timeout_s=CLOSE_S)
        if self._hand_back is not None:
            self._hand_back.close()
        if self._dead is not None:
            self._dead.close()

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._parser is not None:
            parsed = self._parser.parse(batch)
            batch = parsed.with_errors() if self._dead is None else self._dead.take(parsed)
            added = [name for name in batch.schema.names if name not in ACK_SCHEMA.names]
            return batch.select([*self._columns, *added])
        return batch.select(self._columns)

    def _acknowledge(self, *, wait: bool = False) -> None:
        """Acknowledge what is committed; what waits for its dead letters is looked at again."""
        by_partition: dict[str, list[Span]] = {}
        while self._ended and self._ended[0].epoch <= self._committed:
            if self._dead is not None and not self._dead.is_published(self._ended[0].dead, wait):
                break
            for name, span in self._ended.popleft().spans:
                by_partition.setdefault(name, []).append(span)
        for name, spans in by_partition.items():
            self._pullers[name].ack(spans).add_done_callback(_note_refusals)


def pubsub_source_schema(
    name: str, options: Mapping[str, str], schema: pa.Schema | None
) -> pa.Schema:
    """Return the source's columns. Checks its options too."""
    del name
    read = source_options(options)
    return row_schema(read, parse_spec(read, schema))


def redelivery_identity(options: Mapping[str, str]) -> Identity | None:
    """Return how a query recognises messages that come again; None if it may show them twice."""
    read = source_options(options)
    if read.delivery is not Delivery.EXACTLY_ONCE:
        return None
    window_ms = read.dedup_window // timedelta(milliseconds=1)
    return Identity(("message_id",), "publish_time", window_ms)


def open_pubsub_source(request: SourceRequest) -> PubSubSource:
    options = source_options(request.options)
    parse = parse_spec(options, request.schema)
    return PubSubSource(options, parse, parallelism=request.parallelism)


def row_schema(options: SourceOptions, parse: ParseSpec | None) -> pa.Schema:
    if options.column_names is not ColumnNames.EPOCHAL:
        raise OptionError(
            f"pubsub: columnNames={options.column_names} is for queries that move from Databricks "
            f"to Spark's readStream. In a continuous query, remove it and rename columns with "
            f"select."
        )
    schema = ACK_SCHEMA if options.include_ack_id else MESSAGE_SCHEMA
    if parse is None:
        return schema
    return parse.extended(schema, errors=options.dead_letter_topic_id is None)


def _note_refusals(future: Future[dict[int, str]]) -> None:
    error = future.exception()
    if error is not None:
        logger.warning("acknowledging failed, messages will be redelivered: %s", error)
    elif refused := future.result():
        logger.warning(
            "%d acknowledgements came too late; messages will be redelivered", len(refused)
        )


class PubSubSink(AtLeastOnceSink):
    """The driver's side. It checks options and columns before any task starts."""

    def __init__(self, options: SinkOptions, schema: pa.Schema, query_id: str) -> None:
        options = settle_options(options)
        plan_layout(schema, options)
        super().__init__(FunctionWriters(partial(PubSubWriter, options, query_id)))


def open_pubsub_sink(request: SinkRequest) -> PubSubSink:
    if request.output_mode == COMPLETE:
        raise OptionError(
            "pubsub: output mode complete would publish the whole result in every epoch. Use "
            "append or update."
        )
    return PubSubSink(sink_options(request.options), request.schema, request.query_id)


REFUSED = (PayloadError, ValueError, OverflowError)
"""Raised for a row that cannot become a message. Python's dates end with the year 9999."""


class PubSubWriter(SinkWriter):
    """Publishes the rows of one task."""

    checks_rows = True

    def __init__(self, options: SinkOptions, query_id: str, context: WriterContext) -> None:
        self._options, self._query_id, self._task = options, query_id, context.task
        self._encoder = Encoder(context.schema, options)
        self._publisher = Publisher(Connection(options), options)
        self._epoch, self._row = context.epoch, 0
        self._checked: tuple[pa.RecordBatch, Encoded] | None = None
        """The batch that was checked last and had no bad row, and its messages."""

    def write(self, batch: pa.RecordBatch) -> None:
        checked, self._checked = self._checked, None
        encoded = checked[1] if checked and checked[0] is batch else self._encode(batch)
        self._row += batch.num_rows
        self._publisher.add(encoded.messages, encoded.keys)

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        try:
            # If all rows are good, `write` gets the same batch.
            self._checked = batch, self._encode(batch)
            return {}
        except REFUSED:
            self._checked = None
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
