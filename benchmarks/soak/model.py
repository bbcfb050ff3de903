"""Compares rows of the table with what the query must have written, commit by commit. Pure.

Rows of a key may arrive in any order, because a key moves to another partition when partitions are
added. So the order is taken from the totals: sorted by total, each row must continue where the one
before it ended. A row that is lost, counted twice or computed from old state breaks the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from benchmarks.soak.releases import WITH_HANDLED, weight

COLUMNS = ("k", "total", "n", "release", "handled")
MOST_FAULTS = 20


class Model:
    """What the table contains so far, and what is wrong with it."""

    def __init__(self) -> None:
        self.rows, self.complete, self.faults = 0, 0, list[str]()
        self.totals: dict[int, int] = {}
        self._handled: dict[int, int] = {}
        self._seen = np.zeros(1 << 16, bool)

    def add(self, where: str, columns: Sequence[Sequence[Any]]) -> None:
        """Add the rows of one commit: the lists of `COLUMNS`."""
        for k, total, n, release, handled in sorted(zip(*columns, strict=True), key=_place):
            self._add(where, k, total, n, release, handled)
        self._advance()

    def _add(self, where: str, k: int, total: int, n: int, release: int, handled: Any) -> None:
        self.rows += 1
        while n >= len(self._seen):
            self._seen = np.append(self._seen, np.zeros(len(self._seen), bool))
        if self._seen[n]:
            self._fault(f"{where}: row {n} is there twice")
        self._seen[n] = True
        expected = self.totals.get(k, 0) + n + weight(release)
        if total != expected:
            self._fault(f"{where}: row {n} of key {k} has the total {total}, not {expected}")
        self.totals[k] = total
        count = self._handled[k] = self._handled.get(k, 0) + 1
        if release >= WITH_HANDLED and handled != count:
            self._fault(f"{where}: row {n} of key {k} is number {handled}, not {count}")

    def _advance(self) -> None:
        """Move `complete` to the first row that is missing."""
        while self.complete < len(self._seen) and self._seen[self.complete]:
            rest = self._seen[self.complete :]
            missing = int(np.argmin(rest))
            self.complete += missing if not rest[missing] else len(rest)

    def _fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)


def _place(row: tuple[Any, ...]) -> tuple[int, int, int]:
    """Where a row stands in the chain of its key."""
    return row[0], row[1], row[2]
