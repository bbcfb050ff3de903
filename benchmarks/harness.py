"""Shared by all benchmarks: the machine and its load, timing of whole processes, results as JSONL.

A figure is only meaningful next to the peer's figure from the same run. Both sides therefore take
turns in one run, and a result row contains both figures, the ratio and the load of the machine.

A suite does not start on a busy machine unless it is told to, with `--busy`. `Report` enforces this
for every suite. `arguments` has the switches that all suites share.

Note: child processes run with compiled bytecode, like an installed package, even if the environment
disables writing it. Without it Python compiles every module that it imports again, which takes most
of the time of a short command and also slows down the start of PySpark.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

RESULTS = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).parent.parent

_PR_SET_CHILD_SUBREAPER = 36
"""From Linux's `prctl.h`."""

BUSY_CORES = 0.3
"""Cores that other processes may use before a figure counts as taken under load. An idle machine
with its daemons stays well below it."""

OBSERVED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The time that one run took."""

    wall_seconds: float
    cpu_seconds: float


def cache_directory() -> Path:
    """The directory that keeps large inputs between runs."""
    path = Path(os.environ.get("EPOCHAL_CACHE", Path.home() / ".cache" / "epochal")) / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def installed(*wanted: str) -> Path:
    """The Python of an environment with these packages, which is created if it does not exist."""
    home = cache_directory() / "venvs" / "-".join(wanted).replace("==", "-").replace("[", "-")
    home = home.with_name(home.name.replace("]", ""))
    python, ready = home / "bin" / "python", home / ".ready"
    if not ready.exists():
        uv = str(Path(sys.executable).parent / "uv")
        for words in (
            ["venv", "--quiet", "--clear", "--python", sys.executable, str(home)],
            ["pip", "install", "--quiet", "--python", str(python), *wanted],
        ):
            run = subprocess.run([uv, *words], capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError(f"{' '.join(wanted)} cannot be installed: {run.stderr[-300:]}")
        ready.touch()
    return python


def child_environment() -> dict[str, str]:
    """The environment of every child process, on both sides.

    The package is this repository's, even if another checkout of it is installed.
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(map(str, (REPOSITORY / "src", REPOSITORY)))
    return {**env, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}


def time_process(command: Sequence[str]) -> Cost:
    """Run a whole process to its end, without showing its output.

    The CPU time includes children that it waits for; the JVM of PySpark is not one of them.
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


def take_turns(
    rounds: int, sides: Mapping[str, Callable[[], Cost]], *, warm_up: int = 1
) -> dict[str, Cost]:
    """Run each side once per round, one after the other; the median of each after the warm-up."""
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for n in range(warm_up + rounds):
        for name, run in sides.items():
            cost = run()
            if n >= warm_up:
                costs[name].append(cost)
    return {name: median(each) for name, each in costs.items()}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(len(ordered) * percent / 100) - 1))]


def arguments(suite: str) -> argparse.ArgumentParser:
    """A parser with the switches of every suite; a suite may add its own."""
    parser = argparse.ArgumentParser(prog=f"benchmarks.{suite}")
    parser.add_argument("--busy", action="store_true", help="start even if the machine is busy")
    parser.add_argument("--quick", action="store_true", help="a short trial; figures mean nothing")
    return parser


def require_idle(*, busy: bool = False) -> None:
    """End the process if the machine has other work, unless `busy` is set.

    Note: the load average is no help here. A minute after a suite has ended it is still high, so
    the next suite of `make bench` would not start.
    """
    if busy:
        return
    machine, start = _machine_cpu_seconds(), time.monotonic()
    time.sleep(OBSERVED_SECONDS)
    cores = (_machine_cpu_seconds() - machine) / (time.monotonic() - start)
    if cores > BUSY_CORES:
        raise SystemExit(
            f"Other processes use {cores:.1f} cores, more than {BUSY_CORES}: their work would be "
            f"part of every figure. Wait until the machine is idle, or start with --busy; the page "
            f"then says that the figures were taken under load."
        )


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent ends, as a JVM's does.

    `cpu_seconds` still finds them after their end; otherwise they would count as someone else's.
    Nobody reaps them before this process ends, so nobody may wait until they are gone.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Others:
    """The CPU time that processes outside this benchmark use."""

    def __init__(self) -> None:
        self._seen = self._now()

    def cores(self) -> float:
        """Cores that other processes have used since the last call."""
        before, self._seen = self._seen, self._now()
        wall, used = (now - then for now, then in zip(self._seen, before, strict=True))
        # Both counters advance in ticks, so a short figure can come out slightly below zero.
        return max(0.0, used / wall) if wall > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float]:
        ours = cpu_seconds(os.getpid(), with_ended=True)
        return time.monotonic(), _machine_cpu_seconds() - ours


def _machine_cpu_seconds() -> float:
    """CPU seconds of all processes, and of other virtual machines, since the machine started.

    Without interrupts: they are charged to no process, and those of a busy loopback device would
    make a benchmark that uses it look like work of others.
    """
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int, *, with_ended: bool = False) -> float:
    """CPU seconds of a process and its live descendants, or also of those that have ended."""
    columns = slice(11, 15) if with_ended else slice(11, 13)
    stats = _stats()
    used = (sum(map(int, stats[each][columns])) for level in _family(pid, stats) for each in level)
    return sum(used) / os.sysconf("SC_CLK_TCK")


def kill_family(pid: int) -> None:
    """Kill a process and its descendants, parents first, each generation after the one before it.

    The daemon of PySpark's workers ignores children that end, and with them the CPU time that they
    have used. If it ends first, `adopt_orphans` lets this process inherit its workers, and
    `cpu_seconds` finds their time after their end.
    """
    for level in _family(pid, _stats()):
        for each in level:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        while any(_stats().get(each, "Z")[0] not in "ZX" for each in level):
            time.sleep(0.01)


def _stats() -> dict[int, list[str]]:
    """What Linux says about every process, from its state on."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
    return found


def _family(pid: int, stats: Mapping[int, Sequence[str]]) -> list[set[int]]:
    """A process, its children, their children and so on, one set per generation."""
    levels = [{pid} & stats.keys()]
    while levels[-1]:
        levels.append({each for each, words in stats.items() if int(words[1]) in levels[-1]})
    return levels


class Report:
    """Collects rows, prints each one, and appends it to `results/NAME.jsonl`.

    A suite starts with this: it ends the process if the machine is busy. The rows of a quick trial
    go to a file that the page does not read.
    """

    def __init__(self, name: str, *, busy: bool = False, quick: bool = False) -> None:
        require_idle(busy=busy)
        self._path = RESULTS / f"{name}{'-trial' if quick else ''}.jsonl"
        self._load, self._others = _load(), Others()
        self._head: dict[str, Any] = {
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _git("rev-parse", "--short", "HEAD"),
            "machine": _machine(),
            "versions": _versions("epochal", "pyspark", "pyarrow", "numpy"),
        }
        print(f"{name}: {self._head['machine']}, {self._head['versions']}")

    def row(self, figure: str, **values: Any) -> None:
        """Add one figure; floats are rounded to a sensible number of digits.

        The load average of the last minute is recorded twice: before this figure was measured,
        and now. A benchmark on an idle machine with two cores adds about 1 to 2 itself.
        `others_cores` is what processes outside the benchmark used in between.
        """
        load, self._load = [self._load, _load()], _load()
        values["others_cores"] = self._others.cores()
        shown = {key: round(v, 4) if isinstance(v, float) else v for key, v in values.items()}
        told = ", ".join(f"{key}={v}" for key, v in shown.items() if key != "points")
        print(f"  {figure}: {told} (load {load})")
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
    """A Spark session in a separate process that answers the requests of `spark_peer`."""

    def __init__(self) -> None:
        # The file is opened twice, because an inherited file shares its position.
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
        self._process.communicate()  # closes its input, which ends it
        self._log.close()

    def ask(self, *request: str | int) -> Any:
        """Send a request and wait for its answer."""
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
    """The installed `epochal` of this environment, with arguments."""
    return [str(Path(sys.executable).parent / "epochal"), *words]


def spark_command(*words: str) -> list[str]:
    """`spark_peer` with arguments."""
    return [sys.executable, "-m", "benchmarks.spark_peer", *words]
