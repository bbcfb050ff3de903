"""The condition of a join bounds event time as Spark's own function says.

What joins emit and store is compared with Spark by the corpus and by engines that take turns.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.sessions import session_with

from epochal.continuous.operators.expressions.expr import Call, Column, Expr, Literal
from epochal.continuous.operators.joins.join_bounds import Sides, value_watermark_ms

TIME = pa.timestamp("us", tz="UTC")
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
LT, RT = Column(1), Column(3)


def call(function: str, *arguments: Expr) -> Call:
    return Call(function, arguments, pa.bool_())


def both(first: Expr, second: Expr) -> Expr:
    return call("And", first, second)


def micros(column: Expr, number: int) -> Expr:
    return Call(
        "TimestampAddInterval", (column, Literal(pa.scalar(number, pa.duration("us")))), TIME
    )


def double(column: Expr) -> Expr:
    return Call("Cast", (column,), pa.float64())


CONDITIONS: dict[str, Expr] = {
    "lt < rt": call("LessThan", LT, RT),
    "lt >= rt": call("GreaterThanOrEqual", LT, RT),
    "lt > rt + INTERVAL 10 SECONDS": call("GreaterThan", LT, micros(RT, 10_000_000)),
    "lt <= rt + INTERVAL '0.0015' SECOND": call("LessThanOrEqual", LT, micros(RT, 1_500)),
    "lt - INTERVAL 1 DAY >= rt": call("GreaterThanOrEqual", micros(LT, -86_400_000_000), RT),
    "lt > rt + INTERVAL 1 SECOND + INTERVAL 1 SECOND": call(
        "GreaterThan", LT, micros(micros(RT, 1_000_000), 1_000_000)
    ),
    "cast(lt AS double) > cast(rt AS double) + 10.5D": call(
        "GreaterThan", double(LT), Call("Add", (double(RT), Literal(pa.scalar(10.5))), pa.float64())
    ),
    "lt > rt AND lt < rt + INTERVAL 5 SECONDS": both(
        call("GreaterThan", LT, RT), call("LessThan", LT, micros(RT, 5_000_000))
    ),
    "lt > rt + INTERVAL 9 SECONDS AND lt + INTERVAL 5 SECONDS > rt": both(
        call("GreaterThan", LT, micros(RT, 9_000_000)),
        call("GreaterThan", micros(LT, 5_000_000), RT),
    ),
    "lv > 5L": call("GreaterThan", Column(0), Literal(pa.scalar(5, pa.int64()))),
    "lv < rv": call("LessThan", Column(0), Column(2)),
    "lt > TIMESTAMP '2024-01-01 00:00:00'": call(
        "GreaterThan", LT, Literal(pa.scalar(BEGIN, TIME))
    ),
    "year(lt) > 5": call(
        "GreaterThan", Call("Year", (LT,), pa.int32()), Literal(pa.scalar(5, pa.int32()))
    ),
    "lt > rt + INTERVAL 1 MONTH": call(
        "GreaterThan", LT, Call("TimestampAddYMInterval", (RT, Literal(pa.scalar(1))), TIME)
    ),
}
"""Conditions over left number and time, right number and time."""


def test_bounds_of_event_time_are_sparks() -> None:
    spark = session_with({"spark.sql.session.timeZone": "UTC"})
    left, right = (
        spark.readStream.format("rate")
        .load()
        .selectExpr(f"value AS {letter}v", f"timestamp AS {letter}t")
        .withWatermark(f"{letter}t", "4 seconds")
        for letter in "lr"
    )
    sides = Sides(2, (1, 3))
    for text, condition in CONDITIONS.items():
        plan = left.join(right, F.expr(text))._jdf.queryExecution().analyzed()
        for side in (0, 1):
            for watermark_ms in (3_000_000_007, 1_700_000_000_123):
                expected = spark_bound(spark, plan, side, watermark_ms)
                found = value_watermark_ms(condition, side, sides, watermark_ms)
                assert found == expected, (text, side, watermark_ms)


def spark_bound(spark: SparkSession, plan: Any, side: int, watermark_ms: int) -> int | None:
    """What Spark's own function says about the condition of a join."""
    catalyst: Any = spark._jvm.org.apache.spark.sql.catalyst
    some = spark._jvm.scala.Option
    attributes = getattr(catalyst.expressions, "AttributeSet$").__getattr__("MODULE$")
    children = (plan.left(), plan.right())
    mine, other = (attributes.apply(children[which].output()) for which in (side, 1 - side))
    found = catalyst.analysis.StreamingJoinHelper.getStateValueWatermark(
        mine, other, plan.condition(), some.apply(watermark_ms)
    )
    return int(found.get()) if found.isDefined() else None
