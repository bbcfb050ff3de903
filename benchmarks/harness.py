"""What every benchmark shares: the machine and its load, whole-process timing, results as JSONL.

A figure means something only compared with the peer's from the same run. So both sides take turns
in one run, and a result row holds both figures, their ratio and the load average.

Note: child processes use compiled bytecode, as an installed package does, even if the environment
forbids writing any. Without it, Python would compile every imported module again. That would be
most of a short command's time, and would slow down PySpark's start too.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

RESULTS = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Cost:
    """The wall time and the CPU time of one run."""

    wall_seconds: float
    cpu_seconds: float


def cache_directory() -> Path:
    """Return the directory that keeps big inputs between runs."""
    path = Path(os.environ.get("EPOCHAL_CACHE", Path.home() / ".cache" / "epochal")) / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def child_environment() -> dict[str, str]:
    """Return the environment of every child process of both sides."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**env, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)}


def time_process(command: Sequence[str]) -> Cost:
    """Run a whole process to its end, without showing its output.

    The CPU time includes the children that it waits for. PySpark's JVM is not one of them.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with {run.returncode}:\n{run.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu)


def time_call(call: Callable[[], object]) -> Cost:
    """Time one call of a function in this process."""
    start, cpu = time.perf_counter(), time.process_time()
    call()
    return Cost(time.perf_counter() - start, time.process_time() - cpu)


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median wall time and the median CPU time."""
    return Cost(
        statistics.median(cost.wall_seconds for cost in costs),
        statistics.median(cost.cpu_seconds for cost in costs),
    )


def take_turns(
    rounds: int, sides: Mapping[str, Callable[[], Cost]], *, warm_up: int = 1
) -> dict[str, Cost]:
    """Run each side once per round; return the median of each, without the warm-up."""
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for n in range(warm_up + rounds):
        for name, run in sides.items():
            cost = run()
            if n >= warm_up:
                costs[name].append(cost)
    return {name: median(each) for name, each in costs.items()}


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(len(ordered) * percent / 100) - 1))]


class Report:
    """Collects result rows, prints each one, and appends them to `results/NAME.jsonl`."""

    def __init__(self, name: str) -> None:
        self._path = RESULTS / f"{name}.jsonl"
        self._load = _load()
        self._head: dict[str, Any] = {
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _git("rev-parse", "--short", "HEAD"),
            "machine": _machine(),
            "versions": _versions("epochal", "pyspark", "pyarrow", "numpy"),
        }
        print(f"{name}: {self._head['machine']}, {self._head['versions']}")

    def row(self, figure: str, **values: Any) -> None:
        """Add one figure; floats are rounded to significant digits.

        It also stores the one-minute load average after the previous figure (or at the start) and
        now. On an idle machine with two cores, a benchmark itself causes a load of about 1 to 2.
        """
        load, self._load = [self._load, _load()], _load()
        shown = {key: round(v, 4) if isinstance(v, float) else v for key, v in values.items()}
        print(f"  {figure}: " + ", ".join(f"{k}={v}" for k, v in shown.items()) + f" (load {load})")
        RESULTS.mkdir(exist_ok=True)
        with self._path.open("a") as out:
            out.write(json.dumps({"figure": figure, **shown, "load": load, **self._head}) + "\n")

    def beside(self, figure: str, ours: Cost, spark: Cost, **values: Any) -> None:
        """Add a figure of both sides; a ratio above 1 means that ours is faster."""
        self.row(
            figure,
            wall_seconds=ours.wall_seconds,
            cpu_seconds=ours.cpu_seconds,
            spark_wall_seconds=spark.wall_seconds,
            wall_ratio=spark.wall_seconds / ours.wall_seconds,
            **values,
        )


class SparkPeer:
    """A Spark session in a separate process, which runs `spark_peer`."""

    def __init__(self) -> None:
        # Open the log twice: an inherited file handle would share its position with the child.
        with tempfile.NamedTemporaryFile("a") as written:
            self._log = open(written.name)  # noqa: SIM115
            self._process = subprocess.Popen(
                spark_command("serve"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
                env=child_environment(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()  # closes its input, which makes it exit
        self._log.close()

    def ask(self, *request: str | int) -> Any:
        """Send a request and wait for the reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"Spark ended at {request}:\n{self._log.read()[-2000:]}")
        return json.loads(line)

    def logged(self) -> str:
        """Return what it has logged since the last call."""
        return self._log.read()


def _load() -> float:
    return round(os.getloadavg()[0], 2)


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
    """Return the command line of this environment's `epochal` with arguments."""
    return [str(Path(sys.executable).parent / "epochal"), *words]


def spark_command(*words: str) -> list[str]:
    """Return the command line of `spark_peer` with arguments."""
    return [sys.executable, "-m", "benchmarks.spark_peer", *words]
