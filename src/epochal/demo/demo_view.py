"""Shows the demo's progress: a live view on a terminal, else lines.

Until the first rows are committed there are no figures to show, so the view says what the demo is
doing instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

SECONDS_BETWEEN_LINES = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
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

    @property
    def are_known(self) -> bool:
        """Whether rows are committed and the query has reported; before that all are zero."""
        return self.committed > 0 and self.customers > 0

    @property
    def latency(self) -> str:
        p50, p99 = self.latency_ms
        return f"p50 {p50:,.1f} ms, p99 {p99:,.1f} ms" if p99 else "not measured yet"


class View:
    """What the demo shows while it runs: nothing, unless a subclass does."""

    def doing(self, what: str) -> None:
        """Say what is done now; what was done before is finished."""

    def show(self, figures: Figures) -> None:
        """Show new figures, if anything is committed yet."""


@contextmanager
def live_view(*, quiet: bool = False) -> Iterator[View]:
    if quiet:
        yield View()
    elif not sys.stdout.isatty():
        yield Lines()
    else:
        from rich.live import Live

        screen = Screen()
        with Live(get_renderable=screen.render, refresh_per_second=8):
            yield screen
            screen.end()


class Lines(View):
    """Prints a line for each step, one every two seconds, and one whenever the note changes."""

    def __init__(self) -> None:
        self._shown: tuple[int, str] | None = None

    def doing(self, what: str) -> None:
        _print(f"{what} ...")

    def show(self, figures: Figures) -> None:
        now = (int(figures.seconds / SECONDS_BETWEEN_LINES), figures.note)
        if figures.are_known and now != self._shown:
            self._shown = now
            _print(line(figures))


class Screen(View):
    def __init__(self) -> None:
        self._steps: list[tuple[str, float]] = []
        """What is or was done, and how long it took; the last one still runs."""
        self._began = time.monotonic()
        self._figures: Figures | None = None
        self._spinner: Any = None

    def doing(self, what: str) -> None:
        self.end()
        self._steps.append((what, 0.0))

    def show(self, figures: Figures) -> None:
        if figures.are_known:
            if self._figures is None:
                self.end()
            self._figures = figures

    def end(self) -> None:
        if self._steps and not self._steps[-1][1]:
            self._steps[-1] = (self._steps[-1][0], time.monotonic() - self._began)
        self._began = time.monotonic()

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        parts: list[RenderableType] = []
        for what, took in self._steps:
            if took:
                parts.append(Text.assemble(("✓ ", "green"), what, (f"  {took:.1f} s", "dim")))
                continue
            self._spinner = self._spinner or Spinner("dots", style="cyan")
            passed = f"  {time.monotonic() - self._began:.0f} s"
            self._spinner.update(text=Text.assemble(what, (passed, "dim")))
            parts.append(self._spinner)
        if self._figures is not None:
            parts += ["", _table(self._figures)]
        return Group(*parts)


def line(figures: Figures) -> str:
    return (
        f"{figures.seconds:4.0f} s  {figures.rate:6,.0f} rows/s  latency {figures.latency}  "
        f"epoch {figures.epoch} (+{figures.epoch_ms:.0f} ms)  {figures.customers} customers  "
        f"backlog {figures.backlog:,}  {figures.note}"
    ).rstrip()


def _table(figures: Figures) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    percent = 100 * figures.committed // max(figures.sent, 1)  # 100 only if nothing waits
    committed = f"{figures.committed:,} ({percent}%), {figures.rate:,.0f} per second"
    table = Table(
        title=f"orders → totals per customer, {figures.seconds:.0f} s",
        title_style="bold",
        title_justify="left",
        show_header=False,
        box=box.ROUNDED,
        border_style="dim",
        width=72,
    )
    table.add_column(style="cyan", width=12)
    table.add_column(ratio=1)  # without it, both columns grow, and change with the text
    recovering = figures.note.endswith("recovering")
    for name, value, style in (
        ("sent", f"{figures.sent:,} orders", ""),
        ("committed", committed, "green"),
        ("waiting", f"{figures.backlog:,}", "yellow" if figures.backlog > figures.rate else ""),
        ("row latency", figures.latency, ""),
        ("epoch", f"{figures.epoch}, committed {figures.epoch_ms:.0f} ms after its end", ""),
        ("state", f"{figures.customers} customers", ""),
        ("restarts", str(figures.attempt), ""),
        ("", figures.note, "bold red" if recovering else "bold yellow"),
    ):
        table.add_row(name, Text(value, style))
    return table


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
