"""What every benchmark shares: the machine and its load, whole-process timing, results as JSONL.

A figure is only worth something beside the peer's from the same run, so a result row always holds
both, the ratio, and the load average when it was taken.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of something took."""

    wall_seconds: float
    cpu_seconds: float


def cache_directory() -> Path:
    """Where big inputs are kept between runs."""
    path = Path(os.environ.get("EPOCHAL_CACHE", Path.home() / ".cache" / "epochal")) / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def time_process(command: Sequence[str], env: dict[str, str] | None = None) -> Cost:
    """Run a whole process to its end; its children's CPU counts too, its output does not show."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True, env=env)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with {run.returncode}:\n{run.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu)


def time_call(call: Callable[[], object]) -> Cost:
    """Run a function of this process once."""
    start, cpu = time.perf_counter(), time.process_time()
    call()
    return Cost(time.perf_counter() - start, time.process_time() - cpu)


def median(costs: Sequence[Cost]) -> Cost:
    """The median wall time and the median CPU time."""
    return Cost(
        statistics.median(cost.wall_seconds for cost in costs),
        statistics.median(cost.cpu_seconds for cost in costs),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(len(ordered) * percent / 100) - 1))]


class Report:
    """Collects rows, prints them as they come, and appends them to `results/NAME.jsonl`."""

    def __init__(self, name: str) -> None:
        self._path = RESULTS / f"{name}.jsonl"
        self._head: dict[str, Any] = {
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _git("rev-parse", "--short", "HEAD"),
            "machine": _machine(),
            "versions": _versions("epochal", "pyspark", "pyarrow", "numpy"),
        }
        print(f"{name}: {self._head['machine']}, {self._head['versions']}")

    def row(self, figure: str, **values: Any) -> None:
        """Add one figure; floats are rounded to what they are worth."""
        load = round(os.getloadavg()[0], 2)
        shown = {key: round(v, 4) if isinstance(v, float) else v for key, v in values.items()}
        print(f"  {figure}: " + ", ".join(f"{k}={v}" for k, v in shown.items()) + f" (load {load})")
        RESULTS.mkdir(exist_ok=True)
        with self._path.open("a") as out:
            out.write(json.dumps({"figure": figure, **shown, "load": load, **self._head}) + "\n")


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def _versions(*names: str) -> str:
    found = [f"{name} {metadata.version(name)}" for name in names]
    return ", ".join([f"Python {platform.python_version()}", *found])


def _git(*words: str) -> str:
    run = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def epochal_command(*words: str) -> list[str]:
    """The installed `epochal` of this environment, with arguments."""
    return [str(Path(sys.executable).parent / "epochal"), *words]
