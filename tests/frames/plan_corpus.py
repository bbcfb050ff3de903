"""DataFrames of every kind, and the shape of the tree that each becomes.

Releases other than the installed one read them, too: see `test_catalyst_releases.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import udf
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

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
    since: str = "4.0"
    """The first release that has the function."""
    shapes: Mapping[str, str] = field(default_factory=dict)
    """Other shapes, by release."""


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
    Plan(
        "the same column twice",
        lambda s: rate(s).select("value", F.col("value").alias("v")),
        "Project(rate0)",
    ),
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
    Plan("observe", lambda s: rate(s).observe("o", F.count(F.lit(1)).alias("n")), "Observe(rate0)"),
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
    Plan(
        "drop duplicates of windows",
        lambda s: (
            marked(s)
            .groupBy(F.window("timestamp", "1 minute"), "value")
            .count()
            .dropDuplicates(["window", "count"])
        ),
        "DropDuplicates:0(Project(Aggregate:1(Project(Filter(Watermark(rate0))))))",
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
        "variant_explode",
        sql(
            "SELECT r.value, key FROM r, LATERAL variant_explode(parse_json(string(r.value))) AS v"
        ),
        "Project(Generate(Project(rate0)))",
    ),
    Plan(
        "aggregates of Spark's",
        lambda s: (
            marked(s)
            .groupBy(F.window("timestamp", "1 minute"), "value")
            .agg(
                F.median("value"), F.mode("value"), F.percentile_approx("value", 0.5), F.count("*")
            )
        ),
        WINDOWED,
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
    Plan(
        "left outer stream join",
        sql(
            "SELECT value, v2 FROM m LEFT JOIN o ON value = v2 "
            "AND t2 BETWEEN timestamp AND timestamp + INTERVAL 2 SECONDS"
        ),
        "Project(StreamJoin:0(Watermark(rate0), Filter(Watermark(Project(Filter(rate1))))))",
    ),
    Plan(
        "semi join of streams",
        sql(
            "SELECT * FROM m LEFT SEMI JOIN o ON value % 3 = v2 "
            "AND t2 BETWEEN timestamp AND timestamp + INTERVAL 2 SECONDS"
        ),
        "StreamJoin:0(Project(Filter(Watermark(Filter(rate0)))), "
        "Filter(Watermark(Project(Filter(rate1)))))",
    ),
    Plan(
        "join, then aggregation",
        sql(
            "SELECT window(t2, '1 minute') AS w, count(*) AS n FROM m JOIN o ON value = v2 "
            "AND t2 BETWEEN timestamp AND timestamp + INTERVAL 2 SECONDS "
            "GROUP BY window(t2, '1 minute')"
        ),
        "Project(Aggregate:0(Project(StreamJoin:1(Filter(Watermark(Filter(rate0))), "
        "Filter(Watermark(Project(Filter(rate1))))))))",
    ),
    Plan(
        "self join",
        lambda s: (
            marked(s)
            .alias("a")
            .join(marked(s).alias("b"), F.expr("a.value = b.value AND a.timestamp = b.timestamp"))
            .select("a.value")
        ),
        "Project(StreamJoin:0(Filter(Watermark(Filter(rate0))), Filter(Watermark(Filter(rate1)))))",
    ),
    Plan(
        "static join with a condition",
        lambda s: rate(s).join(s.range(5), F.expr("value + 1 = id * 2 AND id > value - 5")),
        "StaticJoin(Project(Filter(rate0)))",
    ),
    Plan(
        "cross join",
        lambda s: rate(s).crossJoin(s.range(5)),
        "StaticJoin(rate0)",
    ),
    Plan(
        "null-safe join",
        lambda s: rate(s).join(s.range(5), F.expr("value <=> id"), "left_semi"),
        "StaticJoin(Project(rate0))",
    ),
    Plan(
        "NOT EXISTS subquery",
        sql("SELECT value FROM r WHERE NOT EXISTS (SELECT 1 FROM range(5) WHERE id = value)"),
        "StaticJoin(Project(rate0))",
    ),
    Plan(
        "static join on the left",
        lambda s: s.range(5).join(rate(s), F.expr("id = value"), "right_outer"),
        "StaticJoin(rate0)",
    ),
    Plan(
        "row function",
        lambda s: rate(s).select(plus()("value").alias("p")),
        "Project(PythonFunctions(Project(rate0)))",
    ),
    Plan(
        "plain row function",
        lambda s: rate(s).select(plus(arrow=False)("value").alias("p")),
        "Project(PythonFunctions(Project(rate0)))",
    ),
    Plan(
        "function in a filter",
        lambda s: rate(s).filter(plus()("value") > 2).select("timestamp"),
        "Project(Filter(PythonFunctions(rate0)))",
    ),
    Plan(
        "functions in a chain",
        lambda s: rate(s).select(plus()(plus(arrow=False)(plus(arrow=False)("value")))),
        "Project(PythonFunctions(Project(PythonFunctions(Project(rate0)))))",
    ),
    Plan(
        "mapInPandas",
        lambda s: rate(s).mapInPandas(lambda frames: frames, "value long"),
        "MapFrames(rate0)",
    ),
    Plan(
        "mapInArrow",
        lambda s: rate(s).mapInArrow(lambda batches: batches, "value long"),
        "MapFrames(rate0)",
    ),
    Plan(
        "aggregation of a function",
        lambda s: rate(s).groupBy(plus()("value").alias("k")).agg(F.sum(plus()("value"))),
        "Project(Aggregate:0(Project(PythonFunctions(Project(PythonFunctions(Project(rate0)))))))",
        "update",
    ),
    Plan(
        "transformWithStateInPandas",
        lambda s: (
            marked(s)
            .groupBy("value")
            .transformWithStateInPandas(Counter(), "n long", "Append", "eventTime")
        ),
        "TransformWithState:0(Project(Watermark(rate0)))",
    ),
    Plan(
        "transformWithState",
        lambda s: (
            marked(s).groupBy("value").transformWithState(Counter(), "n long", "Update", "none")
        ),
        "TransformWithState:0(Project(Watermark(rate0)))",
        "update",
        since="4.1",
    ),
    Plan(
        "statistics",
        sql("SELECT stddev(value), corr(value, value), max_by(value, timestamp) FROM r"),
        "Project(Aggregate:0(Project(rate0)))",
        "update",
    ),
    Plan(
        "collected",
        sql("SELECT collect_list(value), approx_count_distinct(value) FROM r"),
        "Project(Aggregate:0(Project(rate0)))",
        "complete",
    ),
    Plan(
        "decimals",
        sql(
            "SELECT sum(cast(value AS decimal(7, 2))), avg(cast(value AS decimal(10, 2))), "
            "sum(cast(value AS decimal(20, 2))) FROM r"
        ),
        "Project(Aggregate:0(Project(rate0)))",
        "update",
    ),
    Plan(
        "float key",
        lambda s: rate(s).groupBy((F.col("value") / 2).alias("k")).count(),
        "Project(Aggregate:0(Project(Project(rate0))))",
        "update",
    ),
    Plan(
        "constant keys",
        lambda s: rate(s).groupBy("value", F.lit(1).alias("one")).count(),
        "Project(Aggregate:0(Project(rate0)))",
        "update",
    ),
    Plan(
        "group by all of a view",
        sql("WITH v AS (SELECT value % 3 AS k FROM m) SELECT k, count(*) AS n FROM v GROUP BY k"),
        "Project(Aggregate:0(Project(Watermark(rate0))))",
        "update",
    ),
    Plan(
        "HAVING",
        sql("SELECT value, count(*) AS n FROM r GROUP BY value HAVING n > 1"),
        "Filter(Project(Aggregate:0(Project(rate0))))",
        "update",
    ),
    Plan(
        "union of two watermarks",
        sql("SELECT value, timestamp FROM m UNION ALL SELECT v2, t2 FROM o"),
        "Union(Project(Watermark(rate0)), Project(Watermark(Project(rate1))))",
    ),
]


def plus(*, arrow: bool = True) -> Any:
    return udf(lambda x: x + 1, "long", useArrow=arrow)


class Counter(StatefulProcessor):  # type: ignore[misc]
    """Counts the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass
