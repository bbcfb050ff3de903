"""Columns of the builder mean what they mean to PySpark, and what cannot be is refused.

The values of expressions are compared with Spark's by `test_arrow_functions`, by the examples of
its functions and by random expressions.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
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
from epochal.continuous.operators.stateless.row_operators import FilterSpec, ProjectSpec
from epochal.continuous.plan.logical import Step
from epochal.errors import OptionError

DDL = (
    "a int, l bigint, n struct<b:double,t:string>, d boolean, x string, y string, f double, "
    "ts timestamp, m map<string,int>, arr array<int>, dec decimal(10,2), bin binary"
)
NAN, INF = float("nan"), float("inf")


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


ROWS: list[tuple[Any, ...]] = [
    (1, 10, (1.5, "p"), True, "abc", "x", 0.1, at("2024-02-29T23:59:59.123450"), {"k": 1},
     [1, 2], Decimal("1.25"), b"ab"),
    (2, -7, (NAN, "q"), False, " Axy ", "", -2.5, at("1969-12-31T23:59:59.999999"), {"z": 2},
     [3, 4], Decimal("-1.25"), b""),
    (None, None, None, None, None, None, None, None, None, None, None, None),
    (-3, 2**40, (INF, None), True, "50%", "ünï", 1e10, at("2000-01-01T00:00:00"), {},
     [5, 6], Decimal("99999999.99"), b"\xff"),
    (7, 0, (0.0001, "r"), None, "a_b", "Z", 12345678.0, at("2024-07-01T12:30:00"), {"k": None},
     [7, None], Decimal("0.00"), b"z"),
]  # fmt: skip


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with({"spark.sql.session.timeZone": "America/New_York", **INTERPRETED})


@pytest.fixture(scope="module")
def batch(spark: SparkSession) -> pa.RecordBatch:
    table = spark.createDataFrame(ROWS, DDL).toArrow()
    first: pa.RecordBatch = table.cast(arrow_schema(DDL)).combine_chunks().to_batches()[0]
    return first


def ours(spark: SparkSession, batch: pa.RecordBatch, *columns: Any) -> pa.Table:
    found = resolve(spark, batch.schema, columns)
    moment = Moment(0, -1, 0, -1)
    results = ProjectSpec(found.columns, found.schema).open().process(batch, moment)
    return pa.Table.from_batches(list(results))


def test_pyspark_columns_mean_what_text_means(spark: SparkSession, batch: pa.RecordBatch) -> None:
    by_column = ours(spark, batch, (F.col("a") + 1).alias("b"), F.upper("x").alias("u"))
    assert by_column.equals(ours(spark, batch, "a + 1 AS b", "upper(x) AS u"))


def test_a_star_keeps_all_columns(spark: SparkSession, batch: pa.RecordBatch) -> None:
    assert ours(spark, batch, "*", "a + 1 AS b").column_names == [*batch.schema.names, "b"]


def test_a_filter_keeps_rows_for_which_the_condition_is_true(
    spark: SparkSession, batch: pa.RecordBatch
) -> None:
    condition = resolve(spark, batch.schema, ["a > 1"]).columns[0]
    kept = list(FilterSpec(condition).open().process(batch, Moment(0, -1, 0, -1)))
    assert [part.column("a").to_pylist() for part in kept] == [[2, 7]]


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
