"""Ids as runs of neighbours. Pure. An id may be astronomical, so nothing here counts up to one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


def missing_runs(present: Iterable[int], low: int, high: int) -> list[range]:
    """What is missing from `low` to `high`, both included."""
    inside = sorted(each for each in set(present) if low <= each <= high)
    edges = pairwise([low - 1, *inside, high + 1])
    return [range(before + 1, after) for before, after in edges if after - before > 1]


def runs_of(ids: Iterable[int]) -> list[range]:
    """Ids, in any order, as runs."""
    runs: list[range] = []
    for each in sorted(ids):
        if runs and runs[-1].stop == each:
            runs[-1] = range(runs[-1].start, each + 1)
        else:
            runs.append(range(each, each + 1))
    return runs


def listed(runs: list[range]) -> str:
    """Runs for people: `3`, `3, 5` or `3..9`, the middle left out when there are many."""
    words = [
        str(run.start) if run.stop - run.start == 1 else f"{run.start}..{run.stop - 1}"
        for run in runs
    ]
    return ", ".join(words if len(words) <= 8 else [*words[:4], "…", *words[-3:]])
