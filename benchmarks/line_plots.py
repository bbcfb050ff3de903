"""Draws figures over time as small line charts, in one SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.plots import STYLE, WIDTH, number

LEFT, RIGHT, TOP, PANEL, LABEL = 210, 70, 46, 44, 14
LINE = """
  .curve { fill: none; stroke: #0969da; stroke-width: 1.5; }
  .quarter { stroke-dasharray: 3; }
  .mark { stroke: #cf222e; stroke-width: 1.5; }
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure over time. Points are pairs of time and value."""

    name: str
    unit: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LinePlot:
    name: str
    title: str
    time_unit: str
    curves: tuple[Curve, ...]
    end: float
    marks: tuple[float, ...] = ()

    def svg(self) -> str:
        return line_charts(self.title, self.time_unit, self.curves, self.end, self.marks)


def line_charts(
    title: str, time_unit: str, curves: Sequence[Curve], end: float, marks: Sequence[float] = ()
) -> str:
    """Draw one panel per curve, all over the same time, each with its own scale from zero.

    Marks are times at which something happened.
    """
    height = TOP + PANEL * len(curves) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}{LINE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="16" y="27">{escape(title)}</text>',
        *_quarters(end, time_unit, height),
        *_marked(marks, end),
    ]
    for place, curve in enumerate(curves):
        parts += _panel(curve, TOP + place * PANEL, end)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(at: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, at / end if end else 0.0)


def _quarters(end: float, unit: str, height: int) -> Iterator[str]:
    for part in range(5):
        x = _x(end * part / 4, end)
        dots = 'class="grid quarter"'
        yield f'<line {dots} x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 24}"/>'
        yield (
            f'<text class="note" x="{x:.1f}" y="{height - 9}" text-anchor="middle">'
            f"{number(end * part / 4)} {escape(unit)}</text>"
        )


def _marked(marks: Sequence[float], end: float) -> Iterator[str]:
    for at in marks:
        x = _x(at, end)
        yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{TOP - 2}"/>'


def _panel(curve: Curve, top: int, end: float) -> Iterator[str]:
    high = max((value for _, value in curve.points), default=0.0) or 1.0
    bottom, room = top + PANEL - 6, PANEL - 12
    path = " ".join(
        f"{_x(at, end):.1f},{bottom - room * value / high:.1f}" for at, value in curve.points
    )
    yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    yield (
        f'<text x="{LEFT - 8}" y="{top + PANEL // 2 + 4}" text-anchor="end">'
        f"{escape(curve.name)}</text>"
    )
    yield (
        f'<text class="note" x="{WIDTH - RIGHT + 6}" y="{top + LABEL}">'
        f"{number(high)} {escape(curve.unit)}</text>"
    )
    yield f'<polyline class="curve" points="{path}"/>'
