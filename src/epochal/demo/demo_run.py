"""Runs the demo: publishes orders, runs the query, kills a worker, and checks the output.

Note: gRPC and Kafka clients run only in other processes or in Spark's workers. Spark's launcher
forks this process, and these clients do not survive a fork.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from epochal import read_state
from epochal.checkpoint import CommitLog, OffsetLog
from epochal.demo.demo_view import Figures, View
from epochal.demo.orders import Balance, Total, balance
from epochal.demo.pipeline import OUTPUTS, DemoBroker, TotalsOutput, start_query
from epochal.errors import ComponentError

PATIENCE_SECONDS = 60.0
"""How long the demo waits for new output before it gives up."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Demo:
    broker: DemoBroker
    home: Path
    orders: int
    rate: int
    table: str = "parquet"

    @property
    def checkpoint(self) -> str:
        return str(self.home / "checkpoint")

    @property
    def place(self) -> str:
        return str(self.home / "totals")

    @property
    def output(self) -> TotalsOutput:
        return OUTPUTS[self.table](self.place)


@dataclass(frozen=True, slots=True)
class DemoResult:
    balance: Balance
    first_commit_seconds: float
    """From the start of the query to its first committed rows."""
    recovery_seconds: float
    """From the kill to the next committed epoch."""
    latency_ms: tuple[float, float]


class OrderPublisher:
    """A process that publishes orders and reports its progress."""

    def __init__(self, demo: Demo) -> None:
        command = [sys.executable, "-m", "epochal.demo.orders"]
        command += [demo.broker.kind, demo.broker.address, str(demo.orders), str(demo.rate)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self.sent = 0
        self._thread = threading.Thread(target=self._follow, name="epochal-demo", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all orders are published. Raises if the publisher has failed."""
        code = self._process.poll()
        if code:
            raise ComponentError(f"The publisher ended with status {code}: see demo.log.")
        return code == 0 and not self._thread.is_alive()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                self.sent = int(line)


class QueryWatch:
    """Follows a query through its progress reports and the files that it has committed."""

    def __init__(self, demo: Demo, query: Any) -> None:
        self._demo, self._query = demo, query
        self._seen_epoch = -1
        self._seen_files: set[str] = set()
        self._recent: deque[float] = deque(maxlen=RECENT_ROWS)
        self.all_ms: list[float] = []
        """Latencies of rows published after the first commit. Earlier rows had to wait for the
        query to start."""
        self.committed = 0
        """The number of rows visible in the output."""
        self.first_commit: float | None = None
        self._first_totalled = np.datetime64("now")

    def figures(self, seconds: float, sent: int, note: str = "") -> Figures:
        """The current figures of the query. Raises the error that ended it, if it has failed."""
        failure = self._query.exception()
        if failure is not None:
            raise failure
        self._read_new_files()
        report: Any = self._query.last_progress or {}
        # The operator that keeps the totals is the last one.
        operators = report.get("stateOperators") or [{"numRowsTotal": 0}]
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
        newest = CommitLog(f"{self._demo.checkpoint}/commits", read_only=True).latest_batch_id()
        if newest is None or newest <= self._seen_epoch:
            return
        self._seen_epoch = newest
        for path in [file for file in self._demo.output.files() if file not in self._seen_files]:
            self._seen_files.add(path)
            table = pq.read_table(path, columns=TIMES)
            self._record(*(table.column(name).to_numpy() for name in TIMES))

    def _record(self, published: Any, totalled: Any) -> None:
        if self.first_commit is None:
            self.first_commit, self._first_totalled = time.monotonic(), np.max(totalled)
        self.committed += len(totalled)
        counted = published > self._first_totalled
        latencies = ((totalled - published)[counted] / np.timedelta64(1, "ms")).tolist()
        self._recent.extend(latencies)
        self.all_ms += latencies


RECENT_ROWS = 5_000
TIMES = ["publish_time", "totalled_at"]


def percentiles(values: list[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 0.0
    p50, p99 = np.percentile(values, [50, 99])
    return float(p50), float(p99)


class Kill:
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
        """Kill a worker when half of all orders are committed. Later, detect the first commit of a
        newer attempt."""
        now = time.monotonic()
        if self._at is None and committed >= self._demo.orders // 2:
            self._attempt = committed_attempt(self._demo.checkpoint)
            os.kill(workers_below(os.getpid())[0], signal.SIGKILL)
            self._at = now
            return
        recovering = self._at is not None and self.seconds is None
        if recovering and committed_attempt(self._demo.checkpoint) > self._attempt:
            self.seconds = now - (self._at or now)


def committed_attempt(checkpoint: str) -> int:
    """The attempt that decided the newest committed epoch; -1 if there is none yet."""
    newest = CommitLog(f"{checkpoint}/commits", read_only=True).latest_batch_id()
    if newest is None:
        return -1
    entry = OffsetLog(f"{checkpoint}/offsets", read_only=True).get(newest)
    manifest: Any = None if entry is None else entry.extra.get("epochal")
    return -1 if manifest is None else int(manifest["attempt"])


def run(demo: Demo, spark: Any, view: View) -> DemoResult:
    """Run the query until every order is committed; kill a worker when half of them are."""
    view.doing("Starting the query and waiting for its first commit")
    began = progressed = time.monotonic()
    query = start_query(spark, demo.broker, demo.table, demo.place, demo.checkpoint)
    watch, kill = QueryWatch(demo, query), Kill(demo)
    try:
        with closing(OrderPublisher(demo)) as publisher:
            while time.monotonic() - progressed < PATIENCE_SECONDS:
                before = watch.committed
                view.show(watch.figures(time.monotonic() - began, publisher.sent, kill.note))
                kill.step(watch.committed)
                if watch.committed > before:
                    progressed = time.monotonic()
                # A slow start may commit all orders at once, before the worker is killed.
                if publisher.done and watch.committed >= demo.orders and kill.seconds is not None:
                    break
                time.sleep(POLL_SECONDS)
    finally:
        query.stop()
    if watch.first_commit is None or kill.seconds is None:
        raise ComponentError(
            f"Nothing was committed for {PATIENCE_SECONDS:.0f} s, after {watch.committed} of "
            f"{demo.orders} orders. Inspect the checkpoint with `epochal checkpoint show "
            f"{demo.checkpoint}`."
        )
    view.doing("Reading output and state back, and comparing them with what was sent")
    return DemoResult(
        read_back(demo, spark), watch.first_commit - began, kill.seconds, percentiles(watch.all_ms)
    )


def read_back(demo: Demo, spark: Any) -> Balance:
    columns = ["customer", "order_id", "orders", "cents"]
    table = demo.output.read(spark, columns).to_pydict()
    newest: dict[str, Total] = {}
    for customer, orders, cents in zip(
        table["customer"], table["orders"], table["cents"], strict=True
    ):
        if customer not in newest or newest[customer].orders < orders:
            newest[customer] = Total(orders, cents)
    states = {}
    totals = read_state(demo.checkpoint, demo.broker.totals_operator, store_name="total")
    for row in totals.to_pylist():
        states[row["key"]["customer"]] = Total(row["value"]["orders"], row["value"]["cents"])
    return balance(demo.orders, table["order_id"], newest, states)


DAEMONS = (b"pyspark.daemon", b"epochal.warm_daemon")


def workers_below(root: int) -> list[int]:
    """The pids of the Python workers that run this process's tasks: forks of a daemon.

    It works only on Linux with local Spark, like the demo.
    """
    parents = _parents()
    family, fresh = {root}, {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - family
        family |= fresh
    daemons = {pid for pid in family if _is_daemon(pid)}
    return sorted(pid for pid in daemons if parents.get(pid) in daemons)


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # the process may have ended meanwhile
                stat = Path("/proc", name, "stat").read_text()
                parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _is_daemon(pid: int) -> bool:
    with suppress(OSError):
        command = Path("/proc", str(pid), "cmdline").read_bytes()
        return any(b"-m\0" + daemon in command for daemon in DAEMONS)
    return False


LINES_SHOWN = 5


def local_session(*, tasks: int, log: Path) -> SparkSession:
    """A local Spark session with `tasks` slots; `log` is where stderr goes meanwhile."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(f"local[{tasks}]")
        .appName("epochal demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.task.killTimeout", "200ms")
    )
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        last = log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
        log_end = "\n".join(last) or str(error)
        raise ComponentError(
            f"Spark did not start. {log} has its log, which ends: {log_end}"
        ) from error
    # The demo kills a worker on purpose. The view reports this in one line, so the errors that
    # the query would log are suppressed.
    logging.getLogger("epochal").setLevel(logging.CRITICAL)
    return spark


@contextmanager
def errors_to(log: Path) -> Iterator[None]:
    """Send stderr to a file: of this process in the block, of its children as long as they run.

    The JVM, Kafka's client and others write there, in the middle of a live view.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with log.open("ab") as target:
        os.dup2(target.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
