"""The whole engine in thousands of seeded worlds, and proof that they would notice.

`make simulate SEEDS=100000` runs more. A seed that fails is run again by itself with
`python -m tests.simulation.engine_run SEED`, which tells what happened.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.simulation.engine_world import World
from tests.simulation.planted import Plant, is_found
from tests.simulation.simulated_driver import SimulatedDriver

from epochal.continuous.tasks import task_stores
from epochal.continuous.tasks.exchange import Exchange, Inbox
from epochal.continuous.tasks.frames import Frame
from epochal.continuous.tasks.reports import TaskReports
from epochal.continuous.tasks.task_sources import TaskSources
from epochal.epoch import recovery
from epochal.epoch.coordinator import EpochCoordinator, Phase
from epochal.epoch.driver import EpochDriver
from epochal.epoch.effects import Acknowledge, CommitSink, Decide, Effect, LogCommit, ReadingHeld
from epochal.epoch.epoch_files.chain_files import read_epoch
from epochal.epoch.epoch_files.epoch_file import EpochFile, parse_file_name
from epochal.epoch.epoch_files.state_chain import StateChain
from epochal.epoch.messages import CommitPartitionEpoch
from epochal.files import Files
from epochal.testing.driver.processes import TaskProcess

SEEDS, PARTS = 2_000, 8
SEEDS_PER_FAULT = 2_000


@pytest.mark.parametrize("part", range(PARTS))
def test_every_event_counts_once_whatever_goes_wrong(part: int) -> None:
    wrong = {}
    for seed in range(part, SEEDS, PARTS):
        world = World(seed)
        found = world.run() + ["the log of retained epochs has a gap"] * bool(world.gaps)
        if found:
            wrong[seed] = found
    assert wrong == {}


def order_of(*kinds: type) -> Plant:
    """Have the steps of an epoch taken in this order."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = EpochCoordinator._decide

        def decide(self: EpochCoordinator, *args: Any) -> list[Effect]:
            effects = real(self, *args)
            place = {kind: at for at, kind in enumerate(kinds)}
            return sorted(effects, key=lambda effect: place.get(type(effect), len(kinds)))

        patch.setattr(EpochCoordinator, "_decide", decide)

    return plant


def decide_before_all_have_prepared(patch: pytest.MonkeyPatch) -> None:
    real = EpochCoordinator._report

    def report(self: EpochCoordinator, said: Any) -> list[Effect]:
        effects = real(self, said)
        if isinstance(said, CommitPartitionEpoch) and said.epoch in self._open:
            for task in set(range(self._tasks)) - self._open[said.epoch].commits.keys():
                if said.epoch in self._open:
                    effects += real(self, msgspec.structs.replace(said, task=task, state=()))
        return effects

    patch.setattr(EpochCoordinator, "_report", report)


def drop_the_attempt_fence(patch: pytest.MonkeyPatch) -> None:
    """Reports and frames of any attempt are taken for those of this one."""
    real_step, real_receive = EpochCoordinator.step, Exchange.receive

    def step(self: EpochCoordinator, event: Any) -> list[Effect]:
        if isinstance(event, CommitPartitionEpoch):
            if self.phase is not Phase.RUNNING or event.epoch > self._newest_ended():
                return []
            event = msgspec.structs.replace(event, attempt=self.attempt)
        return real_step(self, event)

    def receive(self: Exchange, frames: Any) -> None:
        real_receive(self, [replace(frame, attempt=self.attempt) for frame in frames])

    patch.setattr(EpochCoordinator, "step", step)
    patch.setattr(Exchange, "receive", receive)


def load_state_by_number(patch: pytest.MonkeyPatch) -> None:
    """Take whatever epoch file has the right number, of the newest attempt."""

    def read(files: Files, chain: StateChain, **how: Any) -> list[EpochFile]:
        del how
        newest: dict[tuple[int, int], tuple[int, str]] = {}
        for info in files.list():
            epoch, task, attempt = parse_file_name(info.name) or (-1, -1, -1)
            if epoch in chain.epochs:
                newest[epoch, task] = max(newest.get((epoch, task), (-1, "")), (attempt, info.name))
        return [read_epoch(files, newest[each][1]) for each in sorted(newest)]

    patch.setattr(task_stores, "read_chain", read)


def recompute_a_decided_epoch(patch: pytest.MonkeyPatch) -> None:
    real = recovery.plan_recovery

    def plan(logs: recovery.Logs, query: recovery.QueryShape, **how: Any) -> recovery.RecoveryPlan:
        return real(logs, query, **{**how, "sink_decides": True, "sink_decided": False})

    patch.setattr(recovery, "plan_recovery", plan)


def skip_alignment(patch: pytest.MonkeyPatch) -> None:
    def take(self: Inbox) -> list[Frame]:
        found = real(self)
        for channel in self._channels:
            if channel.marked:
                while channel.queue and channel.queue[0].batch is not None:
                    frame = channel.queue.popleft()
                    channel.processed, channel.data = frame.seq, channel.data - 1
                    found.append(frame)
        return found

    real = Inbox.take
    patch.setattr(Inbox, "take", take)


def drop_a_held_back_frame(patch: pytest.MonkeyPatch) -> None:
    real = Inbox.advance

    def advance(self: Inbox) -> None:
        real(self)
        for channel in self._channels:
            if channel.queue and channel.queue[0].batch is not None:
                channel.processed, channel.data = channel.queue.popleft().seq, channel.data - 1

    patch.setattr(Inbox, "advance", advance)


def count_a_repeated_report_for_the_next_epoch(patch: pytest.MonkeyPatch) -> None:
    real = EpochCoordinator._report

    def report(self: EpochCoordinator, said: Any) -> list[Effect]:
        following = self.decided + 1
        if said.epoch <= self.decided and following <= self._newest_ended():
            said = msgspec.structs.replace(said, epoch=following)
        return real(self, said)

    patch.setattr(EpochCoordinator, "_report", report)


def take_positions_from_the_next_report(patch: pytest.MonkeyPatch) -> None:
    """A report says where the readers are when it is sent, not where they ended the epoch."""
    real = TaskProcess.make_durable

    def make_durable(self: TaskProcess) -> None:
        assert self.core is not None
        now = tuple(sorted(self.core._sources.positions().items()))
        report = msgspec.structs.replace(self.cuts[0].report, positions=now)
        self.cuts[0] = replace(self.cuts[0], report=report)
        real(self)

    patch.setattr(TaskProcess, "make_durable", make_durable)


def lose_the_news_of_rows(patch: pytest.MonkeyPatch) -> None:
    """A report does not carry the news, although the task thinks that it did."""
    real = TaskReports.complete

    def complete(self: TaskReports, report: CommitPartitionEpoch) -> CommitPartitionEpoch:
        return msgspec.structs.replace(real(self, report), active=-1)

    patch.setattr(TaskReports, "complete", complete)


def read_behind_the_limit(patch: pytest.MonkeyPatch) -> None:
    """A reader takes an event more than the plan of the epoch says, if there is one."""

    def limit(self: TaskSources, ends: dict[int, str]) -> None:
        more = {reader: str(int(end) + 1) for reader, end in ends.items()}
        self._limits = {**self.positions(), **more}
        for source in self.open.values():
            source.reader.limit({p: self._limits[n] for p, n in source.numbers.items()})

    patch.setattr(TaskSources, "limit", limit)


def end_when_one_reader_is_there(patch: pytest.MonkeyPatch) -> None:
    """A task ends a planned epoch when the first of its readers has arrived."""

    def reached(self: TaskSources) -> bool:
        return any(self._limits[number] == at for number, at in self.positions().items())

    patch.setattr(TaskSources, "limits_reached", reached)


def forget_at_a_restart_that_epochs_are_planned(patch: pytest.MonkeyPatch) -> None:
    real = EpochDriver.start

    def start(self: EpochDriver, *args: Any, **how: Any) -> None:
        if self._recovered is not None and self._recovered.base is not None:
            how["held_at"] = None
        real(self, *args, **how)

    patch.setattr(EpochDriver, "start", start)


def plan_two_epochs_as_one(patch: pytest.MonkeyPatch) -> None:
    def plan(self: SimulatedDriver, held: ReadingHeld) -> bool:
        assert self.driver is not None
        at = self.driver.held_at(held)
        assert self._next_ends is not None
        return self.driver.plan(held, self._next_ends(self._next_ends(at)))

    patch.setattr(SimulatedDriver, "plan", plan)


PLANTED: dict[str, Plant] = {
    "the sink is committed before the decision": order_of(
        CommitSink, Decide, LogCommit, Acknowledge
    ),
    "the commit is logged before the sink has it": order_of(
        Decide, LogCommit, CommitSink, Acknowledge
    ),
    "sources are told before the commit": order_of(Decide, Acknowledge, CommitSink, LogCommit),
    "an epoch is decided before all have prepared": decide_before_all_have_prepared,
    "messages of old attempts are let in": drop_the_attempt_fence,
    "state is loaded by its number": load_state_by_number,
    "a decided epoch is computed again": recompute_a_decided_epoch,
    "frames behind a marker are not held back": skip_alignment,
    "a frame that was held back is dropped": drop_a_held_back_frame,
    "a report that comes again counts for the next epoch": (
        count_a_repeated_report_for_the_next_epoch
    ),
    "a report names later positions": take_positions_from_the_next_report,
    "a report does not say that the next epoch has rows": lose_the_news_of_rows,
    "a planned epoch goes beyond its end": read_behind_the_limit,
    "a planned epoch ends before all readers are there": end_when_one_reader_is_there,
    "a restart forgets that epochs are planned": forget_at_a_restart_that_epochs_are_planned,
    "two planned epochs are run as one": plan_two_epochs_as_one,
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[fault](monkeypatch)
    assert is_found(World, SEEDS_PER_FAULT)
