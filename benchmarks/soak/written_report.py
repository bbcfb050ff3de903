"""Writes the report of one soak as Markdown, with its plots beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import PLOTS, chapter
from benchmarks.rows import Row, Suite
from benchmarks.soak.section import soak


def write_report(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write `report.md` and `plots/`; the same chapter as on the benchmark page."""
    found = [
        Row(row["figure"], {key: value for key, value in row.items() if key != "figure"})
        for row in rows
    ]
    suite = Suite("soak", tuple(found))
    section = soak(suite)
    faults = "\n".join(f"- {each}" for each in found[0].values["faults"]) or "- none"
    (out / "report.md").write_text(
        "\n\n".join([*chapter(suite, section), "### Faults", faults]) + "\n"
    )
    (out / PLOTS).mkdir(exist_ok=True)
    for plot in section.plots:
        (out / PLOTS / f"{plot.name}.svg").write_text(plot.svg())
