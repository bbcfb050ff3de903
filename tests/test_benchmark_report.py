"""The benchmark page works with any subset of results and lists where Epochal is not better."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.plots import Bar, Group, bar_chart, number
from benchmarks.report import SECTIONS, page, write
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
            "wanted_epochs_per_second": 10,
            "epochs_per_second": 9.9,
            "cores_used": 0.7,
        },
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
        {"figure": "latency, continuous", "p50_ms": 20.0, "p99_ms": 60.0},
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
    "tables": [
        *(
            {"figure": f"visible at 1000 rows/s: {engine}", "p50_ms": ms, "p99_ms": ms * 2}
            for engine, ms in (("epochal-delta", 300.0), ("spark-delta", 1_500.0))
        ),
        *(
            {"figure": f"commit to delta at {n} versions", "p50_ms": ms, "p99_ms": ms * 2}
            for n, ms in ((100, 10.0), (10_000, 30.0))
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
        assert f"`make bench-{name}`" in text


@pytest.mark.parametrize("suite", FIGURES)
def test_any_one_suite_makes_a_page(tmp_path: Path, suite: str) -> None:
    save(tmp_path, suite, FIGURES[suite])
    text = page_of(tmp_path)
    assert "*Taken 2026-05-01 at `abc1234` on 2 cores" in text
    assert f"`make bench-{suite}`." not in text


def test_a_figure_stands_beside_its_peer_and_its_target(full: Path) -> None:
    what = "`checkpoint show`, 100 batches and 200 partitions, whole process"
    assert table(page_of(full), what)[1:] == ["250 ms", "Spark 10 s", "40x", "≥ 20x", "met"]


def test_what_misses_its_target_or_is_behind_a_peer_comes_first(full: Path) -> None:
    listed = behind(page_of(full)).strip().splitlines()
    assert listed == [
        "- durable `add`, p50: 1.6 ms, write and two fsyncs 1 ms; "
        "the target is ≤ 1.5 of a bare fsync (it is 1.6).",
        "- memory per key, two versions: 200 B, Spark 100 B, 0.5x.",
        "- Python map at 1 000 rows/s, p50: 0.8 ms, Spark continuous (JVM) 0.4 ms, 0.5x.",
        "- q1, rows per CPU-second: 1 M, Flink 2 M, 0.5x.",
        "- latency at 1000 records/s: bytewax: …: no",
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


def test_a_query_of_nexmark_stands_beside_both_peers(full: Path) -> None:
    text = page_of(full)
    shown = table(text, "q1 with Python functions, rows per CPU-second")
    assert shown[1:4] == ["400 000", "Spark micro-batch 200 000", "2x"]
    assert table(text, "q5, p99")[1:4] == ["100 ms", "Spark micro-batch 1 000 ms", "10x"]


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


def test_a_round_that_failed_does_not_hide_the_others(tmp_path: Path) -> None:
    figure = "map at 1000 rows/s: epochal"
    rounds: list[dict[str, Any]]
    rounds = [{"figure": figure, "p50_ms": 0.5, "p99_ms": 1.0}, {"figure": figure, "failed": "x"}]
    save(tmp_path, "continuous", rounds)
    assert table(page_of(tmp_path), "Python map at 1 000 rows/s, p50")[1] == "0.5 ms"


def test_a_busy_machine_is_mentioned(tmp_path: Path) -> None:
    save(tmp_path, "log", FIGURES["log"], load=[11.0, 16.0])
    assert "load 11 to 16" in page_of(tmp_path)
    assert "these figures are less reliable" in page_of(tmp_path)


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
    assert set(listed.split()[2:]) == set(SECTIONS)


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
