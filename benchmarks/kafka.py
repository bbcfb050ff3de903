"""Kafka in, Python, Kafka out: compares ours with Spark's real-time mode and micro-batches, Quix
Streams and Bytewax, taking turns on one broker.

    python -m benchmarks.kafka [map-1000] [latency-1000] [latency-10000] [throughput] [listener]

Without arguments all parts run. Peers that are not part of Spark are installed, in fixed releases,
into separate environments in the cache. The same consumer of committed records reads every engine's
output; a record's delay is the time from when it was due until that consumer received it. `map` is
a Python function per record, on one task. `latency` is a count per key, in Python, ours on two
tasks; real-time mode only passes records on, in the JVM, because it has no Python state. Its
aggregation is in `latency_suite`. CPU time is that of all processes of an engine: driver, JVM and
workers. Epochs have 100 ms.

`--quick` is for trying it out, without Spark's own modes: its figures mean nothing.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    REPOSITORY,
    Report,
    adopt_orphans,
    arguments,
    child_environment,
    installed,
    kill_family,
)
from benchmarks.kafka_load import Load, create_topics, delays, fill, throughput, warm

from epochal.testing.kafka import running_kafka

PEERS = {
    "quix": ("quixstreams==3.28.1",),
    "bytewax": ("bytewax[kafka]==0.21.1", "confluent-kafka==2.16.1"),
}
OURS, EXACT = "epochal-at-least-once", "epochal-exactly-once"
LATENCY = (OURS, "bytewax", "quix", EXACT)
SPARK = ("spark-real-time", "spark-micro-batch")
THROUGHPUT = (OURS, "spark-micro-batch", "quix", "bytewax")
WARM_BROKER_SECONDS = 40


@dataclass(frozen=True, slots=True)
class Size:
    """How long, and how much."""

    warm_up_seconds: float = 12.0
    """A JVM still compiles its code for about ten seconds after a query has started."""
    measured_seconds: float = 10.0
    records: int = 12_000_000
    """So many that no engine reaches the end before it has been measured for ten seconds."""
    throughput_warm_up_seconds: float = 5.0
    listened_records: int = 150_000
    rounds: int = 3
    spark: bool = True
    """Whether Spark's own modes run too."""


QUICK = Size(1.0, 3.0, 500_000, 0.5, 20_000, 1, spark=False)
QUICK_PARTS = ("map-1000", "latency-1000", "throughput")


class Engine:
    """The process of an engine, and its output."""

    def __init__(self, command: list[str], home: Path) -> None:
        self._log = home / "log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env=child_environment(),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def alive(self) -> None:
        """Raise if it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"it ended: {self._log.read_text(errors='replace')[-600:]}")

    def end(self) -> None:
        """Kill it with its JVM and its workers."""
        kill_family(self.pid)
        self._process.wait()


@contextmanager
def running(name: str, work: str, servers: str, source: str, target: str) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        words = [work, servers, source, target, f"{base}/home"]
        if name in PEERS:
            script = REPOSITORY / "benchmarks" / f"kafka_{name}.py"
            command = [str(installed(*PEERS[name])), str(script), *words]
        else:
            command = [sys.executable, "-m", "benchmarks.kafka_engines", name, *words]
        engine = Engine(command, Path(base))
        try:
            yield engine
        finally:
            engine.end()


def measured(
    name: str, work: str, servers: str, source: str, target: str, take: Callable[[Engine], Any]
) -> dict[str, Any]:
    """What `take` measures on a running engine, or the reason why it failed."""
    create_topics(servers, target)
    try:
        with running(name, work, servers, source, target) as engine:
            found: dict[str, Any] = take(engine)
            return found
    except (RuntimeError, TimeoutError) as error:
        return {"failed": str(error)}


def latency(
    report: Report, servers: str, work: str, rate: int, size: Size, engines: Sequence[str]
) -> None:
    found = {}
    what = f"{'map ' if work == 'map' else ''}latency at {rate} records/s"
    for name in engines:
        source, target = (f"{side}-{work}-{rate}-{name}" for side in ("in", "out"))
        create_topics(servers, source)

        def take(engine: Engine, source: str = source, target: str = target) -> dict[str, Any]:
            return delays(
                Load(servers, source, rate),
                target,
                warm_up_seconds=size.warm_up_seconds,
                measured_seconds=size.measured_seconds,
                alive=engine.alive,
            )

        found[name] = measured(name, work, servers, source, target, take)
        ratios = {
            f"{percent}_ratio": found[name][f"{percent}_ms"] / found[OURS][f"{percent}_ms"]
            for percent in ("p50", "p99")
            if name != OURS and all(f"{percent}_ms" in found[each] for each in (name, OURS))
        }
        report.row(f"{what}: {name}", **found[name], **ratios)


def flat_out(report: Report, servers: str, size: Size) -> None:
    create_topics(servers, "in-flat-out")
    fill(servers, "in-flat-out", size.records)
    found: dict[str, dict[str, Any]] = {}
    for name in THROUGHPUT:
        if name in SPARK and not size.spark:
            continue
        target = f"out-flat-out-{name}"

        def take(engine: Engine, target: str = target) -> dict[str, Any]:
            return throughput(
                servers,
                target,
                size.records,
                engine.pid,
                warm_up_seconds=size.throughput_warm_up_seconds,
                measured_seconds=size.measured_seconds,
                alive=engine.alive,
            )

        found[name] = measured(name, "map", servers, "in-flat-out", target, take)
        ratio = {
            f"{what}_ratio": found[OURS][key] / found[name][key]
            for what, key in (("wall", "rows_per_second"), ("cpu", "rows_per_cpu_second"))
            if name != OURS and key in found[OURS] and found[name].get(key)
        }
        report.row(f"map flat out on one core: {name}", **found[name], **ratio)


def listener(report: Report, servers: str, size: Size) -> None:
    create_topics(servers, "in-listener")
    fill(servers, "in-listener", size.listened_records)
    with tempfile.TemporaryDirectory() as base:
        words = ["listener", str(size.rounds), servers, "in-listener", "shown", base]
        command = [sys.executable, "-m", "benchmarks.kafka_engines", *words]
        run = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    if run.returncode:
        report.row("listener on Spark's batches", failed=run.stderr[-400:])
    else:
        report.row("listener on Spark's batches", **json.loads(run.stdout.splitlines()[-1]))


def maps(report: Report, servers: str, size: Size) -> None:
    latency(report, servers, "map", 1_000, size, LATENCY)


def counts(report: Report, servers: str, size: Size) -> None:
    latency(report, servers, "state", 1_000, size, LATENCY + SPARK * size.spark)


def many_counts(report: Report, servers: str, size: Size) -> None:
    latency(report, servers, "state", 10_000, size, LATENCY)


PARTS: dict[str, Callable[[Report, str, Size], None]] = {
    "map-1000": maps,
    "latency-1000": counts,
    "latency-10000": many_counts,
    "throughput": flat_out,
    "listener": listener,
}


def main(words: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave no engine and no broker running
    parser = arguments("kafka")
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; by default all")
    asked = parser.parse_args(words)
    quick = asked.quick
    parts = asked.parts or list(QUICK_PARTS if quick else PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise SystemExit(f"There is no part {unknown[0]}. Parts: {', '.join(PARTS)}.")
    adopt_orphans()
    report = Report("kafka", busy=asked.busy, quick=quick)
    for name, wanted in PEERS.items():
        try:
            installed(*PEERS[name])
        except RuntimeError as error:
            report.row(f"{name} {' '.join(wanted)}", failed=str(error))
    with running_kafka() as broker:
        # A broker's JVM is slow until its code is compiled: the first engine would pay for it.
        warm(broker.bootstrap_servers, 5 if quick else WARM_BROKER_SECONDS)
        for part in parts:
            PARTS[part](report, broker.bootstrap_servers, QUICK if quick else Size())


if __name__ == "__main__":
    main(sys.argv[1:])
