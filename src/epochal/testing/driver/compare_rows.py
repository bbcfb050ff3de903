"""Compares rows of output with what a test expects, and says which rows differ. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

Expected: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""A row: values by column, or values in the order of the columns."""

MAX_SHOWN = 20
"""Rows of one kind in a difference."""


class OutputRows(list[dict[str, Any]]):
    """Rows of output. With the pytest plugin, a failed comparison shows which rows differ."""


def rows_equal(
    found: Iterable[Expected], expected: Iterable[Expected], *, ordered: bool = False
) -> Literal[True]:
    """Return True if these are the same rows; otherwise AssertionError with those that differ.

    By default their order does not matter. Rows are dicts, or tuples in the order of the columns.
    """
    lines = difference(list(found), list(expected), ordered=ordered)
    if lines:
        raise AssertionError("\n".join(lines))
    return True


def difference(
    found: Sequence[Expected], expected: Sequence[Expected], *, ordered: bool
) -> list[str]:
    """Return in lines how rows differ from what was expected; none if they do not."""
    columns = _columns([*found, *expected])
    left, right = (_name_columns(rows, columns) for rows in (found, expected))
    at_left, at_right = ([_frozen(row) for row in rows] for rows in (left, right))
    missing = _without(right, at_right, Counter(at_left))
    unexpected = _without(left, at_left, Counter(at_right))
    if missing or unexpected:
        return [
            f"found {len(left)} row{'s' * (len(left) != 1)}, expected {len(right)}:",
            *_show("missing   ", missing),
            *_show("unexpected", unexpected),
        ]
    if ordered and at_left != at_right:
        at = next(
            n for n, (one, other) in enumerate(zip(at_left, at_right, strict=True)) if one != other
        )
        return [
            f"the rows are the expected ones, but in another order, from row {at} on:",
            f"  expected   {right[at]}",
            f"  found      {left[at]}",
        ]
    return []


def _columns(rows: Iterable[Expected]) -> list[str] | None:
    """Return the columns of the first row that names them."""
    return next((list(row) for row in rows if isinstance(row, Mapping)), None)


def _name_columns(rows: Iterable[Expected], columns: list[str] | None) -> list[Any]:
    return [
        dict(row)
        if isinstance(row, Mapping)
        else tuple(row)
        if columns is None or len(row) != len(columns)
        else dict(zip(columns, row, strict=True))
        for row in rows
    ]


def _frozen(value: Any) -> Any:
    """Return something that has a hash, and is equal for equal values. NaN equals NaN here."""
    match value:
        case Mapping():
            return frozenset((_frozen(key), _frozen(item)) for key, item in value.items())
        case list() | tuple():
            return tuple(map(_frozen, value))
        case set():
            return frozenset(map(_frozen, value))
        case bytearray():
            return bytes(value)
        case float() if math.isnan(value):
            return "NaN", "of a float"
    return value


def _without(rows: Sequence[Any], frozen: Sequence[Any], others: Counter[Any]) -> list[Any]:
    """Return the rows that are not among the others, each as often as it is not."""
    left, missing = Counter(others), []
    for row, key in zip(rows, frozen, strict=True):
        if left[key] > 0:
            left[key] -= 1
        else:
            missing.append(row)
    return missing


def _show(kind: str, rows: Sequence[Any]) -> list[str]:
    lines = [f"  {kind} {row}" for row in rows[:MAX_SHOWN]]
    if len(rows) > MAX_SHOWN:
        lines.append(f"  {kind} … and {len(rows) - MAX_SHOWN} more")
    return lines
