"""Runs the demo: server, publisher, query, a killed worker, and the reading back.

What a reader would get wrong: gRPC and Kafka clients live in other processes or in Spark's workers.
Spark's launcher forks this one, and they do not like that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from epochal.checkpoint import CommitLog, FileSinkLog, OffsetLog
from epochal.demo.demo_view import Figures, Show
from epochal.demo.orders import Balance, Total, balance
from epochal.demo.pipeline import Broker, start_query
from epochal.demo.processes import workers_below
from epochal.errors import ComponentError
from epochal.state import read_state

PATIENCE_SECONDS = 60.0
"""How long nothing may come out before the demo gives up waiting."""
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Demo:
    """What to run, and where."""

    broker: Broker
    home: Path
    orders: int
    rate: int

    @property
    def checkpoint(self) -> str:
        return str(self.home / "checkpoint")

    @property
    def output(self) -> str:
        return str(self.home / "totals")


@dataclass(frozen=True, slots=True)
class Outcome:
    balance: Balance
    first_commit_seconds: float
    """From the start of the query to its first committed rows."""
    recovery_seconds: float
    """From the kill to the next committed epoch."""
    latency_ms: tuple[float, float]


class Publisher:
    """Another process that publishes, and says how far it is."""

    def __init__(self, demo: Demo) -> None:
        command = [sys.executable, "-m", "epochal.demo.order_publisher"]
        command += [demo.broker.kind, demo.broker.address, str(demo.orders), str(demo.rate)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self.sent = 0
        self._thread = threading.Thread(target=self._follow, name="epochal-demo", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all is published; raises if it never will be."""
        code = self._process.poll()
        if code:
            raise ComponentError(f"The publisher ended with status {code}: see what it said above.")
        return code == 0 and not self._thread.is_alive()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                self.sent = int(line)


class Watch:
    """Follows a query by its progress reports and by the files it has committed."""

    def __init__(self, demo: Demo, query: Any) -> None:
        self._demo, self._query = demo, query
        self._seen_epoch = -1
        self._seen_files: set[str] = set()
        self._recent: deque[float] = deque(maxlen=RECENT_ROWS)
        self.all_ms: list[float] = []
        """Latencies of rows published since the first commit: what waited for the start is not
        what the query is like."""
        self.committed = 0
        """Rows that a reader of the output sees."""
        self.first_commit: float | None = None
        self._first_seen = np.datetime64("now")

    def look(self, seconds: float, sent: int, note: str = "") -> Figures:
        """The query as it is now; raises what ended it, if it has ended."""
        failure = self._query.exception()
        if failure is not None:
            raise failure
        self._read_new_files()
        report: Any = self._query.last_progress or {}
        operators = report.get("stateOperators") or [{"numRowsTotal": 0}]  # the totals are last
        return Figures(
            seconds=seconds,
            sent=sent,
            committed=self.committed,
            rate=report.get("inputRowsPerSecond", 0.0),
            latency_ms=percentiles(list(self._recent)),
            epoch=self._seen_epoch,
            epoch_ms=report.get("epochLatencyMs", {"p50": 0.0})["p50"],
            customers=operators[-1]["numRowsTotal"],
            attempt=self._query.status["attempt"],
            note=note,
        )

    def _read_new_files(self) -> None:
        log = FileSinkLog(f"{self._demo.output}/_spark_metadata", read_only=True)
        newest = log.latest_batch_id()
        if newest is None or newest <= self._seen_epoch:
            return
        self._seen_epoch = newest
        for path in [each.path for each in log.all_files() if each.path not in self._seen_files]:
            self._seen_files.add(path)
            table = pq.read_table(path.removeprefix("file://"), columns=TIMES)
            self._note(*(table.column(name).to_numpy() for name in TIMES))

    def _note(self, published: Any, seen: Any) -> None:
        if self.first_commit is None:
            self.first_commit, self._first_seen = time.monotonic(), np.max(seen)
        self.committed += len(seen)
        counted = published > self._first_seen
        latencies = ((seen - published)[counted] / np.timedelta64(1, "ms")).tolist()
        self._recent.extend(latencies)
        self.all_ms += latencies


RECENT_ROWS = 5_000
TIMES = ["publish_time", "totalled_at"]


def percentiles(values: list[float]) -> tuple[float, float]:
    """Half of them, and 99 in 100, are at most this."""
    if not values:
        return 0.0, 0.0
    half, most = np.percentile(values, [50, 99])
    return float(half), float(most)


class Kill:
    """One worker killed, once; knows how long the query took to get over it."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._attempt = -1
        self._at: float | None = None
        self.seconds: float | None = None
        """From the kill to the next committed epoch."""

    @property
    def note(self) -> str:
        if self._at is None:
            return ""
        if self.seconds is None:
            return "a worker was killed (kill -9): recovering"
        return f"a worker was killed (kill -9): recovered in {self.seconds:.1f} s"

    def step(self, committed: int) -> None:
        """Kill when half of all orders are committed; then wait for a later attempt's commit."""
        now = time.monotonic()
        if self._at is None and committed >= self._demo.orders // 2:
            self._attempt = committed_attempt(self._demo.checkpoint)
            os.kill(workers_below(os.getpid())[0], signal.SIGKILL)
            self._at = now
            return
        waits = self._at is not None and self.seconds is None
        if waits and committed_attempt(self._demo.checkpoint) > self._attempt:
            self.seconds = now - (self._at or now)


def committed_attempt(checkpoint: str) -> int:
    """The attempt that decided the newest committed epoch; -1 before there is one."""
    newest = CommitLog(f"{checkpoint}/commits", read_only=True).latest_batch_id()
    if newest is None:
        return -1
    entry = OffsetLog(f"{checkpoint}/offsets", read_only=True).get(newest)
    manifest: Any = None if entry is None else entry.extra.get("epochal")
    return -1 if manifest is None else int(manifest["attempt"])


def run(demo: Demo, spark: Any, show: Show) -> Outcome:
    """Run the query until every order is committed; kill a worker when half of them are."""
    began = moved = time.monotonic()
    query = start_query(spark, demo.broker, demo.output, demo.checkpoint)
    watch, kill = Watch(demo, query), Kill(demo)
    try:
        with publishing(demo) as publisher:
            while time.monotonic() - moved < PATIENCE_SECONDS:
                before = watch.committed
                show(watch.look(time.monotonic() - began, publisher.sent, kill.note))
                kill.step(watch.committed)
                if watch.committed > before:
                    moved = time.monotonic()
                if publisher.done and watch.committed >= demo.orders:
                    break
                time.sleep(LOOK_SECONDS)
    finally:
        query.stop()
    if watch.first_commit is None or kill.seconds is None:
        raise ComponentError(
            f"Nothing was committed for {PATIENCE_SECONDS:.0f} s, after {watch.committed} of "
            f"{demo.orders} orders: look at {demo.checkpoint} with `epochal checkpoint show`."
        )
    return Outcome(
        read_back(demo, spark), watch.first_commit - began, kill.seconds, percentiles(watch.all_ms)
    )


def read_back(demo: Demo, spark: Any) -> Balance:
    """The output as Spark reads it and the state as `epochal state read` does."""
    rows = spark.read.parquet(demo.output).select("customer", "order_id", "orders", "cents")
    table = rows.toArrow().to_pydict()
    newest: dict[str, Total] = {}
    for customer, orders, cents in zip(
        table["customer"], table["orders"], table["cents"], strict=True
    ):
        if customer not in newest or newest[customer].orders < orders:
            newest[customer] = Total(orders, cents)
    states = {}
    for row in _totals_state(demo).to_pylist():
        states[row["key"]["customer"]] = Total(row["value"]["orders"], row["value"]["cents"])
    return balance(demo.orders, table["order_id"], newest, states)


def _totals_state(demo: Demo) -> pa.Table:
    return read_state(demo.checkpoint, demo.broker.totals_operator, store_name="total")


@contextmanager
def publishing(demo: Demo) -> Iterator[Publisher]:
    publisher = Publisher(demo)
    try:
        yield publisher
    finally:
        publisher.end()
