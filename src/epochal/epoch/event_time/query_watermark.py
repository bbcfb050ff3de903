"""The watermark formula: from the highest event times seen to the query's watermark. Pure.

The driver computes it over the reports of all tasks (`QueryWatermark`), for the logs and for
recovery. What tasks do with it depends on the query's plan. Either a task computes a watermark by
itself, over the rows that have reached a stage, and uses the driver's as a lower bound. Or
watermarks move at epoch boundaries only, as in Spark's micro-batches: then the driver decides the
watermark of an epoch when it starts the epoch, and the tasks use exactly that.

Note: there are two different "nothing yet" values. A *highest event time* is `NONE_SEEN` (-1) until
a row was seen. A *watermark* starts at 0, as Spark's does: Spark's tracker counts an operator
without rows as 0, never lets the watermark become negative, and logs 0 in `batchWatermarkMs` and
`nextBatchWatermarkMs` until it advances. `NO_WATERMARK` (-1) means something else: the query has no
`with_watermark`, so no row is late and no window closes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from epochal.epoch.event_time.units import UnitMark, Units
from epochal.epoch.messages import CommitPartitionEpoch, ReaderWaits
from epochal.errors import EpochProtocolError

WatermarksMove: TypeAlias = Literal["turn", "epoch"]
"""When the watermark of a stage moves. "turn": with the rows, in every turn of a task. "epoch":
from one epoch to the next, by the driver's decision."""

Policy: TypeAlias = Literal["min", "max"]

POLICY_KEY = "spark.sql.streaming.multipleWatermarkPolicy"
"""The setting that a checkpoint pins; Spark's default is min."""

NONE_SEEN = -1
"""The highest event time of a watermark that has not seen a row."""

NO_WATERMARK = -1
"""The watermark of a query that declares none."""

NOT_ADVANCED = 0
"""The watermark of a query that declares one, before any row has advanced it."""


def policy_of(conf: Mapping[str, str]) -> Policy:
    """Return the policy for several watermarks that a checkpoint's settings pin."""
    return "max" if conf.get(POLICY_KEY, "").lower() == "max" else "min"


def watermark_of(
    highs: Sequence[int], delays_ms: Sequence[int], floor_ms: int, policy: Policy = "min"
) -> int:
    """Return the query's watermark: the slowest one of its plan, and at least `floor_ms`.

    `highs` are the highest event times in ms, per watermark of the plan. One that has seen no row
    counts as 0 and so holds back all others: rows of its source may still arrive with any event
    time. Spark does the same. With the policy "max", the fastest one counts instead.
    `floor_ms` is what the watermark was before: it never moves backwards.
    """
    if not highs:
        return floor_ms
    advanced_ms = [
        NOT_ADVANCED if high < 0 else high - delay_ms
        for high, delay_ms in zip(highs, delays_ms, strict=True)
    ]
    return max(max(advanced_ms) if policy == "max" else min(advanced_ms), floor_ms)


@dataclass(frozen=True, slots=True)
class EpochMarks:
    """What a decided epoch says of event time."""

    highs: tuple[int, ...]
    """Highest event times up to this epoch, per watermark of the plan."""
    own_ms: int
    """The watermark of the epoch."""
    next_ms: int
    """The watermark of the epoch after it."""
    settled: bool = True
    """Whether no later epoch closes windows, unless it has rows."""
    unit: UnitMark | None = None
    """The unit that is being read; None if all event times count."""


class QueryWatermark:
    """The watermark of a query during an attempt, as the driver knows it.

    It follows the decided epochs, as far as `Units` lets their event times count. With "epoch",
    there is one watermark per epoch, which is fixed when the epoch starts and never changes.
    """

    def __init__(
        self,
        *,
        first_epoch: int = 0,
        highs: Sequence[int] = (),
        delays_ms: Sequence[int] = (),
        watermark_ms: int = 0,
        late_ms: int = 0,
        moves: WatermarksMove = "turn",
        policy: Policy = "min",
        units: Units | None = None,
    ) -> None:
        """`watermark_ms` is that of the first epoch, `late_ms` that of the epoch before."""
        self.highs = tuple(highs)
        """Highest event times in the decided epochs."""
        self.units = units or Units(highs=self.highs)
        self._delays_ms, self._policy = tuple(delays_ms), policy
        self._by_epoch = moves == "epoch"
        self._newest_ms = watermark_ms
        self._of_epoch = {first_epoch - 1: late_ms, first_epoch: watermark_ms}
        self._moved = False
        self._moved_in = first_epoch - 2
        """The last epoch at whose end event times began to count that had been held back."""

    def error_in(self, report: CommitPartitionEpoch, readers: int) -> EpochProtocolError | None:
        """Return an error if a report speaks of other watermarks or readers than the plan has."""
        planned = len(self.highs)
        sizes = {len(report.watermarks), *(len(wait.highs) for wait in report.waits)}
        if sizes - {0, planned}:
            reason = f"{max(sizes)} watermarks, the plan has {planned}"
            return EpochProtocolError(f"Task {report.task}", reason)
        for reader in (wait.reader for wait in report.waits):
            if not 0 <= reader < readers:
                return EpochProtocolError(f"Reader {reader}", f"there are {readers}, from 0")
        return None

    def start(self, epoch: int) -> None:
        """Fix the watermark of an epoch that starts now."""
        if self._by_epoch and epoch not in self._of_epoch:
            self._newest_ms = self._formula(self.units.counted)
            self._of_epoch[epoch] = self._newest_ms

    def decide(
        self,
        epoch: int,
        reports: Sequence[Sequence[int]],
        positions: Sequence[str] = (),
        waits: Sequence[ReaderWaits] = (),
    ) -> EpochMarks:
        """Return the watermarks of an epoch that is decided now.

        `reports` are the highest event times of the tasks, `positions` where readers ended it.
        """
        seen = [self.highs, *(highs for highs in reports if highs)]
        self.highs = tuple(max(highs) for highs in zip(*seen, strict=True))
        was_held = self.units.mark is not None
        self.units.take(positions, waits, self.highs)
        unit = self.units.mark
        if self._by_epoch:
            self.start(epoch + 1)
            self._of_epoch = {e: ms for e, ms in self._of_epoch.items() if e >= epoch}
            own_ms, next_ms = self._of_epoch[epoch], self._of_epoch[epoch + 1]
            settled = self._formula(self.highs) <= own_ms
            return EpochMarks(self.highs, own_ms, next_ms, settled, unit)
        before_ms, self._newest_ms = self._newest_ms, self._formula(self.units.counted)
        self._moved = self._newest_ms > before_ms
        if was_held and self._moved:
            self._moved_in = epoch
        # Tasks hear of it at the end of the next epoch, and close windows in the one after it.
        settled = self._formula(self.highs) <= self._newest_ms and epoch >= self._moved_in + 2
        return EpochMarks(self.highs, before_ms, self._newest_ms, settled, unit)

    def wants_epoch(self, current: int) -> bool:
        """Whether the epoch that is being read should end soon, even without rows.

        Its end, or the next epoch, closes windows. Spark runs a batch without data for that.
        """
        if not self._by_epoch:
            moved, self._moved = self._moved, False
            return moved or self._formula(self.highs) > self._newest_ms
        evicts = self._of_epoch[current] > self._of_epoch[current - 1]
        return evicts or self._formula(self.highs) > self._of_epoch[current]

    def in_flight(self) -> tuple[tuple[int, int], ...]:
        """Return (epoch, watermark) of all epochs that tasks may still process.

        The last decided epoch is among them, because it says which rows of the next are late.
        """
        return tuple(sorted(self._of_epoch.items())) if self._by_epoch else ()

    def floor(self) -> tuple[int, ...]:
        """Return the lower bound for watermarks that tasks compute by themselves, as highs."""
        return () if self._by_epoch else self.units.counted

    def _formula(self, highs: Sequence[int]) -> int:
        return watermark_of(highs, self._delays_ms, self._newest_ms, self._policy)
