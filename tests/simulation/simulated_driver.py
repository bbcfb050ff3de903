"""A driver and a sink of a simulated world, which can do more than those for tests of users.

The epochs of the driver may be planned: each then ends where the world says. The sink may decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeAlias

from epochal.connectors.contract import Positions
from epochal.continuous.operators.contract import Row
from epochal.continuous.plan.stages import ReaderPlan
from epochal.continuous.run.planned_epochs import PlannedEpochs
from epochal.epoch.driver import Listeners
from epochal.epoch.effects import ReadingHeld
from epochal.errors import EpochError
from epochal.testing.driver.processes import DriverProcess
from epochal.testing.driver.staged_sink import OUTPUT, StagedSink, visible_tables
from epochal.testing.files import MemoryFiles

NextEnds: TypeAlias = Callable[[Sequence[Positions]], Sequence[Positions]]
"""Where the next epoch ends that starts at these positions of the sources."""


class SimulatedDriver(DriverProcess):
    """One run. With `next_ends` every epoch is planned."""

    def __init__(self, *values: Any, next_ends: NextEnds | None) -> None:
        super().__init__(*values)
        self._next_ends = next_ends
        self.is_planned = False
        """Whether Spark planned the first epoch of the attempt."""
        self._epochs: PlannedEpochs | None = None
        self._held: deque[Any] = deque()

    def _listeners(self) -> Listeners:
        listeners = super()._listeners()
        if self._next_ends is None:
            return listeners
        self._held = deque()  # an earlier attempt fills its own
        return replace(listeners, held=self._held.append)

    def _held_at(self, readers: Sequence[ReaderPlan]) -> tuple[str, ...] | None:
        if self._next_ends is None:
            return None
        planner: Any = self
        opened: Any = SimpleNamespace(
            plans_epochs=True,
            has_end=False,
            options=SimpleNamespace(epoch=timedelta(seconds=self._pace.epoch_seconds)),
        )
        self._epochs = PlannedEpochs(
            planner, opened, self._clock, self._held.append, lambda **_: None
        )
        return tuple(reader.position for reader in readers)

    def plan(self, held: ReadingHeld) -> bool:
        """Plan the next epoch; return False if there is none."""
        driver, next_ends = self.driver, self._next_ends
        assert driver is not None
        assert next_ends is not None
        return driver.plan(held, next_ends(driver.held_at(held)))

    def hold(self) -> bool:
        """End what is read."""
        assert self.driver is not None
        return self.driver.hold()

    def follow(self) -> None:
        """Do what the thread of a run does: plan, or end the attempt if it is to stop."""
        driver, epochs = self.driver, self._epochs
        if driver is None or epochs is None:
            return
        if not self._held:
            if epochs.due is not None:
                epochs.plan()
            return
        held = self._held.popleft()
        if epochs.plans:
            epochs.take(held)
        elif not driver.limit(held):
            driver.finish()

    def stop(self) -> bool:
        """End gracefully; return False if no task reads yet."""
        assert self.driver is not None
        return self.driver.stop() if self._epochs is None else self._epochs.hold()


class DecidingSink(StagedSink):
    """A sink in which an epoch is decided by its commit."""

    decides = True

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        self.files.info(f"{OUTPUT}/{epoch}")  # a moment at which the process may stop
        # What follows is one act of the sink itself: nobody comes between.
        if self.fenced() > self.attempt:
            raise EpochError(f"attempt {self.attempt} was fenced by attempt {self.fenced()}")
        if self.truth.info(f"{OUTPUT}/{epoch}") is None:
            self.truth.create(f"{OUTPUT}/{epoch}", b"\n".join(messages))


def visible(truth: MemoryFiles) -> dict[int, list[Row]]:
    """The rows that the sink shows, by epoch."""
    return {
        epoch: list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        for epoch, table in visible_tables(truth).items()
    }
