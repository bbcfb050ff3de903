"""Runs a query through random histories, and shortens the first one that goes wrong.

What the query shows at the end must be what it shows if the same rows are fed and nothing happens.
A history that fails is shortened for as long as it still fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from epochal.testing.driver.compare_rows import OutputRows, difference
from epochal.testing.driver.histories import (
    DELAYS_MS,
    CrashAndRestart,
    Disturb,
    EndEpoch,
    Feed,
    History,
    Trouble,
    Wait,
    calm,
    drawn,
    is_possible,
    shrunk,
)
from epochal.testing.driver.wall_clock import seen_time

if TYPE_CHECKING:
    from epochal.testing.driver.query_driver import Driver

Result: TypeAlias = Callable[[list[dict[str, Any]]], Any]
"""Makes of all output what must be the same in every history."""


class FuzzError(AssertionError):
    """A history in which the query goes wrong: the seed, the shortened history, the difference."""

    def __init__(self, seed: int, history: History, wrong: str) -> None:
        super().__init__(seed, history, wrong)
        self.seed, self.history, self.wrong = seed, history, wrong

    def __str__(self) -> str:
        told = "\n".join(f"  {number}. {each}" for number, each in enumerate(self.history, 1))
        return (
            f"the query goes wrong in this history (seed {self.seed}):\n{told}\n{self.wrong}\n"
            f"To run it again: fuzz(..., seeds=[{self.seed}])"
        )


@dataclass(frozen=True, slots=True)
class Fuzzing:
    """How histories of one query are run and compared."""

    make: Callable[[int, int], Driver]
    """Returns a driver that has not run yet, for a number of tasks and a seed."""
    functions: Sequence[Any]
    """Those of the pipeline, which see the time of the driver."""
    result: Result | None
    reset: Callable[[], None] | None

    def search(
        self, feed: Mapping[str, Sequence[Any]], seeds: Iterable[int], trouble: Trouble
    ) -> None:
        """Run a history per seed; FuzzError for the first that goes wrong."""
        for seed in seeds:
            chance = random.Random(seed)
            tasks = chance.choice((1, 2, 3))
            history = drawn(chance, feed, trouble)
            if self.wrong(history, tasks, seed) is None:
                continue
            short = shrunk(history, partial(self._fails, tasks=tasks, seed=seed))
            raise FuzzError(seed, short, self.wrong(short, tasks, seed) or "")

    def _fails(self, history: History, tasks: int, seed: int) -> bool:
        try:
            return self.wrong(history, tasks, seed) is not None
        except Exception:  # noqa: BLE001  without trouble it fails too, so it shows nothing
            return False

    def wrong(self, history: History, tasks: int, seed: int) -> str | None:
        """Return what is wrong with a history; None if all is well.

        An error that also comes without any trouble is raised.
        """
        if not is_possible(history):
            return None
        expected = self._outcome(calm(history), tasks, seed)
        try:
            found = self._outcome(history, tasks, seed)
        except Exception as error:  # noqa: BLE001  it is the user's code that fails
            return f"it fails: {type(error).__name__}: {error}"
        if isinstance(found, OutputRows):
            lines = difference(found, expected, ordered=False)
            return "\n".join(lines) or None
        if found == expected:
            return None
        return f"the result is        {found}\nand in a calm history {expected}"

    def _outcome(self, history: History, tasks: int, seed: int) -> Any:
        if self.reset is not None:
            self.reset()
        driver = self.make(tasks, seed)
        try:
            with seen_time(driver.clock.now_ms, self.functions):
                run_history(driver, history)
            rows = driver.output
        finally:
            driver.close()
        return rows if self.result is None else self.result(rows)


def run_history(driver: Driver, history: History) -> None:
    """Let a driver that has just been made go through a history, and run until it is at rest."""
    for action in history:
        match action:
            case Feed(source, rows):
                driver.feed(source, rows)
            case EndEpoch():
                driver.epoch()
            case Wait(time):
                driver.advance(DELAYS_MS[time])
            case Disturb(how):
                driver.disturb(how)
            case CrashAndRestart(step):
                driver.crash(at=step)
                driver.restart()
    driver.run()
