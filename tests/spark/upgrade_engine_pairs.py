"""Pairs of which our engine runs one query or both, as in `upgrade_pairs`.

A query is a Stream of our own builder, or a DataFrame that either engine can run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.spark.upgrade_pairs import ACTION, IMPOSSIBLE, JOIN_3, NAMED, ROCKS, SAFE, joined, sums
from tests.spark.upgrade_processors import OUTPUT, Totals, processed
from tests.spark.upgrade_runs import Inputs, Rows

from epochal.continuous.api.stream import Stream
from epochal.tools.upgrade.upgrade_findings import Outcome

Engine: TypeAlias = Literal["spark", "ours"]
Make: TypeAlias = Callable[[Inputs], DataFrame | Stream]

SUMS = [("q", 8), ("x", 11), ("y", 5), ("z", 10)]
"""The sums of both files."""
TOTAL = SEEN = "Value n bigint"


@dataclass(frozen=True, slots=True)
class Before:
    """A query that has left a checkpoint."""

    make: Make
    mode: str = "update"
    engine: Engine = "ours"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """A changed query, and what must be found."""

    name: str
    """The query and how it was changed, as in `sum: another key`."""
    make: Make
    outcome: Outcome
    rows: Rows | None = None
    """The last row of each key, if the engine starts; None if it refuses."""
    engine: Engine = "ours"
    mode: str | None = None
    conf: Mapping[str, str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def before(self) -> str:
        return self.name.partition(": ")[0]


def totals(rows: Stream, *keys: str, **more: Any) -> Stream:
    return rows.group_by(*keys).agg(total=("sum", "v"), **more)


def kept(rows: Stream, **declared: str) -> Stream:
    return rows.transform_with_state(Totals(**declared), key=["k"], output=OUTPUT)


def marked(rows: Stream) -> Stream:
    return rows.with_watermark("t", "10 seconds")


BEFORE: dict[str, Before] = {
    "sum": Before(lambda s: totals(s.stream(), "k")),
    "extremes": Before(lambda s: s.stream().group_by("k").agg(a=("max", "v"), b=("min", "v"))),
    "distinct": Before(lambda s: s.stream().drop_duplicates(["k"]).select("k", "v"), "append"),
    "union": Before(lambda s: totals(s.stream("a").union(s.stream("b")), "k")),
    "processor": Before(lambda s: kept(s.stream(), total=TOTAL)),
    "frame": Before(lambda s: sums(s.a, "k")),
    "frame join": Before(lambda s: joined(s.a, s.b), "append"),
    "spark": Before(lambda s: sums(s.a, "k"), engine="spark"),
    "spark names": Before(lambda s: s.read("a", "a").select("k"), "append", "spark", NAMED),
    "spark join 3": Before(lambda s: joined(s.a, s.b), "append", "spark", JOIN_3),
    "spark processor": Before(
        lambda s: processed(s.a, total=TOTAL, seen=SEEN), engine="spark", conf=ROCKS
    ),
}

PAIRS = [
    Pair("sum: nothing", lambda s: totals(s.stream(), "k"), SAFE, SUMS),
    Pair("sum: another key", lambda s: totals(s.stream(), "k2"), IMPOSSIBLE),
    Pair(
        "sum: the name of the key",
        lambda s: totals(s.stream().select("k AS j", "v"), "j"),
        IMPOSSIBLE,
    ),
    Pair("sum: one more count", lambda s: totals(s.stream(), "k", n="count"), ACTION),
    Pair(
        "sum: max of bigint",
        lambda s: s.stream().select("k", "bigint(v) AS v").group_by("k").agg(m=("max", "v")),
        IMPOSSIBLE,
        [("q", 8), ("x", 5), ("y", 3), ("z", 9)],
    ),
    Pair("sum: no state", lambda s: s.stream().select("k"), IMPOSSIBLE, mode="append"),
    Pair(
        "sum: a source more", lambda s: totals(s.stream("a").union(s.stream("b")), "k"), IMPOSSIBLE
    ),
    Pair(
        "sum: another directory",
        lambda s: totals(s.stream("b"), "k"),
        ACTION,
        [("q", 8), ("x", 15), ("y", 7), ("z", 19)],
    ),
    Pair(
        "sum: more partitions",
        lambda s: totals(s.stream(), "k"),
        SAFE,
        SUMS,
        options={"statePartitions": 5},
    ),
    Pair("sum: another provider", lambda s: totals(s.stream(), "k"), SAFE, SUMS, conf=ROCKS),
    Pair(
        "extremes: the order of aggregates",
        lambda s: s.stream().group_by("k").agg(a=("min", "v"), b=("max", "v")),
        IMPOSSIBLE,
        [("q", 8, 8), ("x", 2, 5), ("y", 2, 3), ("z", 1, 9)],
    ),
    Pair(
        "distinct: within the watermark",
        lambda s: marked(s.stream()).drop_duplicates_within_watermark(["k"]),
        IMPOSSIBLE,
    ),
    Pair(
        "union: the order of sources",
        lambda s: totals(s.stream("b").union(s.stream("a")), "k"),
        IMPOSSIBLE,
        [("q", 16), ("x", 30), ("y", 14), ("z", 38)],
    ),
    Pair(
        "processor: nothing",
        lambda s: kept(s.stream(), total=TOTAL),
        SAFE,
        [("q", 8, 0), ("x", 11, 0), ("y", 5, 0), ("z", 10, 0)],
    ),
    Pair(
        "processor: one more variable",
        lambda s: kept(s.stream(), total=TOTAL, seen=SEEN),
        IMPOSSIBLE,
    ),
    Pair("frame: nothing", lambda s: sums(s.a, "k"), SAFE, SUMS),
    Pair("frame: nothing, by Spark", lambda s: sums(s.a, "k"), SAFE, SUMS, "spark"),
    Pair("frame: another key", lambda s: sums(s.a, "k2"), IMPOSSIBLE),
    Pair(
        "frame: another key, by Spark",
        lambda s: sums(s.a, "k2"),
        ACTION,
        [("x", 15), ("y", 8), ("z", 11)],
        "spark",
    ),
    Pair("frame: one more count", lambda s: s.a.groupBy("k").agg(F.sum("v"), F.count("v")), ACTION),
    Pair(
        "frame: what the engine cannot run",
        lambda s: s.a.groupBy("k").agg(F.percentile_approx("v", 0.5)),
        IMPOSSIBLE,
    ),
    Pair("frame join: the key's column", lambda s: joined(s.a, s.b, "k2"), IMPOSSIBLE),
    Pair("spark: nothing", lambda s: sums(s.a, "k"), SAFE, SUMS),
    Pair("spark: the name of the key", lambda s: sums(s.a.toDF(*"xyvwdt"), "x"), ACTION, SUMS),
    Pair("spark: the type of the key", lambda s: sums(s.a, "w"), IMPOSSIBLE),
    Pair("spark names: nothing", lambda s: s.a.select("k"), IMPOSSIBLE, conf={}),
    Pair("spark join 3: nothing", lambda s: joined(s.a, s.b), IMPOSSIBLE),
    Pair(
        "spark processor: one variable less",
        lambda s: processed(s.a, total=TOTAL),
        ACTION,
        [("q", 8, 0), ("x", 11, 0), ("y", 5, 0), ("z", 10, 0)],
    ),
    Pair(
        "spark processor: another kind of variable",
        lambda s: processed(s.a, total="List n bigint", seen=SEEN),
        IMPOSSIBLE,
    ),
]
