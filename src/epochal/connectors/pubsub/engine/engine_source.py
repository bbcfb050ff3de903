"""Pub/Sub as a source of the continuous engine: tasks read, and acknowledge what is committed.

A partition is a StreamingPull of its own; Pub/Sub divides messages among them as it likes. Its
position counts the messages that it brought: nothing can be read again from there, and need not
be. What was read in an epoch that was never committed was never acknowledged, so it comes again.

What a reader would get wrong: a message may also come again after its epoch was committed, if the
acknowledgement is lost with the task or Pub/Sub just does it. By default it then counts again. With
`delivery=exactly-once` the query drops it, by its id: see docs/decisions/0008.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import pyarrow as pa

from epochal.connectors.contract import Positions
from epochal.connectors.pubsub.connection import Connection, Subscriptions
from epochal.connectors.pubsub.parse.parse import DeadLetters, Parser, ParseSpec
from epochal.connectors.pubsub.pubsub_options import SourceOptions, settled
from epochal.connectors.pubsub.pull.ack_leases import Span
from epochal.connectors.pubsub.pull.received_rows import ACK_SCHEMA, MESSAGE_SCHEMA
from epochal.connectors.pubsub.pull.streaming_pull import Pulled, Puller, PullSettings
from epochal.errors import PubSubError

logger = logging.getLogger(__name__)

CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class PubSubReaders:
    """Opens readers in tasks."""

    options: SourceOptions
    parse: ParseSpec | None

    def open(self, partitions: Positions) -> PubSubReader:
        options = self.options
        settings = PullSettings(
            subscription=options.subscription,
            ack_deadline_s=int(options.ack_deadline / timedelta(seconds=1)),
            max_outstanding_messages=options.max_outstanding_messages,
            max_outstanding_bytes=options.max_outstanding_bytes,
        )
        pullers = {name: Puller(Connection(options), settings) for name in partitions}
        return PubSubReader(options, self.parse, partitions, pullers)


class Pulls(Protocol):
    """What a reader needs of a `Puller`; a simulation has one of its own."""

    def take(self, max_rows: int) -> Pulled | None: ...

    def ack(self, spans: Sequence[Span]) -> Future[dict[int, str]]: ...

    def close(self, *, timeout_s: float) -> None: ...


class PubSubSource:
    """The driver's side: the subscription, and how many streams read it."""

    acknowledges_in_tasks = True

    def __init__(
        self, options: SourceOptions, parse: ParseSpec | None, *, parallelism: int = 1
    ) -> None:
        self._options = options = settled(options)
        self._parse = parse
        self._partitions = options.num_partitions or parallelism
        self.schema = row_schema(options, parse)
        self.readers = PubSubReaders(options, parse)

    def initial(self) -> Positions:
        """Create the subscription and seek, if that was asked for."""
        options, connection = self._options, Connection(self._options)
        try:
            calls = Subscriptions(connection)
            calls.ensure(options)
            if options.seek_target is not None:
                calls.seek(options.subscription, options.seek_target)
        finally:
            connection.close()
        return {str(number): "0" for number in range(self._partitions)}

    def resume(self, offset: str) -> Positions:
        found: Mapping[str, int] = json.loads(offset)["partitions"]
        return {partition: str(count) for partition, count in found.items()}

    def discover(self, known: Positions) -> Positions:
        """More streams, if more are wanted now; never fewer. A subscription that is gone raises."""
        connection = Connection(self._options)
        try:
            Subscriptions(connection).describe(self._options.subscription)
        finally:
            connection.close()
        wanted = (str(number) for number in range(self._partitions))
        return {partition: "0" for partition in wanted if partition not in known}

    def offset(self, positions: Positions) -> str:
        counts = {partition: int(count) for partition, count in sorted(positions.items())}
        return json.dumps({"offset": sum(counts.values()), "partitions": counts})

    def boundary(self, positions: Positions) -> Positions:
        return positions

    def latest(self) -> Positions | None:
        return None

    def lag(self, positions: Positions, latest: Positions) -> int:
        return 0

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        """Nothing: tasks do it."""

    def close(self) -> None:
        """Delete the subscription, if that was asked for."""
        if self._options.delete_subscription_on_stream_stop:
            connection = Connection(self._options)
            try:
                Subscriptions(connection).delete(self._options.subscription)
            finally:
                connection.close()


@dataclass(frozen=True, slots=True)
class _Ended:
    """What an epoch has read, to be acknowledged when it is committed."""

    epoch: int
    spans: list[tuple[str, Span]]
    dead: int | None
    """The mark of the dead letters that must be published first."""


class PubSubReader:
    """Some partitions in one task. `read` never waits; settling is left to other threads."""

    def __init__(
        self,
        options: SourceOptions,
        parse: ParseSpec | None,
        partitions: Positions,
        pullers: Mapping[str, Pulls],
    ) -> None:
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
            found = self._pullers[name].take(max_rows)
            if found is None:
                continue
            self._counts[name] += found.batch.num_rows
            self._read.append((name, found.span))
            rows = self._rows(found.batch)
            if rows.num_rows:
                return rows
        return None

    def positions(self) -> Positions:
        return {partition: str(count) for partition, count in self._counts.items()}

    def limit(self, ends: Positions) -> None:
        """Its boundary is wherever it is: there is nothing to read on to."""
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
        """Send the acknowledgements that are due, give all else back."""
        try:
            self._acknowledge(wait=True)
        except PubSubError as error:
            logger.warning("not all is acknowledged: %s", error)
        with ThreadPoolExecutor(max(len(self._pullers), 1)) as pool:
            for puller in self._pullers.values():
                pool.submit(puller.close, timeout_s=CLOSE_S)
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


def row_schema(options: SourceOptions, parse: ParseSpec | None) -> pa.Schema:
    """The columns that a source has with these options."""
    schema = ACK_SCHEMA if options.include_ack_id else MESSAGE_SCHEMA
    if parse is None:
        return schema
    return parse.extended(schema, errors=options.dead_letter_topic_id is None)


def _note_refusals(future: Future[dict[int, str]]) -> None:
    error = future.exception()
    if error is not None:
        logger.warning("acknowledging failed, messages will come again: %s", error)
    elif refused := future.result():
        logger.warning("%d acknowledgements came too late; messages will come again", len(refused))
