"""Column expressions over Arrow give what Spark's own give, value by value."""

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
from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.catalyst.spark_columns import resolve
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.stateless.row_operators import FilterSpec, ProjectSpec
from epochal.continuous.plan.logical import Step
from epochal.errors import ExpressionError, OptionError

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

EXPRESSIONS = """
a + 1; a - l; a * 2; -a; abs(a); a / 2; l div 3; l % 3; f % 2; a + f; dec * 2; dec + 1
a = 1; a <> l; a <=> l; a < l; a >= 2; n.b > 1.0; n.b = n.b; n.b >= f; x = 'abc'; x <=> y
a = 1 AND d; d OR a > 1; NOT d; a IS NULL; x IS NOT NULL; isnan(n.b)
try_cast(x AS int); try_add(a, 2147483647); try_divide(a, l); a + 1 BETWEEN l AND 5
a IN (1, 2); a IN (1, NULL); a NOT IN (1, 2); a BETWEEN 1 AND 5
x LIKE 'a%'; x LIKE '%\\_b'; x RLIKE '^[a-z]'; startswith(x, 'a'); contains(x, 'x')
upper(x); lower(x); length(x); length(y); trim(x); ltrim(x); rtrim(x); x || y; concat(a, '-', x)
substring(x, 1, 2); substring(x, 2, 10); substring(x, -2, 1); substring(x, 0, 2)
CASE WHEN a = 1 THEN 'one' WHEN a = 2 THEN 'two' ELSE 'many' END
CASE WHEN a = 1 THEN 'one' END; IF(a > 1, a, l); CASE WHEN l <> 0 THEN 100 / l END
CASE WHEN l = 0 THEN 0 ELSE 100 % l END
coalesce(x, y, 'none'); coalesce(a, 0); greatest(a, 2); least(a, 2, NULL); nvl(a, 9)
CAST(a AS bigint); CAST(f AS string); CAST(n.b AS string); CAST(a AS double); CAST(ts AS string)
CAST(d AS string); CAST(dec AS string); CAST(a AS string); CAST('12' AS int); CAST(' 5 ' AS bigint)
CAST('2024-01-02 03:04:05' AS timestamp); CAST(ts AS bigint); CAST(a AS boolean); CAST('yes' AS boolean)
CAST(a AS timestamp); CAST(CAST(a AS double) + 0.7 AS int); CAST(x AS binary)
round(f, 1); round(n.b); floor(f); ceil(f); sqrt(CAST(abs(a) AS double)); power(a, 2)
n.t; n.b; m['k']; arr[0]; arr[1]; struct(a, x); named_struct('p', a, 'q', 1)
year(ts); month(ts); day(ts); hour(ts); minute(ts); second(ts); date_trunc('hour', ts); date_trunc('month', ts)
unix_millis(ts); unix_micros(ts); unix_seconds(ts); timestamp_millis(l); ts + INTERVAL 5 MINUTES
1; 'text'; NULL; 1.5D; 2.50BD; TIMESTAMP'2020-01-01 00:00:00'; DATE'2020-01-01'; true; a AS renamed
"""  # noqa: E501


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


def shown(table: pa.Table) -> list[str]:
    return [repr(row) for row in table.to_pylist()]


TEXTS = [
    part.strip() for line in EXPRESSIONS.split("\n") for part in line.split(";") if part.strip()
]


@pytest.fixture(scope="module")
def theirs(spark: SparkSession) -> dict[str, pa.Table]:
    """Spark's value of each expression, under the name that it has in Spark; in one job for all."""
    frame = spark.createDataFrame(ROWS, DDL)
    columns = [F.expr(text).alias(str(number)) for number, text in enumerate(TEXTS)]
    values = frame.select(*columns).toArrow()
    names = [frame.selectExpr(text).columns for text in TEXTS]
    return {
        text: values.select([number]).rename_columns(names[number])
        for number, text in enumerate(TEXTS)
    }


@pytest.mark.parametrize("text", TEXTS)
def test_an_expression_has_the_value_it_has_in_spark(
    spark: SparkSession, batch: pa.RecordBatch, theirs: dict[str, pa.Table], text: str
) -> None:
    found, expected = ours(spark, batch, text), theirs[text]
    assert found.column_names == expected.column_names
    assert shown(found) == shown(expected.cast(found.schema))


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


@pytest.mark.parametrize("text", ["1 / (a - 1)", "CAST(x AS int)", "2147483647 + a", "arr[2]"])
def test_what_is_an_error_in_spark_is_one_here(
    spark: SparkSession, batch: pa.RecordBatch, text: str
) -> None:
    with pytest.raises((ExpressionError, OptionError)):
        ours(spark, batch, text)


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
