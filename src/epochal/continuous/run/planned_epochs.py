"""Plans the epochs of an attempt one by one: where each ends, and when the next may be planned.

Used if a source has a bound for each epoch (`maxFilesPerTrigger`), or if the query ends when all
that waited is read (`availableNow`). In all other queries epochs end by time, and nothing is
planned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from epochal.clock import Clock
from epochal.continuous.run.attempt import Attempt
from epochal.continuous.run.open_query import Opened
from epochal.epoch.effects import ReadingHeld
from epochal.errors import KafkaUnavailableError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often the sources are asked whether there is more to read."""


class PlannedEpochs:
    """What the thread of a run knows of the planned epochs of one attempt."""

    def __init__(
        self, attempt: Attempt, opened: Opened, clock: Clock, post: Callable[[ReadingHeld], None]
    ) -> None:
        self._attempt, self._opened, self._clock, self._post = attempt, opened, clock, post
        # An attempt that repeats an epoch ends after it.
        self._plans = opened.plans_epochs and not attempt.is_planned
        self._held: ReadingHeld | None = None
        """Where reading is held until the next plan; None while an epoch is read."""
        self._next_at = 0.0
        self.due: float | None = None
        """When to call `plan`; None if only an event can change that."""

    def take(self, held: ReadingHeld) -> bool:
        """Whether an epoch is to be planned, now that reading is held; else the attempt ends."""
        if self._plans:
            self._held = held
        return self._plans

    def plan(self) -> str:
        """Plan the next epoch if it is time and there is one.

        Return why a source cannot be asked at the moment; empty if all can.
        """
        now, trouble = self._clock.monotonic(), ""
        self.due = self._next_at
        if self._held is None or now < self._next_at:
            return ""
        try:
            if self._attempt.plan(self._held):
                self._held = self.due = None
                pace = 0.0 if self._opened.has_end else self._opened.options.epoch.total_seconds()
                self._next_at = now + pace
                return ""
        except KafkaUnavailableError as error:
            logger.warning("the next epoch cannot be planned yet: %s", error)
            trouble = str(error)
        self.due = now + LOOK_SECONDS
        return trouble

    def hold(self) -> bool:
        """End what is read and plan nothing more; return False if no task reads yet."""
        held, self._plans, self.due = self._held, False, None
        if held is not None:
            self._held = None
            self._post(held)
        return self._attempt.hold()
