"""`readStream.format("pubsub")`: a subscription as a stream of micro-batches.

The offset counts batches: Pub/Sub has no positions of its own. In the process that Spark starts for
a source, this opens the driver's endpoint and answers Spark's questions from it; in tasks, it reads
from the executor's sidecar.

What a reader would get wrong: a batch that an earlier run planned and did not finish is empty when
this run replays it, for its messages were never acknowledged and come in a later batch. Only with
`delivery=exactly-once` there are copies, and the replay reads them.

PySpark 4.0 and 4.1 ask for offsets without a limit, have no `availableNow` for Python sources, and
nothing of `reportLatestOffset` reaches a query's progress.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import datasource

from epochal.connectors.pubsub.data_source.driver_endpoint import DriverEndpoint
from epochal.connectors.pubsub.pubsub_options import (
    Delivery,
    SourceOptions,
    emulator_host,
    merged_source_options,
    settled,
    source_options,
)
from epochal.connectors.pubsub.pull.received_rows import ACK_SCHEMA, MESSAGE_SCHEMA
from epochal.connectors.pubsub.sidecar.copies import Copies, open_copies
from epochal.connectors.pubsub.sidecar.grants import Grants, Reason
from epochal.connectors.pubsub.sidecar.seen_messages import Seen
from epochal.connectors.pubsub.sidecar.sidecar_client import read_rows
from epochal.connectors.pubsub.sidecar.sidecar_messages import Reading
from epochal.errors import OptionError

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # before 4.2
    limits = None

logger = logging.getLogger(__name__)

COLUMNS = (
    "message_id STRING, data BINARY, attributes MAP<STRING, STRING>, publish_time TIMESTAMP, "
    "ordering_key STRING, delivery_attempt INT"
)
BOOTSTRAP_WAIT_S = 2.0
"""How long the batch that starts the sidecars waits for a first row; `maxFetchPeriod` if less."""
COPIED_ROWS = 200_000
"""Of one partition with `exactly-once`: their ids must fit into one message to the driver."""
UNLIMITED_BYTES = 1 << 62
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program that Spark runs for a source."""

Offset = dict[str, int]
"""`batch` counts; `partitions` says how many it has, so that a replay knows."""


@dataclass(frozen=True)
class PubSubPartition(datasource.InputPartition):  # type: ignore[misc]
    """One partition of a batch, or the copy of one."""

    reading: Reading
    replay: bool = False


class PubSubReaders:
    """The reading side of the data source; `options` and `conf` are the data source's."""

    options: Mapping[str, str]
    conf: ClassVar[Mapping[str, str]]

    def schema(self) -> Any:
        options = self._source_options()
        parse = _parse_spec(options)
        if parse is None:
            return COLUMNS + (", ack_id STRING" if options.include_ack_id else "")
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = ACK_SCHEMA if options.include_ack_id else MESSAGE_SCHEMA
        return from_arrow_schema(parse.extended(schema, errors=not options.dead_letter_topic_id))

    def streamReader(self, schema: Any) -> Any:
        """For `readStream`."""
        options = settled(self._source_options())
        ours = self.schema()
        if not isinstance(ours, str) and schema.names != ours.names:
            raise OptionError(
                f"pubsub: the columns are {', '.join(ours.names)}, not {', '.join(schema.names)}. "
                f"Give the payload's schema as parseSchema, not as schema(...)."
            )
        given = merged_source_options(dict(self.options), self.conf)
        reader = BatchReader if limits is None else LimitedReader
        return reader(options, _resolved(options, given))

    def _source_options(self) -> SourceOptions:
        options = source_options(dict(self.options), self.conf)
        if options.delivery is Delivery.EXACTLY_ONCE and not options.wal_location:
            raise OptionError(
                "pubsub: delivery=exactly-once needs walLocation: Spark does not tell a source "
                "where its checkpoint is. Give a directory on the storage of the checkpoint, such "
                "as CHECKPOINT/epochal, used by no other query."
            )
        return options


class _Reader(datasource.DataSourceStreamReader):  # type: ignore[misc]
    """What readers of all releases share. Pickled to tasks before anything is opened."""

    def __init__(self, options: SourceOptions, given: Mapping[str, str]) -> None:
        self.options = options
        self.given = dict(given)
        self.partitions_per_batch = options.num_partitions or 1
        self._endpoint: DriverEndpoint | None = None
        self._copies: Copies | None = None
        self._seen: Seen | None = None
        self._janitor: Janitor | None = None
        self._offset: Offset = {"batch": 0, "partitions": 0}
        self._old_before_us = 0
        self._stopping = False

    def initialOffset(self) -> Offset:
        self._opened(new=True)
        return self._offset

    def partitions(self, start: Offset, end: Offset) -> list[PubSubPartition]:
        endpoint, batch = self._opened(), int(end["batch"])
        endpoint.see(batch)
        if start == end:  # how Spark says where a restarted query stands
            self._offset = end
            return []
        plan = endpoint.planned(batch)
        if plan is None:
            self._offset = end
            return self._replayed(end)
        committed, pending = endpoint.pending()
        size = self.options.max_bytes_per_trigger or UNLIMITED_BYTES
        wait_s = 0.0
        if plan.reason is Reason.BOOTSTRAP:
            period_s = self.options.max_fetch_period / timedelta(seconds=1)
            wait_s = min(BOOTSTRAP_WAIT_S, period_s)
        readings = [
            Reading(
                run=endpoint.run,
                driver=endpoint.place,
                options=self.given,
                batch=batch,
                partition=partition,
                rows=plan.rows,
                size=max(1, size // max(1, plan.partitions)),
                wait_s=wait_s,
                old_before_us=self._old_before_us,
                committed=committed,
                pending=pending,
                copies=self._wal,
            )
            for partition in range(plan.partitions)
        ]
        return [PubSubPartition(reading) for reading in readings]

    def commit(self, end: Offset) -> None:
        batch = int(end["batch"])
        self._opened().commit(batch)
        if self._janitor is not None:
            self._janitor.committed(batch)

    def read(self, partition: PubSubPartition) -> Iterator[pa.RecordBatch]:
        reading = partition.reading
        if partition.replay:
            copies = open_copies(reading.copies, self.options.subscription)
            schema = ACK_SCHEMA if self.options.include_ack_id else MESSAGE_SCHEMA
            rows = iter(copies.read_or_seal((reading.batch, reading.partition), schema))
        else:
            rows = read_rows(reading)
        return rows if self.options.parse is None else _parsed(rows, self.options)

    def stop(self) -> None:
        self._stopping = True
        endpoint, self._endpoint = self._endpoint, None
        if self._janitor is not None:
            self._janitor.stop()
        if endpoint is None:
            return
        endpoint.close()
        if self.options.delete_subscription_on_stream_stop:
            from epochal.connectors.pubsub.connection import Connection, Subscriptions

            connection = Connection(self.options)
            Subscriptions(connection).delete(self.options.subscription)
            connection.close()

    @property
    def _wal(self) -> str:
        if self.options.delivery is not Delivery.EXACTLY_ONCE:
            return ""
        return self.options.wal_location or ""

    def _planned(self, start: Offset) -> Offset:
        plan = self._opened().next_batch(int(start["batch"]))
        if plan is None:
            return start
        logger.info("batch %d: %s", plan.batch, plan.reason)
        return {"batch": plan.batch, "partitions": plan.partitions}

    def _replayed(self, end: Offset) -> list[PubSubPartition]:
        if not self._wal:
            return []
        endpoint, batch = self._opened(), int(end["batch"])
        return [
            PubSubPartition(
                Reading(
                    run=endpoint.run,
                    driver=endpoint.place,
                    options={},
                    batch=batch,
                    partition=partition,
                    rows=0,
                    size=0,
                    wait_s=0.0,
                    old_before_us=0,
                    committed=-1,
                    pending={},
                    copies=self._wal,
                ),
                replay=True,
            )
            for partition in range(int(end["partitions"]))
        ]

    def _opened(self, *, new: bool = False) -> DriverEndpoint:
        """The endpoint, opened when Spark first asks for anything."""
        if self._endpoint is not None:
            return self._endpoint
        self._prepare_subscription(new=new)
        if self._wal:
            self._copies = open_copies(self._wal, self.options.subscription)
            self._seen = _loaded(self._copies, new=new)
        options = self.options
        rows = options.max_records_per_fetch
        self._endpoint = DriverEndpoint(
            Grants(
                partitions=self.partitions_per_batch,
                rows_per_partition=min(rows, COPIED_ROWS) if self._wal else rows,
            ),
            host=options.driver_host or socket.gethostbyname(socket.gethostname()),
            bind_host=options.driver_bind_host,
            seen=self._seen,
        )
        if self._copies is not None and self._seen is not None:
            window_s = options.dedup_window / timedelta(seconds=1)
            self._janitor = Janitor(self._copies, self._endpoint, window_s)
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name == RUNNER:
            signal.signal(signal.SIGTERM, self._on_signal)
        return self._endpoint

    def _prepare_subscription(self, *, new: bool) -> None:
        """Fail now if it cannot be read; only a new query seeks, a restarted one goes on."""
        from epochal.connectors.pubsub.connection import Connection, Subscriptions

        connection = Connection(self.options)
        try:
            subscriptions = Subscriptions(connection)
            subscriptions.ensure(self.options)
            target = self.options.seek_target
            if new and target is not None:
                subscriptions.seek(self.options.subscription, target)
        finally:
            connection.close()

    def _on_signal(self, *_: object) -> None:
        """Spark stops a source with SIGTERM, twice, and does not always call `stop` before."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not self._stopping:
            self.stop()
            os._exit(0)


class BatchReader(_Reader):
    """For PySpark 4.0 and 4.1."""

    def latestOffset(self) -> Offset:
        self._offset = self._planned(self._offset)
        return self._offset


if limits is not None:

    class LimitedReader(_Reader, limits.SupportsTriggerAvailableNow):  # type: ignore[misc]
        """For PySpark 4.2 and later."""

        _draining = False

        def getDefaultReadLimit(self) -> Any:
            rows = self.options.max_records_per_fetch * self.partitions_per_batch
            return limits.ReadMaxRows(rows)

        def latestOffset(self, start: Offset, limit: Any) -> Offset:
            if not self._draining:
                return self._planned(start)
            silence_s = self.options.drain_silence / timedelta(seconds=1)
            plan = self._opened().next_drained(int(start["batch"]), silence_s)
            return start if plan is None else {"batch": plan.batch, "partitions": plan.partitions}

        def prepareForTriggerAvailableNow(self) -> None:
            self._draining = True
            self._old_before_us = time.time_ns() // 1000

        def reportLatestOffset(self) -> dict[str, int]:
            return self._opened().metrics()


class Janitor:
    """Removes copies once their window is over, on a thread of its own."""

    def __init__(self, copies: Copies, endpoint: DriverEndpoint, window_s: float) -> None:
        self._copies, self._endpoint, self._window_s = copies, endpoint, window_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        # What an earlier run left may come again from now on: its window begins here.
        self._due = dict.fromkeys(copies.batches(), None)
        self._since: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, name="pubsub-janitor", daemon=True)
        self._thread.start()

    def committed(self, batch: int) -> None:
        """Spark has committed batches up to this one."""
        with self._lock:
            self._due[batch] = None
            for each in self._due:
                if each <= batch:
                    self._since.setdefault(each, time.monotonic())

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(30.0, max(1.0, self._window_s / 10))):
            end = time.monotonic() - self._window_s
            with self._lock:
                over = [batch for batch, since in self._since.items() if since <= end]
                for batch in over:
                    del self._since[batch]
                    self._due.pop(batch, None)
            for batch in over:
                self._endpoint.expire(batch)
                try:
                    self._copies.drop(batch)
                except OSError as error:
                    logger.warning("the copies of batch %d stay: %s", batch, error)


def _parse_spec(options: SourceOptions) -> Any:
    if options.parse is None and options.parse_schema is None:
        return None
    from epochal.connectors.pubsub.parse.parse import parse_spec  # needs gRPC, for dead letters

    return parse_spec(options)


def _parsed(rows: Iterator[pa.RecordBatch], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Rows with their payloads parsed; what cannot be is in a column, or in another topic."""
    from epochal.connectors.pubsub.parse.parse import DeadLetters

    parser = _parse_spec(options).open()
    dead = DeadLetters(options) if options.dead_letter_topic_id else None
    try:
        for batch in rows:
            parsed = parser.parse(batch)
            found = parsed.with_errors() if dead is None else dead.take(parsed)
            if found.num_rows:
                yield found
        if dead is not None:  # before the task ends, or they would be acknowledged and lost
            dead.is_published(dead.mark(), wait=True)
    finally:
        if dead is not None:
            dead.close()


def _loaded(copies: Copies, *, new: bool) -> Seen:
    seen = Seen()
    for slot, ids in copies.ids():
        if new:
            raise OptionError(
                f"pubsub: {copies.url} has copies of batch {slot[0]}, and this query has no "
                f"checkpoint yet: they are another query's, and would be taken for this one's. "
                f"Give another walLocation, or remove it if that query is over."
            )
        seen.load(slot, ids)
    return seen


def _resolved(options: SourceOptions, given: Mapping[str, str]) -> dict[str, str]:
    """Options for other machines: what this one's environment says is said in them."""
    said = {"subscriptionId": options.subscription}
    emulator = emulator_host(options)
    if emulator:
        said["emulatorHost"] = emulator
    names = {name.lower() for name in said}
    return {key: text for key, text in given.items() if key.lower() not in names} | said
