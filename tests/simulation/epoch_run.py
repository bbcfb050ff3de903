"""Attempts of a real driver, with recovery and logs, over storage that fails it; tasks are made up.

Two tasks read numbers, add them up and hand them to a sink. A driver dies at any change of storage,
or is only thought dead: it wakes later, beside its successor, and takes its remaining steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import google_crc32c

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.epoch.contract import CommittedSink, LoggedSource
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources, Recovered
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    PreparedState,
    RegisterTask,
    TaskActive,
    TaskReady,
)
from epochal.epoch.open_epoch import Pace
from epochal.errors import EpochalError
from epochal.files import Files
from epochal.testing.clock import ManualClock
from epochal.testing.files import Crash, MemoryFiles

EPOCHS = 12
TASKS = 2
MAX_ATTEMPTS = 300

Write: TypeAlias = Callable[[int, int, range], bytes]
"""Takes a task, an epoch and the task's rows in it; returns the message for the sink's commit."""


class Rows(LoggedSource):
    """Endless rows 0, 1, 2, ... in each of two partitions; a position is the next row."""

    acknowledges_in_tasks = False

    def initial(self) -> Mapping[str, str]:
        return {"0": "0", "1": "0"}

    def resume(self, offset: str) -> Mapping[str, str]:
        raise AssertionError(f"positions come from the manifest, not from {offset}")

    def offset(self, positions: Mapping[str, str]) -> str:
        return "+".join(positions[partition] for partition in sorted(positions))

    def boundary(self, positions: Mapping[str, str]) -> Mapping[str, str]:
        return positions

    def acknowledge(self, epoch: int, positions: Mapping[str, str]) -> None:
        pass


@dataclass
class Disk:
    """What survives a driver."""

    clock: ManualClock = field(default_factory=ManualClock)
    files: MemoryFiles = field(init=False)
    attempt: int = 0

    def __post_init__(self) -> None:
        self.files = MemoryFiles(clock=self.clock)

    def committed(self) -> int:
        """The newest epoch that is history."""
        return max(CommitLog(self.files.at("commits")).batch_ids(), default=0)


class Run:
    """One attempt: a driver over `files`, which fail it, and its tasks."""

    def __init__(
        self,
        disk: Disk,
        rng: random.Random,
        files: Files,
        sink: CommittedSink,
        *,
        write: Write,
        counts: Sequence[int],
    ) -> None:
        """`counts` are how many rows a task may read for an epoch."""
        disk.attempt += 1
        self.disk, self._rng, self._files = disk, rng, files
        self._write, self._counts = write, counts
        self._failures: list[Exception] = []
        resources = EpochResources(
            url="memory:",
            offsets=OffsetLog(files.at("offsets")),
            commits=CommitLog(files.at("commits")),
            sources=[Rows()],
            sink=sink,
            state=StateFiles(files, publishers=1),
            owned=lambda: True,  # at its most careless: the guard looks the other way
            run_id="run",
            min_batches_to_retain=3,
        )
        listeners = Listeners(
            push=lambda peers, message: None,
            committed=lambda epoch, positions: None,
            failed=self._failures.append,
        )
        self.driver = EpochDriver(
            resources,
            listeners,
            attempt=disk.attempt,
            clock=disk.clock,
            pace=Pace(epoch_seconds=1, max_epochs_in_flight=3),
        )
        self._cut: list[int] = []
        """Per task, the next epoch to report."""
        self.places: list[int] = []
        self.sums: list[int] = []

    def start(self) -> None:
        found = self.driver.recover()
        self.places = [int(found.positions[0][str(task)]) for task in range(TASKS)]
        self.sums = [self._load(found, task) for task in range(TASKS)]
        self._cut = [found.first_epoch] * TASKS
        self.driver.start([(0, "0"), (0, "1")], TASKS, background=False)
        attempt = self.driver.attempt
        for task in range(TASKS):
            message = RegisterTask(attempt, task, f"tcp://{task}", b"", "h", task)
            self.driver.handle(message, str(task).encode())
        for task in range(TASKS):
            self.driver.handle(TaskReady(attempt, task))

    def turn(self) -> None:
        """Something happens."""
        task = self._rng.randrange(TASKS)
        match self._rng.randrange(4):
            case 0:
                epoch = self.driver.coordinator.current
                self.driver.handle(TaskActive(self.driver.attempt, task, epoch))
                self.disk.clock.advance(1)
                self.driver.tick()
            case 1 if self._cut[task] < self.driver.coordinator.current:
                self._end_epoch(task)
            case _:
                self.driver.perform_next()
        if self._failures:
            raise self._failures[0]

    def wake(self) -> None:
        """Take the steps that are left to a driver that was thought dead."""
        with suppress(Crash, EpochalError):
            while self.driver.perform_next() is not None:
                pass

    def _end_epoch(self, task: int) -> None:
        """Read some rows more, add them up, make both durable, report."""
        epoch, attempt = self._cut[task], self.driver.attempt
        rows = range(self.places[task], self.places[task] + self._rng.choice(self._counts))
        self.places[task] = rows.stop
        self.sums[task] += sum(rows)
        name, data = f"{epoch + 1}.delta.prepared-a{attempt}", str(self.sums[task]).encode()
        self._files.replace(f"state/0/{task}/{name}", data)
        state = PreparedState(0, task, "default", epoch + 1, name, google_crc32c.value(data))
        wrote = self._write(task, epoch, rows)
        active = self.driver.coordinator.current if self._rng.randrange(2) else -1
        report = CommitPartitionEpoch(
            attempt,
            task,
            epoch,
            wrote,
            (state,),
            positions=((task, str(rows.stop)),),
            active=active,
        )
        for _ in range(self._rng.choice((1, 1, 2))):
            self.driver.handle(report)
        self._cut[task] += 1

    def _load(self, found: Recovered, task: int) -> int:
        if found.state is None:
            return 0
        named = next(each for each in found.state if each.partition == task)
        for name in (named.name, f"{named.version}.delta"):
            with suppress(FileNotFoundError):
                data = self.disk.files.read(f"state/0/{task}/{name}")
                if google_crc32c.value(data) == named.checksum:
                    return int(data)
        raise AssertionError(f"{named} is nowhere")


def live(
    disk: Disk,
    rng: random.Random,
    begin: Callable[[], Run],
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    """Attempts follow each other until enough is committed; False if it never is."""
    sleeper: Run | None = None
    for _ in range(MAX_ATTEMPTS):
        if disk.committed() >= EPOCHS:
            return True
        run = begin()
        with suppress(Crash, EpochalError):
            run.start()
            while disk.committed() < EPOCHS:
                run.turn()
                if sleeper is not None and rng.random() < 0.1:
                    waking, sleeper = sleeper, None
                    waking.wake()
                if rng.random() < 0.02:
                    sleeper = run
                    break
                meanwhile()
    return False
