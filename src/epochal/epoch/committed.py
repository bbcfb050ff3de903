"""The figures of a committed epoch, and the times they are made of, for reports and metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochal.clock import Clock
from epochal.epoch.contract import LoggedSource, Positions
from epochal.epoch.effects import Acknowledge, CommitSink, Decide, LogCommit, PublishState, Step
from epochal.epoch.messages import EpochStarted
from epochal.metrics.run_records import EpochDone


class CommittedEpoch(EpochDone, frozen=True, kw_only=True):
    """One committed epoch: its record, without attempt and acknowledgement, and what reports add.

    The durations `wal_ms`, `sink_ms`, `publish_ms` and `commit_ms` are those of its four steps:
    decision, sink commit, publication of state, commit log.
    """

    offsets: tuple[str, ...] = ()
    """Per source, where the epoch ended, as Spark logs it."""
    state: tuple[tuple[int, int, int, int], ...] = ()
    """(operator, rows in total, rows updated, rows removed), over all tasks."""
    watermark_ms: int | None = None
    """None if the query has no watermark."""
    highest_ms: int | None = None
    """Highest event time seen; None if none."""
    settled: bool = True
    """Whether no later epoch closes windows, unless it has rows."""
    observed: tuple[tuple[str, bytes], ...] = ()
    """(name, buffers) of `observe`, per task with rows."""
    late_rows: tuple[tuple[int, int], ...] = ()
    """(operator, rows that it dropped as late), over all tasks."""

    @property
    def has_data(self) -> bool:
        return bool(
            sum(self.rows_in) or self.rows_out or any(up or gone for _, _, up, gone in self.state)
        )


@dataclass(slots=True)
class _Timing:
    started_ms: int
    cut_ms: int = 0
    complete_ms: int = 0
    decided_ms: int = 0
    offsets: tuple[str, ...] = ()
    highs: tuple[int, ...] = ()
    watermark_ms: int = 0
    settled: bool = True
    took: dict[type[Step], float] = field(default_factory=dict)

    def ms(self, step: type[Step]) -> int:
        return round(1000 * self.took.get(step, 0.0))


class EpochTimings:
    """The epochs in flight, from their start to their commit. Any thread may record a time."""

    def __init__(self, clock: Clock, sources: Sequence[LoggedSource], has_watermark: bool) -> None:
        self._clock, self._sources, self._has_watermark = clock, sources, has_watermark
        self._epochs: dict[int, _Timing] = {}
        self._lock = threading.Lock()

    def started(self, message: EpochStarted) -> None:
        """Record that an epoch was announced, so that the one before it ended."""
        now_ms = self._clock.now_ms()
        self._of(message.epoch)
        with self._lock:
            before = self._epochs.get(message.epoch - 1)
            if before is not None and not before.cut_ms:
                before.cut_ms = now_ms

    def planned(self, epoch: int) -> None:
        """Record that an epoch that was held begins now."""
        self._of(epoch).started_ms = self._clock.now_ms()

    def completed(self, epoch: int) -> None:
        """Record that all reports of an epoch are there."""
        timing = self._of(epoch)
        timing.complete_ms = self._clock.now_ms()
        timing.cut_ms = timing.cut_ms or timing.complete_ms  # tasks cut a limited epoch unasked

    def decided(self, step: Decide, positions: Sequence[Positions]) -> tuple[str, ...]:
        """Record where an epoch ends; return the sources' offsets for it."""
        timing = self._of(step.epoch)
        timing.decided_ms = self._clock.now_ms()
        timing.highs, timing.settled = step.marks.highs, step.marks.settled
        timing.offsets = tuple(
            source.offset(at) for source, at in zip(self._sources, positions, strict=True)
        )
        return timing.offsets

    def started_ms(self, epoch: int) -> int:
        return self._of(epoch).started_ms

    def took(self, step: Step, seconds: float) -> None:
        with self._lock:
            timing = self._epochs.get(step.epoch)
        if timing is None:
            return  # a step after `concluded`, which has closed the epoch's record
        timing.took[type(step)] = seconds
        if isinstance(step, LogCommit):
            timing.watermark_ms = step.next_watermark_ms

    def concluded(self, step: Acknowledge) -> CommittedEpoch:
        """Close the record of an epoch and return its figures."""
        timing, reports = self._of(step.epoch), step.reports
        with self._lock:
            self._epochs = {
                epoch: later for epoch, later in self._epochs.items() if epoch > step.epoch
            }
        counted = [report.rows_in for report in reports if report.rows_in]
        highest_ms = max(timing.highs, default=-1)
        return CommittedEpoch(
            epoch=step.epoch,
            started_ms=timing.started_ms,
            cut_ms=timing.cut_ms,
            committed_ms=self._clock.now_ms(),
            rows_in=tuple(map(sum, zip(*counted, strict=True))) or (0,) * len(self._sources),
            rows_out=sum(report.rows_out for report in reports),
            offsets=timing.offsets,
            state=_by_operator(rows for report in reports for rows in report.state_rows),
            watermark_ms=timing.watermark_ms if self._has_watermark else None,
            highest_ms=highest_ms if highest_ms >= 0 else None,
            settled=timing.settled,
            wal_ms=timing.ms(Decide),
            sink_ms=timing.ms(CommitSink),
            publish_ms=timing.ms(PublishState),
            commit_ms=timing.ms(LogCommit),
            prepare_ms=timing.complete_ms - timing.cut_ms,
            state_ms=_slowest_ms(report.state_seconds for report in reports),
            stage_ms=_slowest_ms(report.stage_seconds for report in reports),
            queue_ms=timing.decided_ms - timing.complete_ms,
            dead_letters=sum(report.dead_letters for report in reports),
            observed=tuple(buffers for report in reports for buffers in report.observed),
            late_rows=_by_operator(rows for report in reports for rows in report.late_rows),
        )

    def _of(self, epoch: int) -> _Timing:
        with self._lock:
            return self._epochs.setdefault(epoch, _Timing(self._clock.now_ms()))


def _slowest_ms(seconds: Iterable[float]) -> float:
    return round(1000 * max(seconds, default=0.0), 1)


def _by_operator(counts: Iterable[tuple[int, ...]]) -> Any:
    """Add up what tasks have counted; the first number of each count is the operator."""
    totals: dict[int, list[int]] = {}
    for operator, *numbers in counts:
        before = totals.get(operator, [0] * len(numbers))
        totals[operator] = [a + b for a, b in zip(before, numbers, strict=True)]
    return tuple((operator, *numbers) for operator, numbers in sorted(totals.items()))
