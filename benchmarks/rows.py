"""Reads the result rows that the suites wrote, and keeps the newest row of each figure.

Note: a suite may have been run in part, or interrupted. So the newest run counts figure by figure,
not file by file, and the rounds of a run become one row of medians.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import BUSY_CORES

HEAD = ("taken", "commit", "machine", "versions", "load", "others_cores")
IDENTITY = ("tasks", "keys", "state_in")
"""Values that tell figures of the same name apart."""


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
    others_cores: float | None = None
    """Cores that other processes used meanwhile; None if the suite did not measure it."""

    def number(self, name: str) -> float | None:
        """A measured value, if there is one."""
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) else None

    @property
    def under_load(self) -> bool:
        """Whether other work on the machine may be part of this figure."""
        if self.others_cores is not None:
            return self.others_cores > BUSY_CORES
        cores = self.machine.partition(" ")[0]
        return cores.isdigit() and max(self.loads, default=0.0) > 2 * int(cores)

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
        """The first row whose figure starts with `figure` and that has these values."""
        for row in self.rows:
            if row.figure.startswith(figure) and values.items() <= row.values.items():
                return row
        return None

    def all(self, figure: str) -> list[Row]:
        return [row for row in self.rows if row.figure.startswith(figure)]


def read_suite(results: Path, name: str) -> Suite:
    """Read the results of a suite; it has no rows if it was never run."""
    path = results / f"{name}.jsonl"
    if not path.exists():
        return Suite(name)
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return Suite(name, tuple(newest([_row(line) for line in lines])))


def newest(rows: Sequence[Row]) -> list[Row]:
    """Each figure from the last run that measured it; several rounds become their medians."""
    runs: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in rows:
        runs.setdefault(_identity(row), {}).setdefault(row.taken, []).append(row)
    kept = [_median(by_run[max(by_run)]) for by_run in runs.values()]
    return sorted(kept, key=lambda row: row.taken)


def _identity(row: Row) -> tuple[Any, ...]:
    """Rows with the same name and the same size are the same figure."""
    return (row.figure, *(row.values.get(key) for key in IDENTITY))


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
        others_cores=line.get("others_cores"),
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
    others = max((each for row in rounds if (each := row.others_cores) is not None), default=None)
    return replace(last, values=values, loads=loads, others_cores=others)
