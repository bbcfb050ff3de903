"""The benchmark page works with any subset of results and lists where Epochal is not better.

What a suite's figures become is seen in `docs/benchmarks.md`, which must be what the results make.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import harness
from benchmarks.report import SECTIONS, page, write
from benchmarks.rows import read_suite

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

HEAD = {
    "taken": "2026-05-01T10:00:00+00:00",
    "commit": "abc1234",
    "machine": "2 cores, 24 GiB, Linux x86_64",
    "versions": "Python 3.11.7, epochal 0.1.0",
    "load": [0.5, 1.5],
}

FIGURES: dict[str, list[dict[str, Any]]] = {
    "log": [
        {
            "figure": "checkpoint show, whole process, beside Spark's state-metadata",
            "wall_seconds": 0.25,
            "cpu_seconds": 0.2,
            "spark_wall_seconds": 10.0,
            "wall_ratio": 40.0,
        },
        {"figure": "import epochal, CPU above a bare interpreter", "cpu_milliseconds": 2.5},
        {
            "figure": "durable add p50 beside a bare write with fsync of file and directory",
            "add_milliseconds": 1.6,
            "bare_milliseconds": 1.0,
            "ratio": 1.6,
        },
    ],
    "coordinator": [
        {"figure": "pure step", "tasks": 1000, "microseconds_per_report": 5.0},
        {
            "figure": "driver over sockets",
            "tasks": 1000,
            "wanted_epochs_per_second": 12.5,
            "epochs_per_second": 12.4,
            "cores_used": 0.4,
            "microseconds_per_task_and_epoch": 40.0,
        },
    ],
    "continuous": [
        {"figure": f"map at 1000 rows/s: {engine}", "rows": 9, "p50_ms": p50, "p99_ms": p99}
        for engine, p50, p99 in (("epochal", 0.8, 2.5), ("jvm-continuous", 0.4, 90.0))
    ],
    "kafka": [
        {"figure": "latency at 1000 records/s: bytewax", "failed": "it ended:\n/opt/x/y.py: no"}
    ],
}


def save(folder: Path, suite: str, rows: list[dict[str, Any]], **head: Any) -> None:
    lines = [json.dumps({**row, **HEAD, **head}) + "\n" for row in rows]
    with (folder / f"{suite}.jsonl").open("a") as out:
        out.writelines(lines)


def page_of(folder: Path) -> str:
    return page([read_suite(folder, name) for name in SECTIONS])[0]


def table(text: str, what: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {what} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    for suite, rows in FIGURES.items():
        save(tmp_path, suite, rows)
    return tmp_path


def test_the_page_in_the_docs_is_made_of_the_results_in_this_repository() -> None:
    assert page_of(RESULTS) == (ROOT / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize(
    ("epochs", "cores", "verdict"),
    [(10.0, 0.6, "met"), (10.0, 0.7, "**missed**"), (9.9, 0.3, "**missed**")],
)
def test_a_driver_must_reach_its_epochs_within_its_cores(
    tmp_path: Path, epochs: float, cores: float, verdict: str
) -> None:
    row = {**FIGURES["coordinator"][1], "epochs_per_second": epochs, "cores_used": cores}
    save(tmp_path, "coordinator", [row])
    shown = table(page_of(tmp_path), "driver with 1 000 tasks over sockets")
    assert shown[2:] == ["≥ 10 epochs/s on ≤ 0.6 cores", verdict]


def under_load(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("Taken under load")]


def test_without_a_measurement_of_other_processes_the_load_average_counts(tmp_path: Path) -> None:
    save(tmp_path, "log", FIGURES["log"], load=[11.0, 16.0])
    assert "load 11 to 16" in page_of(tmp_path)
    assert under_load(page_of(tmp_path)) == [
        "Taken under load, so less reliable: all figures of this suite."
    ]


@pytest.fixture
def other_work() -> Iterator[None]:
    """A process that uses a core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        yield
        spinning.kill()


@pytest.mark.usefixtures("other_work")
def test_a_suite_does_not_start_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="or start with --busy"):
        harness.Report("log")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("other_work")
def test_a_suite_that_is_told_to_starts_and_writes_the_load_beside_each_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    harness.Report("log", busy=True, quick=True).row("a figure", cost=1.0)
    (line,) = map(json.loads, (tmp_path / "log-trial.jsonl").read_text().splitlines())
    assert (line["figure"], line["cost"], len(line["load"])) == ("a figure", 1.0, 2)
    assert line["others_cores"] >= 0


def test_the_work_of_a_child_counts_as_the_benchmarks_own_even_when_it_has_ended() -> None:
    before = harness.cpu_seconds(os.getpid(), with_ended=True)
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    assert harness.cpu_seconds(os.getpid(), with_ended=True) - before >= 0.4


KILLED_WORKERS = """
import os, subprocess, sys, time
from benchmarks import harness

spin = (
    "import os, signal, time\\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\\n"
    "if os.fork() == 0:\\n"
    "    while time.process_time() < 0.5: pass\\n"
    "    print('spun', flush=True)\\n"
    "time.sleep(60)\\n"
)
harness.adopt_orphans()
before = harness.cpu_seconds(os.getpid(), with_ended=True)
daemon = subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE, text=True)
assert daemon.stdout.readline() == "spun\\n"
harness.kill_family(daemon.pid)
daemon.wait()
print(harness.cpu_seconds(os.getpid(), with_ended=True) - before)
"""


def test_the_work_of_killed_workers_counts_although_their_daemon_ignores_them() -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED_WORKERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert float(run.stdout) >= 0.45


def test_every_suite_takes_the_switch_for_a_busy_machine() -> None:
    folder = ROOT / "benchmarks"
    files = [*folder.glob("*.py"), *folder.glob("*/__main__.py")]
    suites = [path for path in files if " Report(" in path.read_text()]
    assert len(suites) >= len(SECTIONS)
    missing = [path.name for path in suites if "busy=asked.busy" not in path.read_text()]
    assert missing == []


def test_page_and_plots_are_written_and_old_plots_removed(full: Path) -> None:
    docs = full / "docs"
    (docs / "plots").mkdir(parents=True)
    (docs / "plots" / "gone.svg").write_text("")
    write(full, docs)
    text = (docs / "benchmarks.md").read_text()
    plots = sorted(path.name for path in (docs / "plots").iterdir())
    assert [name for name in plots if f"(plots/{name})" not in text] == []
    assert "gone.svg" not in plots
    for name in plots:
        assert ET.parse(docs / "plots" / name).getroot().tag.endswith("svg")


def test_every_suite_of_make_bench_is_on_the_page() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (listed,) = [line for line in makefile.splitlines() if line.startswith("BENCHES :=")]
    assert {*listed.split()[2:], "soak"} == set(SECTIONS)  # a soak has a target of its own
