"""Columns of the builder mean what they mean to PySpark, and what cannot be is refused.

The values of expressions are compared with Spark's by `test_arrow_functions`, by the examples of
its functions and by random expressions.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.sessions import INTERPRETED, session_with

from epochal import testing
from epochal.continuous.catalyst.expression_reader import resolve
from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.stateless.row_operators import ProjectSpec
from epochal.continuous.plan.logical import Step
from epochal.errors import OptionError

DDL = (
    "a int, l bigint, n struct<b:double,t:string>, d boolean, x string, y string, f double, "
    "ts timestamp, m map<string,int>, arr array<int>, dec decimal(10,2), bin binary"
)


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with({"spark.sql.session.timeZone": "America/New_York", **INTERPRETED})


@pytest.fixture
def batch() -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [{"a": 1, "x": "abc"}, {"a": None, "x": None}]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(DDL))


def ours(spark: SparkSession, batch: pa.RecordBatch, *columns: Any) -> pa.Table:
    found = resolve(spark, batch.schema, columns)
    moment = Moment(0, -1, 0, -1)
    results = ProjectSpec(found.columns, found.schema).open().process(batch, moment)
    return pa.Table.from_batches(list(results))


def test_pyspark_columns_mean_what_text_means(spark: SparkSession, batch: pa.RecordBatch) -> None:
    by_column = ours(spark, batch, (F.col("a") + 1).alias("b"), F.upper("x").alias("u"))
    assert by_column.equals(ours(spark, batch, "a + 1 AS b", "upper(x) AS u"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nope + 1", "cannot be resolved"),
        ("a +", "PARSE_SYNTAX_ERROR"),
        ("a + x.y", "Need a complex type"),
        ("count(a)", "only expressions over the columns of one row"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_the_reason(
    spark: SparkSession, batch: pa.RecordBatch, text: str, reason: str
) -> None:
    with pytest.raises(OptionError) as caught:
        resolve(spark, batch.schema, [text])
    assert reason in str(caught.value)


def test_columns_by_name_are_the_same_with_and_without_spark(spark: SparkSession) -> None:
    schema = arrow_schema(DDL)
    stream = testing.stream(schema)
    names = [each for each in schema.names if each not in ("n", "m", "arr")]
    for chosen in (names, names[::-1], ["a"]):
        selected = stream.select(*chosen).tree
        by_spark = resolve(spark, schema, chosen)
        assert isinstance(selected, Step)
        assert selected.operator == ProjectSpec(by_spark.columns, by_spark.schema)
        assert selected.schema.equals(by_spark.schema)


def test_names_that_are_also_words_of_sql_mean_columns(spark: SparkSession) -> None:
    words = pa.schema([(each, pa.int64()) for each in ("user", "current_date", "date", "interval")])
    selected = testing.stream(words).select(*words.names).tree
    assert isinstance(selected, Step)
    by_spark = resolve(spark, words, words.names)
    assert selected.operator == ProjectSpec(by_spark.columns, by_spark.schema)


def test_a_name_in_another_case_is_left_to_spark(spark: SparkSession) -> None:
    del spark
    stream = testing.stream("a int, b int")
    assert stream.select("B", "a").columns == ["B", "a"]
    with pytest.raises(OptionError, match="nope"):
        stream.select("nope")
