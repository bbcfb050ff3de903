"""Drives a stream reader as Spark does, without Spark: the same calls in the same order, and logs.

Tasks run in this process and read through real sidecars. An executor is just a run directory, and
each has its own sidecar.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.waiting import eventually

from epochal.connectors.pubsub.data_source.spark_source import (
    BatchReader,
    LimitedReader,
    PubSubPartition,
)
from epochal.connectors.pubsub.pubsub_options import source_options
from epochal.connectors.pubsub.sidecar.sidecar_client import read_rows

Offset = dict[str, int]


def sidecars(directory: Path) -> list[int]:
    """Return the processes of the sidecars whose sockets are in a directory."""
    found = []
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        try:
            command = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"epochal.connectors.pubsub.sidecar.sidecar" in command and any(
            part.startswith(bytes(directory)) for part in command
        ):
            found.append(int(each.name))
    return found


@dataclass(slots=True)
class Logs:
    """Spark's offset log and commit log, which outlive a run."""

    offsets: list[Offset] = field(default_factory=list)
    commits: int = 0
    """How many of the offsets are committed. The first offset is the query's start."""


@dataclass(slots=True)
class Engine:
    """One run of a query."""

    directory: Path
    options: dict[str, str]
    logs: Logs = field(default_factory=Logs)
    old: bool = False
    """Whether to call the reader as PySpark before 4.2 does."""
    reader: Any = field(init=False)
    batches: list[list[str]] = field(default_factory=list)
    """The message ids that the sink has of each batch with partitions."""

    def __post_init__(self) -> None:
        given = {"driverHost": "127.0.0.1", "driverBindHost": "127.0.0.1", **self.options}
        kind = BatchReader if self.old else LimitedReader
        self.reader = kind(source_options(given))
        if not self.logs.offsets:
            self.logs.offsets.append(self.reader.initialOffset())
            self.logs.commits = 1
        elif self.old:
            self.reader.partitions(self.logs.offsets[-1], self.logs.offsets[-1])

    def executor(self, number: int) -> Path:
        path = self.directory / str(number)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def rows(self, partition: PubSubPartition, executor: int = 0) -> list[dict[str, Any]]:
        """Read a partition as a task does."""
        if partition.replay:
            batches = self.reader.read(partition)
        else:
            batches = read_rows(partition.reading, self.executor(executor))
        return [row for batch in batches for row in batch.to_pylist()]

    def replay(self) -> list[PubSubPartition]:
        """Return the partitions of a batch that an earlier run did not finish."""
        assert self.logs.commits < len(self.logs.offsets)
        found: list[PubSubPartition] = self.reader.partitions(*self.logs.offsets[-2:])
        return found

    def plan(self) -> list[PubSubPartition]:
        """The partitions of the next batch, once there is one."""
        found: list[list[PubSubPartition]] = []

        def is_planned() -> bool:
            partitions = self.poll()
            found.extend([] if partitions is None else [partitions])
            return bool(found)

        eventually(is_planned, "a batch")
        return found[0]

    def poll(self) -> list[PubSubPartition] | None:
        """The partitions of the next batch, or None if there is none now."""
        start = self.logs.offsets[-1]
        end = self._latest(start)
        if end == start:
            return None
        self.logs.offsets.append(end)
        if len(self.logs.offsets) > 2:
            self.reader.commit(start)
        found: list[PubSubPartition] = self.reader.partitions(start, end)
        return found

    def _latest(self, start: Offset) -> Offset:
        found: Offset = self.reader.latestOffset(*(() if self.old else (start, None)))
        return found

    def finish(self) -> None:
        """Commit the batch: its rows are in the sink."""
        self.logs.commits = len(self.logs.offsets)

    def run(self, until: Callable[[], bool]) -> list[str]:
        """Run batches, each partition once, until enough was read; returns message ids."""

        def is_enough() -> bool:
            if until():
                return True
            partitions = self.poll()
            if partitions is not None:
                found = [row["message_id"] for each in partitions for row in self.rows(each)]
                self.batches.append(found)
                self.finish()
            return False

        eventually(is_enough, lambda: f"enough rows, after the batches {self.batches}")
        return self.ids

    @property
    def ids(self) -> list[str]:
        return [each for batch in self.batches for each in batch]

    def settle(self) -> None:
        """Run on until nothing is held any more and everything is acknowledged."""

        def is_settled() -> bool:
            if not self.reader.reportLatestOffset()["pubsub_backlog_count"]:
                return True
            partitions = self.poll()
            for each in partitions or ():
                self.rows(each)
            if partitions is not None:
                self.finish()
            return False

        eventually(is_settled, lambda: f"no backlog: {self.reader.reportLatestOffset()}")

    def kill(self, executor: int) -> None:
        """`kill -9` the sidecar of an executor."""
        for pid in sidecars(self.executor(executor)):
            os.kill(pid, signal.SIGKILL)

    def crash(self) -> None:
        """End the driver abruptly, without telling the sidecars."""
        endpoint, self.reader._endpoint = self.reader._endpoint, None
        assert endpoint is not None
        endpoint._server.stop()

    def end(self) -> None:
        self.reader.stop()
        for pid in sidecars(self.directory):
            os.kill(pid, signal.SIGTERM)


Make: TypeAlias = Callable[..., Engine]
"""Makes a run from logs, `old` and further options."""


@contextmanager
def engines(directory: Path, usual: dict[str, str]) -> Iterator[Make]:
    """Yield a function that makes runs of a query; end those that a failed test leaves."""
    made: list[Engine] = []

    def start(logs: Logs | None = None, old: bool = False, **options: str) -> Engine:
        made.append(Engine(directory, usual | options, logs or Logs(), old))
        return made[-1]

    try:
        yield start
    finally:
        for engine in made:
            engine.end()
