"""The process of an engine: answers requests, one JSON line each. Needs no packages.

All engines stay up during a run and take turns. An engine that waits uses no CPU worth counting.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

START_SECONDS = 90.0
LATE_SECONDS = 10.0
POLL_SECONDS = 0.02
RATE = 10_000

Delays: TypeAlias = Sequence[tuple[float, float]]
"""(due, delay) of results, in seconds."""


@dataclass(frozen=True, slots=True)
class Request:
    """One measurement."""

    kind: str
    """`throughput` or `latency`."""
    number: int
    python: bool
    warm_up_seconds: float
    measured_seconds: float


def serve(measure: Callable[[Request, Path], dict[str, Any]]) -> None:
    """Answer until the input ends. Whatever engines print goes to a file."""
    with tempfile.TemporaryDirectory() as base:
        answers = os.fdopen(os.dup(1), "w")
        output = Path(base) / "output"
        with output.open("ab") as to:
            os.dup2(to.fileno(), 1)
        for line in sys.stdin:
            os.truncate(output, 0)
            try:
                found = measure(Request(**json.loads(line)), output)
            except Exception as error:  # noqa: BLE001  a query that fails is a result
                found = {"failed": _told(error)}
            answers.write(json.dumps(found) + "\n")
            answers.flush()


def _told(error: Exception) -> str:
    """What an error says, without the stacks of a JVM; its last cause comes last."""
    lines = [line for line in str(error).splitlines() if not line.startswith("\t")]
    return "\n".join(lines).strip()[-600:] or repr(error)


def throughput(
    request: Request, rows: Callable[[], int], cpu: Callable[[], float]
) -> dict[str, Any]:
    """Rows per second and per CPU-second, from one report of the engine's to a later one."""
    samples: list[tuple[float, int, float]] = []
    deadline = time.monotonic() + START_SECONDS
    begin = None
    while True:
        now, done = time.monotonic(), rows()
        if done and (not samples or done > samples[-1][1]):
            begin = begin or now
            samples.append((now, done, cpu()))
        kept = [each for each in samples if each[0] >= (begin or 0) + request.warm_up_seconds]
        if len(kept) > 1 and kept[-1][0] - kept[0][0] >= request.measured_seconds:
            return _rates(kept)
        if now > deadline or (samples and now > samples[-1][0] + START_SECONDS / 3):
            # It has read everything, or is too slow for several reports.
            return _rates(kept) if len(kept) > 1 else {"failed": f"{done} rows, no rate"}
        time.sleep(POLL_SECONDS)


def _rates(samples: Sequence[tuple[float, int, float]]) -> dict[str, Any]:
    (start, first, cpu), (end, last, cpu_end) = samples[0], samples[-1]
    return {
        "rows": last - first,
        "rows_per_second": (last - first) / (end - start),
        "cores_used": (cpu_end - cpu) / (end - start),
        "rows_per_cpu_second": (last - first) / (cpu_end - cpu),
    }


def latency(request: Request, delays: Callable[[], Delays]) -> dict[str, Any]:
    """Percentiles of the time from when results were due until they arrived.

    `delays` returns those of all results so far. Without a warm-up all of them count: those are
    queries whose first results come after many seconds.
    """
    _until(lambda: bool(delays()), START_SECONDS)
    time.sleep(request.warm_up_seconds)
    begin = time.time() if request.warm_up_seconds else 0.0
    time.sleep(request.measured_seconds)
    end = time.time()
    if request.warm_up_seconds:  # what was due, but has not arrived, is the slowest part
        _until(lambda: max((due for due, _ in delays()), default=0) >= end, LATE_SECONDS)
    found = sorted(delay * 1000 for due, delay in delays() if begin <= due < end)
    if not found:
        return {"failed": "no result in the measured time"}
    p50, p99 = (found[min(len(found) - 1, len(found) * n // 100)] for n in (50, 99))
    return {"rows": len(found), "p50_ms": p50, "p99_ms": p99}


def _until(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
