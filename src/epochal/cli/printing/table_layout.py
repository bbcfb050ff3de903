"""Lays out tables and paragraphs for a terminal of some width. Pure: text in, lines out.

A table that is too wide is folded: its widest columns become narrower, at the ends of words where
possible. If that would leave too little of them, columns with the same value in all rows are said
once, above the table. If it still does not fit, each row is written as a block of lines instead.
Without a width nothing is folded, so that the output of a pipe can be searched.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

GAP = "  "
NARROWEST = 12
"""A column is not folded below this width."""
LONGEST_WORD = 30
"""Words up to this length stay whole: a time has 24 characters, `window=[` and a time up to 29."""
MOST_LINES = 12
"""A cell that would take more lines than this makes the table a list of blocks."""
MARKS = ",;/.:=>-_"
"""Characters after which a long word may be folded."""

_QUOTED = re.compile(r"`[^`]*`")
_UNBROKEN = "\0"


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> tuple[str, list[str]]:
    """The head of a table and its lines; the head is empty if the rows became blocks."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if (table := _table(columns, cells, width)) is not None:
        return table
    assert width is not None
    return "", list(_blocks(columns, cells, width))


def shared_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> list[int]:
    """The columns to say once, above a table that is otherwise too wide; empty if it fits anyway.

    They have the same value in all rows. The widest are taken, and no more than necessary.
    """
    if width is None or len(rows) < 2:
        return []
    cells = [[printable(cell) for cell in row] for row in rows]
    same = [at for at, column in enumerate(zip(*cells, strict=True)) if len({*column}) == 1]
    same.sort(key=lambda at: max(cells_wide(columns[at]), cells_wide(cells[0][at])))
    if len(same) == len(columns):
        return []
    taken: list[int] = []
    while True:
        shown = [at for at in range(len(columns)) if at not in taken]
        left = [[row[at] for at in shown] for row in cells]
        if _table([columns[at] for at in shown], left, width) is not None:
            return sorted(taken)
        if not same:
            return []
        taken.append(same.pop())


def _table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width: int | None
) -> tuple[str, list[str]] | None:
    """The head and the lines of a table; None if it cannot fit."""
    natural = [max(map(cells_wide, column)) for column in zip(columns, *cells, strict=True)]
    room = None if width is None else width - len(GAP) * (len(columns) - 1)
    if room is None or sum(natural) <= room:
        return _line(columns, natural), [_line(row, natural) for row in cells]
    words = [_longest_word(column) for column in zip(columns, *cells, strict=True)]
    widths = _narrow(natural, words, room)
    if widths is None:
        return None
    folded = [[fold_text(cell, widths[at]) for at, cell in enumerate(row)] for row in cells]
    if any(len(cell) > MOST_LINES for row in folded for cell in row):
        return None
    lines = []
    for row in folded:
        height = max(map(len, row))
        padded = [[*cell, *[""] * (height - len(cell))] for cell in row]
        lines += [_line(part, widths) for part in zip(*padded, strict=True)]
    return _line(columns, widths), lines


def text_lines(text: str, width: int | None, indent: str = "") -> list[str]:
    """The lines of a paragraph; all but the first are indented.

    What stands in backticks is never folded: a command that was cut in two cannot be copied. If it
    is wider than the terminal, it begins on a line of its own, which the terminal folds.
    """
    if width is None or cells_wide(text) <= width:
        return [text]
    lines: list[str] = []
    line: str | None = None
    for word in _QUOTED.sub(lambda quoted: quoted[0].replace(" ", _UNBROKEN), text).split(" "):
        room = width - (len(indent) if lines else 0)
        longer = word if line is None else f"{line} {word}"
        if cells_wide(longer) <= room:
            line = longer
            continue
        if line is not None and line.strip(" "):
            lines.append(line.rstrip(" "))
            room = width - len(indent)
        if "`" in word:
            line = word
        else:
            *full, line = fold_text(word, room)
            lines += full
    first, *rest = (wrapped.replace(_UNBROKEN, " ") for wrapped in (*lines, line or ""))
    return [first, *(f"{indent}{text}" for text in rest)]


def fold_text(text: str, width: int) -> list[str]:
    """Fold text at spaces, or else after punctuation, or else anywhere."""
    lines = []
    left = text
    while cells_wide(left) > width:
        end = _fits(left, width)
        # The space itself may stand at the fold.
        space = left.rfind(" ", 0, end + 1)
        mark = max(left.rfind(mark, 0, end) for mark in MARKS) + 1
        if space > 0:
            lines.append(left[:space].rstrip(" "))
            left = left[space + 1 :]
        else:
            cut = mark if mark > width // 3 else end
            lines.append(left[:cut])
            left = left[cut:]
    return [*lines, left]


def printable(text: str) -> str:
    """Text without control characters: a newline in a key must not break its row."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def cells_wide(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell + " " * (wide - cells_wide(cell)) for cell, wide in zip(cells, widths, strict=True)
    )
    return GAP.join(padded).rstrip(" ")


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    margin = max(map(cells_wide, columns)) + len(GAP)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for name, cell in zip(columns, row, strict=True):
            if cell:
                first = name + " " * (margin - cells_wide(name))
                for line in fold_text(cell, max(width - margin, NARROWEST)):
                    yield f"{first}{line}".rstrip(" ")
                    first = " " * margin


def _narrow(natural: Sequence[int], words: Sequence[int], room: int) -> list[int] | None:
    """Widths that fit: the widest columns are narrowed to one common width; None if too narrow."""
    least = [
        min(wide, max(min(word, LONGEST_WORD), NARROWEST))
        for wide, word in zip(natural, words, strict=True)
    ]
    if sum(least) > room:
        return None
    # The largest limit under which all columns fit.
    low, high = 0, max(natural)
    while low < high:
        limit = (low + high + 1) // 2
        if sum(_limit_widths(least, natural, limit)) <= room:
            low = limit
        else:
            high = limit - 1
    return _limit_widths(least, natural, low)


def _limit_widths(least: Sequence[int], natural: Sequence[int], limit: int) -> list[int]:
    return [max(width, min(wide, limit)) for width, wide in zip(least, natural, strict=True)]


def _longest_word(cells: Sequence[str]) -> int:
    return max(max(map(cells_wide, cell.split(" "))) for cell in cells)


def _fits(text: str, width: int) -> int:
    """How many characters of a text fit into a width; at least one."""
    if text.isascii():
        return width
    taken = 0
    for number, char in enumerate(text):
        taken += cells_wide(char)
        if taken > width:
            return max(number, 1)
    return len(text)


_ZERO_MICROS = re.compile(r"(?<=:\d\d)\.0+(?=Z$)")


def cell_text(value: Any) -> str:
    """A key or a value of a state store in one cell: `window=08:00 to 09:00, k=a`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_inner(item)}" for name, item in value.items())
    return "-" if value is None else _inner(value)


def _inner(value: Any) -> str:
    match value:
        case str():
            return _ZERO_MICROS.sub("", value)
        case {"start": str() as start, "end": str() as end} if len(value) == 2:
            return f"[{_inner(start)}, {_inner(end)})"
    return json.dumps(value, ensure_ascii=False)
