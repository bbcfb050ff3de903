"""Worlds in which components stop working for a while, and a query that waits, restarts or ends.

Storage under the checkpoint or under the sink is full, read-only or gone; there are no slots; an
expression fails on a row; workers die again and again; and what happens in other worlds, too. What
the query does about it is the engine's own rule. The world knows what it did to the query, and says
what should follow: `expected` is written from docs/options.md, without the engine's code.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from random import Random

from tests.simulation.engine_world import World
from tests.simulation.simulated_driver import SimulatedDriver
from tests.simulation.world import CHANGES

from epochal.continuous.run.restarts import GiveUp, RestartPolicy, Restarts, error_text
from epochal.errors import EpochalError, ExpressionError, TooFewSlotsError
from epochal.errors.failures import kind_of
from epochal.testing.driver.processes import CHECKPOINT

POLICY = RestartPolicy(max_restarts=2, outage_seconds=40.0)
OUTAGES = ("full", "read-only", "gone", "no slots")
REFUSALS = ("full", "read-only")
NUMBERS = {"full": errno.ENOSPC, "read-only": errno.EROFS, "gone": errno.EIO}
USERS_FAULT = "by zero, on purpose"


@dataclass(slots=True)
class Course:
    """How one run of the query fares, told by what the world did to it."""

    rule: Restarts
    start: int | None = None
    """The newest committed epoch when the run began."""
    committed: int = -1
    outage_since: float | None = None
    lost: int = 0
    """Failures without an outage since the last commit."""
    failures: list[str] = field(default_factory=list)

    def note_commits(self, committed: int) -> None:
        if self.start is None:
            self.start = self.committed = committed
        if committed > self.committed:
            self.committed, self.outage_since, self.lost = committed, None, 0

    def expected(self, cause: str, now: float) -> str:
        """Whether the run must restart or end after a failure with this cause."""
        if cause == "user":
            return "end"
        if cause in REFUSALS and self.committed == self.start:
            return "end"
        if cause in OUTAGES and self.outage_since is None:
            self.outage_since = now
        if self.outage_since is not None:
            return "end" if now - self.outage_since >= POLICY.outage_seconds else "restart"
        self.lost += 1
        return "end" if self.lost > POLICY.max_restarts else "restart"


class OutageWorld(World):
    """One run of everything, with outages."""

    bounds = (None,)

    def __init__(self, seed: int) -> None:
        self._weather = Random(f"weather {seed}")
        self.outage: tuple[str, str, float] | None = None
        """What is wrong, with what, and until when."""
        self.outages = self._weather.randrange(4)
        self.ends = {"outage": 0, "user": 0, "lost": 0}
        self.waits = 0
        """How many failures were waited out."""
        self._courses: dict[str, Course] = {}
        self._doomed = 0
        """How many of the next attempts lose a worker as soon as they start."""
        super().__init__(seed)

    def _act_wildly(self) -> None:
        driver = self.driver
        works = driver is not None and driver.alive and driver.failure is None
        if self.outage is None and self.outages and self._weather.random() < 0.02 and works:
            self.outages -= 1
            self._begin_outage()
        elif works and self._weather.random() < 0.002:
            task = self._some_task()
            if task is not None and task.alive:
                self.story.append(f"the user's fault in task {task.attempt}/{task.task}")
                task.fail(ExpressionError(USERS_FAULT))
        elif not self._doomed and self._weather.random() < 0.005:
            self._doomed = self._weather.randint(1, 4)
        super()._act_wildly()

    def _begin_outage(self) -> None:
        seconds = self._weather.choice((1.0, 5.0, 20.0, 60.0))
        where = self._weather.choice((f"{CHECKPOINT}/", "", f"{CHECKPOINT}/commits/"))
        what = self._weather.choice(OUTAGES)
        self.outage = what, where, self.clock.monotonic() + seconds
        self.story.append(f"{what} below {where or 'everything'} for {seconds} s")

    def _now(self, *what: str) -> str:
        """What of this is wrong at the moment; empty if nothing is."""
        if self.outage is not None and self.clock.monotonic() >= self.outage[2]:
            self.story.append(f"no longer {self.outage[0]}")
            self.outage = None
        return "" if self.outage is None or self.outage[0] not in what else self.outage[0]

    def _use(self, operation: str, path: str) -> None:
        trouble = self._now(*NUMBERS)
        if not trouble or self.outage is None or not path.startswith(self.outage[1]):
            return
        if operation in CHANGES if trouble != "full" else operation in ("create", "replace"):
            number = NUMBERS[trouble]
            raise OSError(number, f"{os.strerror(number)} [{trouble}]", path)

    def _attempt_with(self, driver: SimulatedDriver) -> None:
        if self._now("no slots"):
            driver.driver = None
            driver.failure = TooFewSlotsError(2, 0, 2, 5.0)
            return
        super()._attempt_with(driver)
        self._note(driver)
        if self._doomed and driver.failure is None:
            self._doomed -= 1
            driver.failure = EpochalError("a worker is gone")

    def _note(self, driver: SimulatedDriver) -> Course:
        course = self._courses.setdefault(
            driver.guard.run_id, Course(Restarts(POLICY, Random(self.seed)))
        )
        if driver.driver is not None:
            course.note_commits(driver.driver.coordinator.committed)
        return course

    def _revive(self) -> None:
        driver = self.driver
        if driver is not None and driver.alive and driver.failure is not None:
            self._decide(driver, driver.failure)
        super()._revive()

    def _decide(self, driver: SimulatedDriver, failure: Exception) -> None:
        """Do what the engine does about a failure, and compare it with what it should do."""
        course, now, cause = self._note(driver), self.clock.monotonic(), cause_of(failure)
        since = course.outage_since
        should = course.expected(cause, now)
        commits = 0 if course.start is None else course.committed - course.start
        decision = course.rule.after_failure(now, kind_of(failure), commits)
        does = "end" if isinstance(decision, GiveUp) else "restart"
        if does != should:
            self.wrong.append(f"the query must {should} after {error_text(failure)!r}: {decision}")
        if isinstance(decision, GiveUp):
            self.story.append(f"{driver.guard.run_id} gives up: {decision.reason}")
            self.ends["user" if cause == "user" else "outage" if since or cause else "lost"] += 1
            driver.alive = False
            driver.guard.release()
        else:
            self.waits += cause in OUTAGES
            self.clock.advance(decision.seconds)


def cause_of(failure: Exception) -> str:
    """What the world did that shows in an error; empty for a crash or a lost message."""
    text = error_text(failure)
    if USERS_FAULT in text:
        return "user"
    if isinstance(failure, TooFewSlotsError):
        return "no slots"
    if os.strerror(NUMBERS["gone"]) in text:
        return "gone"  # other worlds have such errors, too: of one request
    return next((each for each in OUTAGES if f"[{each}]" in text), "")
