"""`readStream.format("pubsub")`: reads a subscription in micro-batches.

The offset counts batches, because Pub/Sub has no positions. In the process that Spark starts for a
source, the reader opens the driver's endpoint and answers Spark's calls from it. In tasks, it reads
from the executor's sidecar.

With PySpark 4.0 and 4.1, Spark asks for offsets without a limit, Python sources have no
`availableNow`, and `reportLatestOffset` does not show in a query's progress.

Note: if an earlier run planned a batch and did not finish it, the batch is empty when this run
replays it. Its messages were never acknowledged, so they arrive in a later batch. Only
`delivery=exactly-once` writes copies of batches, and the replay reads them.
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
from msgspec.structs import replace
from pyspark.sql import datasource

from epochal.connectors.pubsub.data_source.driver_endpoint import DriverEndpoint
from epochal.connectors.pubsub.parse import DeadLetters, ParseSpec, parse_spec
from epochal.connectors.pubsub.pubsub_options import (
    ColumnNames,
    Delivery,
    SourceOptions,
    settle_options,
    source_options,
)
from epochal.connectors.pubsub.pull.received_rows import (
    ACK_SCHEMA,
    DATABRICKS_COLUMNS,
    MESSAGE_SCHEMA,
    to_databricks_columns,
)
from epochal.connectors.pubsub.sidecar.copies import Copies, Seen, open_copies
from epochal.connectors.pubsub.sidecar.grants import Grants, Reason
from epochal.connectors.pubsub.sidecar.sidecar_client import read_rows
from epochal.connectors.pubsub.sidecar.sidecar_messages import PartitionReading
from epochal.errors import OptionError
from epochal.rpc.server import LOOPBACK

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
"""The most rows of a partition with `exactly-once`: all ids go to the driver in one message."""
UNLIMITED_BYTES = 1 << 62
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark runs in a source's own process."""

Offset = dict[str, int]
"""`batch` is the batch's number. `partitions` is how many partitions it has, for a replay."""


@dataclass(frozen=True)
class PubSubPartition(datasource.InputPartition):  # type: ignore[misc]
    """One partition of a batch; with `replay`, it is read from its copy."""

    reading: PartitionReading
    replay: bool = False


class SparkPubSubReaders:
    """The reading side of the data source; `options` and `conf` are the data source's."""

    options: Mapping[str, str]
    conf: ClassVar[Mapping[str, str]]

    def schema(self) -> Any:
        options = self._source_options()
        parse = _parse_spec(options)
        if options.column_names is ColumnNames.DATABRICKS:
            return DATABRICKS_COLUMNS
        if parse is None:
            return COLUMNS + (", ack_id STRING" if options.include_ack_id else "")
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = ACK_SCHEMA if options.include_ack_id else MESSAGE_SCHEMA
        return from_arrow_schema(parse.extended(schema, errors=not options.dead_letter_topic_id))

    def streamReader(self, schema: Any) -> Any:
        options = settle_options(self._source_options())
        ours = self.schema()
        if not isinstance(ours, str) and schema.names != ours.names:
            raise OptionError(
                f"pubsub: the columns are {', '.join(ours.names)}, not {', '.join(schema.names)}. "
                f"Give the payload's schema as parseSchema, not as schema(...)."
            )
        reader = BatchReader if limits is None else LimitedReader
        return reader(options)

    def _source_options(self) -> SourceOptions:
        options = source_options(dict(self.options), self.conf)
        if options.delivery is Delivery.EXACTLY_ONCE and not options.wal_location:
            raise OptionError(
                "pubsub: delivery=exactly-once needs walLocation, because Spark does not tell a "
                "source where its checkpoint is. Give a directory on the same storage as the "
                "checkpoint, such as CHECKPOINT/epochal, that no other query uses."
            )
        return options


EVERYWHERE = ("0.0.0.0", "::")


def driver_hosts(options: SourceOptions) -> tuple[str, str]:
    """The host that executors connect to, and the address at which the driver listens."""
    bind = options.driver_bind_host or options.driver_host or LOOPBACK
    if options.driver_host is None and bind in EVERYWHERE:
        return socket.gethostbyname(socket.gethostname()), bind
    return options.driver_host or bind, bind


class _Reader(datasource.DataSourceStreamReader):  # type: ignore[misc]
    """What the readers for all PySpark releases share.

    It is pickled and sent to tasks, before it opens anything.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.partitions_per_batch = options.num_partitions or 1
        self._endpoint: DriverEndpoint | None = None
        self._copies: Copies | None = None
        self._seen: Seen | None = None
        self._janitor: Janitor | None = None
        self._offset: Offset = {"batch": 0, "partitions": 0}
        self._old_before_us = 0
        self._stopping = False

    def initialOffset(self) -> Offset:
        self._open_endpoint(new=True)
        return self._offset

    def partitions(self, start: Offset, end: Offset) -> list[PubSubPartition]:
        endpoint, batch = self._open_endpoint(), int(end["batch"])
        plan, committed, pending = endpoint.planned(batch)
        if start == end:  # Spark calls it this way to announce where a restarted query continues
            self._offset = end
            return []
        run, driver, options, copies = endpoint.run, endpoint.place, self.options, self._wal
        reading = PartitionReading(run, driver, options, batch, partition=0, copies=copies)
        if plan is None:
            self._offset = end
            count = int(end["partitions"]) if copies else 0
        else:
            count, wait_s = plan.partitions, 0.0
            if plan.reason is Reason.BOOTSTRAP:
                wait_s = min(BOOTSTRAP_WAIT_S, options.max_fetch_period / timedelta(seconds=1))
            reading = replace(
                reading,
                rows=plan.rows,
                size=max(1, (options.max_bytes_per_trigger or UNLIMITED_BYTES) // max(1, count)),
                wait_s=wait_s,
                old_before_us=self._old_before_us,
                committed=committed,
                pending=pending,
            )
        return [
            PubSubPartition(replace(reading, partition=partition), replay=plan is None)
            for partition in range(count)
        ]

    def commit(self, end: Offset) -> None:
        batch = int(end["batch"])
        self._open_endpoint().commit(batch)
        if self._janitor is not None:
            self._janitor.committed(batch)

    def read(self, partition: PubSubPartition) -> Iterator[pa.RecordBatch]:
        reading = partition.reading
        if partition.replay:
            copies = open_copies(reading.copies, self.options.subscription)
            schema = ACK_SCHEMA if self.options.include_ack_id else MESSAGE_SCHEMA
            rows = iter(copies.read_or_seal(reading.slot, schema))
        else:
            rows = read_rows(reading)
        if self.options.column_names is ColumnNames.DATABRICKS:
            return to_databricks_columns(rows)
        return rows if self.options.parse is None else _parse_rows(rows, self.options)

    def stop(self) -> None:
        self._stopping = True
        endpoint, self._endpoint = self._endpoint, None
        if self._janitor is not None:
            self._janitor.stop()
        if endpoint is None:
            return
        endpoint.close()
        if self.options.delete_subscription_on_stream_stop:
            from epochal.connectors.pubsub.connection import delete_subscription

            delete_subscription(self.options)

    @property
    def _wal(self) -> str:
        if self.options.delivery is not Delivery.EXACTLY_ONCE:
            return ""
        return self.options.wal_location or ""

    def _plan_batch(self, start: Offset) -> Offset:
        plan = self._open_endpoint().next_batch(int(start["batch"]))
        if plan is None:
            return start
        logger.info("batch %d: %s", plan.batch, plan.reason)
        return {"batch": plan.batch, "partitions": plan.partitions}

    def _open_endpoint(self, *, new: bool = False) -> DriverEndpoint:
        """Return the endpoint; open it at Spark's first call.

        `new` means that the query has no checkpoint yet.
        """
        if self._endpoint is not None:
            return self._endpoint
        from epochal.connectors.pubsub.connection import prepare_subscription

        prepare_subscription(self.options, new=new)
        if self._wal:
            self._copies = open_copies(self._wal, self.options.subscription)
            self._seen = _load_seen(self._copies, new=new)
        options = self.options
        rows, (host, bind) = options.max_records_per_fetch, driver_hosts(options)
        self._endpoint = DriverEndpoint(
            Grants(
                partitions=self.partitions_per_batch,
                rows_per_partition=min(rows, COPIED_ROWS) if self._wal else rows,
            ),
            host=host,
            bind_host=bind,
            seen=self._seen,
        )
        if self._copies is not None and self._seen is not None:
            window_s = options.dedup_window / timedelta(seconds=1)
            self._janitor = Janitor(self._copies, self._endpoint, window_s)
        main = getattr(sys.modules["__main__"], "__spec__", None)
        if main is not None and main.name == RUNNER:
            signal.signal(signal.SIGTERM, self._on_signal)
        return self._endpoint

    def _on_signal(self, *_: object) -> None:
        """Stop on SIGTERM. Spark sends it twice, and does not always call `stop` first."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not self._stopping:
            self.stop()
            os._exit(0)


class BatchReader(_Reader):
    """For PySpark 4.0 and 4.1."""

    def latestOffset(self) -> Offset:
        self._offset = self._plan_batch(self._offset)
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
                return self._plan_batch(start)
            silence_s = self.options.drain_silence / timedelta(seconds=1)
            plan = self._open_endpoint().next_drained(int(start["batch"]), silence_s)
            return start if plan is None else {"batch": plan.batch, "partitions": plan.partitions}

        def prepareForTriggerAvailableNow(self) -> None:
            self._draining = True
            self._old_before_us = time.time_ns() // 1000

        def reportLatestOffset(self) -> dict[str, int]:
            return self._open_endpoint().metrics()


class Janitor:
    """Deletes copies on a background thread once `dedupWindow` has passed."""

    def __init__(self, copies: Copies, endpoint: DriverEndpoint, window_s: float) -> None:
        self._copies, self._endpoint, self._window_s = copies, endpoint, window_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        # Messages that an earlier run copied may be redelivered to this run, so their window
        # starts again with this run's first commit.
        self._since: dict[int, float | None] = dict.fromkeys(copies.batches())
        self._thread = threading.Thread(target=self._run, name="pubsub-janitor", daemon=True)
        self._thread.start()

    def committed(self, batch: int) -> None:
        """Start the window of all batches up to this one, which Spark has committed."""
        with self._lock:
            self._since.setdefault(batch, None)
            for waiting, since in self._since.items():
                if waiting <= batch and since is None:
                    self._since[waiting] = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(30.0, max(1.0, self._window_s / 10))):
            end = time.monotonic() - self._window_s
            with self._lock:
                over = [n for n, since in self._since.items() if since is not None and since <= end]
                for batch in over:
                    del self._since[batch]
            for batch in over:
                self._endpoint.expire(batch)
                try:
                    self._copies.drop(batch)
                except OSError as error:
                    logger.warning("the copies of batch %d cannot be deleted: %s", batch, error)


def _parse_spec(options: SourceOptions) -> ParseSpec | None:
    if options.parse is None and options.parse_schema is None:
        return None
    return parse_spec(options)


def _parse_rows(rows: Iterator[pa.RecordBatch], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Parse the payloads of rows; errors go to a column or to the dead-letter topic."""
    spec = _parse_spec(options)
    assert spec is not None
    parser = spec.open()
    dead = DeadLetters(options) if options.dead_letter_topic_id else None
    try:
        for batch in rows:
            parsed = parser.parse(batch)
            batches = parsed.with_errors() if dead is None else dead.take(parsed)
            if batches.num_rows:
                yield batches
        if dead is not None:
            # If the task ended first, the messages could be acknowledged without a dead letter.
            dead.is_published(dead.mark(), wait=True)
    finally:
        if dead is not None:
            dead.close()


def _load_seen(copies: Copies, *, new: bool) -> Seen:
    seen = Seen()
    for slot, keys in copies.message_keys():
        if new:
            raise OptionError(
                f"pubsub: {copies.url} has copies of batch {slot[0]}, but this query has no "
                f"checkpoint yet. They belong to another query, and this one would read them as "
                f"its own. Give another walLocation, or delete it if that query has ended."
            )
        seen.load(slot, keys)
    return seen
