"""Streaming DataFrames that cannot run are refused with a way out, and explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.sessions import session_with

from epochal.continuous.catalyst.translation import explain_plan, read_plan
from epochal.continuous.operators.contract import StoreSchema
from epochal.continuous.operators.deduplication import DropDuplicatesSpec
from epochal.continuous.plan.compile import sources_of
from epochal.errors import UnsupportedPlanError
from epochal.state.rows.types import AtomicType, StructField, StructType


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with({"spark.sql.session.timeZone": "America/New_York"})


def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


REFUSED: dict[str, tuple[Callable[[SparkSession], DataFrame], tuple[str, ...]]] = {
    "no stream": (lambda spark: spark.range(3), ("Spark", "not a stream")),
    "sort": (lambda spark: rate(spark).orderBy("value"), ("Spark", "Sorting is not supported")),
    "append aggregation without watermark": (
        lambda spark: rate(spark).groupBy("value").count(),
        ("Spark", "without watermark"),
    ),
    "the file of a row of two sources": (
        lambda spark: (
            rate(spark)
            .select("value")
            .union(rate(spark).select("value"))
            .select(F.input_file_name().alias("f"))
        ),
        ("input_file_name", "above Union", "_metadata.file_path"),
    ),
    "distinct aggregates": (
        lambda spark: (
            rate(spark)
            .withWatermark("timestamp", "1 second")
            .groupBy("timestamp")
            .agg(F.count_distinct("value"))
        ),
        ("Spark", "Distinct aggregations are not supported"),
    ),
    "a window function": (
        lambda spark: rate(spark).selectExpr("row_number() OVER (ORDER BY value) AS n"),
        ("Spark", "NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING"),
    ),
    "a union with a table": (
        lambda spark: rate(spark).select("value").union(spark.range(3)),
        ("Spark", "Union between streaming and batch"),
    ),
    "applyInPandasWithState": (
        lambda spark: (
            rate(spark)
            .groupBy("value")
            .applyInPandasWithState(lambda *_: iter(()), "n long", "s long", "append", "NoTimeout")
        ),
        ("FlatMapGroupsInPandasWithState", "transformWithState"),
    ),
    "an unknown source": (
        lambda spark: spark.readStream.format("socket").options(host="h", port=1).load(),
        ("source socket", "no connector", "kafka"),
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_cannot_run_is_refused_with_a_way_out(spark: SparkSession, case: str) -> None:
    frame, words = REFUSED[case]
    with pytest.raises(UnsupportedPlanError) as caught:
        read_plan(frame(spark))
    for word in (*words, "Instead: "):
        assert word in str(caught.value)


@pytest.mark.parametrize(("case", "name"), [("sort", "Sort ["), ("a window function", "Window [")])
def test_what_spark_itself_refuses_is_refused_once(
    spark: SparkSession, case: str, name: str
) -> None:
    with pytest.raises(UnsupportedPlanError) as caught:
        read_plan(REFUSED[case][0](spark))
    assert [each.operator for each in caught.value.refusals] == ["Spark"]
    (line,) = [line for line in explain_plan(REFUSED[case][0](spark)).splitlines() if name in line]
    assert line.endswith(": cannot run")


def test_all_refusals_come_at_once(spark: SparkSession) -> None:
    frame = REFUSED["an unknown source"][0](spark).orderBy("value")
    with pytest.raises(UnsupportedPlanError) as caught:
        read_plan(frame)
    assert [each.operator for each in caught.value.refusals] == ["Spark", "source socket"]


def test_explain_says_where_operators_run_and_starts_nothing(spark: SparkSession) -> None:
    group = "explained"
    spark.sparkContext.setJobGroup(group, group)
    static = spark.range(5).toDF("value")
    frame = rate(spark).join(static, "value").dropDuplicates(["value"])
    text = explain_plan(frame)
    assert text.startswith("The DataFrame can run.")
    assert "Deduplicate [value]: runs in the query's tasks, after an exchange by key; " in text
    assert "state/0" in text
    assert "Source 0: rate" in text
    assert "runs in Spark, once, when the query starts" in text
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []


def test_explain_says_when_a_subquery_is_evaluated(spark: SparkSession) -> None:
    text = explain_plan(rate(spark).selectExpr("value + (SELECT max(id) FROM range(3)) AS v"))
    assert "  - a scalar subquery is evaluated once, when the query starts" in text.splitlines()


def test_the_settings_that_a_checkpoint_pins_decide(spark: SparkSession) -> None:
    frame = rate(spark).groupBy("value").count()
    pinned = {"spark.sql.streaming.aggregation.stateFormatVersion": "1"}
    with pytest.raises(UnsupportedPlanError) as caught:
        read_plan(frame, output_mode="update", pinned=pinned)
    assert "format 1 (spark.sql.streaming.aggregation.stateFormatVersion)" in str(caught.value)


def test_a_source_that_occurs_twice_has_one_number(spark: SparkSession) -> None:
    once, other = rate(spark), rate(spark)
    found = read_plan(once.union(other).union(once))
    assert found.occurrences == (0, 1, 0)
    assert [each.number for each in sources_of(found.tree)] == [0, 1]


def test_reading_a_plan_leaves_the_session_as_it_was(spark: SparkSession) -> None:
    def settings() -> dict[str, Any]:
        return {
            key: spark.conf.get(key)
            for key in ("spark.sql.cbo.enabled", "spark.sql.adaptive.enabled")
        }

    frame, active = rate(spark), spark._jvm.org.apache.spark.sql.SparkSession.getActiveSession
    before = settings(), active()
    read_plan(frame)
    assert (settings(), active()) == before


def test_state_that_would_differ_from_sparks_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(spec: DropDuplicatesSpec) -> tuple[StoreSchema, ...]:
        key = StructType((StructField("value", AtomicType("integer")),))
        return (StoreSchema("default", key, StructType((StructField("_", AtomicType("void")),))),)

    monkeypatch.setattr(DropDuplicatesSpec, "stores", property(other))
    with pytest.raises(UnsupportedPlanError) as caught:
        read_plan(rate(spark).dropDuplicates(["value"]))
    assert "StreamingDeduplicate: its state would be dedupe" in str(caught.value)
    assert "('long',)" in str(caught.value)


def test_a_frame_of_spark_connect_is_refused() -> None:
    frame = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(UnsupportedPlanError) as caught:
        read_plan(frame)
    assert "Spark Connect" in str(caught.value)
    assert "classic session" in str(caught.value)
