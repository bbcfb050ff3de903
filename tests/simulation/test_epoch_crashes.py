"""The real coordinator, driver, recovery and logs; tasks, storage and time are made up.

A seed picks how two tasks read, report and lag, and after which change of storage the driver dies.
Sometimes a driver does not die but is only thought dead: it wakes later, beside its successor, and
takes its remaining steps. Whatever happens, every row is in the sink once, and the state that the
last decision names is the sum of all rows before it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import google_crc32c
import pytest

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.epoch.coordinator import Pace
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.ground import Ground, Recovered
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    PreparedState,
    RegisterTask,
    ReportPartitionOffset,
    TaskActive,
    TaskReady,
)
from epochal.epoch.state_files import StateFiles
from epochal.errors import EpochalError
from epochal.testing.clock import ManualClock
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles, crash_after

SEEDS_PER_PART = 50
EPOCHS = 12
TASKS = 2


class Rows:
    """Endless rows 0, 1, 2, ... in each of two partitions; a position is the next row."""

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
    """What survives a driver: the checkpoint, and what the sink shows."""

    clock: ManualClock
    files: MemoryFiles = field(init=False)
    visible: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    attempt: int = 0

    def __post_init__(self) -> None:
        self.files = MemoryFiles(clock=self.clock)


@dataclass
class Shelf:
    """A sink that is idempotent by epoch; it may decide, and then refuses who was shut out."""

    disk: Disk
    attempt: int
    decides: bool

    def fence(self, attempt: int) -> None:
        pass

    def decided(self, epoch: int) -> bool:
        return epoch in self.disk.visible

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        if self.decides and self.attempt != self.disk.attempt and not self.decided(epoch):
            raise EpochalError("fenced")
        self.disk.visible.setdefault(epoch, tuple(messages))


class Run:
    """One attempt: a driver over storage that fails it, and its tasks."""

    def __init__(self, disk: Disk, rng: random.Random, *, decides: bool, changes: int) -> None:
        disk.attempt += 1
        self.disk, self.rng = disk, rng
        files = FaultyFiles(disk.files, crash_after(changes))
        self.files = files
        self.failures: list[Exception] = []
        ground = Ground(
            url="memory:",
            offsets=OffsetLog(files.at("offsets")),
            commits=CommitLog(files.at("commits")),
            sources=[Rows()],
            sink=Shelf(disk, disk.attempt, decides),
            state=StateFiles(files, publishers=1),
            owned=lambda: True,  # at its most careless: the guard looks the other way
            run_id="run",
            min_batches_to_retain=3,
        )
        listeners = Listeners(
            push=lambda peers, message: None,
            committed=lambda epoch, positions: None,
            failed=self.failures.append,
        )
        self.driver = EpochDriver(
            ground,
            listeners,
            attempt=disk.attempt,
            clock=disk.clock,
            pace=Pace(epoch_seconds=1, max_epochs_in_flight=3),
        )
        self.cut: list[int] = []
        """Per task, the next epoch to report."""
        self.places: list[int] = []
        self.sums: list[int] = []

    def start(self) -> None:
        found = self.driver.recover()
        self.places = [int(found.positions[0][str(task)]) for task in range(TASKS)]
        self.sums = [self._load(found, task) for task in range(TASKS)]
        self.cut = [found.first_epoch] * TASKS
        self.driver.start([(0, "0"), (0, "1")], TASKS, background=False)
        attempt = self.driver.attempt
        for task in range(TASKS):
            message = RegisterTask(attempt, task, f"tcp://{task}", b"", "h", task)
            self.driver.handle(message, str(task).encode())
        for task in range(TASKS):
            self.driver.handle(TaskReady(attempt, task))

    def turn(self) -> None:
        """Something happens."""
        task = self.rng.randrange(TASKS)
        match self.rng.randrange(4):
            case 0:
                epoch = self.driver.coordinator.current
                self.driver.handle(TaskActive(self.driver.attempt, task, epoch))
                self.disk.clock.advance(1)
                self.driver.tick()
            case 1 if self.cut[task] < self.driver.coordinator.current:
                self._end_epoch(task)
            case _:
                self.driver.perform_next()
        if self.failures:
            raise self.failures[0]

    def _end_epoch(self, task: int) -> None:
        """Read some rows more, add them up, make both durable, report."""
        epoch, attempt = self.cut[task], self.driver.attempt
        first, self.places[task] = self.places[task], self.places[task] + self.rng.randrange(5)
        rows = range(first, self.places[task])
        self.sums[task] += sum(rows)
        name = f"{epoch + 1}.delta.prepared-a{attempt}"
        data = str(self.sums[task]).encode()
        self.files.replace(f"state/0/{task}/{name}", data)
        checksum = google_crc32c.value(data)
        state = PreparedState(0, task, "default", epoch + 1, name, checksum)
        wrote = " ".join(map(str, rows)).encode()
        reports: list[ReportPartitionOffset | CommitPartitionEpoch] = [
            ReportPartitionOffset(attempt, task, epoch, str(self.places[task])),
            CommitPartitionEpoch(attempt, task, epoch, wrote, (state,)),
        ]
        self.rng.shuffle(reports)
        for report in reports * self.rng.choice((1, 1, 2)):
            self.driver.handle(report)
        self.cut[task] += 1

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


def live(disk: Disk, rng: random.Random, *, decides: bool) -> None:
    """Attempts follow each other until enough is committed."""
    commits = CommitLog(disk.files.at("commits"))
    sleeper: Run | None = None
    while max(commits.batch_ids(), default=0) < EPOCHS:
        run = Run(disk, rng, decides=decides, changes=rng.randrange(1, 120))
        with suppress(Crash, EpochalError):
            run.start()
            while max(commits.batch_ids(), default=0) < EPOCHS:
                run.turn()
                if sleeper is not None and rng.random() < 0.1:
                    waking, sleeper = sleeper, None
                    with suppress(Crash, EpochalError):
                        while waking.driver.perform_next() is not None:
                            pass
                if rng.random() < 0.02:
                    sleeper = run
                    break


@pytest.mark.parametrize("decides", [False, True], ids=["log decides", "sink decides"])
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 10))]
)
def test_every_row_is_visible_once_and_state_is_their_sum(part: int, decides: bool) -> None:
    for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART):
        rng = random.Random(seed)
        disk = Disk(ManualClock())
        live(disk, rng, decides=decides)
        last = Run(disk, rng, decides=decides, changes=1_000)
        last.start()
        epochs = [disk.visible[epoch] for epoch in sorted(disk.visible)]
        assert sorted(disk.visible) == list(range(len(epochs))), seed
        for task in range(TASKS):
            rows = [int(row) for messages in epochs for row in messages[task].split()]
            assert rows == list(range(last.places[task])), seed
            assert last.sums[task] == sum(rows), seed
