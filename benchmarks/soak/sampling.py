"""Samples what the soak's processes and directories hold, every few seconds."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import percentile
from benchmarks.soak.flatness import Limit
from tests.fault.torment import Program, held_by, lives
from tests.spark.continuous import parents_of_all, runs

MEBIBYTE = 1024
"""In kilobytes."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that is sampled, and the limit that makes it flat."""

    name: str
    unit: str
    limit: Limit


ROLES = ("driver", "driver's JVM", "executor", "worker")
_PYTHON, _JVM = Limit(1.15, 32), Limit(1.25, 128)
FIGURES = (
    *(Figure(f"memory, {role}", "MiB", _PYTHON) for role in ("driver", "worker")),
    *(Figure(f"memory, {role}", "MiB", _JVM) for role in ("driver's JVM", "executor")),
    *(Figure(f"open files, {role}", "files", Limit(1.1, 12)) for role in ROLES),
    *(Figure(f"threads, {role}", "threads", Limit(1.1, 10)) for role in ROLES),
    Figure("threads, Delta's pool", "threads", Limit(1.25, 50)),
    Figure("processes", "processes", Limit(1.0, 3)),
    Figure("files, checkpoint", "files", Limit(1.25, 50)),
    Figure("files, local state", "files", Limit(1.25, 20)),
    Figure("files, temporary", "files", Limit(1.25, 20)),
    Figure("files, table data", "files", Limit(1.25, 100)),
    Figure("files, table log", "files", Limit(1.25, 100)),
    Figure("latency p50", "ms", Limit(1.5, 100)),
    Figure("latency p99", "ms", Limit(1.5, 250)),
)
"""Of several processes with one role the largest counts. A JVM may fill its heap, so its memory has
more room; a leak in it ends the driver or the executor, and that ends the soak. Processes include
those whose parent was killed and which live on.

The driver's threads are without the pool of Delta's library, which has a figure of its own. The
pool grows to the largest number of log entries that were ever read at once, and while the table is
in use it does not shrink. So chance decides when it grows, but up to a bound."""

_POOL = "tokio-rt-worker"


def sample_processes(program: Program) -> dict[str, float]:
    """What the query's processes hold. A role that has no process at the moment is left out."""
    held: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    family = {program.pid: "driver"}
    workers = set(program.workers())
    for pid in program.descendants():
        family[pid] = "worker" if pid in workers else _jvm_role(pid)
    for pid, role in family.items():
        try:
            held[role].append(held_by(pid))
        except (OSError, KeyError):  # it has just ended
            continue
    pool = _pool_threads(program.pid)
    orphans = sum(1 for pid in _orphans(program) if pid not in family)
    found: dict[str, float] = {"processes": sum(map(len, held.values())) + orphans}
    for role in ROLES:
        if held[role]:
            kilobytes, files, threads = (max(each) for each in zip(*held[role], strict=True))
            found[f"memory, {role}"] = kilobytes / MEBIBYTE
            found[f"open files, {role}"] = files
            found[f"threads, {role}"] = threads - pool if role == "driver" else threads
    if held["driver"]:
        found["threads, Delta's pool"] = pool
    return found


def _pool_threads(pid: int) -> int:
    """The number of threads of a process that belong to the pool of Delta's library."""
    count, tasks = 0, Path(f"/proc/{pid}/task")
    with suppress(OSError):  # the process has just ended
        for number in os.listdir(tasks):
            with suppress(OSError):  # the thread has just ended
                count += (tasks / number / "comm").read_text().strip() == _POOL
    return count


def _orphans(program: Program) -> list[int]:
    """Processes of the query that this process has adopted, because their parent was killed."""
    mark = f"{program.out.parent}/".encode()
    adopted = [pid for pid, parent in parents_of_all().items() if parent == os.getpid()]
    return [pid for pid in adopted if lives(pid) and mark in _environment(pid)]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has just ended
        return b""


def _jvm_role(pid: int) -> str:
    if runs(pid, "org.apache.spark.deploy.SparkSubmit"):
        return "driver's JVM"
    return "executor" if runs(pid, "CoarseGrainedExecutorBackend") else "other"


def sample_files(folder: Path, checkpoint: Path, table: Path) -> dict[str, float]:
    log = table / "_delta_log"
    return {
        "files, checkpoint": _count(checkpoint),
        "files, local state": _count(folder / "local"),
        "files, temporary": _count(folder / "tmp"),
        "files, table data": _count(table) - _count(log) - 1,
        "files, table log": _count(log),
    }


def _count(folder: Path) -> int:
    return sum(len(files) + len(folders) for _, folders, files in os.walk(folder))


def sample_latency(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"latency p{p}": percentile(seconds, p) * 1000 for p in (50, 99)}
