"""Delta tables survive `kill -9` of drivers, workers and executors, and drivers that wake up late.

Every row is in the table once, and files of failed attempts are gone.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.fault.delta_driver import OPTIONS, expected
from tests.fault.test_continuous_kills import torment
from tests.fault.torment import Program, check_rows, launched, state_totals, tell
from tests.waiting import eventually

from epochal.checkpoint import CommitLog, OffsetLog

MODES = sorted(OPTIONS)


class Drivers:
    """Runs of the driver program, one after another, on one checkpoint and table."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.checkpoint, self.table, self._mode = folder / "ck", folder / "table", mode
        self._log, self._attempt = folder / "driver.log", 0
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Start another attempt and wait until it begins to recover."""
        self._attempt += 1
        words = [str(self.checkpoint), str(self.table), str(self._attempt), self._mode]
        driver = "tests.fault.delta_driver"
        process = launched(self._log, driver, *words, pipe=subprocess.PIPE)
        self._running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", self.story()
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Let a driver finish its epoch."""
        self.newest(above=self.newest())
        process.communicate(b"\n", timeout=60)
        assert process.returncode == 0, self.story()

    def newest(self, above: int = -2) -> int:
        """The newest committed epoch, as soon as there is one above."""
        log = CommitLog(str(self.checkpoint / "commits"), read_only=True)

        def newest() -> list[int]:
            found = log.latest_batch_id()
            return [each for each in (-1 if found is None else found,) if each > above]

        return eventually(newest, self.story)[0]

    def check(self) -> int:
        """Compare the table with what its input makes of it; return the number of rows read."""
        entry = OffsetLog(str(self.checkpoint / "offsets"), read_only=True).get(self.newest())
        assert entry is not None
        (offset,) = entry.by_source.values()
        end = int(json.loads(str(offset))["0"])
        found = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        assert sorted(found, key=lambda row: (row["n"], row["key"])) == sorted(
            expected(end, self._mode), key=lambda row: row["n"]
        )
        return end

    def unlisted(self) -> set[str]:
        """Data files of this query that no version of the table has listed."""
        table = DeltaTable(self.table)
        known = [*table.file_uris(), *table.vacuum(0, enforce_retention_duration=False)]
        names = {path.rpartition("/")[2] for path in known}
        return {path.name for path in self.table.glob("part-*.parquet")} - names

    def story(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(30)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def drivers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Drivers]:
    found = Drivers(tmp_path, request.param)
    yield found
    found.end()


def kill_often(drivers: Drivers, kills: int, seed: int) -> None:
    rng = Random(seed)
    for _ in range(kills):
        process = drivers.start()
        time.sleep(rng.uniform(0.0, 0.6))  # kill at a random time, also while it recovers
        process.kill()
        process.wait(30)
    last = drivers.start()
    drivers.newest(above=drivers.newest() + 3)
    drivers.stop(last)
    assert drivers.check() > 0
    assert drivers.unlisted() == set()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("drivers", "kills", "seed"),
    [("append", 3, 11), *(pytest.param(mode, 40, 12, marks=pytest.mark.long) for mode in MODES)],
    indirect=["drivers"],
)
def test_drivers_killed_at_any_time_leave_each_row_in_the_table_once(
    drivers: Drivers, kills: int, seed: int
) -> None:
    kill_often(drivers, kills, seed)


@pytest.mark.parametrize("drivers", MODES, indirect=True)
def test_a_driver_that_wakes_up_after_its_successor_changes_nothing(drivers: Drivers) -> None:
    zombies = []
    for _ in range(2):
        zombie = drivers.start()
        drivers.newest(above=drivers.newest())
        zombie.send_signal(signal.SIGSTOP)
        zombies.append(zombie)
    new = drivers.start()
    drivers.newest(above=drivers.newest() + 2)
    for zombie in zombies:
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(60) == 1, drivers.story()  # another driver has decided its epoch
    drivers.newest(above=drivers.newest() + 2)
    drivers.stop(new)
    assert drivers.check() > 0


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Creates programs on a cluster, and ends those that a failed test leaves running."""
    made: list[Program] = []

    def make(*options: str) -> Program:
        made.append(Program(tmp_path, tmp_path / "driver.log", "format=delta", *options))
        made[-1].start()
        return made[-1]

    yield make
    for program in made:
        program.end()


def table_rows(program: Program) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(program.out).to_pyarrow_table().to_pylist()
    return found


def check_leftovers(program: Program) -> None:
    table = DeltaTable(program.out)
    live = {path.rpartition("/")[2] for path in table.file_uris()}
    assert {path.name for path in program.out.glob("part-*")} == live


TWENTY = ["worker"] * 12 + ["executor"] * 4 + ["driver"] * 3 + ["driver's JVM"]
"""With five seeds each of the four kinds is killed at least five times, and there are 100 kills."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kinds", "seed"),
    [
        pytest.param(["worker", "executor", "driver"], 8, id="three"),
        *(pytest.param(TWENTY, seed, marks=pytest.mark.long) for seed in range(60, 65)),
    ],
)
def test_kills_on_a_cluster_leave_each_row_in_the_table_once(
    programs: Callable[..., Program],
    capsys: pytest.CaptureFixture[str],
    kinds: list[str],
    seed: int,
) -> None:
    rng = Random(seed)
    program = programs()
    seconds = torment(program, rng.sample(kinds, len(kinds)), rng)
    program.stop()
    rows = check_rows(table_rows(program), program.checkpoint)
    check_leftovers(program)
    tell(capsys, f"{len(kinds)} kills, {rows} rows, recovery {seconds}")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_sums_that_are_merged_by_key_survive_ten_kills(programs: Callable[..., Program]) -> None:
    program = programs("mode=update", "mergeKeys=k")
    kinds = ["worker"] * 6 + ["executor"] * 2 + ["driver"] * 2
    torment(program, kinds, Random(70))
    program.stop()
    found = {row["k"]: row["total"] for row in table_rows(program)}
    assert found == state_totals(program.checkpoint)
    assert len(found) == len(table_rows(program))
