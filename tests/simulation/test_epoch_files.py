"""Faults in how the state of epochs is written, published and deleted; the worlds find each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from tests.simulation.engine_world import World
from tests.simulation.planted import Plant, is_found, wrong_worlds
from tests.simulation.simulated_driver import SimulatedDriver
from tests.simulation.test_engine import SEEDS_PER_FAULT

from epochal.checkpoint.claim import Claim
from epochal.continuous.tasks import task_stores
from epochal.continuous.tasks.task_stores import TaskStores
from epochal.epoch import durable
from epochal.epoch.driver import EpochDriver
from epochal.epoch.epoch_files import chain_files
from epochal.epoch.epoch_files.epoch_file import checksum_of
from epochal.epoch.epoch_files.state_chain import Publication
from epochal.files import Files
from epochal.testing.driver.processes import TaskProcess
from epochal.testing.driver.staged_sink import OUTPUT
from epochal.testing.files import Crash


def publish_only_some_stores(patch: pytest.MonkeyPatch) -> None:
    real = TaskStores.publish

    def publish(self: TaskStores, epoch: int, rows: Any, floor: int) -> None:
        real(self, epoch, dict(list(rows.items())[:1]), floor)

    patch.setattr(TaskStores, "publish", publish)


def name_the_base_when_the_first_task_has_it(patch: pytest.MonkeyPatch) -> None:
    real = Publication.report

    def report(self: Publication, task: int, epoch: int, tasks: int, now: float) -> bool:
        del task, tasks
        return real(self, 0, epoch, 1, now)

    patch.setattr(Publication, "report", report)


def leave_the_attempt_out_of_names(patch: pytest.MonkeyPatch) -> None:
    def name(epoch: int, task: int, attempt: int) -> str:
        del attempt
        return f"{epoch}-t{task}-a0"

    def write(files: Files, name: str, data: bytes) -> int:
        files.replace(name, data)
        return checksum_of(data)

    for module in (task_stores, chain_files):
        patch.setattr(module, "file_name", name)
    patch.setattr(task_stores, "write_epoch", write)


def keep_only_what_the_newest_decision_needs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Publication, "floor", property(lambda self: self.version))


def keep_only_what_a_restart_needs(patch: pytest.MonkeyPatch) -> None:
    """Let the floor of an attempt be the version that it starts from."""

    def floor(_resources: object, _logs: object, first_epoch: int, chain: Any) -> int:
        return first_epoch if chain is None else int(chain.published)

    patch.setattr(durable, "_floor", floor)


def forget_that_retained_decisions_have_files(patch: pytest.MonkeyPatch) -> None:
    """Sweep all files of earlier attempts."""
    patch.setattr(chain_files, "is_stray", lambda name, attempt, first_epoch: name[2] < attempt)


def sweep_before_the_first_decision(patch: pytest.MonkeyPatch) -> None:
    """Delete what earlier attempts left when an attempt begins."""
    real = EpochDriver.recover

    def recover(self: EpochDriver) -> Any:
        found = real(self)
        self._resources.state.discard_before(self.attempt, found.first_epoch)
        return found

    patch.setattr(EpochDriver, "recover", recover)


def publish_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Publish the state after the newest decision, which a sink that decides may not have."""
    real_decided, real_order = Publication.decided, Publication.order
    newest: WeakKeyDictionary[Publication, int] = WeakKeyDictionary()

    def decided(self: Publication, epoch: int) -> int:
        newest[self] = epoch
        return real_decided(self, epoch)

    def order(self: Publication, committed: int, now: float, *, at_once: bool = False) -> int:
        return real_order(self, max(committed, newest.get(self, -1)), now, at_once=at_once)

    patch.setattr(Publication, "decided", decided)
    patch.setattr(Publication, "order", order)


PLANTED: dict[str, Plant] = {
    "a task publishes only some of its stores": publish_only_some_stores,
    "a base is named before all tasks have it": name_the_base_when_the_first_task_has_it,
    "names of epoch files lack the attempt": leave_the_attempt_out_of_names,
    "only what the newest decision needs is kept": keep_only_what_the_newest_decision_needs,
    "only what a restart needs is kept": keep_only_what_a_restart_needs,
    "files of retained decisions are swept": forget_that_retained_decisions_have_files,
    "files are swept before the first decision": sweep_before_the_first_decision,
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_with_epoch_files_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[fault](monkeypatch)
    assert is_found(World, SEEDS_PER_FAULT)


class SlowSinkWorld(World):
    """The sink decides and takes long. Often the driver dies before the sink has an epoch."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.shape = replace(self.shape, decides=True)
        self.faults = 4

    def _before(self, driver: SimulatedDriver, operation: str, path: str) -> None:
        if path.startswith(OUTPUT) and driver.alive and self._unlucky(0.3):
            self.story.append(f"{driver.guard.run_id} dies at {path}")
            driver.alive = False
        if not driver.alive:
            raise Crash

    def _turn(self, task: TaskProcess | None) -> None:
        super()._turn(task)
        self._publish(task)

    def _perform(self, driver: SimulatedDriver) -> bool:
        return (not self.faults or self.chance.random() < 0.3) and super()._perform(driver)


def test_what_has_sparks_names_is_right_because_it_was_committed() -> None:
    assert wrong_worlds(SlowSinkWorld, range(40)) == {}


def test_state_that_is_published_before_its_epoch_is_committed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish_what_is_not_committed(monkeypatch)
    assert any(SlowSinkWorld(seed).run() for seed in range(SEEDS_PER_FAULT))


def test_nothing_goes_wrong_even_if_nobody_looks_at_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The check only ends a late driver sooner. What keeps it harmless is that entries are created
    # and never replaced, and that names carry the attempt.
    monkeypatch.setattr(Claim, "still_mine", lambda _: True)
    assert wrong_worlds(World, range(100)) == {}
