"""SQL that once had other results than Spark's: kept from random searches.

A case is an expression over the columns of ROWS. All cases are compared in one query.
"""

from __future__ import annotations

from datetime import time

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.fuzz_sql.both_sides import differing, our_rows, results, shown, spark_results, spark_rows
from tests.fuzz_sql.example_runs import EQUAL, FAILS, SETTINGS, run_statement
from tests.fuzz_sql.examples import Example
from tests.spark.sessions import session_with

from epochal import testing

VALUES = {
    "variant": "parse_json('{\"a\":[1,null]}')",
    "months": "interval '1-2' year to month",
    "month": "interval '3' month",
    "duration": "interval '1 02:03:04.5' day to second",
    "calendar": "make_interval(1, 2, 3, 4, 5, 6, 7.5)",
    "time": "time'10:11:12.123456'",
    "seconds": "CAST(time'10:11:12' AS time(0))",
    "plain": "timestamp_ntz'2020-01-01 01:02:03'",
    "nothing": "null",
    "padded": "CAST('ab' AS char(5))",
    "nothings": "array(null)",
    "no_values": "map('a', null)",
    "arrays_of_months": "array(interval '1-2' year to month, null)",
    "calendars": "array(make_interval(1, 2), null)",
    "variants": "array(parse_json('1'), null)",
    "mixed": "named_struct('a', parse_json('[1]'), 'b', interval '3' month)",
    "by_months": "map(interval '1-2' year to month, time'10:00:00')",
    "by_text": "map('a', parse_json('1'))",
    "nested_times": "array(array(time'10:11:12', null))",
    "exact": "CAST(1.5 AS decimal(38,18))",
    "bytes": "X'00FF'",
    "point": "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')",
}
"""Columns of all types, with a value of each. Another row has nulls."""

CASES = (
    "ym * 2.5D",
    "make_ym_interval(k, 0)",
    "is_valid_utf8(s)",
    "make_valid_utf8(s)",
    "split_part(s, ',', 9)",
    "regexp_replace(s, t, 'x')",
    "date_format(tm, 'HH:mm:ss')",
    "format_number(d, '##################.###')",
    "to_json(map(named_struct('a', k), named_struct('b', k)))",
    "array(ym, null)",
    "struct()",
    "array(struct())",
    "map(s, make_interval(k))",
)
ROWS = (
    "VALUES (1, 'a,b', 'a', 12332.123456D, time'14:30:45', interval '1-2' year to month), "
    "(null, null, null, null, null, null), (0, 'ß', 'ß', -0.0D, time'00:00:00', "
    "interval '-1' month) AS rows(k, s, t, d, tm, ym)"
)


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with(SETTINGS)


@pytest.mark.parametrize("form", ["{}", "array({})", "struct({})", "map(1, {})"])
def test_values_of_all_types_pass_through_a_query(spark: SparkSession, form: str) -> None:
    row = ", ".join(f"{text} AS {name}" for name, text in VALUES.items())
    nulls = ", ".join(["null"] * len(VALUES))
    rows = f"SELECT {row} UNION ALL SELECT {nulls}"
    expressions = [form.format(name) for name in VALUES]
    assert _different(spark, rows, [*expressions, "hash(months, time)"]) == []


@pytest.mark.parametrize("form", ["if(k = 1, {}, null)", "array({}, null)"])
def test_values_of_all_types_are_computed(spark: SparkSession, form: str) -> None:
    rows = f"SELECT k FROM {ROWS}"
    assert _different(spark, rows, [form.format(text) for text in VALUES.values()]) == []


def test_what_a_search_has_found_stays_mended(spark: SparkSession) -> None:
    assert _different(spark, f"SELECT * FROM {ROWS}", CASES) == []


def test_intervals_of_days_are_added_and_divided() -> None:
    # They were added as 24 hours, which is wrong by an hour if clocks change in between.
    spark = session_with({**SETTINGS, "spark.sql.session.timeZone": "Europe/Berlin"})
    rows = "SELECT timestamp'2020-03-01 12:00:00' AS ts, interval '132 19:00' day to minute AS di"
    texts = ["ts + di", "ts - di", "ts + interval 30 days", "ts + interval 23 hours"]
    texts += ["interval '400' day div di", "di div interval '1' second"]
    assert _different(spark, rows, texts) == []


@pytest.mark.parametrize("function", ["sum", "avg", "try_sum", "try_avg"])
def test_months_are_summed_and_averaged(spark: SparkSession, function: str) -> None:
    largest = "interval '2147483647' month"
    for values in (
        "(interval '7' month), (null), (interval '-2' month)",
        f"({largest}), ({largest})",
    ):
        sql = f"SELECT {function}(c) FROM VALUES {values} AS months(c)"
        outcome = run_statement(spark, Example(function, "agg_funcs", sql))
        assert outcome.verdict in (EQUAL, FAILS), outcome


def test_functions_of_the_current_time_move_with_the_clock(spark: SparkSession) -> None:
    texts = (
        "unix_timestamp() AS unix",
        "date_format(current_timestamp(), 'HH:mm:ss') AS text",
        "concat(current_date(), '') AS day",
        "current_time(0) AS time",
        "concat(localtime(), '') AS words",
    )
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    query = testing.frame("a int", spark=spark).selectExpr(*texts)
    driver = testing.Driver(query, now_ms=1_700_000_000_000)
    driver.feed([(1,)])
    assert driver.epoch() == [
        {"unix": 1_700_000_000, "text": "23:13:20", "day": "2023-11-14",
         "time": time(23, 13, 20), "words": "23:13:20"}
    ]  # fmt: skip
    driver.advance(3_600_000)
    driver.feed([(1,)])
    assert driver.epoch() == [
        {"unix": 1_700_003_600, "text": "00:13:20", "day": "2023-11-15",
         "time": time(0, 13, 20), "words": "00:13:20"}
    ]  # fmt: skip


def test_a_random_value_that_is_selected_twice_is_one_value(spark: SparkSession) -> None:
    rows = testing.frame("a int", spark=spark)
    query = rows.selectExpr("shuffle(sequence(1, 50)) AS x").selectExpr("x", "x AS y")
    driver = testing.Driver(query)
    driver.feed([(1,)])
    ((x, y),) = (row.values() for row in driver.epoch())
    assert x == y


def _different(spark: SparkSession, rows: str, texts: list[str] | tuple[str, ...]) -> list[str]:
    batch = spark.sql(rows).coalesce(1)
    fed = spark_rows(batch)
    assert isinstance(fed, pa.Table), fed
    stream = testing.frame(batch.schema, spark=spark)
    theirs = spark_results(batch, texts)
    ours = results(stream, texts, lambda frame: our_rows(frame, [fed]))
    lines = []
    for text in texts:
        row = differing(theirs[text], ours[text])
        if row is not None:
            lines.append(f"{text}: {shown(theirs[text], row)}, not {shown(ours[text], row)}")
    return lines
