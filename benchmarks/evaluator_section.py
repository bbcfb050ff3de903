"""Turns the results of the evaluator suite into table lines and a plot. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.plots import Bar, Group, number
from benchmarks.rows import Row, Suite
from benchmarks.sections import Line, Section, failures, plot, seconds

ABOUT = """\
One expression over batches of 1, 1,000 and 100,000 rows, in Arrow and in Spark's own code, which
runs in a process beside the tasks. Both take turns in one process over the same batches. CPU is
that of both processes. A start is the time from `start()` to the first commit on `local[2]`; a warm
session has run the same query before."""

START_LIMIT, MEMORY_LIMIT = 2.0, 256


def evaluator(suite: Suite) -> Section:
    rows = [row for row in suite.rows if row.number("spark_p50_ms") is not None]
    lines = [*map(_line, rows), *_starts(suite), *_memory(suite)]
    groups = [
        Group(
            str(row.values["kind"]),
            tuple(
                Bar(name, value, ours=way == "spark")
                for way, name in (("spark", "Spark's own code"), ("arrow", "Arrow"))
                if (value := row.number(f"{way}_rows_per_cpu_second"))
            ),
        )
        for row in rows
        if row.number("rows") == 100_000
    ]
    title = "Rows per CPU-second, batches of 100,000 rows"
    plots = plot("evaluator", title, "rows/s", groups, "log")
    return Section("evaluator", "Spark's own code", ABOUT, tuple(lines), plots, failures(suite))


def _line(row: Row) -> Line:
    def shown(way: str) -> str | None:
        p50, p99 = row.number(f"{way}_p50_ms"), row.number(f"{way}_p99_ms")
        rate = row.number(f"{way}_rows_per_cpu_second")
        if p50 is None or p99 is None or rate is None:
            return None
        return f"p50 {number(p50)}, p99 {number(p99)} ms, {number(rate)} rows per CPU-second"

    arrow = shown("arrow")
    what = f"{row.values['kind']}, {number(row.number('rows') or 0)} rows"
    return Line(what, (shown("spark") or "") + (f"; Arrow: {arrow}" if arrow else ""))


def _starts(suite: Suite) -> Iterator[Line]:
    for session in ("fresh", "warm"):
        with_it = suite.find(f"start: spark, {session} session")
        without = suite.find(f"start: arrow, {session} session")
        ours = None if with_it is None else with_it.number("p50_seconds")
        other = None if without is None else without.number("p50_seconds")
        if ours is None or other is None:
            continue
        shown = f"{seconds(ours)}; {seconds(other)} where it is not needed"
        limit = START_LIMIT if session == "fresh" else 0.2
        target = f"at most {seconds(limit)} more"
        what = f"`start()` to the first commit, {session} session"
        yield Line(what, shown, target=target, met=ours - other <= limit)


def _memory(suite: Suite) -> Iterator[Line]:
    row = suite.find("memory")
    used = None if row is None else row.number("resident_mebibytes")
    if row is not None and used is not None:
        batches = number(row.number("batches") or 0)
        what = f"resident memory after {batches} batches of 10,000 rows, five expressions"
        target = f"at most {MEMORY_LIMIT} MiB"
        yield Line(what, f"{number(used)} MiB", target=target, met=used <= MEMORY_LIMIT)
