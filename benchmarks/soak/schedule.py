"""Decides what goes wrong when, from a seed. Pure, given the random numbers.

A run has four quarters. The first one warms up. The second and the last suffer the same incidents
in the same order, so that their figures can be compared. In the third no process is killed or
replaced, so that a leak of a long-lived process has time to show.

Note: each upgrade changes the number of tasks between one and two. So a stormy quarter has an even
number of upgrades, or the two that are compared would begin with different numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

STORMY = (
    "worker",
    "upgrade",
    "driver",
    "upgrade",
    "broker",
    "executor",
    "clock",
    "partition",
    "driver's JVM",
    "broker pause",
    "worker",
    "worker",
    "executor",
    "broker",
    "worker",
    "clock",
)
"""What a quarter suffers, the most telling first; a short quarter suffers only the first ones."""

CALM = ("broker", "clock", "partition", "broker pause", "clock", "broker")
"""What the third quarter suffers: processes of the query survive all of it."""

LEAST_GAP_SECONDS, MOST_GAP_SECONDS = 20.0, 75.0
CLOCK_STEPS_SECONDS = (-3600, -60, -1, 1, 60, 3600)
CALM_STEPS_SECONDS = (-3600, -60, -1, 1, 30)
"""Steps by less than a minute forward: at more, Spark's own master gives its executors up."""

WARM_UP, FIRST_STORM, CALM_QUARTER, SECOND_STORM = range(4)


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that goes wrong, or is changed on purpose, at a time since the start."""

    at_seconds: float
    expires_seconds: float
    """When its quarter ends. A machine so slow that it comes that far behind leaves it out."""

    kind: str
    step_seconds: int = 0
    """By how much the clock is wrong for a while; only for `clock`."""


def plan(seconds: float, seed: int, least_gap: float = LEAST_GAP_SECONDS) -> list[Incident]:
    """Return all incidents of a run, in their order."""
    quarter = seconds / 4
    storm = _count(quarter, least_gap)
    found = []
    for number in range(4):
        order = FIRST_STORM if number == SECOND_STORM else number
        rng = Random(f"{seed}/{order}")
        kinds = CALM[: max(2, storm // 3)] if number == CALM_QUARTER else _storm(storm)
        steps = CALM_STEPS_SECONDS if number == CALM_QUARTER else CLOCK_STEPS_SECONDS
        found += _spread(kinds, number * quarter, quarter, steps, rng)
    return found


def _count(quarter: float, least_gap: float) -> int:
    """How many incidents a stormy quarter has."""
    gap = max(least_gap, min(MOST_GAP_SECONDS, quarter / len(STORMY)))
    return max(1, int(quarter / gap))


def _storm(count: int) -> list[str]:
    """The first kinds of the list, and then the list again."""
    kinds = [STORMY[n % len(STORMY)] for n in range(count)]
    if kinds.count("upgrade") % 2:
        kinds[len(kinds) - 1 - kinds[::-1].index("upgrade")] = "worker"
    return kinds


def _spread(
    kinds: Sequence[str], begin: float, length: float, steps: Sequence[int], rng: Random
) -> list[Incident]:
    """Shuffle incidents over a quarter, each at a random time of its own share."""
    order, share = rng.sample(list(kinds), len(kinds)), length / len(kinds)
    return [
        Incident(
            begin + (n + rng.uniform(0.1, 0.6)) * share,
            begin + length,
            kind,
            rng.choice(steps) if kind == "clock" else 0,
        )
        for n, kind in enumerate(order)
    ]
