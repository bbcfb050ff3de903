"""Starts a driver program, kills its processes, and reads what it has committed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from tests.fault.keyed_sums import ROWS_PER_SECOND
from tests.fault.sums import KEYS
from tests.listening import family
from tests.spark.continuous import parents_of_all, runs, runs_daemon
from tests.waiting import eventually

from epochal.checkpoint import CommitLog, FileSinkLog, OffsetLog
from epochal.state import read_state

if TYPE_CHECKING:  # benchmarks run these programs, too
    import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 300.0
CLUSTER = "local-cluster[2,1,1024]"


def launched(
    log: Path,
    module: str,
    *arguments: str,
    pipe: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a module of tests as a program, with its words in a log or, if asked, in a pipe."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with open(log, "ab") as told:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or told,
            stderr=told,
        )


class Program:
    """Runs of a driver program, one after another, on one checkpoint."""

    module = "tests.fault.keyed_sums"
    environment: Mapping[str, str] = {}
    """Variables for the program and all its processes, besides those of this process."""

    def __init__(self, folder: Path, log: Path, *options: str, master: str = CLUSTER) -> None:
        self.checkpoint, self.out, self.log = folder / "checkpoint", folder / "out", log
        self._master, self._options = master, options
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        arguments = [self._master, str(self.checkpoint), str(self.out), *self._options]
        self._process = launched(self.log, self.module, *arguments, environment=self.environment)

    def descendants(self) -> list[int]:
        """Every descendant of the driver, by pid."""
        return [pid for pid in family(self.pid) if pid != self.pid]

    def workers(self) -> list[int]:
        """The Python processes that run tasks."""
        parents = parents_of_all()
        daemons = [pid for pid in self.descendants() if runs_daemon(pid)]
        forked = [pid for pid, parent in parents.items() if parent in daemons]
        return [pid for pid in forked if runs_daemon(pid)]

    def executors(self) -> list[int]:
        """The executors' JVMs."""
        return [p for p in self.descendants() if runs(p, "CoarseGrainedExecutorBackend")]

    def freeze(self, pid: int) -> None:
        """Stop a process and all its descendants, which then neither work nor end."""
        frozen = sorted(family(pid))
        for each in frozen:
            os.kill(each, signal.SIGSTOP)
        self._frozen += frozen

    def kill(self, kind: str, rng: Random) -> None:
        """Kill one process of a kind. A driver is restarted, as its operator would do."""
        match kind:
            case "worker":
                os.kill(rng.choice(self.until(self.workers, "a worker")), signal.SIGKILL)
            case "executor":
                os.kill(rng.choice(self.until(self.executors, "an executor")), signal.SIGKILL)
            case "driver":
                self.kill_driver()
                self.start()
            case "driver's JVM":
                self.kill_jvm()
                self.start()
            case _:
                raise AssertionError(f"nothing is a {kind}")

    def kill_driver(self) -> None:
        """Kill the driver, and make sure that none of its processes survives."""
        descendants = self.descendants()
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(30)
        self.until(lambda: not [p for p in descendants if lives(p)], "no orphan")

    def kill_jvm(self) -> None:
        """Kill the driver's JVM. The program must notice it and exit."""
        descendants = self.descendants()
        (jvm,) = [pid for pid in descendants if runs(pid, "org.apache.spark.deploy.SparkSubmit")]
        os.kill(jvm, signal.SIGKILL)
        assert self.wait() == 3, self.story()
        self.until(lambda: not [p for p in descendants if lives(p)], "no orphan")

    def settle(self) -> None:
        """Wait for what must be done before the query is stopped."""

    def stop(self) -> None:
        """Stop the program gracefully."""
        os.kill(self.pid, signal.SIGTERM)
        assert self.wait() == 0, self.story()

    def wait(self) -> int:
        """Wait until the program ends by itself, and return its exit status."""
        assert self._process is not None
        return self._process.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        """Kill all processes that are left; frozen ones would not end with the driver."""
        for each in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        if self._process is not None and self._process.poll() is None:
            self.kill_driver()

    def attempt(self) -> int:
        """The attempt that decided the newest committed epoch; -1 if there is none."""
        newest = CommitLog(str(self.checkpoint / "commits"), read_only=True).latest_batch_id()
        if newest is None:
            return -1
        entry = OffsetLog(str(self.checkpoint / "offsets"), read_only=True).get(newest)
        manifest: Any = None if entry is None else entry.extra.get("epochal")
        return -1 if manifest is None else int(manifest["attempt"])

    def newest(self) -> int:
        """The newest committed epoch."""
        found = CommitLog(str(self.checkpoint / "commits"), read_only=True).latest_batch_id()
        return -1 if found is None else found

    def recovered(self, before: int) -> float:
        """Wait until an attempt after `before` has committed; return the seconds it took."""
        began = time.monotonic()
        self.until(lambda: self.attempt() > before, f"an attempt after {before}")
        return time.monotonic() - began

    def until(self, true: Callable[[], Any], what: str, *, pause: float = 0.02) -> Any:
        return eventually(true, lambda: f"{self.story()}\n{what}", PATIENCE_SECONDS, pause=pause)

    def story(self) -> str:
        """The end of the driver's log."""
        lines = self.log.read_text(errors="replace").splitlines()
        told = [line for line in lines if "epochal" in line or "Error" in line]
        return "\n".join(told[-60:])


def torment(program: Program, kinds: Iterable[str], seed: int) -> None:
    """Kill processes one after another at random times, then stop the query."""
    rng = Random(seed)
    program.start()
    try:
        program.recovered(-1)
        for kind in kinds:
            time.sleep(rng.uniform(0.0, 1.5))  # kill at a random time
            before = program.attempt()
            program.kill(kind, rng)
            program.recovered(before)
        program.settle()
        program.stop()
    finally:
        program.end()


def check(program: Program) -> int:
    """Check that each row came out once and that the state is their sum; return their number."""
    return check_rows(sink_rows(program.out), program.checkpoint)


def check_rows(rows: list[dict[str, Any]], checkpoint: Path) -> int:
    """Check rows of the keyed sums, wherever they came out; return their number."""
    values = sorted(row["value"] for row in rows)
    assert values == list(range(len(values)))
    assert len(values) % ROWS_PER_SECOND == 0
    by_key: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        by_key[row["k"]].append((row["total"], row["value"]))
    totals = {}
    for key, found in by_key.items():
        total = 0
        for seen, value in sorted(found):
            total += value + 1
            assert seen == total, f"key {key}: {seen} after {value}, {total} adds up"
        totals[key] = total
    assert totals == {key: sum(n + 1 for n in range(key, len(values), KEYS)) for key in totals}
    assert state_totals(checkpoint) == totals
    return len(values)


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


def sink_rows(out: Path) -> list[dict[str, Any]]:
    """Return the rows of the files that the sink's log names."""
    listed = FileSinkLog(str(out / "_spark_metadata"), read_only=True).all_files()
    names = [each.path.rpartition("/")[2] for each in listed]
    assert len(names) == len(set(names))
    return [row for name in names for row in pq.read_table(out / name).to_pylist()]


def state_totals(checkpoint: Path) -> dict[int, int]:
    """Return the sums in the newest committed state."""
    table = read_state(str(checkpoint), 0, "total")
    return {row["key"]["k"]: row["value"]["total"] for row in table.to_pylist()}


def held_by(pid: int) -> tuple[int, int, int]:
    """What a process holds: kilobytes of memory, open files and threads."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    kilobytes = int(status["VmRSS"].split()[0])
    return kilobytes, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])


def lives(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
