"""What a task tells the driver of its epochs: one message per epoch, where possible.

The report of an epoch names everything in it, and also the newest epoch in which the task has rows
or timers. Under steady load that is the next one: its first rows arrive while the report is still
being prepared. A separate `TaskActive` is sent only if no report can carry the news in time: after
idleness, or if preparing takes longer than a quarter of an epoch. So the driver knows of rows well
before the epoch should end.

Reports are kept until they must have been decided, because they may get lost and have to be
repeated.

Any thread may call any method. No clock and no socket: the caller brings the time and sends.
"""

from __future__ import annotations

import threading
from collections import deque

import msgspec

from epochal.connectors.user_code import is_users, report_of
from epochal.epoch.messages import CommitPartitionEpoch, TaskActive, TaskFailed
from epochal.epoch.open_epoch import EPOCH_SECONDS, MAX_EPOCHS_IN_FLIGHT
from epochal.errors.base import FailureKind
from epochal.errors.failures import kind_of

_WAIT = 0.25
"""How long to wait for a report that can carry the news, as a part of an epoch's time."""


class TaskReports:
    """The reports of one task of one attempt."""

    def __init__(
        self,
        *,
        attempt: int,
        task: int,
        first_epoch: int,
        max_epochs_in_flight: int = MAX_EPOCHS_IN_FLIGHT,
        epoch_seconds: float = EPOCH_SECONDS,
    ) -> None:
        self._attempt, self._task = attempt, task
        # Three more, because a hold and the limits after it end epochs regardless of the bound.
        self._epochs = max_epochs_in_flight + 3
        self._kept: deque[CommitPartitionEpoch] = deque()
        self._wait_seconds = _WAIT * epoch_seconds
        self._reported = self._active = self._told = first_epoch - 1
        """The newest epoch that was reported, that has rows, and of which the driver knows that."""
        self._active_since = 0.0
        self._lock = threading.Lock()

    def note_active(self, epoch: int, now: float) -> None:
        """Record that the first rows or timers of an epoch have come, or that it goes on."""
        with self._lock:
            if epoch == self._active:
                self._told = min(self._told, epoch - 1)
            self._active, self._active_since = epoch, now

    def due(self, now: float) -> TaskActive | None:
        """Return the message that must be sent now because no report carries the news in time."""
        if self._told >= self._active:  # the usual case, so without the lock
            return None
        with self._lock:
            if self._told >= self._active:
                return None
            if self._reported < self._active - 1 and now < self._active_since + self._wait_seconds:
                return None  # the report of the epoch before is still to come
            self._told = self._active
            return TaskActive(self._attempt, self._task, self._active)

    def complete(self, report: CommitPartitionEpoch) -> CommitPartitionEpoch:
        """Return a report as it must be sent, and keep it."""
        with self._lock:
            self._reported, self._told = report.epoch, self._active
            report = msgspec.structs.replace(report, active=self._active)
            self._kept.append(report)
            while self._kept[0].epoch < report.epoch - self._epochs:
                self._kept.popleft()
        return report

    def undecided(self, current: int) -> list[CommitPartitionEpoch]:
        """Return the reports that may have to be repeated while `current` is read."""
        with self._lock:
            return [report for report in self._kept if report.epoch >= current - self._epochs]


def failure_report(attempt: int, task: int, error: BaseException) -> TaskFailed:
    """Return what the driver must know of an error that ends a task."""
    kind = FailureKind.REPEATS if is_users(error) else kind_of(error)
    text = f"{type(error).__name__}: {error}"
    return TaskFailed(attempt, task, text, report_of(error), kind)
