"""Decides whether a figure stayed flat over a run. Pure.

Two rules, both over medians, so that single peaks do not count:

- **level**: the median of the last quarter is at most the median of the second quarter, times
  `ratio`, plus `slack`. Both quarters suffer the same incidents.
- **slope**: a straight line through the third quarter, in which no process is replaced, rises by at
  most the same over the whole quarter. The line is Theil's and Sen's: the median of all slopes.

A fall is always flat.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

Series = Sequence[tuple[float, float]]
"""Pairs of seconds since the start and a value."""

MOST_POINTS = 200
"""The number of slopes grows with the square of the points."""


@dataclass(frozen=True, slots=True)
class Limit:
    """By how much a figure may be larger at the end."""

    ratio: float
    slack: float

    def above(self, level: float) -> float:
        return level * self.ratio + self.slack


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found about one figure. A level is None if a quarter has no samples."""

    second: float | None
    last: float | None
    rise: float | None
    """By how much the line rises over the third quarter."""

    reasons: tuple[str, ...]
    """Why the figure is not flat; empty if it is."""

    @property
    def flat(self) -> bool:
        return not self.reasons


def judge(series: Series, seconds: float, limit: Limit) -> Verdict:
    """Judge the samples of a run that took so many seconds."""
    quarters = [[(at, v) for at, v in series if int(4 * at / seconds) == n] for n in range(4)]
    second, third, last = (_median(quarter) for quarter in quarters[1:])
    rise = line_slope(quarters[2]) * seconds / 4 if len(quarters[2]) > 1 else None
    return Verdict(second, last, rise, tuple(_reasons(second, third, last, rise, limit)))


def _reasons(
    second: float | None, third: float | None, last: float | None, rise: float | None, limit: Limit
) -> Iterator[str]:
    if second is None or third is None or last is None or rise is None:
        yield "a quarter has no samples from a time in which nothing went wrong"
        return
    if last > limit.above(second):
        yield f"the last quarter's median {last:.4g} is above {limit.above(second):.4g}"
    if rise > (room := limit.above(third) - third):
        yield f"it rises by {rise:.4g} in the third quarter, more than {room:.4g}"


def line_slope(points: Series) -> float:
    """The median slope per second between all pairs of points."""
    step = max(1, -(-len(points) // MOST_POINTS))
    pairs = combinations(points[::step], 2)
    return statistics.median((v2 - v1) / (t2 - t1) for (t1, v1), (t2, v2) in pairs if t2 > t1)


def _median(series: Series) -> float | None:
    return statistics.median(value for _, value in series) if series else None
