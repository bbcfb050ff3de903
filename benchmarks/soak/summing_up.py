"""Sums a soak up in the rows of a results file: the run, its incidents, its figures."""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from typing import Any

from benchmarks.soak.flatness import Series
from benchmarks.soak.running import Soak
from benchmarks.soak.sampling import FIGURES

MOST_POINTS = 120


def summary_rows(soak: Soak, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """What the results file keeps of a run."""
    loads = [sample["load"] for sample in soak.samples]
    rows: list[dict[str, Any]] = [
        {
            "figure": "run",
            "minutes": asked.minutes,
            "seed": asked.seed,
            "rows_per_second": asked.rows_per_second,
            "rows": soak.rows,
            "incidents": len(soak.history),
            "skipped": soak.skipped,
            "marks": [round(each["at"] / 60, 2) for each in soak.history],
            "median_load": statistics.median(loads) if loads else 0.0,
            "faults": soak.faults,
        }
    ]
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for each in soak.history:
        by_kind[each["kind"]].append(each["recovered"])
    for kind, seconds in sorted(by_kind.items()):
        rows.append(
            {
                "figure": f"incident: {kind}",
                "count": len(seconds),
                "p50_seconds": statistics.median(seconds),
                "max_seconds": max(seconds),
            }
        )
    verdicts, series = soak.verdicts(), soak.series()
    for figure in FIGURES:
        found = verdicts[figure.name]
        rows.append(
            {
                "figure": f"flat: {figure.name}",
                "unit": figure.unit,
                "second": found.second,
                "last": found.last,
                "rise": found.rise,
                "reasons": list(found.reasons),
                "points": thinned(series[figure.name]),
            }
        )
    return rows


def thinned(series: Series) -> list[tuple[float, float]]:
    """A series for a plot: minutes, and medians of equally many samples."""
    step = max(1, -(-len(series) // MOST_POINTS))
    shares = [series[n : n + step] for n in range(0, len(series), step)]
    return [
        (round(share[0][0] / 60, 2), round(statistics.median(v for _, v in share), 1))
        for share in shares
    ]
