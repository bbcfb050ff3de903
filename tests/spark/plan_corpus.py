"""DataFrames of every kind, and the shape of the tree that each becomes.

Releases other than the installed one read them, too: see `test_catalyst_releases.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from epochal.continuous.plan.logical import (
    Node,
    Stateful,
    Step,
    StreamSource,
    Union,
    Watermarked,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A query and the shape of its tree."""

    name: str
    frame: Callable[[SparkSession], DataFrame]
    shape: str
    mode: str = "append"


def shape(node: Node) -> str:
    """A tree in one line: the names of its operators."""
    match node:
        case StreamSource():
            return f"{node.format}{node.number}"
        case Step():
            return f"{_name(node.operator)}({shape(node.child)})"
        case Watermarked():
            return f"Watermark({shape(node.child)})"
        case Union():
            return f"Union({', '.join(map(shape, node.children))})"
        case Stateful():
            inputs = ", ".join(map(shape, node.children))
            return f"{_name(node.spec)}:{node.operator_id}({inputs})"


def _name(spec: object) -> str:
    return type(spec).__name__.removesuffix("Spec")


def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def marked(spark: SparkSession) -> DataFrame:
    return rate(spark).withWatermark("timestamp", "10 seconds")


def other(spark: SparkSession) -> DataFrame:
    return (
        rate(spark)
        .selectExpr("value * 2 AS v2", "timestamp AS t2")
        .withWatermark("t2", "5 seconds")
    )


def sql(text: str) -> Callable[[SparkSession], DataFrame]:
    def frame(spark: SparkSession) -> DataFrame:
        rate(spark).createOrReplaceTempView("r")
        marked(spark).createOrReplaceTempView("m")
        other(spark).createOrReplaceTempView("o")
        return spark.sql(text)

    return frame


WINDOWED = "Project(Aggregate:0(Project(Filter(Watermark(rate0)))))"

PLANS = [
    Plan("source", rate, "rate0"),
    Plan("select", lambda s: rate(s).select("value"), "Project(rate0)"),
    Plan("with column", lambda s: rate(s).withColumn("x", F.col("value") + 1), "Project(rate0)"),
    Plan("filter", lambda s: rate(s).filter("value > 1"), "Filter(rate0)"),
    Plan("repeated names", lambda s: rate(s).select("value", "value"), "Project(rate0)"),
    Plan(
        "filter and select",
        lambda s: rate(s).filter("value > 1").select("value"),
        "Project(Filter(rate0))",
    ),
    Plan("nothing", lambda s: rate(s).filter("false"), "Filter(rate0)"),
    Plan("union", lambda s: rate(s).union(rate(s)), "Union(rate0, rate1)"),
    Plan(
        "union by name",
        lambda s: rate(s).unionByName(rate(s).select("value", "timestamp")),
        "Union(rate0, rate1)",
    ),
    Plan("watermark", marked, "Watermark(rate0)"),
    Plan("repartition", lambda s: rate(s).repartition(4), "rate0"),
    Plan("repartition by", lambda s: rate(s).repartition("value"), "rate0"),
    Plan("hint", lambda s: rate(s).hint("broadcast").alias("a"), "rate0"),
    Plan("observe", lambda s: rate(s).observe("o", F.count(F.lit(1)).alias("n")), "rate0"),
    Plan(
        "current time",
        lambda s: rate(s).select(F.current_timestamp().alias("t"), F.current_date().alias("d")),
        "Project(MomentColumns(rate0))",
    ),
    Plan(
        "time in a filter",
        lambda s: rate(s).filter("timestamp < current_timestamp()"),
        "Project(Filter(MomentColumns(rate0)))",
    ),
    Plan(
        "chance",
        lambda s: rate(s).selectExpr("rand() AS r", "randn() AS n", "uuid() AS u"),
        "Project(MomentColumns(rate0))",
    ),
    Plan(
        "tumbling window",
        lambda s: marked(s).groupBy(F.window("timestamp", "1 minute")).count(),
        "Project(Aggregate:0(Project(Filter(Watermark(Project(rate0))))))",
    ),
    Plan(
        "tumbling window and key",
        lambda s: marked(s).groupBy(F.window("timestamp", "1 minute"), "value").count(),
        WINDOWED,
    ),
    Plan(
        "sliding window",
        lambda s: marked(s).groupBy(F.window("timestamp", "1 minute", "20 seconds")).count(),
        "Project(Aggregate:0(Expand(Filter(Watermark(Project(rate0))))))",
    ),
    Plan(
        "session window",
        lambda s: marked(s).groupBy(F.session_window("timestamp", "5 seconds"), "value").count(),
        WINDOWED,
    ),
    Plan(
        "window in SQL",
        sql("SELECT window.start, sum(value) AS s FROM m GROUP BY window(timestamp, '1 minute')"),
        WINDOWED,
    ),
    Plan(
        "expression of aggregates",
        lambda s: rate(s).groupBy("value").agg((F.sum("value") + F.max("value")).alias("x")),
        "Project(Aggregate:0(Project(rate0)))",
        "update",
    ),
    Plan(
        "aggregate with filter",
        sql("SELECT count(*) FILTER (WHERE value > 1) AS n, max(value) AS m FROM r"),
        "Project(Aggregate:0(Project(rate0)))",
        "complete",
    ),
    Plan(
        "distinct in SQL",
        sql("SELECT DISTINCT value FROM r"),
        "Aggregate:0(Project(rate0))",
        "update",
    ),
    Plan("distinct", lambda s: rate(s).distinct(), "DropDuplicates:0(rate0)"),
    Plan(
        "drop duplicates",
        lambda s: marked(s).dropDuplicates(["value", "timestamp"]),
        "DropDuplicates:0(Watermark(rate0))",
    ),
    Plan(
        "drop duplicates within watermark",
        lambda s: marked(s).dropDuplicatesWithinWatermark(["value"]),
        "DropDuplicates:0(Watermark(rate0))",
    ),
    Plan(
        "chain",
        lambda s: (
            marked(s)
            .dropDuplicates(["value", "timestamp"])
            .groupBy(F.window("timestamp", "1 minute"), "value")
            .count()
            .groupBy(F.window("window", "1 hour"))
            .count()
        ),
        "Project(Aggregate:0(Project(Project(Aggregate:1(Project(Filter("
        "DropDuplicates:2(Watermark(rate0)))))))))",
    ),
    Plan("limit", lambda s: rate(s).limit(3), "GlobalLimit:0(rate0)"),
    Plan(
        "scalar subquery",
        sql("SELECT value, (SELECT max(id) FROM range(5)) AS m FROM r"),
        "Project(rate0)",
    ),
    Plan(
        "common table expression",
        sql("WITH c AS (SELECT value + 1 AS v FROM r) SELECT v FROM c WHERE v > 2"),
        "Project(Filter(rate0))",
    ),
    Plan("stack", sql("SELECT stack(2, value, value + 1) FROM r"), "Generate(Project(rate0))"),
    Plan(
        "json_tuple",
        sql("SELECT value, json_tuple(string(value), 'a', 'b') FROM r"),
        "Generate(Project(rate0))",
    ),
    Plan(
        "stream join",
        sql(
            "SELECT * FROM m JOIN o ON value = v2 "
            "AND t2 BETWEEN timestamp AND timestamp + INTERVAL 2 SECONDS"
        ),
        "StreamJoin:0(Filter(Watermark(Filter(rate0))), Filter(Watermark(Project(Filter(rate1)))))",
    ),
    Plan(
        "static join",
        lambda s: rate(s).join(s.range(5).toDF("value"), "value", "left_outer"),
        "Project(StaticJoin(rate0))",
    ),
    Plan(
        "IN subquery",
        sql("SELECT value FROM r WHERE value IN (SELECT id FROM range(5))"),
        "StaticJoin(Project(rate0))",
    ),
]
