"""Turns the results of the soak into table lines and plots. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.line_plots import Curve, LinePlot
from benchmarks.plots import number
from benchmarks.rows import Row, Suite
from benchmarks.sections import Line, Section, failures, seconds
from benchmarks.soak.sampling import FIGURES

ABOUT = """\
`make soak` runs Kafka → keyed state → Delta on a cluster of two executors while things go wrong on
a schedule. Workers, executors, the driver and its JVM are killed with `kill -9`; the broker is
killed or paused; partitions are added; the wall clock of all processes of the query steps by up to
an hour and back (when it steps forward by a minute or more, Spark's own master gives its executors
up); and the query is stopped, changed and continued from the same checkpoint. Every commit is
compared with a model as it appears, and at the end the whole table and the state.

The time of an incident is from its end until every row that was due by then is in the table. A
figure is flat if the median of the last quarter is not above that of the second, which suffers the
same incidents in the same order, and if a line through the third quarter, in which no process is
killed, does not rise; both with the room that the table shows. Only samples count from times in
which nothing went wrong. The checkpoint retains 20 epochs and the table's files stay small, so that
both have their final size within the first quarter. Latency is from due to visible in the table,
with epochs of 250 ms."""

LIMITS = {each.name: each.limit for each in FIGURES}
PLOTS = ("memory", "open files", "threads", "files", "latency")


def soak(suite: Suite) -> Section:
    lines = [*_exact(suite), *_flat(suite), *_incidents(suite)]
    return Section(
        "soak", "A day in production", ABOUT, tuple(lines), tuple(_plots(suite)), failures(suite)
    )


def _exact(suite: Suite) -> Iterator[Line]:
    run = suite.find("run")
    if run is None:
        return
    uneven = ("Nothing can be said about flatness", *(f"{name}: " for name in LIMITS))
    wrong = [each for each in run.values["faults"] if not each.startswith(uneven)]
    rows, minutes = run.number("rows") or 0, run.number("minutes") or 0
    shown = f"{number(rows)} rows in {number(minutes)} minutes, {run.values['incidents']} incidents"
    found = wrong[0].splitlines()[0][:200] if wrong else shown
    yield Line("every row once, state and table alike", found, "", None, "no fault", not wrong)


def _flat(suite: Suite) -> Iterator[Line]:
    for row in suite.all("flat: "):
        name = row.figure.removeprefix("flat: ")
        second, last, rise = (row.number(each) for each in ("second", "last", "rise"))
        limit = LIMITS.get(name)
        if second is None or last is None or rise is None or limit is None:
            yield Line(name, "too few samples", "", None, "flat", False)
            continue
        unit = row.values["unit"]
        shown = f"{number(second)}, then {number(last)} {unit}; rise {number(rise)}"
        target = f"≤ {number(limit.above(second))} {unit}"
        yield Line(name, shown, "", None, target, not row.values["reasons"])


def _incidents(suite: Suite) -> Iterator[Line]:
    for row in suite.all("incident: "):
        p50, most = row.number("p50_seconds"), row.number("max_seconds")
        if p50 is not None and most is not None:
            kind = row.figure.removeprefix("incident: ")
            shown = f"p50 {seconds(p50)}, longest {seconds(most)}"
            yield Line(f"{kind}, {row.values['count']} times, until all rows are there", shown)


def _plots(suite: Suite) -> Iterator[LinePlot]:
    run = suite.find("run")
    for group in PLOTS:
        rows = [row for row in suite.all(f"flat: {group}") if row.values.get("points")]
        if rows and run is not None:
            yield LinePlot(
                f"soak-{group.replace(' ', '-')}",
                f"{group.capitalize()} over the run; red: incidents",
                "min",
                tuple(_curve(row) for row in rows),
                run.number("minutes") or 1,
                tuple(run.values.get("marks", ())),
            )


def _curve(row: Row) -> Curve:
    points = tuple((float(at), float(value)) for at, value in row.values["points"])
    return Curve(row.figure.removeprefix("flat: "), str(row.values["unit"]), points)
