"""The real coordinator, driver, recovery and logs; tasks, storage and time are made up.

A seed picks how two tasks read, report and lag, after which change of storage the driver dies, and
whether it does. Whatever happens, every row is in the sink once, and the state that the last
decision names is the sum of all rows before it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.simulation.epoch_run import TASKS, Disk, Run, live

from epochal.epoch.contract import CommittedSink
from epochal.errors import EpochalError
from epochal.testing.files import FaultyFiles, crash_after

SEEDS_PER_PART = 50


@dataclass
class ShelfDisk(Disk):
    """With what the sink shows."""

    visible: dict[int, tuple[bytes, ...]] = field(default_factory=dict)


@dataclass
class Shelf(CommittedSink):
    """A sink that is idempotent by epoch; it may decide, and then refuses who was shut out."""

    disk: ShelfDisk
    attempt: int
    decides: bool = False

    def fence(self, attempt: int) -> None:
        pass

    def decided(self, epoch: int) -> bool:
        return epoch in self.disk.visible

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        if self.decides and self.attempt != self.disk.attempt and not self.decided(epoch):
            raise EpochalError("fenced")
        self.disk.visible.setdefault(epoch, tuple(messages))


def words(task: int, epoch: int, rows: range) -> bytes:
    return " ".join(map(str, rows)).encode()


def begin(disk: ShelfDisk, rng: random.Random, *, decides: bool, changes: int) -> Run:
    return Run(
        disk,
        rng,
        FaultyFiles(disk.files, crash_after(changes)),
        Shelf(disk, disk.attempt + 1, decides),
        write=words,
        counts=range(5),
    )


def lived(rng: random.Random, *, decides: bool) -> tuple[ShelfDisk, Run]:
    """Attempts until enough is committed, then one that only recovers."""
    disk = ShelfDisk()
    assert live(disk, rng, lambda: begin(disk, rng, decides=decides, changes=rng.randrange(1, 120)))
    last = begin(disk, rng, decides=decides, changes=1_000)
    last.start()
    return disk, last


@pytest.mark.parametrize("decides", [False, True], ids=["log decides", "sink decides"])
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 10))]
)
def test_every_row_is_visible_once_and_state_is_their_sum(part: int, decides: bool) -> None:
    for seed in range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART):
        disk, last = lived(random.Random(seed), decides=decides)
        epochs = [disk.visible[epoch] for epoch in sorted(disk.visible)]
        assert sorted(disk.visible) == list(range(len(epochs))), seed
        for task in range(TASKS):
            rows = [int(row) for messages in epochs for row in messages[task].split()]
            assert rows == list(range(last.places[task])), seed
            assert last.sums[task] == sum(rows), seed
