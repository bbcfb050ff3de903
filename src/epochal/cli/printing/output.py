"""Prints results, and on stderr how far a command is if it takes longer than a second.

Results are tables and text that fit the terminal, whole lines in a pipe, or JSON.

In a pipe nothing is folded, cut or coloured, so that the text can be searched. Rich is not needed
here, so programs that read the output do not wait for its import.

Names, keys and summaries come from checkpoints that anybody may have prepared. So control
characters are escaped here, at the only exit: an escape sequence cannot rewrite the screen, and a
newline cannot forge a line.

A progress bar has the rate and the time left; as long as the amount of work is unknown, only the
time that has passed is shown. Nothing is shown if stderr is not a terminal, so logs stay clean.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from epochal.cli.printing.table_layout import (
    cells_wide,
    printable,
    shared_columns,
    table_lines,
    text_lines,
)
from epochal.wording import plural

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EXIT_FINDINGS = 1
EXIT_BROKEN_PIPE = 141
PROGRESS_AFTER_SECONDS = 1.0
DRAW_EVERY_SECONDS = 0.1

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


@contextmanager
def progress(
    what: str, unit: str = "file", *, while_printing: bool = False, forks: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block runs; yield what reports how much of all work is done.

    It is cheap enough to call for every file. `unit` is what both numbers count.

    With `while_printing` the block prints to stdout meanwhile. Then a bar is shown only if stdout
    goes elsewhere, such as into a file. With `forks` the block starts processes by forking, which
    must not have threads: the bar is drawn only when the work advances.
    """
    hidden = not sys.stderr.isatty() or (while_printing and sys.stdout.isatty())
    if hidden:
        yield lambda done, total: None
        return
    shown = _Shown(what, unit, threads=not forks)
    timer = threading.Timer(PROGRESS_AFTER_SECONDS, shown.start)
    timer.daemon = True
    if not forks:
        timer.start()
    try:
        yield shown.advance
    finally:
        timer.cancel()
        shown.stop()


class _Shown:
    """A bar that a timer starts and the command stops, perhaps at the same moment.

    Without `threads` there is no timer: the work itself starts the bar and draws it.
    """

    def __init__(self, what: str, unit: str, *, threads: bool) -> None:
        self._what, self._unit, self._threads = what, unit, threads
        self._began = self._drawn = time.monotonic()
        self._done, self._total = 0, 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._ended = False
        self._lock = threading.Lock()

    def start(self) -> None:
        bar = _rich_bar(self._unit, auto_refresh=self._threads)
        with self._lock:
            if self._ended:
                return
            self._task = bar.add_task(self._what, total=self._total or None, completed=self._done)
            self._bar = bar
            bar.start()

    def advance(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        now = time.monotonic()
        if not self._threads and self._bar is None and now - self._began > PROGRESS_AFTER_SECONDS:
            self.start()
        bar, task = self._bar, self._task
        if bar is not None and task is not None:
            drawn = not self._threads and now - self._drawn > DRAW_EVERY_SECONDS
            self._drawn = now if drawn else self._drawn
            bar.update(task, completed=done, total=total, refresh=drawn)

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()


def _rich_bar(unit: str, *, auto_refresh: bool) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else rate_text(speed, unit))

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            if task.total is None:
                return Text("")
            return Text.assemble(super().render(task), " left")

    class Amount(MofNCompleteColumn):
        def render(self, task: Task) -> Text:
            return Text("") if task.total is None else super().render(task)

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        Amount(),
        Rate(),
        Left(compact=True),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        auto_refresh=auto_refresh,
        transient=True,
    )


def rate_text(speed: float, unit: str) -> str:
    """`1,200 files/s`, or `0.3 files/s`."""
    number = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
    return f"{number} {plural(unit)}/s"
