"""Pub/Sub: the connector against Google's high-level client, in Spark, and in the engine.

`make bench-pubsub` runs everything. `python -m benchmarks.pubsub --quick` shows in a minute that
it works; its figures mean nothing. `--only pull|publish|spark|stall|latency|server`
runs one part, `--stall-seconds 600` stalls for ten minutes.

CPU seconds are those of the client process, without the server's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks import pubsub_server
from benchmarks.harness import Report, arguments, child_environment

from epochal.testing.pubsub import running_server

SIZES = {"100 B": 100, "1 KB": 1000}
PARTS = ("pull", "publish", "spark", "stall", "latency", "server")


def main() -> None:
    parser = arguments("pubsub")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--stall-seconds", type=float, default=60.0)
    asked = parser.parse_args()
    parts = asked.only or PARTS
    report = Report("pubsub", busy=asked.busy, quick=asked.quick)
    rounds, seconds = (1, 1.0) if asked.quick else (3, 8.0)
    if "pull" in parts:
        pull(report, rounds, seconds)
    if "publish" in parts:
        publish(report, rounds, seconds)
    if "spark" in parts:
        for name, size in SIZES.items():
            drain(
                report, name, size, 100_000 if asked.quick else 2_000_000 if size < 500 else 600_000
            )
    if "stall" in parts:
        stall(report, 5.0 if asked.quick else asked.stall_seconds)
    if "latency" in parts:
        latency(report, 2.0 if asked.quick else 20.0)
    if "server" in parts and not asked.quick:
        pubsub_server.figures(report)


def pull(report: Report, rounds: int, seconds: float) -> None:
    """StreamingPull to Arrow against the high-level client's callbacks, all acknowledged."""
    for name, size in SIZES.items():
        with replaying(size) as address:
            sides = take_turns(rounds, ("pull-ours", "pull-google"), address, seconds)
        beside(report, f"pull, {name}", sides["pull-ours"], sides["pull-google"])


def publish(report: Report, rounds: int, seconds: float) -> None:
    """The sink's publisher, from Arrow, against the high-level one, to the embedded server."""
    names = ("publish-ours", "publish-google")
    for name, size in SIZES.items():
        # A topic without a subscription keeps nothing.
        with running_server("--project", "bench", "--topic", "bench") as server:
            sides = take_turns(rounds, names, server.address, seconds, str(size))
        beside(report, f"publish, {name}", sides[names[0]], sides[names[1]])


def drain(report: Report, name: str, size: int, count: int) -> None:
    """Embedded server to Spark's noop."""
    with world() as address:
        report.row(f"spark, {name}", **spark("drain", address, str(size), str(count)))


def stall(report: Report, seconds: float) -> None:
    """Check that the memory of the sidecar does not grow."""
    with world() as address:
        report.row("stall, 1 KB", **spark("stall", address, "1000", str(seconds)))


def latency(report: Report, seconds: float) -> None:
    """From topic to topic through each engine, at 200 messages a second."""
    for engine in ("micro-batch", "continuous"):
        with world() as address:
            found = spark("relay", address, engine, str(seconds))
        report.row(f"latency, {engine}", **found)


def take_turns(
    rounds: int, names: Sequence[str], address: str, seconds: float, *more: str
) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(client(name, address, str(seconds), *more))
    return found


def beside(
    report: Report, figure: str, ours: list[dict[str, float]], google: list[dict[str, float]]
) -> None:
    """Medians of both sides, and the ratio of ours to Google's."""
    rates = {
        f"{side}_{unit}": statistics.median(
            each["messages"] / each[f"{what}_seconds"] for each in runs
        )
        for side, runs in (("ours", ours), ("google", google))
        for unit, what in (("per_second", "wall"), ("per_cpu_second", "cpu"))
    }
    report.row(
        figure,
        **{name: round(rate) for name, rate in rates.items()},
        ratio_per_second=rates["ours_per_second"] / rates["google_per_second"],
        ratio_per_cpu_second=rates["ours_per_cpu_second"] / rates["google_per_cpu_second"],
    )


@contextmanager
def replaying(size: int) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.pubsub_clients", "replay", str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def world() -> Iterator[str]:
    wanted = [
        "--subscription",
        "arrivals-sub:arrivals",
        "--subscription",
        "departures-sub:departures",
    ]
    with running_server("--project", "bench", "--max-bytes", str(3 << 30), *wanted) as server:
        yield server.address


def client(*words: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(child("benchmarks.pubsub_clients", *words).split("\n")[-2])
    return found


def spark(*words: str) -> dict[str, Any]:
    output = child("benchmarks.pubsub_spark", *words)
    lines = [each for each in output.split("\n") if each.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"{words}: no result in\n{output[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def child(module: str, *words: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    if run.returncode != 0:
        raise SystemExit(f"{words} exited with {run.returncode}:\n{run.stderr[-3000:]}")
    return run.stdout


if __name__ == "__main__":
    main()
