"""Compares the rows that two queries have written between two boundaries. Pure.

Rows are compared as sets with counts, so their order does not matter. Three cases differ:

- Output that only grows: what was added must be equal.
- Output that is replaced as a whole (output mode complete): all of it must be equal.
- Output in which rows replace others by key: what one has changed must be in the other as it is
  now. The other way round would be wrong, because the first query's table has older keys, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Counter[str]
"""How often each row occurs. A row is JSON with sorted columns."""


@dataclass(frozen=True, slots=True)
class Written:
    added: Rows
    """Rows that were not there before."""
    whole: Rows | None = None
    """All rows after the segment, if one of the two queries has replaced rows in it."""


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The rows that only one of two outputs has."""

    only_a: Rows
    only_b: Rows

    def __bool__(self) -> bool:
        return bool(self.only_a or self.only_b)


def count_rows(rows: Iterable[Row], ignored: Iterable[str] = ()) -> Rows:
    left_out = frozenset(ignored)
    counts: Rows = Counter()
    for row in rows:
        compared = {name: value for name, value in row.items() if name not in left_out}
        counts[row_text(compared)] += 1
    return counts


def row_text(row: Row) -> str:
    """A row as JSON with sorted columns; values that JSON does not have become text."""
    return json.dumps(row, sort_keys=True, ensure_ascii=False, default=_text)


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def subtract_moved(new: Rows, old: Rows, whole: Rows | None = None) -> Written:
    """What a query has written, given the rows in new and in removed parts of its output.

    A row in both was only moved, by a compaction for example.
    """
    return Written(new - old, whole)


def compare(a: Written, b: Written, *, keyed: bool) -> OutputDifference:
    """The rows in which two outputs of the same segment differ."""
    if a.whole is None or b.whole is None:
        return OutputDifference(a.added - b.added, b.added - a.added)
    if keyed:
        return OutputDifference(a.added - b.whole, b.added - a.whole)
    return OutputDifference(a.whole - b.whole, b.whole - a.whole)


def sample(rows: Rows, limit: int) -> list[str]:
    """A few rows, the same ones at every call."""
    return sorted(rows.elements())[:limit]


def pairs_of(
    difference: OutputDifference, key: Sequence[str], limit: int
) -> list[tuple[str | None, str | None]]:
    """A few rows of both sides, those with the same key side by side."""
    if not key:
        only_a = [(row, None) for row in sample(difference.only_a, limit)]
        return [*only_a, *((None, row) for row in sample(difference.only_b, limit))]
    sides: dict[str, list[str | None]] = {}
    for place, rows in enumerate((difference.only_a, difference.only_b)):
        for row in sorted(rows.elements()):
            values = json.loads(row)
            shown = row_text({name: values.get(name) for name in key})
            sides.setdefault(shown, [None, None])[place] = row
    return [(sides[side][0], sides[side][1]) for side in sorted(sides)[:limit]]
