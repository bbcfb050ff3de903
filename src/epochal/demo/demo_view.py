"""Shows the demo's progress: a live table on a terminal, else a line every two seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.table import Table

SECONDS_BETWEEN_LINES = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the query at one moment."""

    seconds: float
    sent: int
    committed: int
    rate: float
    """Rows per second."""
    latency_ms: tuple[float, float]
    """From the publishing of a row to its total: 50th and 99th percentile."""
    epoch: int
    epoch_ms: float
    """From the cut of an epoch to its commit: the median."""
    customers: int
    attempt: int
    note: str = ""

    @property
    def backlog(self) -> int:
        return max(0, self.sent - self.committed)


class Show(Protocol):
    def __call__(self, figures: Figures) -> None: ...


@contextmanager
def live_view(*, quiet: bool = False) -> Iterator[Show]:
    """Yield a function that shows new figures."""
    if quiet:
        yield lambda figures: None
        return
    if not sys.stdout.isatty():
        yield Lines().show
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        yield lambda figures: live.update(_table(figures))


class Lines:
    """Prints a line every two seconds, and whenever the note changes."""

    def __init__(self) -> None:
        self._shown: tuple[int, str] | None = None

    def show(self, figures: Figures) -> None:
        now = (int(figures.seconds / SECONDS_BETWEEN_LINES), figures.note)
        if now != self._shown:
            self._shown = now
            sys.stdout.write(line(figures) + "\n")
            sys.stdout.flush()


def line(figures: Figures) -> str:
    """All figures in one line."""
    p50, p99 = figures.latency_ms
    return (
        f"{figures.seconds:4.0f} s  {figures.rate:6,.0f} rows/s  row p50 {p50:.1f} p99 {p99:.1f} "
        f"ms  epoch {figures.epoch} (+{figures.epoch_ms:.0f} ms)  {figures.customers} customers  "
        f"backlog {figures.backlog:,}  {figures.note}"
    ).rstrip()


def _table(figures: Figures) -> Table:
    from rich.table import Table

    p50, p99 = figures.latency_ms
    table = Table(title=f"orders -> totals, {figures.seconds:.0f} s", show_header=False, width=72)
    table.add_column(style="bold", width=18)
    table.add_column()
    for name, value in (
        ("sent", f"{figures.sent:,}"),
        ("committed", f"{figures.committed:,} ({figures.rate:,.0f} rows/s)"),
        ("backlog", f"{figures.backlog:,}"),
        ("row latency", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms: published to totalled"),
        ("epoch", f"{figures.epoch}, committed {figures.epoch_ms:.0f} ms after its cut"),
        ("state", f"{figures.customers} customers"),
        ("attempt", str(figures.attempt)),
        ("", figures.note),
    ):
        table.add_row(name, value)
    return table
