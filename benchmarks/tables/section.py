"""Turns the results of the tables into the lines of the page. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.engine_sections import latency_line
from benchmarks.plots import number
from benchmarks.rows import Suite
from benchmarks.sections import Line, Section, failures

ABOUT = """\
Delta Lake, Apache Iceberg and PostgreSQL, exactly once; `make bench-tables` takes the figures. A
row is stamped with the time when it was due; a process that only reads the table notes when it
sees the row. So a figure contains the wait for the end of the epoch (250 ms for Delta, 1 s for
Iceberg, 50 ms for PostgreSQL), writing, committing, and the reader's look every 10 ms. Delta and
Iceberg compact files meanwhile, and Iceberg expires snapshots. Spark's micro-batches write a Delta
table of their own in the same run, with Spark 4.2, the newest release that Delta Lake supports.
Below are figures of the sink alone. Data files: 15 minutes with 1 000 rows/s in two tasks, run as
fast as the sink commits, with one compaction per minute. Live files are those that a reader finds;
the hour is four times the 15 minutes, which is more than there would be, because compaction goes on
merging. Files on disk include those that earlier versions still need. Commits: by the number of
versions that the table has had."""

TARGETS = {"delta": "≤ 1000 ms", "iceberg": "≤ 2000 ms", "postgres": "≤ 100 ms"}
RATES = (1_000, 50_000)
MOST_FILES = 60


def tables(suite: Suite) -> Section:
    lines = [*_visible(suite), *_files(suite), *_commits(suite)]
    return Section("tables", "Tables", ABOUT, tuple(lines), (), failures(suite))


def _visible(suite: Suite) -> Iterator[Line]:
    for rate in RATES:
        for kind, target in TARGETS.items():
            figure = f"visible at {rate} rows/s: "
            ours = suite.find(f"{figure}epochal-{kind}")
            if ours is None:
                continue
            what = f"{kind}, visible at {number(rate)} rows/s"
            lines = [
                latency_line(ours, None, what, "p50", ""),
                latency_line(ours, None, what, "p99", target),
            ]
            peer = suite.find(f"{figure}spark-{kind}")
            if peer is not None:
                lines += [latency_line(ours, peer, what, each, "") for each in ("p50", "p99")]
            yield from (line for line in lines if line is not None)


def _files(suite: Suite) -> Iterator[Line]:
    for kind in ("delta", "iceberg"):
        row = suite.find(f"data files of {kind}")
        hour = None if row is None else row.number("live_per_hour")
        if row is None or hour is None:
            continue
        after, before, disk = (
            number(row.number(name) or 0) for name in ("live_after", "live_before", "on_disk")
        )
        shown = f"at most {number(hour)} per hour ({after} live, {before} before, {disk} on disk)"
        what = f"{kind}, data files after compaction"
        yield Line(what, shown, "", None, f"≤ {MOST_FILES}", hour <= MOST_FILES)


def _commits(suite: Suite) -> Iterator[Line]:
    for kind in ("delta", "iceberg"):
        rows = suite.all(f"commit to {kind}")
        if not rows:
            continue
        first, last = rows[0].number("p50_ms"), rows[-1].number("p50_ms")
        for row in rows:
            p50, p99 = row.number("p50_ms"), row.number("p99_ms")
            if p50 is None or p99 is None:
                continue
            is_last = row is rows[-1] and row is not rows[0]
            met = last <= 4 * first if is_last and first and last else None
            target = f"≤ 4 times the first, {number(4 * first)} ms" if is_last and first else ""
            yield Line(
                row.figure, f"p50 {number(p50)} ms, p99 {number(p99)} ms", "", None, target, met
            )
