"""Plans the epochs of an attempt one by one: where each ends, and when the next may be planned.

Used if a source has a bound for each epoch (`maxFilesPerTrigger`), or if the query ends when all
that waited is read (`availableNow`). In all other queries epochs end by time, and nothing is
planned.

A plan is not written down. An epoch that was planned and not decided was never visible, so after a
crash it is planned again, from the same position and with the same bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from epochal.clock import Clock
from epochal.continuous.run.run_events import AllRead
from epochal.epoch.effects import ReadingHeld
from epochal.errors import KafkaUnavailableError

if TYPE_CHECKING:  # the test driver plans epochs too, without PySpark
    from epochal.continuous.run.attempt import RunAttempt
    from epochal.continuous.run.open_query import Opened

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often the sources are asked whether there is more to read."""


class PlannedEpochs:
    """What the thread of a run knows of the planned epochs of one attempt."""

    def __init__(
        self,
        attempt: RunAttempt,
        opened: Opened,
        clock: Clock,
        post: Callable[[ReadingHeld | AllRead], None],
        show: Callable[..., None],
    ) -> None:
        """`show` changes what the query's handle shows."""
        self._attempt, self._opened, self._clock = attempt, opened, clock
        self._post, self._show = post, show
        self.plans = opened.plans_epochs and not attempt.is_planned
        """Whether an epoch follows when reading is held. Otherwise the attempt ends, as it does
        after a batch that Spark planned."""
        self._held: ReadingHeld | None = None
        """Where reading is held until the next plan; None while an epoch is read."""
        self._next_at = 0.0
        self._trouble = ""
        self.due: float | None = None
        """When to call `plan`; None if only an event can change that."""

    def take(self, held: ReadingHeld) -> None:
        """Plan the next epoch, now that reading is held."""
        self._held = held
        self.plan()

    def plan(self) -> None:
        """Plan the next epoch if it is time and there is something to read."""
        now = self._clock.monotonic()
        if self._held is None or now < self._next_at:
            self.due = None if self._held is None else self._next_at
            return
        self.due, trouble = now + LOOK_SECONDS, ""
        try:
            if self._attempt.plan(self._held):
                self._held = self.due = None
                pace = 0.0 if self._opened.has_end else self._opened.options.epoch.total_seconds()
                self._next_at = now + pace
            elif self._opened.has_end:
                self.due = None
                self._post(AllRead())
        except KafkaUnavailableError as error:
            trouble = str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            self._show(degraded=trouble)
            if trouble:
                logger.warning("the next epoch cannot be planned yet: %s", trouble)

    def hold(self) -> bool:
        """End what is read and plan nothing more; return False if no task reads yet."""
        held, self._held, self.due, self.plans = self._held, None, None, False
        if held is not None:
            self._post(held)
        return self._attempt.hold()
