"""Records when each epoch in flight was started, cut, complete and through each step."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from epochal.clock import Clock
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.contract import LoggedSource, Positions
from epochal.epoch.effects import Acknowledge, CommitSink, Decide, LogCommit, PublishState, Step
from epochal.epoch.messages import CommitPartitionEpoch, EpochStarted


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


class EpochTimings:
    """The epochs from their start to their commit. Any thread may record a time."""

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
        timing.highs, timing.settled = step.highs, step.settled
        timing.offsets = tuple(
            source.offset(at) for source, at in zip(self._sources, positions, strict=True)
        )
        return timing.offsets

    def started_ms(self, epoch: int) -> int:
        """Return when the epoch began."""
        return self._of(epoch).started_ms

    def took(self, step: Step, seconds: float) -> None:
        """Record how long a step took."""
        with self._lock:
            timing = self._epochs.get(step.epoch)
        if timing is None:
            return  # a step after `concluded`, which has closed the epoch's record
        timing.took[type(step)] = seconds
        if isinstance(step, LogCommit):
            timing.watermark_ms = step.next_watermark_ms

    def concluded(self, step: Acknowledge) -> CommittedEpoch:
        """Close the record of an epoch and return its figures."""
        timing = self._of(step.epoch)
        with self._lock:
            self._epochs = {each: kept for each, kept in self._epochs.items() if each > step.epoch}
        reports = step.reports
        highest_ms = max(timing.highs, default=-1)
        return CommittedEpoch(
            epoch=step.epoch,
            started_ms=timing.started_ms,
            cut_ms=timing.cut_ms,
            committed_ms=self._clock.now_ms(),
            rows_in=_rows_in(reports, len(self._sources)),
            rows_out=sum(report.rows_out for report in reports),
            offsets=timing.offsets,
            state=_state_rows(reports),
            watermark_ms=timing.watermark_ms if self._has_watermark else None,
            highest_ms=highest_ms if highest_ms >= 0 else None,
            settled=timing.settled,
            wal_ms=_ms(timing, Decide),
            sink_ms=_ms(timing, CommitSink),
            publish_ms=_ms(timing, PublishState),
            commit_ms=_ms(timing, LogCommit),
            prepare_ms=timing.complete_ms - timing.cut_ms,
            state_ms=_slowest(report.state_seconds for report in reports),
            stage_ms=_slowest(report.stage_seconds for report in reports),
            queue_ms=timing.decided_ms - timing.complete_ms,
            dead_letters=sum(report.dead_letters for report in reports),
            observed=tuple(each for report in reports for each in report.observed),
            late_rows=_late_rows(reports),
        )

    def _of(self, epoch: int) -> _Timing:
        with self._lock:
            return self._epochs.setdefault(epoch, _Timing(self._clock.now_ms()))


def _ms(timing: _Timing, step: type[Step]) -> int:
    return round(1000 * timing.took.get(step, 0.0))


def _slowest(seconds: Iterable[float]) -> float:
    return round(1000 * max(seconds, default=0.0), 1)


def _rows_in(reports: Sequence[CommitPartitionEpoch], sources: int) -> tuple[int, ...]:
    counted = [report.rows_in for report in reports if report.rows_in]
    return tuple(map(sum, zip(*counted, strict=True))) if counted else (0,) * sources


def _late_rows(reports: Sequence[CommitPartitionEpoch]) -> tuple[tuple[int, int], ...]:
    dropped: defaultdict[int, int] = defaultdict(int)
    for report in reports:
        for operator, rows in report.late_rows:
            dropped[operator] += rows
    return tuple(sorted(dropped.items()))


def _state_rows(reports: Sequence[CommitPartitionEpoch]) -> tuple[tuple[int, int, int, int], ...]:
    totals: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for report in reports:
        for operator, *counts in report.state_rows:
            totals[operator] = [a + b for a, b in zip(totals[operator], counts, strict=True)]
    return tuple((operator, *counts) for operator, counts in sorted(totals.items()))  # type: ignore[misc]
