"""Turns the rows of each suite into table lines with their targets, and into plots. Pure.

Note: a ratio always shows how many times better ours is, no matter whether the suite measures time
or throughput. A line without a target is shown because its figure is worth knowing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.line_plots import LinePlot
from benchmarks.plots import Bar, Group, bar_chart, number
from benchmarks.rows import Row, Suite

Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table."""

    what: str
    ours: str
    beside: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None

    @property
    def behind(self) -> bool:
        """Whether this misses its target or is behind a peer, so that the page lists it first."""
        return self.met is False or (self.ratio is not None and self.ratio < 1)


@dataclass(frozen=True, slots=True)
class Plot:
    name: str
    title: str
    unit: str
    groups: tuple[Group, ...]
    scale: Scale = "linear"

    def svg(self) -> str:
        return bar_chart(self.title, self.unit, self.groups, self.scale)


@dataclass(frozen=True, slots=True)
class Section:
    """A suite on the page."""

    name: str
    title: str
    about: str
    lines: tuple[Line, ...] = ()
    plots: tuple[Plot | LinePlot, ...] = ()
    failures: tuple[str, ...] = ()


def reason(row: Row) -> str:
    """Why a row has no figure, in one line and without local paths."""
    words = (row.failed or "").strip().splitlines()[-1:] or ["no reason given"]
    return re.sub(r"(?:/[\w.@+-]+){2,}", "…", words[0])[:160]


def failures(suite: Suite) -> tuple[str, ...]:
    return tuple(f"{row.figure}: {reason(row)}" for row in suite.rows if row.failed is not None)


def seconds(value: float) -> str:
    return f"{number(value * 1000)} ms" if value < 1 else f"{number(value)} s"


def plot(
    name: str, title: str, unit: str, groups: Sequence[Group], scale: Scale = "linear"
) -> tuple[Plot, ...]:
    shown = tuple(group for group in groups if group.bars)
    return (Plot(name, title, unit, shown, scale),) if shown else ()


def _beside_spark(row: Row, what: str, at_least: float, target: str) -> Line | None:
    ours, spark = row.number("wall_seconds"), row.number("spark_wall_seconds")
    if ours is None or spark is None:
        return None
    ratio = spark / ours
    return Line(what, seconds(ours), f"Spark {seconds(spark)}", ratio, target, ratio >= at_least)


def _seconds_group(row: Row, name: str) -> Group:
    ours, spark = row.number("wall_seconds"), row.number("spark_wall_seconds")
    bars = (Bar("Epochal", ours or 0, ours=True), Bar("Spark", spark or 0))
    return Group(name, bars if ours and spark else ())


def log(suite: Suite) -> Section:
    lines: list[Line | None] = []
    groups = []
    for tool in ("show", "verify"):
        if row := suite.find(f"checkpoint {tool}"):
            what = f"`checkpoint {tool}`, 100 batches and 200 partitions, whole process"
            lines.append(_beside_spark(row, what, 20, "≥ 20x"))
            groups.append(_seconds_group(row, f"checkpoint {tool}"))
    if row := suite.find("import epochal"):
        ms = row.number("cpu_milliseconds") or 0.0
        text = f"{number(ms)} ms of CPU" if ms >= 0.1 else "below 0.1 ms of CPU"
        lines.append(Line("`import epochal`", text, "", None, "< 150 ms", ms < 150))
    for percent in (50, 99):
        added = suite.find(f"durable add p{percent}")
        if added and (ratio := added.number("ratio")):
            ours, bare = (
                added.number("add_milliseconds") or 0,
                added.number("bare_milliseconds") or 0,
            )
            lines.append(
                Line(
                    f"durable `add`, p{percent}",
                    f"{number(ours)} ms",
                    f"write and two fsyncs {number(bare)} ms",
                    None,
                    f"≤ 1.5 of a bare fsync (it is {number(ratio)})",
                    ratio <= 1.5,
                )
            )
    return Section(
        "log",
        "The metadata log and the tools",
        "These figures are for whole processes, from start to exit, on a checkpoint that Spark "
        "wrote. Spark starts a session and reads the same data with its `state-metadata` source.",
        tuple(filter(None, lines)),
        plot(
            "log", "Reading a checkpoint, whole process, less is better", "seconds", groups, "log"
        ),
        failures(suite),
    )


STATE = [
    (r"state of (\d+) keys to Arrow, beside", "state of {} keys to Arrow, warm", 5, "≥ 5x"),
    (r"state of (\d+) keys to Arrow, whole processes", "the same, whole processes", 20, "≥ 20x"),
    (r"put and commit of (\d+) keys", "change and commit of {} keys", 1, "no slower"),
    (r"load of one provider of (\d+) keys", "load of one store of {} keys", 1, "no slower"),
    (r"load of both providers of (\d+) keys", "load of both stores of {} keys", 1, "no slower"),
]


def state(suite: Suite) -> Section:
    lines: list[Line | None] = []
    groups = []
    for pattern, what, at_least, target in STATE:
        for row in suite.rows:
            if found := re.match(pattern, row.figure):
                name = what.format(number(int(found[1])))
                lines.append(_beside_spark(row, name, at_least, target))
                groups.append(_seconds_group(row, name))
    if kept := suite.find("memory per key"):
        ours, spark = kept.number("bytes_per_key") or 1, kept.number("spark_bytes_per_key") or 0
        beside = f"Spark {number(spark)} B"
        lines.append(
            Line("memory per key, two versions", f"{number(ours)} B", beside, spark / ours)
        )
    grown = suite.all("state to Arrow, by number of keys")
    lines.append(_growth(grown))
    lines += [_largest(row) for row in suite.rows if "peak_gibibytes" in row.values]
    growth = Group(
        "CPU per key",
        tuple(
            Bar(f"{number(row.number('keys') or 0)} keys", value, ours=True)
            for row in sorted(grown, key=lambda row: row.number("keys") or 0)
            if (value := row.number("cpu_microseconds_per_key"))
        ),
    )
    return Section(
        "state",
        "The state store",
        "Spark made the state: string keys to two longs, in two partitions. Spark ran in one warm "
        "session on two cores. Its update and commit times are from its own progress reports.",
        tuple(filter(None, lines)),
        (
            *plot("state", "State, less is better", "seconds", groups, "log"),
            *plot("state-growth", "State to Arrow: cost per key", "µs of CPU", [growth]),
        ),
        failures(suite),
    )


def _growth(rows: Sequence[Row]) -> Line | None:
    sizes = sorted(
        (row.number("keys") or 0, cost)
        for row in rows
        if (cost := row.number("cpu_microseconds_per_key")) is not None
    )
    if len(sizes) < 2:
        return None
    (few, first), (many, last) = sizes[0], sizes[-1]
    return Line(
        f"CPU per key, {number(few)} to {number(many)} keys",
        f"{number(first)} to {number(last)} µs",
        target="linear in the number of keys",
        met=last <= 1.5 * first,
    )


def _largest(row: Row) -> Line | None:
    wall, peak = row.number("wall_seconds"), row.number("peak_gibibytes")
    if wall is None:
        return None
    shown = f"{seconds(wall)}, {number(peak)} GiB" if peak else f"{seconds(wall)}, memory unknown"
    what = re.sub(r"\d+", lambda found: number(int(found[0])), row.figure)
    return Line(what, shown, target="within 8 GiB", met=peak <= 8 if peak else None)


DRIVER_TARGETS = {1_000: (10.0, 0.6), 10_000: (2.0, None)}
"""By number of tasks: epochs per second at least, and cores of the driver at most."""


def coordinator(suite: Suite) -> Section:
    lines = []
    for row in suite.all("pure step"):
        cost = row.number("microseconds_per_report") or 0
        what = f"handling one report, {number(row.number('tasks') or 0)} tasks"
        lines.append(Line(what, f"{number(cost)} µs"))
    driven = suite.all("driver over sockets")
    lines += [_driver(row) for row in driven]

    def group(name: str, value: str) -> Group:
        bars = [(f"{number(row.number('tasks') or 0)} tasks", row.number(value)) for row in driven]
        return Group(name, tuple(Bar(label, cost, ours=True) for label, cost in bars if cost))

    costs = [
        group("CPU of the driver per task and epoch, µs", "microseconds_per_task_and_epoch"),
        group("cores of the driver", "cores_used"),
    ]
    return Section(
        "coordinator",
        "The epoch coordinator",
        "The driver process with simulated tasks on real sockets, one message per task and epoch. "
        "Cores are those of the driver process, without a JVM and without the clients. The clients "
        "share the machine's cores with it, which limits the larger sizes.",
        tuple(lines),
        (
            *plot(
                "coordinator",
                "Epochs per second by number of tasks",
                "epochs/s",
                [group("epochs/s (12.5 wanted)", "epochs_per_second")],
            ),
            *plot("coordinator-cost", "The driver's cost by number of tasks", "", costs, "log"),
        ),
        failures(suite),
    )


def epoch(suite: Suite) -> Section:
    lines: list[Line] = []
    cpu: list[Group] = []
    requests: list[Group] = []
    for row in suite.rows:
        if row.values.get("protocol") != "a file per task":
            continue
        stores, puts = int(row.number("stores") or 0), row.number("puts") or 0
        former = suite.find(f"an epoch with {stores} stores, a file per store")
        wanted = (row.number("tasks") or 0) + 3
        gets, deletes = row.number("gets") or 0, row.number("deletes") or 0
        what = f"an epoch with {stores} stores"
        lines.append(
            Line(
                f"{what}, requests",
                f"{number(puts)} PUT, {number(gets)} GET, {number(deletes)} DELETE",
                ""
                if former is None
                else f"a file per store {number(former.number('puts') or 0)} "
                f"PUT, {number(former.number('gets') or 0)} GET",
                target=f"{number(wanted)} PUT, no GET, no DELETE",
                met=puts <= wanted and not gets and not deletes,
            )
        )
        for measure, unit in (("cpu", "CPU"), ("wall", "wall time")):
            ours = [row.number(f"{measure}_milliseconds_p{p}") or 0 for p in (50, 99)]
            lines.append(Line(f"{what}, {unit}", "p50 {} ms, p99 {} ms".format(*map(number, ours))))
        pairs = [("one file per task", row), ("a file per store", former)]
        for groups, key in ((cpu, "cpu_milliseconds_p50"), (requests, "puts")):
            bars = [
                Bar(name, each.number(key) or 0, ours=each is row) for name, each in pairs if each
            ]
            groups.append(Group(f"{stores} stores", tuple(bars)))
    return Section(
        "epoch",
        "Storage of an epoch",
        "The real driver and the real stores of two tasks in one process, on local disk, without "
        "Spark, JVM and sockets. A file per store is the protocol of earlier releases.",
        tuple(lines),
        (
            *plot("epoch", "CPU of an epoch, less is better", "ms", cpu, "log"),
            *plot("epoch-requests", "PUT requests of an epoch", "requests", requests, "log"),
        ),
        failures(suite),
    )


def _driver(row: Row) -> Line:
    tasks, epochs = row.number("tasks") or 0, row.number("epochs_per_second") or 0
    cores = row.number("cores_used") or 0
    what = f"driver with {number(tasks)} tasks over sockets"
    shown = f"{number(epochs)} epochs/s on {number(cores)} cores"
    if int(tasks) not in DRIVER_TARGETS:
        return Line(what, shown)
    at_least, at_most = DRIVER_TARGETS[int(tasks)]
    met = epochs >= at_least and (at_most is None or cores <= at_most)
    limit = "" if at_most is None else f" on ≤ {number(at_most)} cores"
    return Line(what, shown, target=f"≥ {number(at_least)} epochs/s{limit}", met=met)


def pubsub(suite: Suite) -> Section:
    lines: list[Line | None] = []
    groups = []
    for kind, title, at_least in (("pull", "StreamingPull to Arrow", 20), ("publish", "sink", 10)):
        for size in ("100 B", "1 KB"):
            row = suite.find(f"{kind}, {size}")
            if row is None:
                continue
            lines += [
                _messages(row, f"{title}, {size}", "per_cpu_second", at_least),
                _messages(row, f"{title}, {size}", "per_second", None),
            ]
            mine, theirs = row.number("ours_per_cpu_second"), row.number("google_per_cpu_second")
            if mine and theirs:
                bars = (Bar("Epochal", mine, ours=True), Bar("Google's client", theirs))
                groups.append(Group(f"{title}, {size}", bars))
    for size in ("100 B", "1 KB"):
        row = suite.find(f"spark, {size}")
        rate = row.number("per_second") if row else None
        if row and rate:
            limit = f"limited by {row.values.get('limited_by', 'an unknown step')}"
            wanted = ("≥ 100 k rows/s", rate >= 100_000) if size == "100 B" else ("", None)
            what = f"embedded server to Spark's noop, {size}"
            lines.append(Line(what, f"{number(rate)} rows/s, {limit}", "", None, *wanted))
    lines += [_stall(suite.find("stall")), *_relay(suite)]
    return Section(
        "pubsub",
        "Pub/Sub",
        "Compared with Google's high-level client, per CPU-second of the client's process, with "
        "every message acknowledged. Spark ran on `local[2]`, with the embedded server on the "
        "same two cores.",
        tuple(filter(None, lines)),
        plot("pubsub", "Messages per CPU-second, more is better", "messages/s", groups, "log"),
        failures(suite),
    )


def _messages(row: Row, what: str, unit: str, at_least: float | None) -> Line | None:
    mine, theirs = row.number(f"ours_{unit}"), row.number(f"google_{unit}")
    if not mine or not theirs:
        return None
    ratio = mine / theirs
    shown = {"per_second": "by wall time", "per_cpu_second": "per CPU-second"}[unit]
    return Line(
        f"{what}, {shown}",
        f"{number(mine)}/s",
        f"Google's client {number(theirs)}/s",
        ratio,
        f"≥ {at_least:g}x" if at_least else "",
        ratio >= at_least if at_least else None,
    )


def _stall(row: Row | None) -> Line | None:
    if row is None or (peak := row.number("rss_peak_mib")) is None:
        return None
    first, last = row.number("rss_first_third_mib") or 0, row.number("rss_last_third_mib") or 0
    return Line(
        f"memory of the sidecar, stalled for {number(row.number('seconds') or 0)} s",
        f"{number(first)} MiB, then {number(last)} MiB (peak {number(peak)})",
        target="bounded",
        met=last <= 1.1 * first,
    )


RELAYS = (
    ("google", "Google's client"),
    ("micro-batch", "micro-batches"),
    ("bare", "gRPC alone"),
    ("one hop", "one topic, without a query"),
)
MOST_MS = {"p50": 6, "p99": 20}


def _relay(suite: Suite) -> Iterator[Line | None]:
    """The engine beside other relays. Nothing can beat gRPC alone, so it has no ratio."""
    ours = suite.find("latency, continuous")
    if ours is None:
        return
    for percent, most in MOST_MS.items():
        what = f"topic to topic in a continuous query, {percent}"
        yield from _relay_lines(suite, ours, what, f"{percent}_ms", "ms", most)
    what = "the same, CPU per message of all processes, JVM and driver included"
    yield from _relay_lines(suite, ours, what, "cpu_us", "µs", None)
    if (cpu := ours.number("workers_cpu_us")) is not None:
        yield Line("the same, CPU per message of the Python worker", f"{number(cpu)} µs")


def _relay_lines(
    suite: Suite, ours: Row, what: str, name: str, unit: str, most: float | None
) -> Iterator[Line]:
    mine = ours.number(name)
    if not mine:
        return
    target = (f"≤ {most} {unit}", mine <= most) if most else ("", None)
    lines = []
    for engine, title in RELAYS:
        row = suite.find(f"latency, {engine}")
        theirs = row.number(name) if row else None
        if theirs:
            ratio = theirs / mine if engine in ("google", "micro-batch") else None
            lines.append((f"{title} {number(theirs)} {unit}", ratio))
    for beside, ratio in lines or [("", None)]:
        yield Line(what, f"{number(mine)} {unit}", beside, ratio, *target)
        target = ("", None)


def telemetry(suite: Suite) -> Section:
    lines = []
    for row in suite.rows:
        if (cost := row.number("us")) is not None:
            share = row.values.get("share", "")
            lines.append(Line(row.figure, f"{number(cost)} µs" + (f", {share}" if share else "")))
    return Section(
        "telemetry",
        "Telemetry",
        "The CPU time of one thread, for epochs of 100 ms: the cost of metrics, spans and the "
        "dashboard's journal.",
        tuple(lines),
        (),
        failures(suite),
    )
