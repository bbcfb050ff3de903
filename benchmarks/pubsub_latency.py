"""Pub/Sub's delay from topic to topic through each engine, at 1,000 messages a second.

The engines take turns, each with an empty server of its own. None waits to gather messages.

    one hop      no engine: the meter reads what it publishes. The server and gRPC cost this much
    bare         a relay of nothing but gRPC: what any relay costs in Python
    google       Google's high-level client
    continuous   the engine, with epochs of 100 ms
    micro-batch  Spark with the connector, once only: it is a hundred times slower

CPU time per message is that of the relay with all its processes (for Spark and the engine: the
driver, the JVM and the workers), of the Python workers alone, and of the server. The meter's is not
counted. All run on the same cores, so a costly relay also slows down the server and the meter.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, child_environment, cpu_seconds
from benchmarks.pubsub_relay import ARRIVALS, DEPARTURES

from epochal.testing.pubsub import PubSubServer, running_server

RATE = 1_000
ONE_HOP = "one hop"
ENGINES = (ONE_HOP, "bare", "google", "continuous")
END_S = 60.0


def figures(report: Report, rounds: int, seconds: float) -> None:
    """Measure each engine once per round; report the medians over the rounds."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
    for _ in range(rounds):
        for name in ENGINES:
            found[name].append(measured(name, seconds))
    found["micro-batch"] = [measured("micro-batch", seconds)]
    for name, runs in found.items():
        medians = {key: statistics.median(each[key] for each in runs) for key in runs[0]}
        report.row(f"latency, {name}", rate=RATE, **medians)


def measured(engine: str, seconds: float) -> dict[str, float]:
    """Delays of one engine, and CPU time per message while they were measured."""
    source = ARRIVALS if engine == ONE_HOP else DEPARTURES
    with world() as server, relay(engine, server.address) as pid:
        meter = start("pubsub_relay", "meter", server.address, source, str(RATE), str(seconds))
        found: dict[str, float] = {}
        used: list[dict[str, float]] = []
        assert meter.stdout is not None
        for line in meter.stdout:
            if line in ("BEGIN\n", "END\n"):
                used.append(cpu_used(server, pid))
            elif line.startswith("RESULT "):
                found = json.loads(line.removeprefix("RESULT "))
        if meter.wait() or len(used) != 2:
            raise SystemExit(f"{engine}: the meter exited with {meter.returncode}")
    begin, end = used
    return {**found, **{key: (end[key] - begin[key]) * 1e6 / (RATE * seconds) for key in begin}}


def cpu_used(server: PubSubServer, pid: int | None) -> dict[str, float]:
    used = {"server_cpu_us": cpu_seconds(server.pid)}
    if pid is not None:
        used |= {"cpu_us": cpu_seconds(pid), "workers_cpu_us": workers_seconds(pid)}
    return used


def workers_seconds(pid: int) -> float:
    """CPU seconds of the processes that a JVM, a child of this process, has started."""
    jvms = [each for each in children(pid) if b"java" in command(each)]
    return sum(cpu_seconds(each) for jvm in jvms for each in children(jvm))


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if entry.name.isdigit():
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                found += [int(entry.name)] if int(parent) == pid else []
    return found


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]


@contextmanager
def relay(engine: str, address: str) -> Iterator[int | None]:
    """Run an engine's relay; yields its process id, or None if there is no engine."""
    if engine == ONE_HOP:
        yield None
        return
    if engine in ("bare", "google"):
        process = start("pubsub_relay", engine, address)
    else:
        process = start("pubsub_spark", "relay", address, engine)
    try:
        yield process.pid
        process.communicate(timeout=END_S)  # ends its input
    finally:
        process.kill()
        process.wait()


def start(module: str, *words: str) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{module}", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )


@contextmanager
def world() -> Iterator[PubSubServer]:
    """An embedded server with both topics, and a subscription of each."""
    wanted = [
        word for name in (ARRIVALS, DEPARTURES) for word in ("--subscription", f"{name}-sub:{name}")
    ]
    with running_server("--project", "bench", "--max-bytes", str(3 << 30), *wanted) as server:
        yield server
