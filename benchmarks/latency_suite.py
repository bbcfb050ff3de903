"""Repeats a published latency suite: ours, Spark's micro-batches and its real-time mode, in turns.

    python -m benchmarks.latency_suite [stateless] [count] [join] [--quick] [--busy]

The suite is that of github.com/databricks-solutions/latency-benchmarks: Kafka in, Kafka out, 10,000
records of 1,200 bytes per second, text of a log. *Stateless* encodes each record as base64, *count*
also counts how often each text occurred, *join* looks each record up in a static table of 10,000
rows. Only its definition is used, no code of it.

Differences: one broker with two partitions instead of three with forty; a minute per turn instead
of half an hour; 10,000 different texts. And a delay is the time from when a record was due until a
consumer has received it, where the published suite ends at the timestamp of the output record.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.harness import Report, adopt_orphans, arguments
from benchmarks.kafka import WARM_BROKER_SECONDS, Engine
from benchmarks.kafka_load import STAMP_DIGITS, Load, create_topics, delays, warm

from epochal.testing.kafka import running_kafka

RATE, RECORD_BYTES, TEXTS, LOOKUP_KEYS = 10_000, 1_200, 10_000, 10_000
WORKS = ("stateless", "count", "join")
ENGINES = (
    "epochal-at-least-once",
    "spark-real-time",
    "spark-5s-real-time",
    "spark-micro-batch",
    "epochal-exactly-once",
)
WORDS = ("INFO", "WARN", "executor", "task", "stage", "finished", "driver", "block", "shuffle")


@dataclass(frozen=True, slots=True)
class Size:
    """How long, and how often."""

    warm_up_seconds: float = 30.0
    measured_seconds: float = 60.0
    rounds: int = 2
    rate: int = RATE


QUICK = Size(3.0, 5.0, 1, 1_000)


def texts(count: int = TEXTS) -> list[bytes]:
    """Different lines of a made-up log; with the stamp before it a record has 1,200 bytes."""
    rng, length = Random(17), RECORD_BYTES - STAMP_DIGITS
    log = " ".join(f"{rng.choice(WORDS)} {rng.randrange(100_000)}" for _ in range(count)).encode()
    starts = rng.sample(range(len(log) - length), count)
    return [log[at : at + length] for at in starts]


@contextmanager
def running(engine: str, work: str, servers: str, source: str, target: str) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        words = [engine, work, servers, source, target, f"{base}/home"]
        process = Engine([sys.executable, "-m", "benchmarks.latency_queries", *words], Path(base))
        try:
            yield process
        finally:
            process.end()


def turn(
    servers: str, engine: str, work: str, name: str, payloads: list[bytes], size: Size
) -> dict[str, Any]:
    """One engine's turn at one query, or the reason why it failed."""
    source, target = f"in-{name}", f"out-{name}"
    create_topics(servers, source, target)
    keys = [str(number).encode() for number in range(LOOKUP_KEYS)]
    try:
        with running(engine, work, servers, source, target) as process:
            return delays(
                Load(servers, source, size.rate, payloads, keys, "snappy"),
                target,
                warm_up_seconds=size.warm_up_seconds,
                measured_seconds=size.measured_seconds,
                alive=process.alive,
            )
    except (RuntimeError, TimeoutError) as error:
        return {"failed": str(error)}


def main(words: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave no engine and no broker running
    parser = arguments("latency_suite")
    parser.add_argument("works", nargs="*", help=f"some of {', '.join(WORKS)}; by default all")
    asked = parser.parse_args(words)
    unknown = [each for each in asked.works if each not in WORKS]
    if unknown:
        raise SystemExit(f"There is no query {unknown[0]}. Queries: {', '.join(WORKS)}.")
    adopt_orphans()
    report = Report("latency_suite", busy=asked.busy, quick=asked.quick)
    size, payloads = QUICK if asked.quick else Size(), texts()
    with running_kafka() as broker:
        servers = broker.bootstrap_servers
        warm(servers, 5 if asked.quick else WARM_BROKER_SECONDS)
        for number in range(size.rounds):
            for work in asked.works or WORKS:
                for engine in ENGINES:
                    name = f"{work}-{engine}-{number}"
                    found = turn(servers, engine, work, name, payloads, size)
                    report.row(f"{work}: {engine}", round=number, rate=size.rate, **found)


if __name__ == "__main__":
    main(sys.argv[1:])
