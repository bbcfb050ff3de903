"""Finds the stored rows that have the keys of new rows; removes those that a semi join emits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epochal.continuous.operators.contract import Row
from epochal.continuous.operators.joins.join_state import KeyRows, SideState


@dataclass(slots=True)
class Pairs:
    """Pairs of a new row with a stored row of the other side, which has the same key."""

    new: list[int]
    """Indexes into the batch, ascending."""
    stored: list[Row]
    places: list[tuple[Row, KeyRows, int]]
    """Where each stored row is: its key, the rows of the key, the index among them."""

    def filtered(self, met: Sequence[bool]) -> Pairs:
        kept = [at for at, each in enumerate(met) if each]
        return Pairs(
            [self.new[at] for at in kept],
            [self.stored[at] for at in kept],
            [self.places[at] for at in kept],
        )


def pairs_of(keys: list[Row], other: SideState) -> Pairs:
    found = Pairs([], [], [])
    known = other.keys
    if not known:
        return found
    new, stored, places = found.new, found.stored, found.places
    for number, key in enumerate(keys):
        rows = known.get(key)
        if rows is not None:
            for index, row in enumerate(rows.rows):
                new.append(number)
                stored.append(row)
                places.append((key, rows, index))
    return found


def remove_matched(
    left: SideState, keys: list[Row], pairs: Pairs, fleeting: list[bool]
) -> tuple[list[bool], list[Row]]:
    """Remove the left rows that match, in the order of the right rows.

    Returns which right rows matched, and the left rows. A right row for which `fleeting` is true
    matches left rows of earlier epochs only.
    """
    matching: dict[int, set[int]] = {}
    for number, row in zip(pairs.new, pairs.stored, strict=True):
        matching.setdefault(number, set()).add(id(row))
    matched = [False] * len(keys)
    removed: list[Row] = []
    for number, wanted in matching.items():
        found = left.keys.get(keys[number])
        if found is None:
            continue
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
