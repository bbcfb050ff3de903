"""What transcripts cannot show of the coordinator: its counts, and that it forgets what is done."""

from __future__ import annotations

from epochal.epoch.coordinator import EpochCoordinator, Phase
from epochal.epoch.effects import Decide, Effect, Finish, LogCommit, Performed, Push
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    EpochStarted,
    GetCurrentEpoch,
    IncrementAndGetEpoch,
    Leave,
    RegisterTask,
    ReportPartitionOffset,
    TaskReady,
)
from epochal.epoch.open_epoch import Pace


def running(
    *, tasks: int = 1, ended: int = 0, max_backlog: int = 10_000, tell_commits: bool = False
) -> EpochCoordinator:
    coordinator = EpochCoordinator(
        attempt=1,
        first_epoch=0,
        readers=tasks,
        tasks=tasks,
        pace=Pace(max_backlog=max_backlog),
        tell_commits=tell_commits,
    )
    for task in range(tasks):
        coordinator.ask(RegisterTask(1, task, f"tcp://{task}", b"", "h", task))
    for task in range(tasks):
        coordinator.step(TaskReady(1, task))
    for _ in range(ended):
        coordinator.ask(IncrementAndGetEpoch(1))
    return coordinator


def report_all(coordinator: EpochCoordinator, epoch: int, word: str = "") -> list[Effect]:
    return [
        *coordinator.step(ReportPartitionOffset(1, 0, epoch, f"{epoch}{word}")),
        *coordinator.step(CommitPartitionEpoch(1, 0, epoch, word.encode())),
    ]


def test_reports_of_a_decided_epoch_are_counted_and_forgotten_however_many_come() -> None:
    coordinator = running(ended=2, max_backlog=3)
    report_all(coordinator, 0)
    report_all(coordinator, 1)
    for repeat in range(10):
        for epoch in (0, 1):
            assert report_all(coordinator, epoch, f"again {repeat}") == []
    assert (coordinator.late, coordinator.phase) == (40, Phase.RUNNING)


def test_a_thousand_epochs_later_nothing_of_them_is_kept() -> None:
    coordinator = running(ended=0, max_backlog=1)
    for epoch in range(1000):
        coordinator.ask(IncrementAndGetEpoch(1))
        effects = report_all(coordinator, epoch)
        assert [type(effect) for effect in effects][:1] == [Decide]
    assert coordinator.decided == 999


def test_tasks_are_told_of_commits_if_a_source_wants_to_know() -> None:
    quiet, telling = running(ended=1), running(ended=1, tell_commits=True)
    for coordinator in (quiet, telling):
        report_all(coordinator, 0)
    done = Performed(LogCommit, 0)
    assert quiet.step(done) == []
    assert telling.step(done) == [Push(EpochStarted(1, 1, committed=0))]
    assert telling.ask(GetCurrentEpoch(1))[0] == EpochStarted(1, 1, committed=0)
    assert telling.ask(IncrementAndGetEpoch(1))[0] == EpochStarted(1, 2, committed=0)
    assert telling.step(Finish()) == [Push(Leave(1, 0))]
    assert quiet.step(Finish()) == [Push(Leave(1))]
