"""Turns the results of the recovery suite into table lines and a plot. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.plots import Bar, Group, number
from benchmarks.rows import Row, Suite
from benchmarks.sections import Line, Section, failures, plot, seconds

ABOUT = """\
Wall time from a failure or a `start()` to the next commit, of a query that counts rows by key with
two tasks. Workers are forked from our daemon, which has their imports, or from Spark's own. On
`local[2]` a worker is killed at a random moment. On two executors with two slots each an executor
is killed, or frozen with all its workers, as if its host were cut off; the silence has to last for
`silenceTimeout`, 10 seconds. The figures contain everything: driver, JVM and workers."""

TARGETS = (
    ("worker killed", "worker killed, `local[2]`", 1.0, 1.5),
    ("executor killed", "executor killed, spare slots on the other", None, 3.0),
    ("silent host", "host cut off, spare slots elsewhere", None, 15.0),
    ("start, new workers", "`start()`, new workers", 2.0, None),
    ("start, reused workers", "`start()`, workers of an earlier query", 0.4, None),
)
"""Figure, words, and the limits of the median and of the maximum in seconds."""


def recovery(suite: Suite) -> Section:
    lines = [*_spreads(suite), *_by_keys(suite)]
    rows = suite.all("state of ")
    groups = [
        Group(
            what,
            tuple(
                Bar(f"{number(row.number('keys') or 0)} keys", value, ours=True)
                for row in rows
                if (value := row.number(name))
            ),
        )
        for name, what in (("kill_seconds", "worker killed"), ("new_seconds", "start"))
    ]
    plots = plot("recovery-keys", "Recovery by keys of state, less is better", "s", groups, "log")
    return Section("recovery", "Failures and starts", ABOUT, tuple(lines), plots, failures(suite))


def _spreads(suite: Suite) -> Iterator[Line]:
    for figure, what, median, maximum in TARGETS:
        row = suite.find(f"{figure}: warm") or suite.find(figure)
        peer = suite.find(f"{figure}: spark")
        if row is None:
            continue
        for name, words, limit in (("p50", "p50", median), ("max", "maximum", maximum)):
            found = _line(row, peer, name, f"{what}, {words}", limit)
            if found is not None:
                yield found


def _line(row: Row, peer: Row | None, name: str, what: str, limit: float | None) -> Line | None:
    ours = row.number(f"{name}_seconds")
    theirs = None if peer is None else peer.number(f"{name}_seconds")
    if ours is None:
        return None
    beside = "" if theirs is None else f"Spark's daemon {seconds(theirs)}"
    ratio = None if theirs is None else theirs / ours
    target = "" if limit is None else f"≤ {number(limit)} s"
    return Line(
        what, seconds(ours), beside, ratio, target, None if limit is None else ours <= limit
    )


def _by_keys(suite: Suite) -> Iterator[Line]:
    for row in suite.all("state of "):
        for name, what in (("kill_seconds", "worker killed"), ("new_seconds", "`start()`")):
            value, keys = row.number(name), row.number("keys")
            if value is not None and keys is not None:
                yield Line(f"{what}, state of {number(keys)} keys", seconds(value))
