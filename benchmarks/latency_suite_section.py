"""Turns the results of the latency suite into table lines and a plot. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.engine_sections import latency_groups, latency_line
from benchmarks.rows import Suite
from benchmarks.sections import Line, Section, failures, plot

ABOUT = """\
How long a record takes through Kafka, a query and Kafka again when 10 000 records of 1.2 kB arrive
per second. This is the [suite](https://github.com/databricks-solutions/latency-benchmarks) that
Databricks published for real-time mode, repeated on one machine with `make bench-latency-suite`.
All engines run the same DataFrame. *Stateless* encodes each record as base64, *count* also counts
how often each text occurred, *join* looks it up in a static table of 10 000 rows. A figure is from
when the record was due until a consumer has received it; broker, load and consumer share the cores
with the engine. Real-time mode runs in the JVM, with a checkpoint every five minutes, its default,
and with one every five seconds, its minimum; we checkpoint ten times per second. Published for
real-time mode on a cluster in the cloud, p50 and p99, up to the timestamp of the output: stateless
1 and 3 ms, count 7 and 14 ms, join 1 and 9 ms."""

OURS = "epochal-at-least-once"
PEERS = ("spark-real-time", "spark-5s-real-time", "spark-micro-batch")
WORKS = {"stateless": "stateless", "count": "group and count", "join": "stream-static join"}


def latency_suite(suite: Suite) -> Section:
    groups = latency_groups(suite, [(f"{work}: ", what) for work, what in WORKS.items()])
    return Section(
        "latency_suite",
        "A published latency suite",
        ABOUT,
        tuple(_lines(suite)),
        plot("latency-suite", "Latency at 10 000 records/s, less is better", "ms", groups, "log"),
        failures(suite),
    )


def _lines(suite: Suite) -> Iterator[Line]:
    for work, what in WORKS.items():
        ours = suite.find(f"{work}: {OURS}")
        if ours is None:
            continue
        for peer in (suite.find(f"{work}: {name}") for name in PEERS):
            for percent in ("p50", "p99"):
                line = None if peer is None else latency_line(ours, peer, what, percent, "")
                if line is not None:
                    yield line
        exact = suite.find(f"{work}: epochal-exactly-once")
        for percent in ("p50", "p99"):
            words = f"{what}, exactly once"
            line = None if exact is None else latency_line(exact, None, words, percent, "")
            if line is not None:
                yield line
