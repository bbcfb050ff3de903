"""Shows on stderr how far a command is, if it takes longer than a second.

A bar has the rate and the time left; as long as the amount of work is unknown, only the time that
has passed is shown. Nothing is shown if stderr is not a terminal, so logs stay clean.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from epochal.wording import plural

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PROGRESS_AFTER_SECONDS = 1.0
DRAW_EVERY_SECONDS = 0.1


class Advance(Protocol):
    """Reports how much of the work is done; cheap enough to call for every file."""

    def __call__(self, done: int, total: int) -> None: ...


@contextmanager
def progress(
    what: str, unit: str = "file", *, while_printing: bool = False, forks: bool = False
) -> Iterator[Advance]:
    """Show a bar while the block runs; `unit` is what `done` and `total` count.

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
