"""Notes when each epoch in flight was started, cut, whole and through each step."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from epochal.clock import Clock
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.effects import (
    Acknowledge,
    CommitSink,
    Decide,
    LogCommit,
    PublishState,
    Step,
)
from epochal.epoch.messages import CommitPartitionEpoch, EpochStarted


class _OffsetSource(Protocol):
    def offset(self, positions: Mapping[str, str]) -> str: ...


@dataclass(slots=True)
class _Notes:
    started_ms: int
    cut_ms: int = 0
    whole_ms: int = 0
    decided_ms: int = 0
    offsets: tuple[str, ...] = ()
    highs: tuple[int, ...] = ()
    watermark_ms: int = 0
    took: dict[type[Step], float] = field(default_factory=dict)


class Ledger:
    """Epochs from their start until they are concluded. Any thread may note something."""

    def __init__(self, clock: Clock, sources: Sequence[_OffsetSource], has_watermark: bool) -> None:
        self._clock, self._sources, self._has_watermark = clock, sources, has_watermark
        self._notes: dict[int, _Notes] = {}
        self._lock = threading.Lock()

    def started(self, message: EpochStarted) -> None:
        """An epoch was announced, and the one before it ends."""
        now_ms = self._clock.now_ms()
        self._of(message.epoch)
        with self._lock:
            before = self._notes.get(message.epoch - 1)
            if before is not None and not before.cut_ms:
                before.cut_ms = now_ms

    def whole(self, epoch: int) -> None:
        """All of an epoch was reported."""
        notes = self._of(epoch)
        notes.whole_ms = self._clock.now_ms()
        notes.cut_ms = notes.cut_ms or notes.whole_ms  # a limited epoch is cut unasked

    def decided(self, step: Decide, positions: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
        """Note where an epoch ends; returns the sources' offsets for it."""
        notes = self._of(step.epoch)
        notes.decided_ms = self._clock.now_ms()
        notes.highs = step.highs
        notes.offsets = tuple(
            source.offset(places) for source, places in zip(self._sources, positions, strict=True)
        )
        return notes.offsets

    def started_ms(self, epoch: int) -> int:
        """When the epoch began."""
        return self._of(epoch).started_ms

    def took(self, step: Step, seconds: float) -> None:
        """A step was taken."""
        with self._lock:
            notes = self._notes.get(step.epoch)
        if notes is None:
            return  # concluded
        notes.took[type(step)] = seconds
        if isinstance(step, LogCommit):
            notes.watermark_ms = step.next_watermark_ms

    def concluded(self, step: Acknowledge) -> CommittedEpoch:
        """Close the notes on an epoch."""
        notes = self._of(step.epoch)
        with self._lock:
            self._notes = {each: kept for each, kept in self._notes.items() if each > step.epoch}
        reports = step.reports
        highest_ms = max(notes.highs, default=-1)
        return CommittedEpoch(
            epoch=step.epoch,
            started_ms=notes.started_ms,
            cut_ms=notes.cut_ms,
            committed_ms=self._clock.now_ms(),
            rows_in=_rows_in(reports, len(self._sources)),
            rows_out=sum(report.rows_out for report in reports),
            offsets=notes.offsets,
            state=_state_rows(reports),
            watermark_ms=notes.watermark_ms if self._has_watermark else None,
            highest_ms=highest_ms if highest_ms >= 0 else None,
            wal_ms=_ms(notes, Decide),
            sink_ms=_ms(notes, CommitSink),
            publish_ms=_ms(notes, PublishState),
            commit_ms=_ms(notes, LogCommit),
            prepare_ms=notes.whole_ms - notes.cut_ms,
            state_ms=_slowest(report.state_seconds for report in reports),
            stage_ms=_slowest(report.stage_seconds for report in reports),
            queue_ms=notes.decided_ms - notes.whole_ms,
        )

    def _of(self, epoch: int) -> _Notes:
        with self._lock:
            return self._notes.setdefault(epoch, _Notes(self._clock.now_ms()))


def _ms(notes: _Notes, step: type[Step]) -> int:
    return round(1000 * notes.took.get(step, 0.0))


def _slowest(seconds: Iterable[float]) -> float:
    return round(1000 * max(seconds, default=0.0), 1)


def _rows_in(reports: Sequence[CommitPartitionEpoch], sources: int) -> tuple[int, ...]:
    counted = [report.rows_in for report in reports if report.rows_in]
    return tuple(map(sum, zip(*counted, strict=True))) if counted else (0,) * sources


def _state_rows(reports: Sequence[CommitPartitionEpoch]) -> tuple[tuple[int, int, int, int], ...]:
    totals: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for report in reports:
        for operator, *counts in report.state_rows:
            totals[operator] = [a + b for a, b in zip(totals[operator], counts, strict=True)]
    return tuple((operator, *counts) for operator, counts in sorted(totals.items()))  # type: ignore[misc]
