"""Trees of stages in seeded worlds, and proof that they would notice.

A seed that fails is run again by itself with `python -m tests.simulation.engine_run --trees SEED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.engine_trees import HoldingSpec, TreeWorld
from tests.simulation.planted import Plant, is_found, wrong_worlds

from epochal.continuous.operators.contract import Moment
from epochal.continuous.tasks.exchange import Inbox
from epochal.continuous.tasks.frames import Frame
from epochal.continuous.tasks.stage_times import EpochTimes, TurnTimes
from epochal.continuous.tasks.task import TaskCore, TurnOutput
from epochal.epoch.event_time.query_watermark import EpochMarks, QueryWatermark

SEEDS, PARTS = 800, 4
SEEDS_PER_FAULT = 1_000


@pytest.mark.parametrize("part", range(PARTS))
def test_every_epoch_shows_what_its_rows_and_watermark_make_whatever_goes_wrong(part: int) -> None:
    assert wrong_worlds(TreeWorld, range(part, SEEDS, PARTS)) == {}


@pytest.mark.long
@pytest.mark.timeout(3600)  # ten minutes of CPU time and more
def test_every_epoch_is_right_in_many_more_worlds() -> None:
    assert wrong_worlds(TreeWorld, range(10_000)) == {}


def align_one_side_only(patch: pytest.MonkeyPatch) -> None:
    """Frames behind a marker are processed at once on the last edge of a stage."""
    real = Inbox.take

    def take(self: Inbox) -> list[Frame]:
        found = real(self)
        last = max(edge for edge, _ in self._of)
        for (edge, _), channel in self._of.items():
            if edge == last and len({each for each, _ in self._of}) > 1 and channel.marked:
                while channel.queue and channel.queue[0].batch is not None:
                    frame = channel.queue.popleft()
                    channel.processed, channel.data = frame.seq, channel.data - 1
                    found.append(frame)
        return found

    patch.setattr(Inbox, "take", take)


def write_at_once(patch: pytest.MonkeyPatch) -> None:
    """Rows do not wait at the sink until all producers have ended the epoch before."""
    real = TaskCore._emit

    def emit(self: TaskCore, producer: int, to: Any, rows: Sequence[Any], epoch: int) -> None:
        if to.stage == self._plan.sink:
            self._write(rows)
        else:
            real(self, producer, to, rows, epoch)

    patch.setattr(TaskCore, "_emit", emit)


def use_the_newest_watermark(patch: pytest.MonkeyPatch) -> None:
    real = EpochTimes.of_stage

    def of_stage(self: EpochTimes, stage: int, inbox: Inbox, now_ms: int) -> Moment:
        newest = self._stages_ms[max(self._stages_ms)][stage]
        return replace(real(self, stage, inbox, now_ms), watermark_ms=newest)

    patch.setattr(EpochTimes, "of_stage", of_stage)


def judge_lateness_by_the_own_watermark(patch: pytest.MonkeyPatch) -> None:
    real = EpochTimes.of_stage

    def of_stage(self: EpochTimes, stage: int, inbox: Inbox, now_ms: int) -> Moment:
        at = real(self, stage, inbox, now_ms)
        return replace(at, late_ms=at.watermark_ms)

    patch.setattr(EpochTimes, "of_stage", of_stage)


def skip_epochs_without_rows(patch: pytest.MonkeyPatch) -> None:
    """A stage that got no rows in an epoch does not close windows."""
    process, cut = TaskCore._process, TaskCore._cut_stage
    busy: set[tuple[int, int, int]] = set()

    def processed(self: TaskCore, index: int, now_ms: int) -> None:
        stage, epoch = self._stages[index], self._exchange.inboxes[index].epoch
        had, stage.had_input = stage.had_input, False
        process(self, index, now_ms)
        if stage.had_input:
            busy.add((id(self), index, epoch))
        stage.had_input = stage.had_input or had

    def ended(self: TaskCore, index: int, now_ms: int, out: TurnOutput) -> None:
        if (id(self), index, self._exchange.inboxes[index].epoch) not in busy:
            self._turn_times = TurnTimes(self._plan)
        cut(self, index, now_ms, out)
        self._turn_times = None

    patch.setattr(TaskCore, "_process", processed)
    patch.setattr(TaskCore, "_cut_stage", ended)


def send_the_current_watermark_only(patch: pytest.MonkeyPatch) -> None:
    """A task that missed a push knows nothing of the epoch, and goes by the newest it knows."""
    in_flight, of_stage = QueryWatermark.in_flight, EpochTimes.of_stage

    def newest(self: QueryWatermark) -> tuple[tuple[int, int], ...]:
        return in_flight(self)[-2:]

    def guessed(self: EpochTimes, stage: int, inbox: Inbox, now_ms: int) -> Moment:
        for epoch in (inbox.epoch - 1, inbox.epoch):
            if epoch not in self._stages_ms:
                self._stages_ms[epoch] = self._stages_ms[max(self._stages_ms)]
        return of_stage(self, stage, inbox, now_ms)

    patch.setattr(QueryWatermark, "in_flight", newest)
    patch.setattr(EpochTimes, "of_stage", guessed)
    patch.setattr(EpochTimes, "knows", lambda self, epoch: bool(self._stages_ms))


def announce_another_watermark(patch: pytest.MonkeyPatch) -> None:
    """The commit entry says what the watermark could be by now, not what the next epoch has."""
    real = QueryWatermark.decide

    def decide(self: QueryWatermark, epoch: int, reports: Any, *more: Any) -> EpochMarks:
        return replace(real(self, epoch, reports, *more), next_ms=self._formula(self.highs))

    patch.setattr(QueryWatermark, "decide", decide)


def ignore_the_watermark_of_a_side(patch: pytest.MonkeyPatch) -> None:
    """The watermark follows the fastest input."""
    real = QueryWatermark.__init__

    def init(self: QueryWatermark, **given: Any) -> None:
        real(self, **{**given, "policy": "max"})

    patch.setattr(QueryWatermark, "__init__", init)


def give_every_stage_the_same_watermark(patch: pytest.MonkeyPatch) -> None:
    """What a join holds back is not subtracted for the stages after it."""
    patch.setattr(HoldingSpec, "output_watermark_ms", lambda self, input_ms: input_ms)


PLANTED: dict[str, Plant] = {
    "markers are ignored on one side": align_one_side_only,
    "rows of the next epoch are written early": write_at_once,
    "a later epoch's watermark closes windows": use_the_newest_watermark,
    "rows are late by their own epoch's watermark": judge_lateness_by_the_own_watermark,
    "windows stay open in an epoch without rows": skip_epochs_without_rows,
    "pushes have the newest watermark only": send_the_current_watermark_only,
    "a commit names another watermark than the next epoch": announce_another_watermark,
    "the fastest input moves the watermark": ignore_the_watermark_of_a_side,
    "a join passes its whole watermark on": give_every_stage_the_same_watermark,
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[fault](monkeypatch)
    assert is_found(TreeWorld, SEEDS_PER_FAULT)
