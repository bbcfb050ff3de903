"""Prints results: rich tables on a terminal, plain aligned text in a pipe, or JSON.

Rich is imported only if the output is a terminal, so programs that read the output do not pay for
it. Plain tables are never cut to a width, so that their text can be searched.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PROGRESS_AFTER_SECONDS = 1.0
EXIT_FINDINGS = 1
EXIT_BROKEN_PIPE = 141


class Advance(Protocol):
    """Reports how much of the work is done; cheap enough to call for every file."""

    def __call__(self, done: int, total: int) -> None: ...


def print_line(text: str = "") -> None:
    """Print one line; exit if the reader of the output has ended, as after `| head`."""
    try:
        sys.stdout.write(f"{text}\n")
    except BrokenPipeError:
        sys.exit(EXIT_BROKEN_PIPE)


def print_json(value: object) -> None:
    """Print compact JSON on one line; non-ASCII characters are not escaped."""
    print_line(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print a table, with rich if stdout is a terminal."""
    if sys.stdout.isatty():
        _rich_table(columns, rows, title)
        return
    if title:
        print_line(title)
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print_line("  ".join(cells).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print aligned lines of the form `name  value`."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print_line(f"{name.ljust(width)}  {value}".rstrip())


def time_text(ms: int) -> str:
    """Milliseconds since 1970 as ISO-8601 in UTC; 0, which Spark writes for "none", as `-`."""
    if ms == 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """Show a progress bar if stderr is a terminal and the work takes longer than a second."""
    bar: Progress | None = None
    task: TaskID | None = None
    started = time.monotonic()
    watched = sys.stderr.isatty()

    def advance(done: int, total: int) -> None:
        nonlocal bar, task
        if not watched:
            return
        if bar is None:
            if time.monotonic() - started < PROGRESS_AFTER_SECONDS:
                return
            bar = _rich_progress()
            bar.start()
            task = bar.add_task(what, total=total)
        assert task is not None
        bar.update(task, completed=done, total=total)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    Console().print(table)


def _plain(cell: str) -> Any:
    from rich.text import Text

    return Text(cell)  # not markup: offsets and paths may contain square brackets


def _rich_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
