"""What time it is for a stage: when rows are late, and which windows close. Pure.

There are two kinds of time, and the plan says which one a query has.

- `TurnTimes`: a stage's watermark moves with the rows that reach it, in every turn. It is computed
  here, from the highest event times that frames carry and the driver's lower bound. While rows wait
  (see `epochal.epoch.event_time.units`) the driver's bound alone moves it.
- `EpochTimes`: the watermark is constant during an epoch, as in a micro-batch of Spark. The driver
  decides it when it starts the epoch. Rows are late by the watermark of the epoch before, and the
  epoch's own watermark closes windows, once, when the epoch ends.

Note: with `EpochTimes` a stage may not process an epoch before it knows the epoch's watermark.
That concerns the first epoch only, when a peer's rows may come before the driver's push. A stage
enters a later epoch after this task's own marker, and the push that causes the marker brings all
watermarks up to that epoch.
"""

from __future__ import annotations

from typing import TypeAlias

from epochal.continuous.operators.contract import Moment
from epochal.continuous.plan.stages import QueryPlan, input_watermarks
from epochal.continuous.tasks.exchange import Inbox
from epochal.epoch.event_time.query_watermark import NO_WATERMARK, NOT_ADVANCED, watermark_of
from epochal.epoch.messages import EpochStarted


class TurnTimes:
    """Watermarks that move with the rows."""

    def __init__(self, plan: QueryPlan) -> None:
        self._delays_ms = tuple(mark.delay_ms for mark in plan.watermarks)
        self._start_ms = NOT_ADVANCED if plan.watermarks else NO_WATERMARK
        self._floor: tuple[int, ...] = ()
        self._is_held = True  # until the driver says how it is
        self._watermarks_ms = [self._start_ms] * len(plan.stages)
        self._late_ms = [self._start_ms] * len(plan.stages)

    def learn(self, push: EpochStarted) -> None:
        """Take in what the driver says."""
        self._is_held = push.held
        if push.watermarks:
            floor = self._floor or push.watermarks
            self._floor = tuple(map(max, floor, push.watermarks))

    def knows(self, epoch: int) -> bool:
        """Whether rows of this epoch may be processed."""
        del epoch
        return True

    def of_sources(self, now_ms: int, epoch: int) -> Moment:
        floor_ms = self._floor_ms()
        return Moment(now_ms, floor_ms, epoch, floor_ms)

    def of_stage(self, stage: int, inbox: Inbox, now_ms: int) -> Moment:
        self.moved(stage, inbox)
        return Moment(now_ms, self._watermarks_ms[stage], inbox.epoch, self._late_ms[stage])

    def moved(self, stage: int, inbox: Inbox) -> bool:
        """Advance the stage's watermark; return whether there are windows for it to close."""
        if self._delays_ms:
            floor_ms = max(self._watermarks_ms[stage], self._floor_ms())
            highs = self._floor if self._is_held else inbox.highs(len(self._delays_ms))
            self._watermarks_ms[stage] = watermark_of(highs, self._delays_ms, floor_ms)
        return self._watermarks_ms[stage] != self._late_ms[stage]

    def expired(self, stage: int, at: Moment) -> None:
        """The stage has closed windows up to the watermark, so rows before it are late now."""
        self._late_ms[stage] = at.watermark_ms

    def _floor_ms(self) -> int:
        return watermark_of(self._floor, self._delays_ms, self._start_ms)


class EpochTimes:
    """Watermarks that move from one epoch to the next."""

    def __init__(self, plan: QueryPlan) -> None:
        self._plan = plan
        self._query_ms: dict[int, int] = {}
        self._stages_ms: dict[int, tuple[int, ...]] = {}
        """Per epoch, the watermark of each stage's input."""

    def learn(self, push: EpochStarted) -> None:
        for epoch, watermark_ms in push.epoch_watermarks_ms:
            if epoch not in self._query_ms:
                self._query_ms[epoch] = watermark_ms
                self._stages_ms[epoch] = input_watermarks(self._plan, watermark_ms)
        # The push names every epoch that may still be processed, and the one before them.
        oldest = min((epoch for epoch, _ in push.epoch_watermarks_ms), default=-1)
        for epoch in [past for past in self._query_ms if past < oldest]:
            del self._query_ms[epoch], self._stages_ms[epoch]

    def knows(self, epoch: int) -> bool:
        return epoch in self._query_ms

    def of_sources(self, now_ms: int, epoch: int) -> Moment:
        return Moment(now_ms, self._query_ms[epoch], epoch, self._query_ms[epoch - 1])

    def of_stage(self, stage: int, inbox: Inbox, now_ms: int) -> Moment:
        epoch = inbox.epoch
        late_ms = self._stages_ms[epoch - 1][stage]
        return Moment(now_ms, self._stages_ms[epoch][stage], epoch, late_ms)


StageTimes: TypeAlias = TurnTimes | EpochTimes
"""The time of each stage and of the sources."""
