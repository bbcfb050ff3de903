"""Prints results: tables and text that fit the terminal, whole lines in a pipe, or JSON.

In a pipe nothing is folded, cut or coloured, so that the text can be searched. Rich is not needed
here, so programs that read the output do not wait for its import.

Names, keys and summaries come from checkpoints that anybody may have prepared. So control
characters are escaped here, at the only exit: an escape sequence cannot rewrite the screen, and a
newline cannot forge a line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence

from epochal.cli.printing.table_layout import (
    cells_wide,
    printable,
    shared_columns,
    table_lines,
    text_lines,
)

EXIT_FINDINGS = 1
EXIT_BROKEN_PIPE = 141

BOLD, RED, GREEN, YELLOW, CYAN = "1", "31", "32", "33", "36"

_COLOUR = re.compile(f"(\033\\[(?:{BOLD}|{RED}|{GREEN}|{YELLOW}|{CYAN}|0)m)")


def print_line(text: str = "") -> None:
    """Print one line; exit if the reader of the output has ended, as after `| head`."""
    if not text.isprintable():
        # What stands at odd places are colours, as `paint` writes them.
        parts = _COLOUR.split(text)
        parts[::2] = map(printable, parts[::2])
        text = "".join(parts)
    try:
        sys.stdout.write(f"{text}\n")
    except BrokenPipeError:
        sys.exit(EXIT_BROKEN_PIPE)


def print_json(value: object) -> None:
    """Print compact JSON on one line; non-ASCII characters are not escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not text.isprintable():
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    print_line(text)


def print_text(text: str, indent: str = "  ", *, head: str = "", style: str = BOLD) -> None:
    """Print prose; on a terminal it is folded at words, and all lines but the first indented.

    `head` is printed before the text, in a colour. A command to copy must not be folded: write it
    in backticks, or use `print_line`.
    """
    head, text = printable(head), printable(text)
    first, *rest = text_lines(head + text, terminal_width(), indent)
    print_line(paint(head, style) + first.removeprefix(head))
    for line in rest:
        print_line(line)


def print_error(text: str) -> None:
    """Print a message to stderr; on a terminal it is folded at words, but not inside commands."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    for line in text_lines(printable(text), width, "  "):
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table that fits the terminal."""
    if title:
        print_line(paint(title, BOLD))
    width = terminal_width()
    if taken := shared_columns(columns, rows, width):
        shared = ", ".join(f"{columns[at]} {rows[0][at] or '-'}" for at in taken)
        print_text(f"all rows: {shared}")
        shown = [at for at in range(len(columns)) if at not in taken]
        columns, rows = [columns[at] for at in shown], [[row[at] for at in shown] for row in rows]
    head, lines = table_lines(columns, rows, width)
    for line in (paint(head, BOLD), *lines) if head else lines:
        print_line(line)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print aligned lines of the form `name  value`."""
    margin = max(cells_wide(name) for name, _ in facts) + 2
    width = terminal_width()
    for name, value in facts:
        room = None if width is None else max(width - margin, 20)
        first = paint(name, BOLD) + " " * (margin - cells_wide(name))
        for line in text_lines(printable(value), room):
            print_line(f"{first}{line}".rstrip())
            first = " " * margin


def terminal_width() -> int | None:
    """The width of the terminal; None if the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def paint(text: str, style: str) -> str:
    """Text in a colour or in bold, if stdout is a terminal that wants it."""
    plain = (
        not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    )
    return text if plain or not text else f"\033[{style}m{printable(text)}\033[0m"
