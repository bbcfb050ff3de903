"""A task reports each epoch in one message, and rows after idleness in another."""

from __future__ import annotations

import threading
from functools import partial

from tests.waiting import eventually

from epochal.continuous.tasks.reports import TaskReports
from epochal.epoch.messages import CommitPartitionEpoch, TaskActive

ATTEMPT, TASK, FIRST = 3, 1, 7
EPOCH_SECONDS = 1.0


def reports(**how: int) -> TaskReports:
    return TaskReports(
        attempt=ATTEMPT, task=TASK, first_epoch=FIRST, epoch_seconds=EPOCH_SECONDS, **how
    )


def commit(epoch: int) -> CommitPartitionEpoch:
    return CommitPartitionEpoch(ATTEMPT, TASK, epoch, b"files", positions=((0, "12"),))


def test_rows_after_idleness_are_announced_at_once_and_once() -> None:
    said = reports()
    assert said.due(0.0) is None
    said.note_active(FIRST, 0.0)
    assert said.due(0.0) == TaskActive(ATTEMPT, TASK, FIRST)
    assert said.due(9.0) is None


def test_rows_of_the_next_epoch_ride_in_the_report_of_the_one_before() -> None:
    said = reports()
    said.note_active(FIRST + 1, 5.0)  # the report of FIRST is still to come
    assert said.due(5.2) is None
    report = said.complete(commit(FIRST))
    assert (report.active, report.positions) == (FIRST + 1, ((0, "12"),))
    assert said.due(5.2) is None
    assert said.due(99.0) is None


def test_rows_are_announced_separately_if_the_report_takes_long() -> None:
    said = reports()
    said.note_active(FIRST + 1, 5.0)
    assert said.due(5.24) is None
    assert said.due(5.25) == TaskActive(ATTEMPT, TASK, FIRST + 1)
    assert said.due(5.5) is None
    assert said.complete(commit(FIRST)).active == FIRST + 1


def test_rows_that_come_after_the_report_are_announced_at_once() -> None:
    said = reports()
    assert said.complete(commit(FIRST)).active == FIRST - 1
    said.note_active(FIRST + 1, 5.0)
    assert said.due(5.0) == TaskActive(ATTEMPT, TASK, FIRST + 1)


def test_reports_are_kept_for_as_long_as_they_may_be_undecided() -> None:
    said = reports(max_epochs_in_flight=2)
    sent = [said.complete(commit(epoch)) for epoch in range(20)]
    assert said.undecided(current=20) == sent[15:]
    assert said.undecided(current=0) == sent[14:]  # however seldom anybody asks


def test_no_news_get_lost_between_the_two_threads_of_a_task() -> None:
    """One thread has the rows, the other one makes epochs durable; nothing keeps them in step."""
    said = reports()
    epochs = range(FIRST, FIRST + 200)
    told: set[int] = set()

    def make_durable() -> None:
        for epoch in epochs:
            told.add(said.complete(commit(epoch)).active)

    durable = threading.Thread(target=make_durable)
    durable.start()

    def is_told(epoch: int) -> bool:
        message = said.due(0.0)
        if message is not None:
            told.add(message.epoch)
        return epoch in told

    for epoch in epochs:
        said.note_active(epoch, 0.0)
        eventually(partial(is_told, epoch), f"epoch {epoch} is announced")
    durable.join()
