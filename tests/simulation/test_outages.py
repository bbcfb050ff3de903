"""Outages of every component in seeded worlds, and proof that a wrong rule would be noticed.

What the rule should do is in `outage_world`. One world is run again with
`python -m tests.simulation.engine_run --outages SEED`, which tells what happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation import outage_world
from tests.simulation.outage_world import OutageWorld
from tests.simulation.planted import Plant, is_found

from epochal.continuous.run.restarts import RestartDecision, Restarts
from epochal.continuous.tasks import reports
from epochal.errors.base import FailureKind
from epochal.errors.failures import kind_of

SEEDS, PARTS = 400, 4
SEEDS_PER_FAULT = 400


@pytest.mark.parametrize("part", range(PARTS))
def test_no_outage_ends_a_query_too_soon_or_loses_a_row(part: int) -> None:
    wrong, ends, waits = {}, Counter[str](), 0
    for seed in range(part, SEEDS, PARTS):
        world = OutageWorld(seed)
        if found := world.run():
            wrong[seed] = found
        ends.update(world.ends)
        waits += world.waits
    assert wrong == {}
    assert waits > 100
    assert min(ends.values()) > 0  # every way to end is seen


AfterFailure = Callable[[Restarts, float, FailureKind, int], RestartDecision]


def forget_the_kind_in_tasks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "kind_of", lambda _: FailureKind.LOST)


def take(kind: FailureKind, other: FailureKind) -> Plant:
    """Take one kind for another, on the driver and in tasks."""

    def wrong(error: BaseException) -> FailureKind:
        found = kind_of(error)
        return other if found is kind else found

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(reports, "kind_of", wrong)
        patch.setattr(outage_world, "kind_of", wrong)

    return plant


def ruled(change: Callable[[Restarts, Any], None]) -> Plant:
    """Change what the rule remembers before each decision; it is given what it is asked."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real: AfterFailure = Restarts.after_failure

        def after_failure(
            self: Restarts, now: float, kind: FailureKind, commits: int
        ) -> RestartDecision:
            change(self, kind)
            return real(self, now, kind, commits)

        patch.setattr(Restarts, "after_failure", after_failure)

    return plant


def forget_the_outage(rule: Restarts, kind: FailureKind) -> None:
    if kind is FailureKind.LOST:
        rule._outage_since = None


def begin_the_outage_anew(rule: Restarts, kind: FailureKind) -> None:
    del kind
    rule._outage_since = None


def forget_commits(patch: pytest.MonkeyPatch) -> None:
    """A commit ends no outage, and restarts before it count as well."""
    real: AfterFailure = Restarts.after_failure

    def after_failure(
        self: Restarts, now: float, kind: FailureKind, commits: int
    ) -> RestartDecision:
        self._commits = max(self._commits, commits)
        return real(self, now, kind, commits)

    patch.setattr(Restarts, "after_failure", after_failure)


def count_no_restarts(rule: Restarts, kind: FailureKind) -> None:
    del kind
    rule._counted = 0


def think_that_it_has_worked(rule: Restarts, kind: FailureKind) -> None:
    del kind
    rule._commits = max(1, rule._commits)


PLANTED: dict[str, Plant] = {
    "tasks do not say of which kind their error is": forget_the_kind_in_tasks,
    "an outage is taken for a lost worker": take(FailureKind.UNAVAILABLE, FailureKind.LOST),
    "a full disk is taken for a lost worker": take(FailureKind.REFUSED, FailureKind.LOST),
    "a user's error is taken for a lost worker": take(FailureKind.REPEATS, FailureKind.LOST),
    "a full disk ends a query that has worked": take(FailureKind.REFUSED, FailureKind.REPEATS),
    "a worker that is lost in an outage is counted": ruled(forget_the_outage),
    "an outage begins anew with each failure": ruled(begin_the_outage_anew),
    "a commit ends neither an outage nor a row of restarts": forget_commits,
    "lost workers are never too many": ruled(count_no_restarts),
    "a refusal at the start is waited for": ruled(think_that_it_has_worked),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[fault](monkeypatch)
    assert is_found(OutageWorld, SEEDS_PER_FAULT)
