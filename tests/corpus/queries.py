"""The queries of the corpus: what people write, and combinations of it.

Each is Spark SQL (in the files beside this module) over these views, or a function of them:

    events, payments              the two streams
    events_w, payments_w          the same with watermarks of ten seconds on `at` and `paid_at`
    users                         a table that does not change
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from tests.corpus.functions import (
    always_seven,
    an_hour_later,
    counted,
    described,
    doubled,
    doubled_scores,
    halved,
    named,
    next_ids,
    plain_plus,
    shout,
    shown,
    shown_plainly,
)

Views = Mapping[str, DataFrame]
APPEND, UPDATE, COMPLETE = "append", "update", "complete"


@dataclass(frozen=True, slots=True)
class Query:
    """One query. `keys` says how many of the first columns identify a row in update mode."""

    name: str
    build: str | Callable[[Views], DataFrame]
    mode: str = APPEND
    keys: int = 0
    stateful: bool = False

    def __str__(self) -> str:
        return self.name


def _read(name: str, *, stateful: bool) -> list[Query]:
    """The queries of a file of SQL."""
    return [
        Query(name, text, *_mode(mode), stateful=stateful) for name, mode, text in _sections(name)
    ]


def _sections(name: str) -> Iterator[tuple[str, str, str]]:
    """The sections of a file: name, what follows it after a bar, and text."""
    text = (Path(__file__).parent / f"{name}.sql").read_text()
    for section in text.split("\n--- ")[1:]:
        head, _, body = section.partition("\n")
        title, _, mode = head.partition(" | ")
        yield title, mode, body.strip().removesuffix(";")


def _mode(text: str) -> tuple[str, int]:
    mode, _, keys = text.partition(" ")
    return (mode, int(keys)) if mode else (APPEND, 0)


AGGREGATIONS = [
    Query(f"{name}, {how}", text.format(aggregates), mode, keys, stateful=True)
    for name, _, aggregates in _sections("aggregates")
    for how, text, mode, keys in (
        ("by user", "SELECT user, {} FROM events GROUP BY user", UPDATE, 1),
        (
            "by window",
            "SELECT window, user, {} FROM events_w GROUP BY window(at, '10 seconds'), user",
            APPEND,
            0,
        ),
    )
]


def _dedup(name: str, build: Callable[[Views], DataFrame]) -> Query:
    return Query(name, build, stateful=True)


DEDUPLICATIONS = [
    _dedup(
        "dropDuplicates by key",
        lambda v: v["events"].select("user", "kind").dropDuplicates(["user", "kind"]),
    ),
    _dedup("distinct", lambda v: v["events"].select("user", "kind").distinct()),
    _dedup(
        "dropDuplicates with event time",
        lambda v: v["events_w"].select("at", "user").dropDuplicates(["user", "at"]),
    ),
    _dedup(
        "dropDuplicates within watermark",
        # Every row twice. Repeats that come after the delay would depend on where batches end.
        lambda v: (
            v["events_w"]
            .select("id", "at", F.explode(F.array(F.lit(1), F.lit(2))))
            .dropDuplicatesWithinWatermark(["id"])
            .select("id")
        ),
    ),
    _dedup("dropDuplicates of doubles", lambda v: v["events"].select("score").dropDuplicates()),
    _dedup("dropDuplicates of structs", lambda v: v["events"].select("place").dropDuplicates()),
    Query(
        "dropDuplicates then aggregate",
        lambda v: (
            v["events_w"]
            .dropDuplicates(["id", "at"])
            .groupBy(F.window("at", "10 seconds"))
            .agg(F.count("*").alias("n"))
        ),
        stateful=True,
    ),
    Query(
        "dropDuplicates then update aggregate",
        lambda v: v["events"].dropDuplicates(["id"]).groupBy("user").count(),
        UPDATE,
        1,
        stateful=True,
    ),
]


PYTHON = [
    Query("mapInArrow", lambda v: v["events"].mapInArrow(next_ids, "next long")),
    Query(
        "mapInPandas",
        lambda v: (
            v["events"].select("id", "score").mapInPandas(doubled_scores, "id long, double double")
        ),
    ),
    Query("udf of rows", lambda v: v["events"].select("id", shout("kind").alias("s"))),
    Query(
        "udf with keyword",
        lambda v: v["events"].select("id", shout("kind", times=F.lit(3)).alias("s")),
    ),
    Query("udf without arguments", lambda v: v["events"].select(always_seven().alias("s"))),
    Query(
        "count of rows from a udf",
        lambda v: v["events"].where(always_seven() == 7).groupBy().count(),
        UPDATE,
        stateful=True,
    ),
    Query("udf without arrow", lambda v: v["events"].select("id", plain_plus("qty").alias("q"))),
    Query("pandas udf", lambda v: v["events"].select("id", halved("score").alias("h"))),
    Query("pandas iterator udf", lambda v: v["events"].select("id", counted("id").alias("c"))),
    Query("arrow udf", lambda v: v["events"].select(doubled("id").alias("d"))),
    Query(
        "chained udfs",
        lambda v: v["events"].select(
            "id", shout(shout("kind")).alias("s"), halved(halved("score")).alias("h")
        ),
    ),
    Query(
        "mixed udfs",
        lambda v: v["events"].select("id", halved(plain_plus("qty").cast("double")).alias("h")),
    ),
    Query("udf in a filter", lambda v: v["events"].where(shout("kind") == "BUY!").select("id")),
    Query(
        "udf before aggregate",
        lambda v: v["events"].groupBy(shout("kind").alias("k")).count(),
        UPDATE,
        1,
        stateful=True,
    ),
    Query(
        "udf after aggregate",
        lambda v: (
            v["events"]
            .groupBy("kind")
            .count()
            .select("kind", plain_plus(F.col("count").cast("int")).alias("n"))
        ),
        UPDATE,
        1,
        stateful=True,
    ),
    Query(
        "mapInArrow before aggregate",
        lambda v: (
            v["events"]
            .mapInArrow(next_ids, "next long")
            .groupBy((F.col("next") % 3).alias("k"))
            .count()
        ),
        UPDATE,
        1,
        stateful=True,
    ),
    Query("values that a udf sees", lambda v: v["events"].select(shown(*v["events"].columns))),
    Query(
        "values that a udf without arrow sees",
        lambda v: v["events"].select(shown_plainly(*v["events"].drop("attrs").columns)),
    ),
    Query("pandas udf of times", lambda v: v["events"].select("id", an_hour_later("at"))),
    Query(
        "pandas udf with a struct",
        lambda v: v["events"].select(described("id").alias("s")).select("s.*"),
    ),
    Query("udf with a broadcast variable", lambda v: named(v["events"])),
    Query(
        "withColumn and drop",
        lambda v: (
            v["events"]
            .withColumn("x", F.col("qty") + 1)
            .withColumn("qty", F.lit(0))
            .drop("payload", "raw")
            .select("id", "x", "qty")
        ),
    ),
    Query(
        "withColumnRenamed",
        lambda v: v["events"].withColumnRenamed("user", "who").select("id", "who"),
    ),
    Query(
        "fillna and dropna",
        lambda v: v["events"].select("id", "qty", "kind").na.fill({"qty": 0}).na.drop(),
    ),
    Query("replace", lambda v: v["events"].select("id", "kind").na.replace({"buy": "bought"})),
    Query(
        "union by name",
        lambda v: (
            v["events"]
            .select("id", "user")
            .unionByName(v["payments"].selectExpr("payer AS user", "pid AS id"))
        ),
    ),
    Query(
        "two watermarks",
        lambda v: (
            v["events_w"]
            .select("at", "user")
            .union(v["payments_w"].select("paid_at", "payer"))
            .groupBy(F.window("at", "10 seconds"))
            .agg(F.count("*").alias("n"))
        ),
        stateful=True,
    ),
    Query(
        "union above an aggregate",
        lambda v: (
            v["events_w"]
            .groupBy(F.window("at", "10 seconds").alias("w"))
            .agg(F.count("*").alias("n"))
            .union(
                v["payments_w"]
                .groupBy(F.window("paid_at", "10 seconds").alias("w"))
                .agg(F.count("*").alias("n"))
            )
        ),
        stateful=True,
    ),
    Query(
        "limit", lambda v: v["events"].select("user").where("user = 'u0'").limit(5), stateful=True
    ),
    Query(
        "hints and repartition", lambda v: v["events"].hint("broadcast").repartition(3).select("id")
    ),
    Query("observe", lambda v: v["events"].observe("seen", F.count("*").alias("n")).select("id")),
]

QUERIES: list[Query] = [
    *_read("stateless", stateful=False),
    *_read("static_joins", stateful=False),
    *_read("no_columns", stateful=False),
    *AGGREGATIONS,
    *_read("groupings", stateful=True),
    *_read("counts", stateful=True),
    *_read("joins", stateful=True),
    *DEDUPLICATIONS,
    *PYTHON,
]
