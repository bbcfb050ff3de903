"""Draws bar charts as SVG text, for the benchmark page. Pure.

Note: a plot draws its own background. An SVG image follows the reader's system setting for light or
dark, and the page may have the other one. Without a background, dark text could be on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, LEFT, RIGHT = 720, 210, 100
TOP, ROW, GROUP_GAP, HEADING = 46, 20, 12, 20
SPAN = WIDTH - LEFT - RIGHT

STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de; }
  text { fill: #1f2328; font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; }
  .title { font-size: 14px; font-weight: 600; }
  .group { font-weight: 600; }
  .note { fill: #59636e; }
  .grid { stroke: #d0d7de; }
  .ours { fill: #0969da; }
  .peer { fill: #9aa4af; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #3d444d; }
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .grid { stroke: #3d444d; }
    .ours { fill: #4493f8; }
    .peer { fill: #6e7681; }
  }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that are compared with each other."""

    name: str
    bars: tuple[Bar, ...]


def number(value: float) -> str:
    """Format a number with three significant digits: 0.82, 12.5, 9 840, 1.2 M."""
    if value == 0:
        return "0"
    if abs(value) >= 999_500:
        return f"{_digits(value / 1e6)} M"
    return _digits(value)


def _digits(value: float) -> str:
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{round(value, places):,.{places}f}".replace(",", " ")
    return text.rstrip("0").rstrip(".") if "." in text else text


def bar_chart(
    title: str, unit: str, groups: Sequence[Group], scale: Literal["linear", "log"] = "linear"
) -> str:
    """Draw horizontal bars, on a linear or a logarithmic scale."""
    values = [bar.value for group in groups for bar in group.bars if bar.value > 0]
    low, high = _limits(values, scale)
    rows = sum(HEADING + ROW * len(group.bars) + GROUP_GAP for group in groups)
    height = TOP + rows + 26
    note = unit if scale == "linear" else f"{unit}, logarithmic"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="16" y="27">{escape(title)}</text>',
        f'<text class="note" x="{WIDTH - 16}" y="27" text-anchor="end">{escape(note)}</text>',
        *_grid(low, high, scale, height),
        *_rows(groups, low, high, scale),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _limits(values: Sequence[float], scale: str) -> tuple[float, float]:
    if not values:
        return (0.1, 1.0) if scale == "log" else (0.0, 1.0)
    if scale == "linear":
        return 0.0, max(values)
    # Start a decade below the smallest value, so that its bar is visible.
    low = 10.0 ** math.floor(math.log10(min(values)) - 0.3)
    return low, max(10.0 ** math.ceil(math.log10(max(values))), low * 10)


def _place(value: float, low: float, high: float, scale: str) -> float:
    if value <= 0:
        return 0.0
    if scale == "linear":
        return SPAN * value / high
    return SPAN * math.log10(value / low) / math.log10(high / low)


def _grid(low: float, high: float, scale: str, height: int) -> Iterator[str]:
    if scale == "linear":
        ticks = [high * part / 4 for part in range(5)]
    else:
        first, last = round(math.log10(low)), round(math.log10(high))
        ticks = [10.0**power for power in range(first, last + 1)]
    for tick in ticks:
        x = LEFT + _place(tick, low, high, scale)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 24}"/>'
        yield (
            f'<text class="note" x="{x:.1f}" y="{height - 9}" text-anchor="middle">'
            f"{number(tick)}</text>"
        )


def _rows(groups: Sequence[Group], low: float, high: float, scale: str) -> Iterator[str]:
    y = TOP
    for group in groups:
        yield f'<text class="group" x="16" y="{y + 13}">{escape(group.name)}</text>'
        y += HEADING
        for bar in group.bars:
            length = max(1.0, _place(bar.value, low, high, scale))
            kind = "ours" if bar.ours else "peer"
            yield f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(bar.label)}</text>'
            yield (
                f'<rect class="{kind}" x="{LEFT}" y="{y + 2}" width="{length:.1f}" '
                f'height="{ROW - 6}" rx="2"/>'
            )
            yield f'<text x="{LEFT + length + 6:.1f}" y="{y + 12}">{number(bar.value)}</text>'
            y += ROW
        y += GROUP_GAP
