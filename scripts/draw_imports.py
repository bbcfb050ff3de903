"""Draws the import graph of a package as a matrix: rows import columns, both in one order.

Imports that point down the order lie below the diagonal. A mark above the diagonal is an import
that points up, and two marks mirrored at the diagonal are a cycle. `make docs` draws the package
itself; `python scripts/draw_imports.py DIRECTORY` prints the same drawing of another source tree,
folder by folder, in the order given as further arguments.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from scripts.import_graph import FLOORS, ORDER, import_graph, package_of

CELL = 15
LEFT, TOP, BOTTOM = 230, 250, 24
STYLE = """\
  .ground { fill: #ffffff; stroke: #d0d7de; }
  text { fill: #1f2328; font: 11px system-ui, -apple-system, 'Segoe UI', sans-serif; }
  .title { font-size: 14px; font-weight: 600; }
  .note { fill: #59636e; }
  .count { font-size: 8px; fill: #ffffff; }
  .grid { stroke: #eaeef2; }
  .floor { fill: none; stroke: #8c959f; stroke-dasharray: 3 3; }
  .self { fill: #d0d7de; } .down { fill: #0969da; } .up { fill: #cf222e; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #3d444d; }
    text { fill: #e6edf3; } .note { fill: #9198a1; }
    .grid { stroke: #21262d; } .floor { stroke: #6e7681; }
    .self { fill: #3d444d; } .down { fill: #1f6feb; } .up { fill: #da3633; }
  }"""


def draw(
    graph: dict[str, set[str]],
    order: Sequence[str],
    owner: Callable[[str], str],
    title: str,
    floors: Sequence[int] = (),
) -> str:
    """The matrix as SVG; `floors` are the sizes of the groups that share a frame."""
    arrows = Counter(
        (owner(module), owner(imported))
        for module, imports in graph.items()
        for imported in imports
    )
    place = {name: number for number, name in enumerate(order)}
    side = len(order) * CELL
    width, height = LEFT + side + 24, TOP + side + BOTTOM
    up = sum(n for (row, column), n in arrows.items() if place[column] > place[row])
    across = sum(n for (row, column), n in arrows.items() if row != column)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<desc>{across} imports between packages, {up} of them up the order.</desc>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="22" y="30">{escape(title)}</text>',
        f'<text class="note" x="22" y="50">{across} imports between packages,</text>',
        f'<text class="note" x="22" y="66">{up} of them up the order.</text>',
        '<text class="note" x="22" y="90">A row imports the columns</text>',
        '<text class="note" x="22" y="106">that are marked in it.</text>',
    ]
    for name, number in place.items():
        at = number * CELL
        parts += [
            f'<text x="{LEFT - 8}" y="{TOP + at + 11}" text-anchor="end">{escape(name)}</text>',
            f'<text transform="translate({LEFT + at + 11} {TOP - 8}) rotate(-90)">'
            f"{escape(name)}</text>",
            f'<path class="grid" d="M{LEFT} {TOP + at}h{side}M{LEFT + at} {TOP}v{side}"/>',
            _cell("self", number, number),
        ]
    for (row, column), count in sorted(arrows.items()):
        if row != column:
            kind = "up" if place[column] > place[row] else "down"
            parts.append(_cell(kind, place[row], place[column], count))
    start = 0
    for size in floors:
        at = start * CELL
        parts.append(
            f'<rect class="floor" x="{LEFT + at}" y="{TOP + at}" '
            f'width="{size * CELL}" height="{size * CELL}"/>'
        )
        start += size
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cell(kind: str, row: int, column: int, count: int = 0) -> str:
    x, y = LEFT + column * CELL, TOP + row * CELL
    box = f'<rect class="{kind}" x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}"/>'
    if not count:
        return box
    middle = x + CELL / 2
    return f'{box}<text class="count" x="{middle}" y="{y + 10}" text-anchor="middle">{count}</text>'


def own_drawing() -> str:
    """The package as it is."""
    graph = import_graph(Path(__file__).resolve().parent.parent / "src" / "epochal")
    sizes = [len(floor) for floor in FLOORS.values()]
    return draw(graph, ORDER, package_of, "Three floors, one order", sizes)


def main(source: str, *order: str) -> None:
    def folder(module: str) -> str:
        return module.split(".")[1] if "." in module else "(root)"

    graph = import_graph(Path(source))
    title = "Imports between folders"
    sys.stdout.write(draw(graph, order or sorted({folder(each) for each in graph}), folder, title))


if __name__ == "__main__":
    main(*sys.argv[1:])
