"""A stateful query on two executors survives `kill -9` and worse.

Every input row comes out once, and the state is the sum of all rows.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.fault.torment import CLUSTER, Program, check, held_by, tell
from tests.spark.continuous import runs
from tests.waiting import eventually

from epochal.state.disk.local_database import MIN_MEMORY_BYTES, LocalDatabase

SHORT_SEED = 5


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Creates programs below a directory, and ends those that a failed test leaves running."""
    made: list[Program] = []

    def make(*options: str, folder: Path = tmp_path, master: str = CLUSTER) -> Program:
        made.append(Program(folder, tmp_path / "driver.log", *options, master=master))
        made[-1].start()
        return made[-1]

    yield make
    for program in made:
        program.end()


def torment(program: Program, kinds: list[str], rng: Random) -> dict[str, list[float]]:
    """Kill processes one after another, each at a random time after the query has recovered."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    program.recovered(-1)
    for kind in kinds:
        time.sleep(rng.uniform(0.0, 1.5))  # kill at a random time
        before = program.attempt()
        program.kill(kind, rng)
        seconds[kind].append(program.recovered(before))
    return dict(seconds)


def summary(seconds: dict[str, list[float]]) -> str:
    return "; ".join(
        f"{kind} x{len(each)}: p50 {statistics.median(each):.2f} s, max {max(each):.2f} s"
        for kind, each in sorted(seconds.items())
    )


def survives(
    program: Program, kinds: list[str], seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kill these in random order, and check that no row and no sum is lost."""
    rng = Random(seed)
    rng.shuffle(kinds)
    seconds = torment(program, kinds, rng)
    program.stop()
    rows = check(program)
    tell(capsys, f"{len(kinds)} kills, {rows} rows. Recovery: {summary(seconds)}")


@pytest.mark.timeout(800)
@pytest.mark.parametrize("state_in", ["memory", "disk"])
def test_five_kills_cost_no_row_and_no_sum(
    programs: Callable[..., Program],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    state_in: str,
) -> None:
    kinds = ["worker", "worker", "worker", "executor", "driver"]
    local = tmp_path / "local"
    on_disk = ["stateMemory=64m", f"stateLocalDir={local}"] if state_in == "disk" else []
    survives(programs(*on_disk), kinds, SHORT_SEED, capsys)
    if state_in == "disk":
        eventually(lambda: _is_swept(local), "the directories of killed tasks to be removed")


def _is_swept(local: Path) -> bool:
    """Whether nothing is left after another task has used the directory."""
    LocalDatabase(str(local), MIN_MEMORY_BYTES).close()
    return not list(local.iterdir())


@pytest.mark.timeout(800)
def test_killed_workers_are_replaced_by_warm_ones_and_cost_no_row_and_no_sum(
    programs: Callable[..., Program], capsys: pytest.CaptureFixture[str]
) -> None:
    program = programs(master="local[2]")
    program.recovered(-1)
    assert {runs(worker, "epochal.warm_daemon") for worker in program.workers()} == {True}
    survives(program, ["worker"] * 4, SHORT_SEED, capsys)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [20, 21, 22])
def test_eleven_kills_cost_no_row_and_no_sum(
    programs: Callable[..., Program], capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    kinds = ["worker"] * 6 + ["executor"] * 2 + ["driver"] * 2 + ["driver's JVM"]
    survives(programs(), kinds, seed, capsys)


@pytest.mark.timeout(800)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_driver_that_is_killed_while_it_stops_by_request_goes_on_and_can_be_asked_again(
    programs: Callable[..., Program], seed: int
) -> None:
    program, rng = programs(master="local[2]"), Random(seed)
    program.recovered(-1)
    stop = [sys.executable, "-m", "epochal.cli.main", "stop", str(program.checkpoint)]
    with subprocess.Popen(stop, stdout=subprocess.DEVNULL) as command:
        eventually(lambda: "a file in its checkpoint asks for it" in program.log.read_text())
        time.sleep(rng.uniform(0.0, 0.1))  # the moment of the kill is random
        program.kill_driver()
        assert command.wait(60) in (0, 1)  # it has stopped, or something is to be finished
    for kills in (1, 0):
        before = program.attempt()
        program.start()
        program.recovered(before)  # no earlier request stops it
        for worker in rng.sample(program.until(program.workers, "a worker"), kills):
            os.kill(worker, signal.SIGKILL)  # the request comes during the recovery
        assert subprocess.run(stop, check=False).returncode == 0
        assert program.wait() == 0, program.story()
        assert not list((program.checkpoint / ".epochal" / "stop").glob("*"))
    check(program)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_task_that_stands_still_is_replaced(programs: Callable[..., Program]) -> None:
    program = programs("stallTimeout=5 seconds", "idleEpoch=1 second")
    program.recovered(-1)
    for _ in range(2):
        before = program.attempt()
        os.kill(program.until(program.workers, "a worker")[0], signal.SIGSTOP)
        program.recovered(before)
    program.stop()
    check(program)


@pytest.mark.timeout(500)
def test_an_executor_that_falls_silent_is_left_out_within_seconds(
    programs: Callable[..., Program], capsys: pytest.CaptureFixture[str]
) -> None:
    # Frozen processes look to the driver like a host without network: no answer, no end. Each
    # executor has two tasks, whose pulses come at different times.
    more = ("parallelism=4", "maxRestarts=1")
    program = programs("silenceTimeout=4 seconds", *more, master="local-cluster[2,2,1024]")
    program.recovered(-1)
    before, executor = program.attempt(), program.executors()[0]
    program.freeze(executor)
    seconds = program.recovered(before)
    story = program.log.read_text(errors="replace")
    assert "have sent no pulse for 4 s (silenceTimeout)" in story
    assert "is excluded: its tasks are silent" in story
    assert seconds < 60  # Spark alone would need two minutes
    program.stop()
    rows = check(program)
    tell(capsys, f"recovered from a frozen executor in {seconds:.1f} s, {rows} rows")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_task_that_pauses_goes_on(programs: Callable[..., Program]) -> None:
    program = programs()
    program.recovered(-1)
    attempt = program.attempt()
    for worker in program.workers():
        os.kill(worker, signal.SIGSTOP)
        time.sleep(2)  # the pause, far shorter than the default stallTimeout
        os.kill(worker, signal.SIGCONT)
    newest = len(list((program.checkpoint / "commits").iterdir()))
    program.until(
        lambda: len(list((program.checkpoint / "commits").iterdir())) > newest, "further commits"
    )
    assert program.attempt() == attempt
    program.stop()
    check(program)


class Usage:
    """The resources of the driver and its tasks: memory, handles, threads."""

    def __init__(self) -> None:
        self.samples: list[dict[str, tuple[int, int, int]]] = []

    def take(self, program: Program) -> None:
        named = {"driver": program.pid}
        named |= {f"worker {n}": pid for n, pid in enumerate(sorted(program.workers()))}
        self.samples.append({name: held_by(pid) for name, pid in named.items()})

    def growth(self) -> dict[str, tuple[float, int, int]]:
        """Compare the medians of the first and the last third: memory as a ratio, the rest as a
        difference."""
        third = len(self.samples) // 3
        first, last = self.samples[:third], self.samples[-third:]
        found = {}
        for name in self.samples[-1]:
            early = [statistics.median(each[name][i] for each in first) for i in range(3)]
            late = [statistics.median(each[name][i] for each in last) for i in range(3)]
            found[name] = (late[0] / early[0], int(late[1] - early[1]), int(late[2] - early[2]))
        return found


def soak(program: Program, seconds: float, every: float, warm_seconds: float) -> Usage:
    program.recovered(-1)
    time.sleep(warm_seconds)  # what grows at first is not a leak
    usage, until = Usage(), time.monotonic() + seconds
    while time.monotonic() < until:
        usage.take(program)
        time.sleep(every)  # between two samples
    return usage


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("seconds", "every", "warm_seconds", "retained", "most_growth"),
    [(20, 0.5, 5, 20, 1.25), (600, 2, 30, 100, 1.1)],
    ids=["twenty-seconds", "ten-minutes"],
)
def test_time_leaves_memory_handles_and_threads_as_they_were(
    programs: Callable[..., Program],
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    every: float,
    warm_seconds: float,
    retained: int,
    most_growth: float,
) -> None:
    program = programs(f"minBatchesToRetain={retained}", master="local[2]")
    usage = soak(program, seconds, every, warm_seconds)
    program.stop()
    rows = check(program)
    growth = usage.growth()
    tell(capsys, f"{seconds} s, {rows} rows: {growth}")
    assert {
        name for name, (_, handles, threads) in growth.items() if handles > 3 or threads > 1
    } == set()
    assert max(memory for memory, _, _ in growth.values()) < most_growth
