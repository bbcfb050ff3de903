"""The reports of epochs that are not decided yet, and the limits of an attempt. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochal.epoch.effects import Acknowledge, Decide, Step, steps_after_decision
from epochal.epoch.event_time.query_watermark import EpochMarks
from epochal.epoch.messages import CommitPartitionEpoch, ReaderWaits, by_store
from epochal.errors import EpochBacklogError, EpochError, EpochProtocolError

EPOCH_SECONDS = 0.1
MAX_EPOCHS_IN_FLIGHT = 8
MAX_BACKLOG = 10_000
"""Spark's default of spark.sql.streaming.continuous.epochBacklogQueueSize."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Time limits in seconds, and limits on what may be in flight."""

    epoch_seconds: float = EPOCH_SECONDS
    idle_epoch_seconds: float = 10.0
    """An epoch without any rows or timers ends after this time."""
    max_epochs_in_flight: int = MAX_EPOCHS_IN_FLIGHT
    """Epochs that have ended but are not committed. At the limit, no epoch is ended."""
    max_backlog: int = MAX_BACKLOG
    register_seconds: float = 60.0
    ready_seconds: float = 600.0
    publish_seconds: float = 10.0
    """How often tasks write their state under Spark's names."""
    stall_seconds: float = 120.0
    """How long an epoch that has ended may take to be committed."""


@dataclass(slots=True)
class OpenEpoch:
    """The reports of an epoch that is not decided yet."""

    ends: dict[int, str] = field(default_factory=dict)
    commits: dict[int, CommitPartitionEpoch] = field(default_factory=dict)

    @property
    def positions(self) -> tuple[str, ...]:
        """Where the readers have ended the epoch, in order. It must be complete."""
        return tuple(self.ends[reader] for reader in sorted(self.ends))

    @property
    def reports(self) -> tuple[CommitPartitionEpoch, ...]:
        """The reports of all tasks, in order. The epoch must be complete."""
        return tuple(self.commits[task] for task in sorted(self.commits))

    @property
    def event_times(self) -> tuple[list[tuple[int, ...]], tuple[str, ...], list[ReaderWaits]]:
        """What tasks have seen, where readers have ended the epoch, and which have rows waiting."""
        reports = self.reports
        waits = [wait for report in reports for wait in report.waits]
        return [report.watermarks for report in reports], self.positions, waits

    def steps(
        self, epoch: int, marks: EpochMarks, published: int, *, sink_decides: bool
    ) -> tuple[Step, ...]:
        """Return all steps of the epoch, which is decided now, in their order."""
        reports, positions = self.reports, self.positions
        messages = tuple(report.message for report in reports)
        state = tuple(sorted((store for report in reports for store in report.state), key=by_store))
        checksums = tuple(report.checksum for report in reports)
        written = () if min(checksums, default=-1) < 0 else checksums
        decide = Decide(epoch, positions, messages, state, marks, written, published)
        after = steps_after_decision(
            epoch, state, messages, marks.next_ms, sink_decides=sink_decides
        )
        return decide, *after, Acknowledge(epoch, positions, reports)


def record(
    table: dict[int, Any], number: int, value: object, count: int, kind: str, epoch: int
) -> EpochError | None:
    """Keep a report. The same report may come again; a different one is an error."""
    if not 0 <= number < count:
        return EpochProtocolError(f"{kind} {number}", f"there are {count}, numbered from 0")
    first = table.setdefault(number, value)
    if first != value:
        return EpochError(
            f"{kind} {number} reported epoch {epoch} twice: first {clip(first)}, then "
            f"{clip(value)}. At most one report is right, so the epoch is not committed; the next "
            f"attempt reads its rows again."
        )
    return None


def backlog_error(
    opened: Mapping[int, OpenEpoch], complete: Collection[int], most: int, limit: int
) -> EpochBacklogError | None:
    """Return an error if there are more reports, or complete epochs, than the limit allows.

    Reports of complete epochs count as one epoch, not as reports. Otherwise the queues of reports
    would always exceed the limit first, and the error would name the wrong queue. `most` is the
    highest number of reports of one kind in an epoch.
    """
    if len(opened) * most <= limit:
        return None  # cheap: even if every report were there, none would be above the limit
    partial = [opened[epoch] for epoch in opened.keys() - complete]
    queues = {
        "partition offset": sum(len(reports.ends) for reports in partial),
        "partition commit": sum(len(reports.commits) for reports in partial),
        "epoch": len(complete),
    }
    over = next((queue for queue, size in queues.items() if size > limit), None)
    return EpochBacklogError(over, queues[over], limit) if over else None


def clip(value: object) -> str:
    return str(value)[:300]
