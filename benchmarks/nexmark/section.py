"""Turns the results of Nexmark into the tables of the page. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.engine_sections import engine_name, latency_line
from benchmarks.nexmark.texts import REFUSED, SPARK_DIFFERS, NexmarkQuery, python_texts, queries
from benchmarks.plots import number
from benchmarks.rows import Suite
from benchmarks.sections import Line, Section, failures

PEERS = ("spark-micro-batch", "flink")
RATE = 10_000

ABOUT = f"""\
The queries of Nexmark as Spark SQL, in `benchmarks/nexmark`. Tests run each one on Epochal and on
Spark over the same events, and compare results and final state, and the results with DuckDB's.

{{queries}}

Figures are taken by `make bench-nexmark`, in about fifteen minutes; it refuses to start on a busy
machine. All engines have two cores and compute the events from their numbers with the same SQL, so
that is part of every figure. Rows per CPU-second count the CPU time of all processes of an engine.
Epochal and Spark read the numbers from Parquet files and commit durably, Spark with RocksDB; Flink
counts them up itself, keeps state on the heap, and makes a checkpoint every second. Python
functions are plain ones of a row; Flink calls them within the JVM (`thread` mode). Latency is
measured at {number(RATE)} events per second, from when the last event that a result needs was due
until the sink had the result. A line with a ratio below 1 is one where the JVM is faster."""


def nexmark(suite: Suite) -> Section:
    lines = [*_throughput(suite), *_latency(suite)]
    about = ABOUT.format(queries=_queries())
    return Section("nexmark", "Nexmark", about, tuple(lines), (), failures(suite))


def _queries() -> str:
    rows = ["| query | as a stream |", "|---|---|"]
    rows += [f"| {query} | {_said(query)} |" for query in queries()]
    return "\n".join(rows)


def _said(query: NexmarkQuery) -> str:
    if query.number in REFUSED:
        return f"Spark refuses it: {REFUSED[query.number]}"
    return SPARK_DIFFERS.get(query.number, "runs; equal to Spark and to DuckDB")


def _throughput(suite: Suite) -> Iterator[Line]:
    for query in queries():
        kinds = ["", " with Python functions"] if query.number in python_texts() else [""]
        for kind in kinds:
            figure = f"throughput of {query}{kind}: "
            ours = suite.find(f"{figure}epochal")
            mine = ours.number("rows_per_cpu_second") if ours else None
            for engine in PEERS:
                peer = suite.find(f"{figure}{engine}")
                theirs = peer.number("rows_per_cpu_second") if peer else None
                if mine and theirs:
                    beside = f"{engine_name(engine)} {number(theirs)}"
                    what = f"{query}{kind}, rows per CPU-second"
                    yield Line(what, number(mine), beside, mine / theirs)


def _latency(suite: Suite) -> Iterator[Line]:
    for query in queries():
        figure = f"latency of {query} at {RATE} events/s: "
        ours = suite.find(f"{figure}epochal")
        for engine in PEERS:
            peer = suite.find(f"{figure}{engine}")
            for percent in ("p50", "p99"):
                line = latency_line(ours, peer, str(query), percent, "") if ours and peer else None
                if line is not None:
                    yield line
