"""Writes the report of one soak as Markdown, with its plots beside it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import RESULTS
from benchmarks.report import PLOTS, chapter
from benchmarks.rows import Suite, read_suite
from benchmarks.soak.section import soak


def write_report(out: Path, results: str) -> None:
    """Write `report.md` and `plots/` from the newest run of a results file.

    It is the same chapter as on the benchmark page.
    """
    rows = read_suite(RESULTS, results).rows
    newest = max(row.taken for row in rows)
    suite = Suite("soak", tuple(row for row in rows if row.taken == newest))
    section = soak(suite)
    run = suite.find("run")
    faults = [] if run is None else [f"- {each}" for each in run.values["faults"]]
    parts = [*chapter(suite, section), "### Faults", "\n".join(faults) or "None."]
    (out / "report.md").write_text("\n\n".join(parts) + "\n")
    (out / PLOTS).mkdir(exist_ok=True)
    for plot in section.plots:
        (out / PLOTS / f"{plot.name}.svg").write_text(plot.svg())
