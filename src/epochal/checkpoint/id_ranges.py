"""Ids as ranges of consecutive numbers. Pure.

Ids may be very large, so no function here iterates over a range.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


def missing_runs(present: Iterable[int], low: int, high: int) -> list[range]:
    """The ranges of ids from `low` to `high`, both included, that are not in `present`."""
    inside = sorted(number for number in set(present) if low <= number <= high)
    edges = pairwise([low - 1, *inside, high + 1])
    return [range(before + 1, after) for before, after in edges if after - before > 1]


def runs_of(ids: Iterable[int]) -> list[range]:
    """Group ids, in any order, into ranges."""
    ranges: list[range] = []
    for number in sorted(ids):
        if ranges and ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
    return ranges


def listed(ranges: list[range]) -> str:
    """Format ranges as `3`, `3, 5` or `3..9`; of more than eight, the middle is omitted."""
    words = [
        str(ids.start) if ids.stop - ids.start == 1 else f"{ids.start}..{ids.stop - 1}"
        for ids in ranges
    ]
    return ", ".join(words if len(words) <= 8 else [*words[:4], "…", *words[-3:]])
