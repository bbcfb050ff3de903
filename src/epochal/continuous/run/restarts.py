"""Decides whether a failed query is restarted, and after how long. Pure, given random numbers.

There are two limits, for two kinds of failure. A host that fails now and then is worth any number
of restarts, if they are spread out; so restarts are limited per window of time. A row that makes
the user's code fail does so again at once, and the user should hear of it soon; so restarts in a
row that commit no epoch have a lower limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from epochal.errors import (
    CheckpointInUseError,
    CheckpointLostError,
    DriverLostError,
    EpochalError,
    EvaluatorError,
    ExpressionError,
    ForeachBatchError,
    KafkaDataLossError,
    OptionError,
    PlanChangedError,
    PostgresRejectedError,
    PubSubRejectedError,
    RecoveryError,
    TaskFailedError,
)

FATAL = (
    CheckpointInUseError,
    CheckpointLostError,
    DriverLostError,
    ForeachBatchError,
    KafkaDataLossError,
    OptionError,
    PlanChangedError,
    PostgresRejectedError,
    PubSubRejectedError,
    RecoveryError,
)
"""Errors that a restart cannot cure."""

_FATAL_IN_TASKS: dict[str, Callable[[str], Exception]] = {
    "ExpressionError": ExpressionError,
    "EvaluatorError": EvaluatorError.of_text,
}
"""Errors of tasks that a restart cannot cure, by name: errors of tasks come as texts."""


def fatal_error(error: Exception) -> Exception | None:
    """The error to end the query with; None if a restart may cure it."""
    if isinstance(error, FATAL):
        return error
    if not isinstance(error, TaskFailedError) or error.in_user_code:
        return None
    name, _, text = error.error.partition(": ")
    make = _FATAL_IN_TASKS.get(name.rpartition(".")[2])
    return None if make is None else make(text)


def error_text(error: Exception) -> str:
    """Return what the user needs to read: for a failed task, its own error and traceback."""
    match error:
        case TaskFailedError(error=words, cause=cause):
            return f"{words}\n{cause}".strip() if cause and words not in cause else cause or words
        case EpochalError():
            return str(error)
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often and how soon a failed query is restarted."""

    max_restarts: int = 20
    """Per window. With 0 the first failure ends the query."""
    window_seconds: float = 600.0
    max_fruitless: int = 3
    """In a row, without a committed epoch in between."""
    backoff_seconds: float = 0.1
    """Before the second restart in a row without a commit; doubled for each that follows. The first
    restart is at once: after a worker or host was lost there is nothing to wait for."""
    max_backoff_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.max_fruitless < 0:
            raise OptionError(
                f"maxRestarts and maxFruitlessRestarts must not be negative; they are "
                f"{self.max_restarts} and {self.max_fruitless}."
            )
        if self.window_seconds <= 0 or self.backoff_seconds < 0:
            raise OptionError(
                f"restartWindow must be positive and restartBackoff not negative; they are "
                f"{self.window_seconds} s and {self.backoff_seconds} s."
            )


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Restart after this time."""

    seconds: float
    number: int
    """The number of the restart within the window."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the query with its error."""

    reason: str


RestartDecision: TypeAlias = RestartAfter | GiveUp


class Restarts:
    """The failures of one run."""

    def __init__(self, policy: RestartPolicy, rng: Random) -> None:
        self._policy, self._rng = policy, rng
        self._failures: deque[float] = deque(maxlen=policy.max_restarts + 1)
        self._committed: int | None = None
        self._fruitless = 0
        self.total = 0

    def after_failure(
        self, now_seconds: float, committed: int, *, hopeless: bool = False
    ) -> RestartDecision:
        """Decide what to do about a failure; `committed` is the newest committed epoch.

        `hopeless` is the failure of a user's function before any row of this run was committed: it
        never worked, so the next attempt would fail on the same rows.
        """
        policy = self._policy
        if hopeless:
            return GiveUp("the query's own function failed on the first rows of this run")
        stuck = self._committed is not None and committed <= self._committed
        self._fruitless = self._fruitless + 1 if stuck else 0
        self._committed = committed
        while self._failures and now_seconds - self._failures[0] >= policy.window_seconds:
            self._failures.popleft()
        if len(self._failures) >= policy.max_restarts:
            return GiveUp(
                f"it was restarted {len(self._failures)} times within {policy.window_seconds:g} s, "
                f"the limit (maxRestarts, restartWindow)"
            )
        if self._fruitless >= policy.max_fruitless:
            return GiveUp(
                f"{self._fruitless} restarts in a row committed no epoch (maxFruitlessRestarts)"
            )
        self._failures.append(now_seconds)
        self.total += 1
        if not self._fruitless:
            return RestartAfter(0.0, len(self._failures))
        wait = policy.backoff_seconds * 2.0 ** (self._fruitless - 1)
        wait = min(policy.max_backoff_seconds, wait)
        # Half of the wait is random, so that queries that failed together do not restart together.
        return RestartAfter(wait * (0.5 + self._rng.random() / 2), len(self._failures))
