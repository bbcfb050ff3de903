"""Finds the stored rows that have the keys of new rows; removes those that a semi join emits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeAlias

import numpy as np

from epochal.continuous.operators.contract import Row
from epochal.continuous.operators.joins.join_state import KeyRows, SideState

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class Pairs:
    """Pairs of a new row with a stored row of the other side, which has the same key."""

    new: Ints
    """Indexes of the new rows in their batch, ascending."""
    stored: list[Row]
    index: Ints
    """The index of each stored row among the rows of its key."""
    rows: dict[int, KeyRows]
    """For each new row in a pair, the stored rows of its key."""

    def places(self) -> Iterator[tuple[int, KeyRows, int]]:
        """Yield the new row, the stored rows of its key, and the index among them, of each pair."""
        for number, index in zip(self.new.tolist(), self.index.tolist(), strict=True):
            yield number, self.rows[number], index

    def filtered(self, met: Any) -> Pairs:
        """The pairs for which `met`, an array of booleans, is true."""
        return Pairs(
            self.new[met], list(compress(self.stored, met.tolist())), self.index[met], self.rows
        )


def pairs_of(keys: list[Row], other: SideState) -> Pairs:
    """Pair each key with all rows of the other side that have it."""
    rows: dict[int, KeyRows] = {}
    stored: list[Row] = []
    counts: list[int] = []
    known = other.keys
    for number, found in enumerate(map(known.get, keys)):
        if found is not None:
            rows[number] = found
            stored += found.rows
            counts.append(len(found.rows))
    numbers = np.fromiter(rows, np.int64, len(rows))
    lengths = np.array(counts, np.int64)
    starts = np.cumsum(lengths) - lengths
    index = np.arange(len(stored)) - np.repeat(starts, lengths)
    return Pairs(np.repeat(numbers, lengths), stored, index, rows)


def remove_matched(
    left: SideState, keys: list[Row], pairs: Pairs, fleeting: list[bool]
) -> tuple[list[bool], list[Row]]:
    """Remove the left rows that match, in the order of the right rows.

    Returns which right rows matched, and the left rows. A right row for which `fleeting` is true
    matches left rows of earlier epochs only.
    """
    matching: dict[int, set[int]] = {}
    for number, row in zip(pairs.new.tolist(), pairs.stored, strict=True):
        matching.setdefault(number, set()).add(id(row))
    matched = [False] * len(keys)
    removed: list[Row] = []
    for number, wanted in matching.items():
        found = pairs.rows[number]
        index = 0
        while index < (found.old if fleeting[number] else len(found.rows)):
            row = found.rows[index]
            # A row that matched before is only here if an earlier release of Spark stored it.
            if not row[-1] and id(row) not in wanted:
                index += 1
                continue
            if not row[-1]:
                removed.append(row)
                matched[number] = True
            if index < found.old:
                found.remove_old(index)
            else:
                found.remove_new(index)
            left.touch(keys[number], found, 1)
    return matched, removed
