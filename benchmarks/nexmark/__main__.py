"""Nexmark on Epochal, on Spark's micro-batches and on Flink, taking turns on one machine.

    python -m benchmarks.nexmark [--queries q1,q5] [--only throughput|latency] [--quick] [--busy]

Throughput is events per CPU-second of all processes of an engine, while it gets as many as it can
read. Latency is measured at 10,000 events per second, from when a result's last event was due until
its sink had it. Engines compute the events from their numbers by the same SQL, so that is part of
every figure. `--quick` is for trying it out: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import REPOSITORY, Report, arguments, child_environment, installed
from benchmarks.nexmark.serving import RATE, Request
from benchmarks.nexmark.texts import REFUSED, python_texts, queries

FLINK = "apache-flink==2.3.0"
ENGINES = ("epochal", "spark-micro-batch", "flink")
BY_WINDOW = {7, 8}
"""Results come every ten seconds, all at once: the first ones are what is measured."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long each measurement takes."""

    warm_up_seconds: float = 1.5
    measured_seconds: float = 4.0


QUICK = Size(0.5, 1.5)


class Engine:
    """The process of an engine. It stays up, and starts again after a failure."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Request) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(request)) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"failed": self._last_words()}
        if "failed" in found:
            self.end()
        return found

    def end(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._log.unlink()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            if self._name == "flink":
                command = [str(installed(FLINK)), "-m", "benchmarks.nexmark.flink_engine"]
            else:
                command = [sys.executable, "-m", "benchmarks.nexmark.spark_engines", self._name]
            with tempfile.NamedTemporaryFile("wb", delete=False) as log:
                self._log = Path(log.name)
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=REPOSITORY,
                    env=child_environment(),
                    start_new_session=True,
                )
        return self._process

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-600:] or "it ended without a word"


def requests(chosen: set[int], only: str | None, size: Size) -> list[tuple[str, Request]]:
    """All measurements and their names, in order."""
    accepted = sorted(chosen - REFUSED.keys())
    timing = (size.warm_up_seconds, size.measured_seconds)
    found = []
    if only != "latency":
        for number in accepted:
            found.append(
                (f"throughput of q{number}", Request("throughput", number, False, *timing))
            )
            if number in python_texts():
                name = f"throughput of q{number} with Python functions"
                found.append((name, Request("throughput", number, True, *timing)))
    if only != "throughput":
        for number in accepted:
            when = (0.0, 1.0) if number in BY_WINDOW else timing
            name = f"latency of q{number} at {RATE} events/s"
            found.append((name, Request("latency", number, False, *when)))
    return found


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = arguments("nexmark")
    parser.add_argument("--queries", help="such as q1,q5; by default all that Spark accepts")
    parser.add_argument("--engines", help=f"some of {','.join(ENGINES)}")
    parser.add_argument("--only", choices=("throughput", "latency"))
    return parser.parse_args(words)


def main() -> None:
    asked = parsed()
    known = {str(query): query.number for query in queries()}
    names = asked.queries.split(",") if asked.queries else list(known)
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"There is no {', '.join(unknown)}: queries are q0 to q22.")
    engines = {name: Engine(name) for name in (asked.engines or ",".join(ENGINES)).split(",")}
    report = Report("nexmark", busy=asked.busy, quick=asked.quick)
    try:
        chosen = {known[name] for name in names}
        for figure, request in requests(chosen, asked.only, QUICK if asked.quick else Size()):
            for name, engine in engines.items():
                report.row(f"{figure}: {name}", **engine.ask(request))
    finally:
        for engine in engines.values():
            engine.end()


if __name__ == "__main__":
    main()
