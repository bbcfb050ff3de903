"""What tests of running queries share: a stream of numbers, a query over it, its workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochal.connectors.memory import MemoryOutput, MemoryStream
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.continuous.api.readwriter import StreamWriter

NUMBERS = pa.schema([("n", pa.int64())])
PATIENCE_SECONDS = 120.0


def numbers(directory: Path, partitions: int = 1) -> MemoryStream:
    """A source of the numbers that a test adds; it outlives queries, not the test."""
    return MemoryStream(NUMBERS, partitions=partitions, directory=str(directory))


def add(stream: MemoryStream, values: Iterable[int]) -> None:
    """Add numbers, one batch each, so that they spread over the partitions."""
    for value in values:
        stream.add([{"n": value}])


def found(output: MemoryOutput, column: str = "n") -> list[Any]:
    """What was committed, in ascending order."""
    return sorted(output.table()[column].to_pylist())


def run(writer: StreamWriter, checkpoint: Path, **options: Any) -> StreamingQuery:
    """Start a query on a checkpoint, with quick restarts."""
    usual = {"epoch": "50 milliseconds", "seed": 7}
    return writer.options(checkpointLocation=str(checkpoint), **{**usual, **options}).start()


Batches = Iterator[pa.RecordBatch]


def noting_workers(folder: Path) -> Callable[[Batches], Batches]:
    """A function for map_in_arrow that notes which workers run it, and changes nothing."""
    folder.mkdir()
    place = str(folder)

    def note(batches: Batches) -> Batches:
        for batch in batches:
            open(os.path.join(place, str(os.getpid())), "w").close()
            yield batch

    return note


def kill_a_worker(folder: Path) -> None:
    """Kill the worker that ran last, so a task of the running attempt. Others may be idle."""
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    os.kill(int(newest.name), signal.SIGKILL)


def workers() -> list[int]:
    """The Python workers that run tasks for this process, by pid: children of Spark's daemons."""
    parents = parents_of_all()
    daemons = [pid for pid in parents if runs_daemon(pid) and _is_mine(pid, parents)]
    return [pid for pid, parent in parents.items() if parent in daemons]


def parents_of_all() -> dict[int, int]:
    """Who started whom, of all processes that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    found[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    return found


def runs(pid: int, module: str) -> bool:
    """Whether a process was started with this in its command line."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return module in command.read().decode(errors="replace")
    except OSError:
        return False


def runs_daemon(pid: int) -> bool:
    """Whether a process is a daemon that forks Python workers, or such a worker."""
    return runs(pid, "-m\0pyspark.daemon") or runs(pid, "-m\0epochal.warm_daemon")


def _is_mine(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False
