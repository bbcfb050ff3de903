"""Decides what a query does about a failure: wait and restart, or end. Pure, given random numbers.

The kind of the error decides (see `epochal.errors.failures`), and what this run has committed:

| kind        | before the run's first commit   | after it                                         |
|-------------|---------------------------------|--------------------------------------------------|
| repeats     | end                             | end                                              |
| refused     | end                             | as unavailable                                   |
| unavailable | restart until `outageTimeout`   | restart until `outageTimeout`                    |
| lost        | restart, `maxRestarts` in a row | restart, `maxRestarts` in a row without a commit |

The first restart after a commit is at once, and pauses grow until the next commit. An outage begins
with its first failure and ends with a commit. Restarts in between count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import TypeAlias

from epochal.errors import (
    EpochalError,
    EvaluatorError,
    ExpressionError,
    OptionError,
    TaskFailedError,
)
from epochal.errors.base import FailureKind

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
"""Before the second restart in a row without a commit, doubled for each that follows; and at most.
A query should go on within seconds after an outage."""

_OWN_WORDS: dict[str, type[ExpressionError | EvaluatorError]] = {
    "ExpressionError": ExpressionError,
    "EvaluatorError": EvaluatorError,
}
"""Errors of tasks that say all there is to say, by name. They come as text."""


def ending_error(error: Exception) -> Exception:
    """Return the error to end the query with: what the task raised, if its text says all."""
    if isinstance(error, TaskFailedError) and error.kind is FailureKind.REPEATS:
        name, _, text = error.error.partition(": ")
        match _OWN_WORDS.get(name.rpartition(".")[2]):
            case type() as own if own is EvaluatorError:
                return EvaluatorError.of_text(text)
            case type() as own:
                return own(text)
    return error


def error_text(error: Exception) -> str:
    """Return what the user needs to read: for a failed task, its own error and traceback."""
    match error:
        case TaskFailedError(error=words, cause=cause):
            return f"{words}\n{cause}".strip() if cause and words not in cause else cause or words
        case EpochalError():
            return str(error)
    return f"{type(error).__name__}: {error}"


def waiting_text(error: Exception, now_ms: int, seconds: float) -> str:
    """Say in one line what the query has waited for so long, and since when."""
    text = error.error if isinstance(error, TaskFailedError) else error_text(error)
    since = datetime.fromtimestamp(round(now_ms / 1000 - seconds), UTC)
    return f"waiting since {since:%Y-%m-%d %H:%M:%S} UTC: {text.strip().partition(chr(10))[0]}"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long a failed query is restarted."""

    max_restarts: int = 5
    """In a row, without a committed epoch in between and outside of outages."""
    outage_seconds: float = 600.0
    """How long an outage may last; with 0 for ever."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.outage_seconds < 0:
            raise OptionError(
                f"maxRestarts and outageTimeout must not be negative; they are "
                f"{self.max_restarts} and {self.outage_seconds:g} s."
            )


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Restart after this time."""

    seconds: float
    outage_since: float | None = None
    """When the outage began to which the failure belongs; None if it belongs to none."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the query with its error."""

    reason: str


RestartDecision: TypeAlias = RestartAfter | GiveUp


class Restarts:
    """The failures of one run."""

    def __init__(self, policy: RestartPolicy, rng: Random) -> None:
        self._policy, self._rng = policy, rng
        self._commits = 0
        self._outage_since: float | None = None
        self._in_a_row = self._counted = 0
        """Failures since the last commit, and those of them that `maxRestarts` counts."""
        self.total = 0

    def after_failure(self, now: float, kind: FailureKind, commits: int) -> RestartDecision:
        """Decide what to do; `commits` is how many epochs the run has committed so far."""
        policy = self._policy
        if commits > self._commits:
            self._commits, self._outage_since = commits, None
            self._in_a_row = self._counted = 0
        if kind is FailureKind.REPEATS:
            return GiveUp("it would fail again")
        if kind is FailureKind.REFUSED and not self._commits:
            return GiveUp("it has not committed anything yet, so its settings may be wrong")
        if kind is not FailureKind.LOST and self._outage_since is None:
            self._outage_since = now
        since = self._outage_since
        if since is None:
            if self._counted >= policy.max_restarts:
                return GiveUp(f"{self._counted} restarts in a row committed no epoch (maxRestarts)")
            self._counted += 1
        elif 0 < policy.outage_seconds <= now - since:
            return GiveUp(f"the outage has lasted for {now - since:.0f} s (outageTimeout)")
        pause = 0.0
        if self._in_a_row:
            doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(self._in_a_row - 1, 16)
            # Half of the pause is random, so that queries that failed together do not restart
            # together.
            pause = min(LONGEST_PAUSE_SECONDS, doubled) * (0.5 + self._rng.random() / 2)
        self._in_a_row += 1
        self.total += 1
        return RestartAfter(pause, None if kind is FailureKind.LOST else since)
