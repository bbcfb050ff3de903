"""Measures how long a failure and a start take: until the next commit, wall time.

    python -m benchmarks.recovery [workers] [starts] [executors] [keys] [--quick] [--busy]

A query that counts rows by key runs as a program of its own. Its worker or executor is killed, or
an executor is frozen with all its workers, which looks like a host that is cut off. On a local
master, workers forked from our daemon take turns with workers of Spark's own daemon, in programs of
their own. The rig is that of the kill tests.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypeAlias

from benchmarks.harness import Report, adopt_orphans, arguments, percentile
from tests.fault.torment import Program
from tests.spark.continuous import parents_of_all

from epochal.checkpoint import OffsetLog

LOCAL, CLUSTER = "local[2]", "local-cluster[2,2,1024]"
"""On the cluster two tasks have two executors with two slots each, so there are spare slots."""

DAEMONS = {"warm": "epochal.warm_daemon", "spark": "pyspark.daemon"}
KEYS = (100_000, 1_000_000, 10_000_000)
PATIENCE_SECONDS = 900.0

Figure: TypeAlias = tuple[str, dict[str, float | int]]
"""A name, and what was found."""


class Query(Program):
    """Runs of the benchmark's query on one checkpoint."""

    module = "benchmarks.recovery_query"

    def read(self) -> int:
        """Return how many rows were read by the newest decided epoch."""
        latest = OffsetLog(str(self.checkpoint / "offsets"), read_only=True).get_latest()
        offsets = () if latest is None else latest[1].offsets
        assert isinstance(offsets, tuple)  # as our engine writes them
        return sum(sum(json.loads(offset).values()) for offset in offsets if offset is not None)

    def busiest_executor(self) -> int:
        """Return the executor with the most workers: at least one of them has a task."""
        parents = parents_of_all()
        daemons = [parents[parents[worker]] for worker in self.workers()]
        return max(self.executors(), key=daemons.count)

    def measured_starts(self) -> list[float]:
        """Wait for the program's own end, and return its starts' seconds."""
        assert self._process is not None
        if self._process.wait(PATIENCE_SECONDS):
            raise SystemExit(f"the query failed:\n{self.story()}")
        return [float(line) for line in self.out.read_text().splitlines()]


@contextmanager
def query(*options: str, master: str, folder: Path | None = None) -> Iterator[Query]:
    with tempfile.TemporaryDirectory() as fresh:
        place = folder or Path(fresh)
        program = Query(place, place / "driver.log", *options, master=master)
        program.start()
        try:
            yield program
        finally:
            program.end()


def workers_killed(count: int, daemon: str, rng: Random) -> list[float]:
    """Return the seconds from each kill of a worker to the next commit."""
    seconds = []
    with query(f"daemon={DAEMONS[daemon]}", master=LOCAL) as program:
        program.recovered(-1)
        for _ in range(count):
            time.sleep(1 + rng.random())  # a random moment, of a query that has recovered
            before = program.attempt()
            program.kill("worker", rng)
            seconds.append(program.recovered(before))
    return seconds


def executor_lost(rng: Random, *, silent: bool) -> float:
    """Kill or freeze an executor that has a task; return the seconds to the next commit."""
    with query(f"daemon={DAEMONS['warm']}", master=CLUSTER) as program:
        program.recovered(-1)
        time.sleep(1 + rng.random())  # a random moment
        before, executor = program.attempt(), program.busiest_executor()
        if silent:
            program.freeze(executor)
        else:
            os.kill(executor, signal.SIGKILL)
        return program.recovered(before)


def starts(count: int, daemon: str) -> list[float]:
    with query(f"starts={count}", f"daemon={DAEMONS[daemon]}", master=LOCAL) as program:
        return program.measured_starts()


def with_keys(keys: int, rng: Random) -> dict[str, float]:
    """Return the seconds after a kill and after a start, with state of so many keys."""
    options = (f"keys={keys}", f"daemon={DAEMONS['warm']}")
    with tempfile.TemporaryDirectory() as folder:
        with query(*options, master=LOCAL, folder=Path(folder)) as program:
            program.until(lambda: program.read() >= keys, f"{keys} keys", pause=0.5)
            program.recovered(-1)
            before = program.attempt()
            program.kill("worker", rng)
            killed = program.recovered(before)
            program.stop()
        with query(*options, "starts=2", master=LOCAL, folder=Path(folder)) as program:
            new, reused = program.measured_starts()
    return {"kill_seconds": killed, "new_seconds": new, "reused_seconds": reused}


def main() -> None:
    parser = arguments("recovery")
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; by default all")
    asked = parser.parse_args()
    unknown = [part for part in asked.parts if part not in PARTS]
    if unknown:
        raise SystemExit(f"There is no part {unknown[0]}. Parts: {', '.join(PARTS)}.")
    adopt_orphans()
    report = Report("recovery", busy=asked.busy, quick=asked.quick)
    rng = Random(15)
    for part in asked.parts or PARTS:
        for figure, found in PARTS[part](rng, quick=bool(asked.quick)):
            report.row(figure, **found)


def _workers(rng: Random, *, quick: bool) -> Iterator[Figure]:
    rounds, each = (1, 3) if quick else (2, 10)
    lost: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name in DAEMONS:
            lost[name] += workers_killed(each, name, rng)
    for name, found in lost.items():
        yield f"worker killed: {name}", _spread(found)


def _starts(_: Random, *, quick: bool) -> Iterator[Figure]:
    first: defaultdict[str, list[float]] = defaultdict(list)
    again: defaultdict[str, list[float]] = defaultdict(list)
    for _round in range(1 if quick else 4):
        for name in DAEMONS:
            new, *reused = starts(3 if quick else 5, name)
            first[name].append(new)
            again[name] += reused
    for name in DAEMONS:
        yield f"start, new workers: {name}", _spread(first[name])
        yield f"start, reused workers: {name}", _spread(again[name])


def _executors(rng: Random, *, quick: bool) -> Iterator[Figure]:
    for figure, silent in (("executor killed", False), ("silent host", True)):
        times = 1 if quick else 3
        yield figure, _spread([executor_lost(rng, silent=silent) for _ in range(times)])


def _keys(rng: Random, *, quick: bool) -> Iterator[Figure]:
    for keys in KEYS[:1] if quick else KEYS:
        yield f"state of {keys} keys", {"keys": keys, **with_keys(keys, rng)}


PARTS = {"workers": _workers, "starts": _starts, "executors": _executors, "keys": _keys}


def _spread(seconds: list[float]) -> dict[str, float | int]:
    return {
        "count": len(seconds),
        "p50_seconds": statistics.median(seconds),
        "p99_seconds": percentile(seconds, 99),
        "max_seconds": max(seconds),
    }


if __name__ == "__main__":
    main()
