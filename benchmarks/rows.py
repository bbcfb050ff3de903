"""Reads the result rows of the suites, and picks the newest of each figure.

Note: a suite may have been run in part, or interrupted. So the newest run is chosen for each figure
separately. The rounds of a run become one row of medians.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEAD = ("taken", "commit", "machine", "versions", "load")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one run."""

    figure: str
    values: Mapping[str, Any]
    taken: str = ""
    commit: str = ""
    machine: str = ""
    versions: str = ""
    loads: tuple[float, ...] = ()

    def number(self, name: str) -> float | None:
        """A measured value, if there is one."""
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) else None

    @property
    def failed(self) -> str | None:
        found = self.values.get("failed")
        return str(found) if found is not None else None


@dataclass(frozen=True, slots=True)
class Suite:
    """The newest rows of one suite, in the order they were taken."""

    name: str
    rows: tuple[Row, ...] = field(default=())

    def find(self, figure: str, **values: Any) -> Row | None:
        """Return the first row whose figure starts with `figure` and that has these values."""
        for row in self.rows:
            if row.figure.startswith(figure) and values.items() <= row.values.items():
                return row
        return None

    def all(self, figure: str) -> list[Row]:
        return [row for row in self.rows if row.figure.startswith(figure)]


def read_suite(results: Path, name: str) -> Suite:
    """Read a suite's results from the folder; empty if it was never run."""
    path = results / f"{name}.jsonl"
    if not path.exists():
        return Suite(name)
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return Suite(name, tuple(newest([_row(line) for line in lines])))


def newest(rows: Sequence[Row]) -> list[Row]:
    """Return each figure from the last run that has it, as the median of its rounds."""
    runs: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in rows:
        runs.setdefault(_identity(row), {}).setdefault(row.taken, []).append(row)
    kept = [_median(by_run[max(by_run)]) for by_run in runs.values()]
    return sorted(kept, key=lambda row: row.taken)


def _identity(row: Row) -> tuple[Any, ...]:
    """Return what identifies a figure: its name and the size it was measured at."""
    return (row.figure, row.values.get("tasks"), row.values.get("keys"))


def _row(line: dict[str, Any]) -> Row:
    load = line.get("load", [])
    return Row(
        figure=line["figure"],
        values={key: value for key, value in line.items() if key not in (*HEAD, "figure")},
        taken=line.get("taken", ""),
        commit=line.get("commit", ""),
        machine=line.get("machine", ""),
        versions=line.get("versions", ""),
        loads=tuple(load if isinstance(load, list) else [load]),
    )


def _median(rounds: Sequence[Row]) -> Row:
    good = [row for row in rounds if row.failed is None] or list(rounds)
    last = good[-1]
    values = dict(last.values)
    for name, value in last.values.items():
        numbers = [each for row in good if (each := row.number(name)) is not None]
        if isinstance(value, float) and numbers:
            values[name] = statistics.median(numbers)
    values.pop("round", None)
    if len(good) > 1:
        values["rounds"] = len(good)
    loads = tuple(load for row in rounds for load in row.loads)
    return Row(last.figure, values, last.taken, last.commit, last.machine, last.versions, loads)
