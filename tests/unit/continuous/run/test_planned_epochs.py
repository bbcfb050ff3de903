"""When epochs are planned: paced, looked for while there is nothing, and no more after a hold."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from epochal.continuous.run.planned_epochs import LOOK_SECONDS, PlannedEpochs
from epochal.continuous.run.run_events import AllRead
from epochal.epoch.effects import ReadingHeld
from epochal.errors import KafkaUnavailableError
from epochal.testing.clock import ManualClock

HELD = ReadingHeld(7, ("0",))
PACE = 2.0


class World:
    """An attempt that says whether there is an epoch to plan, and what became of it."""

    is_planned = False

    def __init__(self, *answers: bool | Exception, has_end: bool = False) -> None:
        self.answers, self.plans = list(answers), 0
        self.posted: list[Any] = []
        self.shown: list[str] = []
        self.clock = ManualClock()
        self.opened: Any = SimpleNamespace(
            plans_epochs=True,
            has_end=has_end,
            options=SimpleNamespace(epoch=timedelta(seconds=PACE)),
        )

    def plan(self, held: ReadingHeld) -> bool:
        assert held == HELD
        self.plans += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def hold(self) -> bool:
        return True

    def show(self, *, degraded: str) -> None:
        self.shown.append(degraded)

    def epochs(self) -> PlannedEpochs:
        attempt: Any = self
        return PlannedEpochs(attempt, self.opened, self.clock, self.posted.append, self.show)


def test_the_next_epoch_begins_at_the_pace_of_epochs() -> None:
    world = World(True, True)
    epochs = world.epochs()
    epochs.take(HELD)
    assert (world.plans, epochs.due) == (1, None)
    began = world.clock.monotonic()
    world.clock.advance(0.5)
    epochs.take(HELD)
    assert (world.plans, epochs.due) == (1, began + PACE)
    world.clock.advance(PACE - 0.5)
    epochs.plan()
    assert (world.plans, epochs.due) == (2, None)


def test_a_run_with_an_end_does_not_wait_and_says_when_nothing_is_left() -> None:
    world = World(True, True, False, has_end=True)
    epochs = world.epochs()
    for _ in range(3):
        assert world.posted == []
        epochs.take(HELD)
    assert (world.plans, world.posted, epochs.due) == (3, [AllRead()], None)


def test_while_there_is_nothing_to_read_the_sources_are_asked_now_and_then() -> None:
    world = World(False, False, True)
    epochs = world.epochs()
    epochs.take(HELD)
    for _ in range(2):
        assert epochs.due == world.clock.monotonic() + LOOK_SECONDS
        world.clock.advance(LOOK_SECONDS)
        epochs.plan()
    assert (world.plans, world.posted, epochs.due) == (3, [], None)


def test_a_source_that_cannot_be_asked_is_shown_once_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    down = KafkaUnavailableError("k:9092", "refused")
    world = World(down, down, True)
    epochs = world.epochs()
    epochs.take(HELD)
    for _ in range(2):
        world.clock.advance(LOOK_SECONDS)
        epochs.plan()
    assert world.shown == [str(down), ""]
    assert len(caplog.messages) == 1


def test_after_a_hold_nothing_is_planned_and_the_held_reading_is_passed_on() -> None:
    world = World(False)
    epochs = world.epochs()
    epochs.take(HELD)
    assert (epochs.plans, epochs.hold(), epochs.plans) == (True, True, False)
    assert (world.posted, epochs.due) == ([HELD], None)
    world.clock.advance(60.0)
    epochs.plan()
    assert (world.plans, epochs.due) == (1, None)
