"""Turns the rows of the suites that compare engines into table lines and plots. Pure.

Note: an engine that did not run, or produced no row, has no bar and no line; the page lists it
among the failures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.plots import Bar, Group, number
from benchmarks.rows import Row, Suite
from benchmarks.sections import Line, Section, failures, plot

ENGINES = {
    "epochal": "Epochal",
    "epochal-at-least-once": "Epochal, at least once",
    "epochal-exactly-once": "Epochal, exactly once",
    "micro-batch": "Spark micro-batch",
    "spark-micro-batch": "Spark micro-batch",
    "spark-delta": "Spark micro-batch",
    "real-time": "Spark real-time mode",
    "spark-real-time": "Spark real-time (JVM)",
    "spark-5s-real-time": "Spark real-time, 5 s",
    "jvm-continuous": "Spark continuous (JVM)",
    "quix": "Quix Streams",
    "bytewax": "Bytewax",
    "flink": "Flink",
}


def engine_name(engine: str) -> str:
    return ENGINES.get(engine, engine)


def _name(row: Row) -> str:
    return engine_name(row.figure.rpartition(": ")[2])


def _is_ours(row: Row) -> bool:
    return row.figure.rpartition(": ")[2].startswith("epochal")


def latency_groups(suite: Suite, kinds: Sequence[tuple[str, str]]) -> list[Group]:
    """Two groups of bars for each kind of figure: the engines' p50, and their p99."""
    return [
        Group(
            f"{title}, {percent}",
            tuple(
                Bar(_name(row), value, ours=_is_ours(row))
                for row in suite.all(figure)
                if (value := row.number(f"{percent}_ms"))
            ),
        )
        for figure, title in kinds
        for percent in ("p50", "p99")
    ]


def latency_line(ours: Row, peer: Row | None, what: str, percent: str, target: str) -> Line | None:
    """Ours compared with a peer; the target is `≤ N ms` or, with a peer, `≥ Nx`."""
    mine = ours.number(f"{percent}_ms")
    theirs = peer.number(f"{percent}_ms") if peer is not None else None
    if mine is None or (peer is not None and theirs is None):
        return None
    ratio = theirs / mine if theirs is not None else None
    beside = f"{_name(peer)} {number(theirs)} ms" if peer and theirs is not None else ""
    wanted = re.search(r"[\d.]+", target)
    limit = float(wanted[0]) if wanted else 1.0
    met = None
    if target:
        met = mine <= limit if ratio is None else ratio >= limit
    return Line(f"{what}, {percent}", f"{number(mine)} ms", beside, ratio, target, met)


_BOTH = {"p50": "", "p99": ""}
CONTINUOUS: list[tuple[str, str | None, dict[str, str]]] = [
    ("map at 1000 rows/s", None, {"p50": "≤ 1 ms", "p99": "≤ 3 ms"}),
    ("map at 1000 rows/s", "micro-batch", {"p50": "≥ 200x", "p99": ""}),
    ("map at 1000 rows/s", "real-time", _BOTH),
    ("map at 1000 rows/s", "jvm-continuous", _BOTH),
    ("map at 50 rows/s", "real-time", _BOTH),
    ("state at 1000 rows/s", None, {"p50": "", "p99": "≤ 10 ms"}),
    ("state at 1000 rows/s", "micro-batch", _BOTH),
    ("state at 50000 rows/s", None, {"p50": "", "p99": "≤ 15 ms"}),
    ("state at 50000 rows/s", "micro-batch", _BOTH),
    ("aggregate at 50000 rows/s", None, _BOTH),
]
WORK = {"map": "Python map", "state": "keyed state", "aggregate": "aggregation"}


def _spaced(figure: str) -> str:
    """`state at 50000 rows/s` as a reader expects it: `keyed state at 50 000 rows/s`."""
    work, _, rest = figure.partition(" at ")
    return f"{WORK.get(work, work)} at {re.sub(r'[0-9]+', lambda n: number(int(n[0])), rest)}"


def continuous(suite: Suite) -> Section:
    lines: list[Line | None] = []
    for figure, engine, targets in CONTINUOUS:
        ours = suite.find(f"{figure}: epochal")
        peer = suite.find(f"{figure}: {engine}") if engine else None
        if ours and (peer or not engine):
            what = _spaced(figure)
            lines += [latency_line(ours, peer, what, *each) for each in targets.items()]
    groups = []
    flat = suite.find("map flat out")
    if flat and (mine := flat.number("epochal")) and (theirs := flat.number("micro-batch")):
        beside = f"Spark micro-batch {number(theirs)} rows/s"
        ratio = mine / theirs
        shown = f"{number(mine)} rows/s"
        lines.append(Line("Python map, maximum rate", shown, beside, ratio, "≥ 4x", ratio >= 4))
        bars = (Bar("Epochal", mine, ours=True), Bar("Spark micro-batch", theirs))
        groups.append(Group("Python map", bars))
    kinds = [
        (figure, _spaced(figure)) for figure in dict.fromkeys(figure for figure, *_ in CONTINUOUS)
    ]
    return Section(
        "continuous",
        "Continuous queries",
        "`local[2]`, epochs of 100 ms, durable commits. Latency is measured from the moment a row "
        "is due to the moment the sink has it. Spark's continuous mode runs no Python: the JVM "
        "passes rows on and reads the clock. Real-time mode runs a Python operator only with its "
        "allowlist off. Micro-batches are tuned (RocksDB with changelog, no polling delay) and run "
        "the same processor.",
        tuple(filter(None, lines)),
        (
            *plot(
                "continuous-latency",
                "Latency, less is better",
                "ms",
                latency_groups(suite, kinds),
                "log",
            ),
            *plot("continuous-throughput", "Maximum rate, more is better", "rows/s", groups),
        ),
        failures(suite),
    )


MAP = "map latency at 1000 records/s"
KAFKA = {
    MAP: "Python map at 1 000 records/s",
    "latency at 1000 records/s": "count per key at 1 000 records/s",
    "latency at 10000 records/s": "count per key at 10 000 records/s",
}
KAFKA_PEERS: dict[str, dict[str, str]] = {
    "bytewax": {"p50": "≥ 1x", "p99": "≥ 1x"},
    "quix": {"p50": "≥ 1x", "p99": "≥ 1x"},
    "spark-real-time": {"p50": "", "p99": "≥ 1x"},
    "spark-micro-batch": {"p50": "", "p99": "≥ 20x"},
}
EXACTLY_ONCE = {"p50": "≤ 70 ms", "p99": "≤ 130 ms"}


def _kafka_latencies(suite: Suite) -> list[Line | None]:
    lines: list[Line | None] = []
    for figure, what in KAFKA.items():
        ours = suite.find(f"{figure}: epochal-at-least-once")
        if ours is None:
            continue
        for engine, targets in KAFKA_PEERS.items():
            if peer := suite.find(f"{figure}: {engine}"):
                lines += [latency_line(ours, peer, what, *each) for each in targets.items()]
        if once := suite.find(f"{figure}: epochal-exactly-once"):
            targets = EXACTLY_ONCE if figure == MAP else dict.fromkeys(EXACTLY_ONCE, "")
            what = f"{what}, exactly once"
            lines += [latency_line(once, None, what, *each) for each in targets.items()]
    return lines


def kafka(suite: Suite) -> Section:
    lines = _kafka_latencies(suite)
    flat = "map flat out on one core"
    ours = suite.find(f"{flat}: epochal")
    for engine, at_least in (("quix", 4), ("bytewax", 4), ("spark-micro-batch", 1)):
        peer = suite.find(f"{flat}: {engine}")
        mine = ours.number("rows_per_cpu_second") if ours else None
        theirs = peer.number("rows_per_cpu_second") if peer else None
        if peer and mine and theirs:
            ratio = mine / theirs
            lines.append(
                Line(
                    "Kafka to Python map to Kafka, per core",
                    f"{number(mine)} rows/s",
                    f"{_name(peer)} {number(theirs)} rows/s",
                    ratio,
                    f"≥ {at_least}x",
                    ratio >= at_least,
                )
            )
    lines.append(_listener(suite.find("listener on Spark's batches")))
    throughput = Group(
        "rows per CPU-second",
        tuple(
            Bar(_name(row), value, ours=_is_ours(row))
            for row in suite.all(flat)
            if (value := row.number("rows_per_cpu_second"))
        ),
    )
    return Section(
        "kafka",
        "Kafka in, Python, Kafka out",
        "All engines take turns on one broker, with epochs or commits every 100 ms. A record's "
        "delay is the time from when it was due until the same consumer of committed records "
        "receives it. Epochal maps on one task and counts on two; real-time mode only passes "
        "records on, in the JVM (the next chapter has its aggregation). Epochal writes at least "
        "once, as all others do, unless a line says exactly once: then a record waits for the "
        "rest of its epoch, 50 ms on average. CPU time is that of all processes of an engine, "
        "with driver and JVM.",
        tuple(filter(None, lines)),
        (
            *plot(
                "kafka-latency",
                "End to end, less is better",
                "ms",
                latency_groups(suite, list(KAFKA.items())),
                "log",
            ),
            *plot(
                "kafka-throughput",
                "Python map, maximum rate, more is better",
                "rows/s",
                [throughput],
            ),
        ),
        failures(suite),
    )


def _listener(row: Row | None) -> Line | None:
    """The target is for the whole effect on a batch, which noise hides, so both are shown."""
    difference = row.number("difference_percent") if row else None
    if row is None or difference is None:
        return None
    share, inside = row.number("callback_percent") or 0, row.number("callback_ms") or 0
    return Line(
        "effect of the committer on Spark's batch time",
        f"{difference:+.1f} % (its callback: {number(inside)} ms, {number(share)} %)",
        f"without it {number(row.number('batch_ms') or 0)} ms",
        None,
        "< 1 %",
        difference < 1,
    )


TURN_TARGETS = {
    "map, 0 rows, cold": ("p50_us", 15),
    "map at 1000 rows/s, 1 rows": ("p50_us", 250),
    "state at 50000 rows/s": ("p99_ms", 5),
    "count at 50000 rows/s": ("p99_ms", 3),
}
"""By figure, the value that has a target, and the highest that meets it."""


def turn(suite: Suite) -> Section:
    lines = [line for row in suite.rows if (line := _turn_line(row)) is not None]
    return Section(
        "turn",
        "A turn of a task",
        "CPU time of the data thread per turn, in the real loop. Neither Spark, the driver "
        "nor the threads of the Kafka client are counted. Hot turns follow each other at once, "
        "cold ones sleep in between. `map` is Kafka to Python to Kafka; `state` "
        "(transformWithState) and `count` (an aggregation) have rows in memory. Delays are from "
        "when a row was due until it reached the sink.",
        tuple(lines),
        (),
        failures(suite),
    )


def _turn_line(row: Row) -> Line | None:
    unit = "us" if row.number("p50_us") is not None else "ms"
    half, high = row.number(f"p50_{unit}"), row.number(f"p99_{unit}")
    if half is None or high is None:
        return None
    shown = f"p50 {number(half)}, p99 {number(high)} {'µs' if unit == 'us' else 'ms'}"
    tasks = row.number("tasks") or 1
    what = row.figure if tasks == 1 else f"{row.figure}, {number(tasks)} tasks"
    key, limit = TURN_TARGETS.get(row.figure, ("", 0))
    if not key:
        return Line(what, shown)
    target = f"{key[:3]} ≤ {limit} {'µs' if unit == 'us' else 'ms'}"
    return Line(what, shown, target=target, met=(row.number(key) or 0) <= limit)
