"""Queries and changed queries: what `check` must say about each change, and what Spark does.

A pair is one line in a table. `Inputs` gives the two sources; a query is a function of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from tests.spark.upgrade_runs import FILES, Inputs, Rows

from epochal.checkpoint.restart import PROVIDER, ROCKSDB_PROVIDER_CLASS, SOURCE_EVOLUTION
from epochal.tools.upgrade.upgrade_findings import Outcome

SAFE, ACTION, IMPOSSIBLE = Outcome.SAFE, Outcome.NEEDS_ACTION, Outcome.IMPOSSIBLE
ROCKS = {PROVIDER: ROCKSDB_PROVIDER_CLASS}
NAMED = {SOURCE_EVOLUTION: "true"}
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
JOIN_3 = {**ROCKS, JOIN_FORMAT: "3"}

Make: TypeAlias = Callable[[Inputs], DataFrame]


@dataclass(frozen=True, slots=True)
class Before:
    """A query that has left a checkpoint."""

    make: Make
    mode: str = "update"
    conf: Mapping[str, str] = field(default_factory=dict)
    engine: Literal["spark", "ours"] = "spark"


@dataclass(frozen=True, slots=True)
class Pair:
    """A changed query, and what must be found."""

    name: str
    """The query and how it was changed, as in `sum: another key`."""
    make: Make
    outcome: Outcome
    rows: Literal["same", "other"] | Rows = "same"
    """If Spark starts: `same` rows as a run from the beginning, `other` rows, or these."""
    mode: str | None = None
    conf: Mapping[str, str] | None = None
    starts: bool | None = None
    """Whether Spark starts; None if that follows from `rows` and `outcome`."""

    @property
    def before(self) -> str:
        return self.name.partition(": ")[0]


def sums(rows: DataFrame, *keys: str, of: str = "v") -> DataFrame:
    return rows.groupBy(*keys).agg(F.sum(of).alias("total"))


def marked(rows: DataFrame, delay: str = "10 seconds") -> DataFrame:
    return rows.withWatermark("t", delay)


def windows(rows: DataFrame, width: str = "10 seconds", *keys: str) -> DataFrame:
    return rows.groupBy(F.window("t", width), *keys).count()


def sessions(rows: DataFrame, gap: str = "5 seconds", *keys: str) -> DataFrame:
    return marked(rows, "2 seconds").groupBy(F.session_window("t", gap), *keys).count()


def joined(left: DataFrame, right: DataFrame, on: str = "k", how: str = "inner") -> DataFrame:
    one, other = left.select("k", "k2", "v", "w"), right.select("k", "k2", "v", "w")
    one, other = one.alias("one"), other.alias("other")
    return one.join(other, F.col(f"one.{on}") == F.col(f"other.{on}"), how).select(
        "one.k", "one.v", "other.w"
    )


def pairs_of(s: Inputs, left: list[str], right: list[str]) -> DataFrame:
    """A join on `k` that keeps these columns."""
    one, other = s.a.alias("one"), s.b.alias("other")
    kept = [F.col(f"one.{each}") for each in left] + [F.col(f"other.{each}") for each in right]
    return one.join(other, F.expr("one.k = other.k")).select(*kept)


def timed(s: Inputs, how: str = "inner", seconds: int = 6) -> DataFrame:
    """A join of rows at most so many seconds apart; the right side has no rows of y."""
    left = marked(s.a, "2 seconds").selectExpr("k", "t AS t1")
    right = marked(s.b, "2 seconds").where("w NOT IN (30, 40)").selectExpr("k AS j", "t AS t2")
    near = f"t2 BETWEEN t1 - INTERVAL {seconds} SECONDS AND t1 + INTERVAL {seconds} SECONDS"
    return left.join(right, F.expr(f"k = j AND {near}"), how).select("k", "t1", "t2")


def two_branches(rows: DataFrame) -> DataFrame:
    """One source that the plan reads twice."""
    return rows.select("k").unionAll(rows.select("k2"))


def columns_of(number: int, *names: str) -> Rows:
    """Columns of the rows in a file."""
    at = [["k", "k2", "v", "w", "d", "t"].index(name) for name in names]
    return [tuple(row[index] for index in at) for row in FILES[number]]


def as_type(name: str, kind: str) -> Column:
    return F.col(name).cast(kind).alias(name)


BEFORE: dict[str, Before] = {
    "sum": Before(lambda s: sums(s.a, "k")),
    "extremes": Before(lambda s: s.a.groupBy("k").agg(F.max("v"), F.min("v"))),
    "two keys": Before(lambda s: s.a.groupBy("k", "k2").count()),
    "windows": Before(lambda s: windows(marked(s.a), "10 seconds", "k")),
    "sessions": Before(lambda s: sessions(s.a, "5 seconds", "k"), "append"),
    "distinct": Before(lambda s: s.a.dropDuplicates(["k"]), "append"),
    "distinct pairs": Before(lambda s: s.a.dropDuplicates(["k", "k2"]), "append"),
    "distinct lately": Before(lambda s: marked(s.a).dropDuplicatesWithinWatermark(["k"]), "append"),
    "join": Before(lambda s: joined(s.a, s.b), "append"),
    "limit": Before(lambda s: s.a.limit(4), "append"),
    "plain": Before(lambda s: s.a.select("k", "v"), "append"),
    "union": Before(lambda s: s.a.select("k").unionAll(s.b.select("k")), "append"),
    "branches": Before(lambda s: two_branches(s.a), "append"),
    "twice": Before(lambda s: s.a.select("k").unionAll(s.a.select("k2")), "append"),
    "chain": Before(
        lambda s: sums(marked(s.a).dropDuplicates(["k", "v", "t"]), "k", "t"), "append"
    ),
    "rate": Before(lambda s: s.rate.select("value"), "append"),
    "rocksdb sum": Before(lambda s: sums(s.a, "k"), conf=ROCKS),
    "timed join": Before(timed, "append"),
    "join 3": Before(lambda s: joined(s.a, s.b), "append", JOIN_3),
    "named": Before(
        lambda s: s.read("a", "a").select("k").unionAll(s.read("b", "b").select("k")),
        "append",
        NAMED,
    ),
}

PAIRS = [
    Pair("sum: nothing", lambda s: sums(s.a, "k"), SAFE),
    Pair("sum: the name of the result", lambda s: sums(s.a, "k").toDF("k", "x"), SAFE),
    Pair("sum: a column after", lambda s: sums(s.a, "k").withColumn("x", F.lit(1)), SAFE),
    Pair(
        "sum: a filter before",
        lambda s: sums(s.a.where("v > 1"), "k"),
        SAFE,
        [("q", 8), ("x", 11), ("y", 5)],
    ),
    Pair("sum: another summand", lambda s: sums(s.a, "k", of="w"), SAFE, "other"),
    Pair("sum: another key", lambda s: sums(s.a, "k2"), ACTION, "other"),
    Pair("sum: the name of the key", lambda s: sums(s.a.toDF(*"xyvwdt"), "x"), ACTION),
    Pair("sum: the type of the key", lambda s: sums(s.a, "w"), IMPOSSIBLE),
    Pair("sum: one more key", lambda s: sums(s.a, "k", "k2"), IMPOSSIBLE),
    Pair("sum: no key", lambda s: sums(s.a), IMPOSSIBLE),
    Pair("sum: max of int", lambda s: s.a.groupBy("k").agg(F.max("v")), IMPOSSIBLE),
    Pair(
        "sum: min of bigint",
        lambda s: s.a.groupBy("k").agg(F.min(as_type("v", "bigint"))),
        IMPOSSIBLE,
        [("q", 8), ("x", 2), ("y", 2), ("z", 1)],
        starts=True,
    ),
    Pair("sum: sum of doubles", lambda s: sums(s.a, "k", of="d"), IMPOSSIBLE),
    Pair("sum: one more count", lambda s: s.a.groupBy("k").agg(F.sum("v"), F.count("v")), ACTION),
    Pair(
        "sum: two more",
        lambda s: s.a.groupBy("k").agg(F.sum("v"), F.count("v"), F.max("w")),
        ACTION,
    ),
    Pair("sum: one more sum", lambda s: s.a.groupBy("k").agg(F.sum("v"), F.sum("w")), IMPOSSIBLE),
    Pair(
        "sum: one more deviation",
        lambda s: s.a.groupBy("k").agg(F.sum("v"), F.stddev("w")),
        IMPOSSIBLE,
    ),
    Pair("sum: one more max", lambda s: s.a.groupBy("k").agg(F.sum("v"), F.max("w")), ACTION),
    Pair(
        "sum: a count first", lambda s: s.a.groupBy("k").agg(F.count("v"), F.sum("v")), IMPOSSIBLE
    ),
    Pair("sum: a deduplication", lambda s: s.a.dropDuplicates(["k"]), IMPOSSIBLE, mode="append"),
    Pair("sum: no state", lambda s: s.a.select("k"), IMPOSSIBLE, mode="append"),
    Pair("sum: a second operator", lambda s: sums(s.a.dropDuplicates(["k", "v"]), "k"), IMPOSSIBLE),
    Pair("sum: complete mode", lambda s: sums(s.a, "k"), SAFE, mode="complete"),
    Pair("sum: append mode", lambda s: sums(s.a, "k"), IMPOSSIBLE, mode="append"),
    Pair("sum: another directory", lambda s: sums(s.b, "k"), IMPOSSIBLE),
    Pair("sum: a source more", lambda s: sums(s.a.unionAll(s.b), "k"), ACTION),
    Pair(
        "sum: another kind of source",
        lambda s: s.rate.selectExpr("string(value) k", "1 v").groupBy("k").agg(F.sum("v")),
        IMPOSSIBLE,
    ),
    Pair(
        "sum: more partitions",
        lambda s: sums(s.a, "k"),
        SAFE,
        conf={"spark.sql.shuffle.partitions": "5"},
    ),
    Pair("sum: another provider", lambda s: sums(s.a, "k"), SAFE, conf=ROCKS),
    Pair(
        "sum: the old layout of state",
        lambda s: sums(s.a, "k"),
        SAFE,
        conf={"spark.sql.streaming.aggregation.stateFormatVersion": "1"},
    ),
    Pair(
        "sum: another codec",
        lambda s: sums(s.a, "k"),
        SAFE,
        conf={"spark.sql.streaming.stateStore.compression.codec": "zstd"},
    ),
    Pair(
        "extremes: the order of aggregates",
        lambda s: s.a.groupBy("k").agg(F.min("v"), F.max("v")),
        IMPOSSIBLE,
        "other",
        starts=True,
    ),
    Pair("extremes: one less", lambda s: s.a.groupBy("k").agg(F.max("v")), IMPOSSIBLE),
    Pair(
        "extremes: wider values",
        lambda s: s.a.select("k", as_type("v", "bigint")).groupBy("k").agg(F.max("v"), F.min("v")),
        ACTION,
    ),
    Pair(
        "two keys: the order of keys",
        lambda s: s.a.groupBy("k2", "k").count(),
        IMPOSSIBLE,
        "other",
        starts=True,
    ),
    Pair("two keys: one less", lambda s: s.a.groupBy("k").count(), IMPOSSIBLE),
    Pair(
        "windows: a longer delay",
        lambda s: windows(marked(s.a, "1 minute"), "10 seconds", "k"),
        SAFE,
    ),
    Pair("windows: no watermark", lambda s: windows(s.a, "10 seconds", "k"), SAFE),
    Pair(
        "windows: another width",
        lambda s: windows(marked(s.a), "20 seconds", "k"),
        SAFE,
        [((0, 20), "q", 1), ((0, 20), "x", 2), ((0, 20), "y", 1), ((0, 20), "z", 1)],
    ),
    Pair("windows: no key", lambda s: windows(marked(s.a)), IMPOSSIBLE),
    Pair(
        "windows: append mode",
        lambda s: windows(marked(s.a, "2 seconds"), "10 seconds", "k"),
        SAFE,
        [((0, 10), "x", 3), ((0, 10), "y", 1), ((0, 10), "z", 1)],
        mode="append",
    ),
    Pair(
        "windows: sessions instead",
        lambda s: sessions(s.a, "5 seconds", "k"),
        IMPOSSIBLE,
        mode="append",
    ),
    Pair(
        "sessions: nothing",
        lambda s: sessions(s.a, "5 seconds", "k"),
        SAFE,
        [((1, 10), "x", 3), ((2, 7), "y", 1)],
    ),
    Pair(
        "sessions: another gap", lambda s: sessions(s.a, "9 seconds", "k"), SAFE, [((2, 7), "y", 1)]
    ),
    Pair(
        "sessions: another key",
        lambda s: sessions(s.a, "5 seconds", "k2"),
        ACTION,
        [((1, 8), "x", 2), ((2, 10), "y", 2)],
    ),
    Pair("sessions: one more key", lambda s: sessions(s.a, "5 seconds", "k", "k2"), IMPOSSIBLE),
    Pair("distinct: fewer columns after", lambda s: s.a.dropDuplicates(["k"]).select("v"), SAFE),
    Pair("distinct: another key", lambda s: s.a.dropDuplicates(["k2"]), ACTION, "other"),
    Pair("distinct: one more key", lambda s: s.a.dropDuplicates(["k", "k2"]), IMPOSSIBLE),
    Pair("distinct: another type", lambda s: s.a.dropDuplicates(["v"]), IMPOSSIBLE),
    Pair(
        "distinct: within the watermark",
        lambda s: marked(s.a).dropDuplicatesWithinWatermark(["k"]),
        IMPOSSIBLE,
    ),
    Pair("distinct: a watermark", lambda s: marked(s.a).dropDuplicates(["k"]), SAFE),
    Pair(
        "distinct pairs: the order of keys",
        lambda s: s.a.dropDuplicates(["k2", "k"]),
        IMPOSSIBLE,
        "other",
        starts=True,
    ),
    Pair(
        "distinct lately: a longer delay",
        lambda s: marked(s.a, "1 minute").dropDuplicatesWithinWatermark(["k"]),
        SAFE,
    ),
    Pair(
        "distinct lately: another key",
        lambda s: marked(s.a).dropDuplicatesWithinWatermark(["k2"]),
        ACTION,
        [],
    ),
    Pair(
        "distinct lately: one more key",
        lambda s: marked(s.a).dropDuplicatesWithinWatermark(["k", "k2"]),
        IMPOSSIBLE,
    ),
    Pair("distinct lately: forever", lambda s: marked(s.a).dropDuplicates(["k"]), IMPOSSIBLE),
    Pair("join: nothing", lambda s: joined(s.a, s.b), SAFE),
    Pair("join: sides", lambda s: joined(s.b, s.a), IMPOSSIBLE),
    Pair("join: the key's type", lambda s: joined(s.a, s.b, "v"), IMPOSSIBLE),
    Pair("join: the key's column", lambda s: joined(s.a, s.b, "k2"), IMPOSSIBLE),
    Pair("join: one more column", lambda s: pairs_of(s, ["k", "v", "d"], ["w"]), ACTION),
    Pair("join: one column less", lambda s: pairs_of(s, ["k"], ["w"]), IMPOSSIBLE),
    Pair(
        "join: the name of a column",
        lambda s: (
            s.a.selectExpr("k", "v AS x")
            .join(s.b.selectExpr("k AS j", "w"), F.expr("k = j"))
            .select("k", "x", "w")
        ),
        ACTION,
    ),
    Pair(
        "timed join: nothing",
        timed,
        SAFE,
        [("q", 13, 13), ("x", 11, 11), ("z", 8, 14), ("z", 14, 8), ("z", 14, 14)],
    ),
    Pair(
        "timed join: left outer",
        lambda s: timed(s, "left"),
        SAFE,
        [("q", 13, 13), ("x", 11, 11), ("y", 2, None), ("z", 8, 14), ("z", 14, 8), ("z", 14, 14)],
    ),
    Pair(
        "timed join: another bound",
        lambda s: timed(s, seconds=5),
        SAFE,
        [("q", 13, 13), ("x", 11, 11), ("z", 14, 14)],
    ),
    Pair("join 3: nothing", lambda s: joined(s.a, s.b), SAFE),
    Pair("join 3: format 2", lambda s: joined(s.a, s.b), SAFE, conf=ROCKS),
    Pair("join 3: the key's type", lambda s: joined(s.a, s.b, "v"), IMPOSSIBLE),
    Pair("join 3: the key's column", lambda s: joined(s.a, s.b, "k2"), IMPOSSIBLE),
    Pair("join: no join", lambda s: s.a.select("k"), IMPOSSIBLE),
    Pair("limit: a higher limit", lambda s: s.a.limit(5), SAFE),
    Pair("limit: no limit", lambda s: s.a, IMPOSSIBLE),
    Pair("plain: other columns", lambda s: s.a.select("k2"), SAFE),
    Pair("plain: a filter", lambda s: s.a.where("v > 1"), SAFE),
    Pair("plain: an aggregate", lambda s: sums(s.a, "k"), IMPOSSIBLE, mode="update"),
    Pair("plain: a source more", lambda s: s.a.unionAll(s.b), ACTION),
    Pair("plain: another directory", lambda s: s.b.select("k", "v"), IMPOSSIBLE),
    Pair(
        "plain: a pattern of directories",
        lambda s: s.read("[ab]").select("k", "v"),
        SAFE,
        columns_of(0, "k", "v") + columns_of(1, "k", "v") * 2,
    ),
    Pair(
        "plain: another pattern",
        lambda s: s.read("[b]").select("k", "v"),
        ACTION,
        columns_of(0, "k", "v") + columns_of(1, "k", "v"),
    ),
    Pair("plain: another kind of source", lambda s: s.rate, IMPOSSIBLE),
    Pair("plain: names for sources", lambda s: s.read("a", "a"), ACTION, conf=NAMED),
    Pair(
        "union: the order of sources",
        lambda s: s.b.select("k").unionAll(s.a.select("k")),
        IMPOSSIBLE,
    ),
    Pair("union: a source less", lambda s: s.a.select("k"), ACTION),
    Pair("plain: a branch more", lambda s: two_branches(s.a), ACTION),
    Pair("branches: nothing", lambda s: two_branches(s.a), SAFE),
    Pair("branches: one less", lambda s: s.a.select("k"), ACTION),
    Pair(
        "branches: a source for each",
        lambda s: s.a.select("k").unionAll(s.a.select("k2")),
        IMPOSSIBLE,
    ),
    Pair("twice: one source for both", lambda s: two_branches(s.a), SAFE),
    Pair("chain: no deduplication", lambda s: sums(marked(s.a), "k", "t"), IMPOSSIBLE),
    Pair("chain: no aggregate", lambda s: marked(s.a).dropDuplicates(["k", "v", "t"]), IMPOSSIBLE),
    Pair("rate: files instead", lambda s: s.a.select("v"), IMPOSSIBLE),
    Pair("rocksdb sum: nothing", lambda s: sums(s.a, "k"), SAFE),
    Pair("rocksdb sum: the default provider", lambda s: sums(s.a, "k"), SAFE, conf={}),
    Pair("rocksdb sum: another key", lambda s: sums(s.a, "k2"), ACTION, "other"),
    Pair(
        "rocksdb sum: one more count",
        lambda s: s.a.groupBy("k").agg(F.sum("v"), F.count("v")),
        ACTION,
    ),
    Pair(
        "named: the order of sources",
        lambda s: s.read("b", "b").select("k").unionAll(s.read("a", "a").select("k")),
        SAFE,
        columns_of(1, "k") * 2,
    ),
    Pair(
        "named: a source less", lambda s: s.read("a", "a").select("k"), ACTION, columns_of(1, "k")
    ),
    Pair(
        "named: a source more",
        lambda s: (
            s.read("a", "a")
            .select("k")
            .unionAll(s.read("b", "b").select("k"))
            .unionAll(s.read("b", "c").select("k"))
        ),
        SAFE,
        columns_of(0, "k") + columns_of(1, "k") * 3,
    ),
    Pair("named: branches of one name", lambda s: two_branches(s.read("a", "a")), IMPOSSIBLE),
    Pair(
        "named: no names", lambda s: s.a.select("k").unionAll(s.b.select("k")), IMPOSSIBLE, conf={}
    ),
]
