"""The benchmark page works with any subset of results and lists where Epochal is not better."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks import harness
from benchmarks.meanings import MEANINGS
from benchmarks.plots import Bar, Group, bar_chart, number
from benchmarks.report import COMMANDS, SECTIONS, page, write
from benchmarks.rows import read_suite

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
    "recovery": [
        {"figure": "worker killed: warm", "p50_seconds": 0.5, "max_seconds": 1.25},
        {"figure": "worker killed: spark", "p50_seconds": 2.0, "max_seconds": 2.5},
        {"figure": "silent host", "p50_seconds": 12.0, "max_seconds": 13.0},
        {
            "figure": "state of 100000 keys",
            "keys": 100_000,
            "kill_seconds": 0.75,
            "new_seconds": 1.5,
        },
    ],
    "state": [
        {
            "figure": "state of 1000000 keys to Arrow, beside a warm Spark session",
            "wall_seconds": 1.0,
            "spark_wall_seconds": 6.0,
        },
        {
            "figure": "memory per key of 1000000, two versions, as each side counts it",
            "bytes_per_key": 200.0,
            "spark_bytes_per_key": 100.0,
        },
        *(
            {
                "figure": "state to Arrow, by number of keys",
                "keys": n,
                "cpu_microseconds_per_key": c,
            }
            for n, c in ((10_000, 0.5), (3_000_000, 0.6))
        ),
        {
            "figure": "state of 10000000 keys to Arrow, whole process",
            "wall_seconds": 8.0,
            "peak_gibibytes": 3.5,
        },
    ],
    "big_state": [
        {
            "figure": "state of a task by number of keys",
            "keys": keys,
            "state_in": where,
            "restart_seconds": keys / 1e6,
            "turn_p50_microseconds": 200.0,
            "turn_p99_microseconds": 900.0,
            "peak_mebibytes": 1500,
        }
        for keys, where in (
            (1_000_000, "dictionaries"),
            (50_000_000, "disk, stateMemory 1g"),
        )
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
    "evaluator": [
        {
            "figure": "text, 100000 rows",
            "kind": "text",
            "rows": 100_000,
            "spark_p50_ms": 90.0,
            "spark_p99_ms": 120.0,
            "spark_rows_per_cpu_second": 900_000.0,
            "arrow_p50_ms": 60.0,
            "arrow_p99_ms": 80.0,
            "arrow_rows_per_cpu_second": 1_500_000.0,
        },
        {"figure": "start: spark, fresh session", "p50_seconds": 4.5},
        {"figure": "start: arrow, fresh session", "p50_seconds": 3.0},
        {"figure": "memory", "batches": 200, "resident_mebibytes": 222.0},
    ],
    "epoch": [
        {
            "figure": f"an epoch with 8 stores, {protocol}",
            "stores": 8,
            "tasks": 2,
            "protocol": protocol,
            "puts": puts,
            "gets": gets,
            "deletes": 2 * gets,
            "cpu_milliseconds_p50": puts,
            "cpu_milliseconds_p99": 2.0 * puts,
            "wall_milliseconds_p50": 10.0,
            "wall_milliseconds_p99": 20.0,
        }
        for protocol, puts, gets in (
            ("a file per task", 5.0, 0.0),
            ("a file per store", 19.0, 16.0),
        )
    ],
    "turn": [
        {"figure": "state, 1 rows, hot", "tasks": 2, "turns": 9, "p50_us": 80.0, "p99_us": 200.0},
        {"figure": "map at 1000 rows/s, 1 rows", "tasks": 1, "p50_us": 240.0, "p99_us": 700.0},
        {"figure": "count at 50000 rows/s", "tasks": 2, "p50_ms": 1.1, "p99_ms": 2.5},
    ],
    "continuous": [
        *(
            {"figure": f"map at 1000 rows/s: {engine}", "rows": 9, "p50_ms": p50, "p99_ms": p99}
            for engine, p50, p99 in (
                ("epochal", 0.8, 2.5),
                ("jvm-continuous", 0.4, 90.0),
                ("micro-batch", 400.0, 800.0),
            )
        ),
        {"figure": "map flat out, rows/s", "ratio": 5.0, "epochal": 5e6, "micro-batch": 1e6},
    ],
    "kafka": [
        *(
            {"figure": f"latency at 1000 records/s: {engine}", "p50_ms": p99 / 4, "p99_ms": p99}
            for engine, p99 in (
                ("epochal-at-least-once", 8.0),
                ("epochal-exactly-once", 150.0),
                ("spark-real-time", 20.0),
                ("spark-micro-batch", 1600.0),
                ("quix", 30.0),
            )
        ),
        *(
            {"figure": f"map latency at 1000 records/s: {engine}", "p50_ms": p50, "p99_ms": p99}
            for engine, p50, p99 in (
                ("epochal-at-least-once", 4.0, 9.0),
                ("epochal-exactly-once", 65.0, 140.0),
                ("bytewax", 5.0, 8.0),
            )
        ),
        {"figure": "latency at 1000 records/s: bytewax", "failed": "it ended:\n/opt/x/y.py: no"},
        {"figure": "map flat out on one core: epochal-at-least-once", "rows_per_cpu_second": 2e5},
        {"figure": "map flat out on one core: quix", "rows_per_cpu_second": 5e4},
        {
            "figure": "listener on Spark's batches",
            "batch_ms": 300.0,
            "difference_percent": 0.4,
            "callback_ms": 0.3,
            "callback_percent": 0.1,
        },
    ],
    "pubsub": [
        {
            "figure": "pull, 100 B",
            "ours_per_second": 400_000,
            "google_per_second": 20_000,
            "ours_per_cpu_second": 600_000,
            "google_per_cpu_second": 20_000,
        },
        {"figure": "spark, 100 B", "per_second": 120_000, "limited_by": "reading"},
        {
            "figure": "stall, 1 KB",
            "seconds": 60.0,
            "rss_first_third_mib": 200.0,
            "rss_last_third_mib": 201.0,
            "rss_peak_mib": 210.0,
        },
        {"figure": "latency, micro-batch", "p50_ms": 500.0, "p99_ms": 900.0},
        {"figure": "latency, continuous", "p50_ms": 5.0, "p99_ms": 15.0, "workers_cpu_us": 300.0},
        {"figure": "latency, google", "p50_ms": 30.0, "p99_ms": 70.0, "cpu_us": 500.0},
        {"figure": "latency, bare", "p50_ms": 4.0, "p99_ms": 9.0, "cpu_us": 100.0},
    ],
    "telemetry": [{"figure": "committing, per epoch", "us": 1.2, "share": "0.0012 % of a core"}],
    "nexmark": [
        *(
            {"figure": f"throughput of q1{kind}: {engine}", "rows_per_cpu_second": rows}
            for kind, engine, rows in (
                ("", "epochal", 1e6),
                ("", "flink", 2e6),
                (" with Python functions", "epochal", 4e5),
                (" with Python functions", "spark-micro-batch", 2e5),
            )
        ),
        *(
            {"figure": f"latency of q5 at 10000 events/s: {engine}", "p50_ms": ms, "p99_ms": ms * 2}
            for engine, ms in (("epochal", 50.0), ("spark-micro-batch", 500.0))
        ),
    ],
    "latency_suite": [
        {"figure": f"count: {engine}", "p50_ms": p50, "p99_ms": p99}
        for engine, p50, p99 in (
            ("epochal-at-least-once", 20.0, 40.0),
            ("epochal-exactly-once", 80.0, 120.0),
            ("spark-real-time", 10.0, 60.0),
            ("spark-5s-real-time", 30.0, 600.0),
            ("spark-micro-batch", 900.0, 2000.0),
        )
    ],
    "soak": [
        {
            "figure": "run",
            "minutes": 120.0,
            "rows": 2_880_000,
            "incidents": 60,
            "faults": ["memory, worker: the last quarter's median 200 is above 147"],
        },
        {"figure": "incident: driver", "count": 5, "p50_seconds": 8.0, "max_seconds": 9.5},
        *(
            {
                "figure": f"flat: memory, {role}",
                "unit": "MiB",
                "second": 100.0,
                "last": last,
                "rise": 0.0,
                "reasons": reasons,
                "points": [[0, 90.0], [60, 100.0], [119, last]],
            }
            for role, last, reasons in (
                ("driver", 101.0, []),
                ("worker", 200.0, ["the last quarter's median 200 is above 147"]),
            )
        ),
    ],
    "tables": [
        *(
            {"figure": f"visible at 1000 rows/s: {engine}", "p50_ms": ms, "p99_ms": ms * 2}
            for engine, ms in (("epochal-delta", 300.0), ("spark-delta", 1_500.0))
        ),
        *(
            {"figure": f"commit to delta at {n} versions", "p50_ms": ms, "p99_ms": ms * 2}
            for n, ms in ((100, 10.0), (10_000, 30.0))
        ),
        *(
            {
                "figure": f"data files of {kind}",
                "live_per_hour": 4 * live,
                "live_after": live,
                "live_before": 482,
                "on_disk": 9_000,
            }
            for kind, live in (("delta", 3), ("iceberg", 15))
        ),
    ],
}


def save(folder: Path, suite: str, rows: list[dict[str, Any]], **head: Any) -> None:
    lines = [json.dumps({**row, **HEAD, **head}) + "\n" for row in rows]
    with (folder / f"{suite}.jsonl").open("a") as out:
        out.writelines(lines)


def page_of(folder: Path) -> str:
    return page([read_suite(folder, name) for name in SECTIONS])[0]


def behind(text: str) -> str:
    """Return the section that lists what is not better."""
    return text.partition("## What is not better\n")[2].partition("\n## ")[0]


def table(text: str, what: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {what} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    for suite, rows in FIGURES.items():
        save(tmp_path, suite, rows)
    return tmp_path


def test_a_page_without_any_results_says_how_to_get_them(tmp_path: Path) -> None:
    text = page_of(tmp_path)
    for name in SECTIONS:
        assert f"`make {COMMANDS.get(name, f'bench-{name}')}`" in text


@pytest.mark.parametrize("suite", FIGURES)
def test_any_one_suite_makes_a_page(tmp_path: Path, suite: str) -> None:
    save(tmp_path, suite, FIGURES[suite])
    text = page_of(tmp_path)
    assert "*Taken 2026-05-01 at `abc1234` on 2 cores" in text
    assert f"run `make {COMMANDS.get(suite, f'bench-{suite}')}`." not in text


def test_each_chapter_begins_with_what_its_figures_mean(full: Path) -> None:
    text = page_of(full)
    for name, section in SECTIONS.items():
        title = section(read_suite(full, name)).title
        assert f"## {title}\n\n{MEANINGS[name]}\n\n" in text


def test_the_soak_says_whether_rows_are_exact_and_figures_flat(full: Path) -> None:
    text = page_of(full)
    exact = ["2.88 M rows in 120 minutes, 60 incidents", "no fault", "met"]
    assert table(text, "every row once, state and table alike")[1:] == exact
    flat = ["100, then 101 MiB; rise 0", "≤ 147 MiB", "met"]
    assert table(text, "memory, driver")[1:] == flat
    shown = table(text, "driver, 5 times, until all rows are there")[1]
    assert shown == "p50 8 s, longest 9.5 s"
    assert "plots/soak-memory.svg" in text


def test_a_figure_stands_beside_its_peer_and_its_target(full: Path) -> None:
    what = "`checkpoint show`, 100 batches and 200 partitions, whole process"
    assert table(page_of(full), what)[1:] == ["250 ms", "Spark 10 s", "40x", "≥ 20x", "met"]


def test_recovery_is_compared_with_sparks_daemon_and_shown_by_keys(full: Path) -> None:
    text = page_of(full)
    killed = ["500 ms", "Spark's daemon 2 s", "4x", "≤ 1 s", "met"]
    assert table(text, "worker killed, `local[2]`, p50")[1:] == killed
    silent = table(text, "host cut off, spare slots elsewhere, maximum")[1:]
    assert [each for each in silent if each] == ["13 s", "≤ 15 s", "met"]
    assert table(text, "`start()`, state of 100 000 keys")[1] == "1.5 s"
    assert "plots/recovery-keys.svg" in text


def test_what_misses_its_target_or_is_behind_a_peer_comes_first(full: Path) -> None:
    listed = behind(page_of(full)).strip().splitlines()
    assert listed == [
        "**[The metadata log and the tools](#the-metadata-log-and-the-tools)**",
        "",
        "- durable `add`, p50: 1.6 ms, write and two fsyncs 1 ms; "
        "the target is ≤ 1.5 of a bare fsync (it is 1.6).",
        "",
        "**[The state store](#the-state-store)**",
        "",
        "- memory per key, two versions: 200 B, Spark 100 B, 0.5x.",
        "",
        "**[Continuous queries](#continuous-queries)**",
        "",
        "- Python map at 1 000 rows/s, p50: 0.8 ms, Spark continuous (JVM) 0.4 ms, 0.5x.",
        "",
        "**[Kafka in, Python, Kafka out](#kafka-in-python-kafka-out)**",
        "",
        "- Python map at 1 000 records/s, p99: 9 ms, Bytewax 8 ms, 0.889x; the target is ≥ 1x.",
        "- Python map at 1 000 records/s, exactly once, p99: 140 ms; the target is ≤ 130 ms.",
        "- latency at 1000 records/s: bytewax: …: no",
        "",
        "**[A published latency suite](#a-published-latency-suite)**",
        "",
        "- group and count, p50: 20 ms (load 1.5), Spark real-time (JVM) 10 ms (load 1.5), 0.5x.",
        "",
        "**[Nexmark](#nexmark)**",
        "",
        "- q1, rows per CPU-second: 1 M, Flink 2 M, 0.5x.",
        "",
        "**[A day in production](#a-day-in-production)**",
        "",
        "- memory, worker: 100, then 200 MiB; rise 0; the target is ≤ 147 MiB.",
    ]


def test_every_query_of_nexmark_is_listed_with_what_became_of_it(tmp_path: Path) -> None:
    said = [table(page_of(tmp_path), f"q{number}")[1] for number in range(23)]
    refused = [n for n, each in enumerate(said) if each.startswith("Spark refuses it: ")]
    assert refused == [4, 6, 9, 15, 16, 18, 19]
    assert said[0] == "runs; equal to Spark and to DuckDB"


def test_a_table_has_a_target_and_a_peer(full: Path) -> None:
    lines = page_of(full).splitlines()
    (target, peer) = [
        line for line in lines if line.startswith("| delta, visible") and "p99" in line
    ]
    assert [cell.strip() for cell in target.split("|")[2:7]] == [
        "600 ms",
        "",
        "",
        "≤ 1000 ms",
        "met",
    ]
    assert "Spark micro-batch 3 000 ms | 5x" in peer


def test_commits_on_a_long_history_cost_at_most_four_times_the_first(full: Path) -> None:
    shown = table(page_of(full), "commit to delta at 10000 versions")
    assert shown[1:] == ["p50 30 ms, p99 60 ms", "", "", "≤ 4 times the first, 40 ms", "met"]


def test_the_requests_of_an_epoch_stand_beside_those_of_earlier_releases(full: Path) -> None:
    text = page_of(full)
    shown = table(text, "an epoch with 8 stores, requests")
    assert shown[1:3] == ["5 PUT, 0 GET, 0 DELETE", "a file per store 19 PUT, 16 GET"]
    assert shown[-2:] == ["5 PUT, no GET, no DELETE", "met"]
    assert table(text, "an epoch with 8 stores, CPU")[1] == "p50 5 ms, p99 10 ms"


def test_a_table_has_at_most_sixty_files_per_hour_after_compaction(full: Path) -> None:
    delta, iceberg = (
        table(page_of(full), f"{kind}, data files after compaction")[1:]
        for kind in ("delta", "iceberg")
    )
    shown = "at most 12 per hour (3 live, 482 before, 9 000 on disk)"
    assert delta == [shown, "", "", "≤ 60", "met"]
    assert iceberg[-2:] == ["≤ 60", "met"]


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


def test_a_query_of_nexmark_stands_beside_both_peers(full: Path) -> None:
    text = page_of(full)
    shown = table(text, "q1 with Python functions, rows per CPU-second")
    assert shown[1:4] == ["400 000", "Spark micro-batch 200 000", "2x"]
    assert table(text, "q5, p99")[1:4] == ["100 ms", "Spark micro-batch 1 000 ms", "10x"]


def test_a_turn_is_shown_with_its_tasks_and_its_target(full: Path) -> None:
    text = page_of(full)
    assert table(text, "state, 1 rows, hot, 2 tasks")[1] == "p50 80, p99 200 µs"
    map_turn = table(text, "map at 1000 rows/s, 1 rows")
    assert (map_turn[1], map_turn[-2:]) == ("p50 240, p99 700 µs", ["p50 ≤ 250 µs", "met"])
    count = table(text, "count at 50000 rows/s, 2 tasks")
    assert (count[1], count[-2:]) == ("p50 1.1, p99 2.5 ms", ["p99 ≤ 3 ms", "met"])


def test_spark_s_own_code_is_shown_beside_arrow_and_against_its_limits(full: Path) -> None:
    text = page_of(full)
    assert table(text, "text, 100 000 rows")[1].startswith("p50 90, p99 120 ms, 900 000 rows")
    start = table(text, "`start()` to the first commit, fresh session")
    assert start[-2:] == ["at most 2 s more", "met"]
    memory = table(text, "resident memory after 200 batches of 10,000 rows, five expressions")
    assert (memory[1], memory[-1]) == ("222 MiB", "met")


def test_a_suite_that_was_not_run_is_named_among_what_is_not_better(tmp_path: Path) -> None:
    save(tmp_path, "log", FIGURES["log"])
    assert "Without results: `state`, `big_state`, `coordinator`" in behind(page_of(tmp_path))


def test_the_newest_run_of_each_figure_counts(full: Path) -> None:
    newer = [{**FIGURES["log"][1], "cpu_milliseconds": 200.0}]
    save(full, "log", newer, taken="2026-05-02T10:00:00+00:00", commit="def5678")
    text = page_of(full)
    assert table(text, "`import epochal`")[1:] == [
        "200 ms of CPU",
        "",
        "",
        "< 150 ms",
        "**missed**",
    ]
    assert "Taken 2026-05-01 to 2026-05-02 at `abc1234`, `def5678`" in text


def test_rounds_of_one_run_become_their_median(tmp_path: Path) -> None:
    rounds = [
        {"figure": "map at 1000 rows/s: epochal", "round": n, "p50_ms": p50, "p99_ms": 2.0}
        for n, p50 in enumerate((0.5, 9.0, 0.7))
    ]
    save(tmp_path, "continuous", rounds)
    (row,) = read_suite(tmp_path, "continuous").rows
    assert row.number("p50_ms") == 0.7
    assert row.values["rounds"] == 3


def test_the_same_state_in_two_places_gives_two_figures(tmp_path: Path) -> None:
    figure = {"figure": "state of a task by number of keys", "keys": 1_000_000}
    places = [("dictionaries", 1.0), ("disk, stateMemory 1g", 3.0)]
    save(
        tmp_path,
        "big_state",
        [{**figure, "state_in": place, "restart_seconds": seconds} for place, seconds in places],
    )
    rows = read_suite(tmp_path, "big_state").rows
    assert [(row.values["state_in"], row.number("restart_seconds")) for row in rows] == places


def test_a_round_that_failed_does_not_hide_the_others(tmp_path: Path) -> None:
    figure = "map at 1000 rows/s: epochal"
    rounds: list[dict[str, Any]]
    rounds = [{"figure": figure, "p50_ms": 0.5, "p99_ms": 1.0}, {"figure": figure, "failed": "x"}]
    save(tmp_path, "continuous", rounds)
    assert table(page_of(tmp_path), "Python map at 1 000 rows/s, p50")[1] == "0.5 ms"


def under_load(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("Taken under load")]


def test_figures_of_an_idle_machine_are_not_called_less_reliable(full: Path) -> None:
    save(full, "log", FIGURES["log"], taken="2026-05-02T10:00:00+00:00", others_cores=0.3)
    assert under_load(page_of(full)) == []


def test_the_page_names_the_figures_that_were_taken_under_load(tmp_path: Path) -> None:
    for row, cores in zip(FIGURES["coordinator"], (0.1, 0.9), strict=True):
        save(tmp_path, "coordinator", [row], others_cores=cores)
    assert under_load(page_of(tmp_path)) == [
        "Taken under load, so less reliable: driver over sockets, 1 000 tasks."
    ]


def test_one_round_under_load_is_enough_to_name_a_figure(tmp_path: Path) -> None:
    for cores in (0.1, 0.9, 0.1):
        save(tmp_path, "log", FIGURES["log"][1:2], others_cores=cores)
    assert len(under_load(page_of(tmp_path))) == 1


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
        cwd=Path(harness.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert float(run.stdout) >= 0.45


def test_every_suite_takes_the_switch_for_a_busy_machine() -> None:
    folder = Path(harness.__file__).parent
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


def test_the_results_in_this_repository_make_a_page() -> None:
    folder = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
    assert page_of(folder).startswith("<!-- Generated")


def test_every_suite_of_make_bench_is_on_the_page() -> None:
    makefile = (Path(__file__).resolve().parent.parent / "Makefile").read_text()
    (listed,) = [line for line in makefile.splitlines() if line.startswith("BENCHES :=")]
    assert {*listed.split()[2:], "soak"} == set(SECTIONS)  # a soak has a target of its own


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123, "0.0123"),
        (0.82, "0.82"),
        (10.0, "10"),
        (12.54, "12.5"),
        (9844.9, "9 845"),
        (100_000, "100 000"),
        (999_999, "1 M"),
        (1_234_567, "1.23 M"),
    ],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def widths(svg: str) -> list[float]:
    bars = [each for each in ET.fromstring(svg).iter() if each.get("class") in ("ours", "peer")]
    return [float(bar.get("width", "nan")) for bar in bars]


def test_a_bar_is_as_long_as_its_value() -> None:
    group = Group("g", (Bar("a", 10.0, ours=True), Bar("b", 5.0), Bar("c", 0.0)))
    first, second, third = widths(bar_chart("t", "ms", [group]))
    assert (second / first, third) == (0.5, 1.0)


def test_on_a_logarithmic_scale_ten_times_as_much_is_as_far_everywhere() -> None:
    group = Group("g", tuple(Bar(str(n), 10.0**n) for n in range(4)))
    found = widths(bar_chart("t", "ms", [group], "log"))
    steps = [round(b - a) for a, b in pairwise(found)]
    assert len(set(steps)) == 1


def test_names_in_a_picture_are_escaped() -> None:
    svg = bar_chart("a & b", "<ms>", [Group("g", (Bar("x < y", 1.0),))])
    assert [each.text for each in ET.fromstring(svg).iter() if each.text == "x < y"] == ["x < y"]
