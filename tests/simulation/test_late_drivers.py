"""A driver that goes on after a long pause does no harm to the run that took over meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.simulation.engine_world import World
from tests.simulation.simulated_driver import SimulatedDriver

from epochal.checkpoint.claim import Claim
from epochal.checkpoint.entries import OffsetEntry
from epochal.epoch import durable
from epochal.epoch.durable import EpochResources
from epochal.testing.driver.processes import CHECKPOINT
from epochal.testing.driver.staged_sink import OUTPUT
from epochal.testing.files import Crash

SEEDS = 40


class LateWorld(World):
    """The sink decides, and its driver dies between the log and the sink.

    The next driver finds the open epoch, asks the sink, and pauses with its answer. A third one
    takes over, and gets some epochs further before the second one goes on.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.shape = replace(self.shape, decides=True)
        self.faults = 0
        self.victim = seed % 3
        self.ahead = self.chance.randrange(3)
        self.died = self.asked = self.slept = False

    def _before(self, driver: SimulatedDriver, operation: str, path: str) -> None:
        if not driver.alive:
            raise Crash
        is_about_victim = path == f"{OUTPUT}/{self.victim}"
        if is_about_victim and not self.died:
            self.died = True
            driver.alive = False
            raise Crash
        if is_about_victim:
            self.asked = True
        elif self.asked and not self.slept:
            self.slept = True
            self._sleep(driver)

    def _sleep(self, driver: SimulatedDriver) -> None:
        self.depth += 1
        driver.paused = True
        self._take_over(driver)
        for _ in range(60):
            if self._newest_commit() >= self.victim + self.ahead:
                break
            self._calm_round()
        driver.paused = False
        self.depth -= 1

    def _newest_commit(self) -> int:
        return max(self._committed(), default=-1)

    def _committed(self) -> set[int]:
        return {int(info.name) for info in self.truth.list(f"{CHECKPOINT}/commits")}

    def _check(self) -> None:
        if lost := sorted(self._committed() - set(self._offsets().batch_ids())):
            self.wrong.append(f"the decisions of the epochs {lost} are gone")
        else:
            super()._check()


def drop_all_that_is_newer(resources: EpochResources, epoch: int, entry: OffsetEntry) -> None:
    del entry
    resources.offsets.purge_after(epoch - 1)


def drop_whatever_has_the_number(resources: EpochResources, epoch: int, entry: OffsetEntry) -> None:
    del entry
    resources.offsets.remove(epoch)


def test_it_drops_no_decision_of_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = 0
    for looks_owned in (False, True):
        if looks_owned:
            # Its clock has not moved, and it cannot see the new attempt. What is left is the entry.
            monkeypatch.setattr(Claim, "still_mine", lambda _: True)
        for seed in range(SEEDS):
            world = LateWorld(seed)
            assert world.run() == [], seed
            slept += world.slept
    assert slept > SEEDS


@pytest.mark.parametrize("drop", [drop_all_that_is_newer, drop_whatever_has_the_number])
def test_it_would_if_it_did_not_look_again(
    drop: Callable[[EpochResources, int, OffsetEntry], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "drop_epoch", drop)
    assert any(LateWorld(seed).run() for seed in range(SEEDS))
