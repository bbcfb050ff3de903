"""The part of the benchmark page about state that does not fit into memory. Pure."""

from __future__ import annotations

from benchmarks.plots import Bar, Group, number
from benchmarks.rows import Row, Suite
from benchmarks.sections import Line, Section, failures, plot, seconds

LARGE_KEYS = 50_000_000
MAX_MEBIBYTES = 2048


def big_state(suite: Suite) -> Section:
    rows = suite.all("state of a task by number of keys")
    groups = {"disk": "State on disk", "dictionaries": "State in dictionaries"}
    return Section(
        "big_state",
        "State larger than memory",
        "One process holds the state of one task: counts and sums by string keys, in eight "
        "partitions. It loads the state from snapshots, as a restart does, then updates random "
        "keys at a steady rate in turns of ten rows, while another thread writes an epoch every "
        "second. Memory is the peak of the whole process. Neither JVM nor driver are counted.",
        tuple(line for row in rows for line in _lines(row)),
        plot(
            "big-state-restart",
            "Restart by number of keys",
            "seconds",
            [
                Group(
                    shown,
                    tuple(
                        Bar(f"{number(row.number('keys') or 0)} keys", value, ours=True)
                        for row in rows
                        if str(row.values.get("state_in", "")).startswith(where)
                        and (value := row.number("restart_seconds"))
                    ),
                )
                for where, shown in groups.items()
            ],
            "log",
        ),
        failures(suite),
    )


def _lines(row: Row) -> list[Line]:
    keys, peak = row.number("keys") or 0, row.number("peak_mebibytes") or 0
    what = f"{number(keys)} keys, {row.values.get('state_in', '')}"
    p50, p99 = row.number("turn_p50_microseconds"), row.number("turn_p99_microseconds")
    memory = Line(f"{what}: peak memory", f"{number(peak)} MiB")
    if keys >= LARGE_KEYS:
        target = f"at most {number(MAX_MEBIBYTES)} MiB"
        memory = Line(memory.what, memory.ours, target=target, met=peak <= MAX_MEBIBYTES)
    return [
        memory,
        Line(f"{what}: restart", seconds(row.number("restart_seconds") or 0)),
        Line(
            f"{what}: lookup and update of ten rows, p50 / p99",
            f"{number(p50 or 0)} / {number(p99 or 0)} µs",
        ),
    ]
