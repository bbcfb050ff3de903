"""Every type that state can hold, as grouping key and as aggregation buffer.

The input is one number per row; SQL turns it into all the types, so that the files need no encoding
of their own and a row's values follow from its number alone.
"""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.golden.inputs import json_rows, numbers
from tests.golden.place import Place
from tests.golden.shape import ROCKSDB, Case, Query, Read

ODD_NUMBERS = "CASE n % 6 WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' WHEN 2 THEN '-0.0' ELSE {} END"
TEXTS = "'', 'plain', 'žluťoučký kůň', '漢字かな', '😀 astral', concat('nul', char(0), 'inside')"

AS_KEY = {
    "truth": "n % 2 = 0",
    "tiny": "CAST(n - 100 AS BYTE)",
    "small": "CAST(n * 700 - 14000 AS SHORT)",
    "whole": "CAST(n * -50000000 AS INT)",
    "big": "n * 123456789012345 - 1",
    "single": f"CAST({ODD_NUMBERS.format('CAST(n / 3 AS STRING)')} AS FLOAT)",
    "double": f"CAST({ODD_NUMBERS.format('CAST(n / -7 AS STRING)')} AS DOUBLE)",
    "day": "date_add(DATE'1969-12-01', CAST(n * 700 AS INT))",
    "moment": "timestamp_micros(n * 100000000000001 - 2000000000000000)",
    "wall": "CAST(timestamp_micros(n * 99999999999999) AS TIMESTAMP_NTZ)",
    "text": f"element_at(array({TEXTS}), CAST(n % 6 + 1 AS INT))",
    "raw": "element_at(array(X'', X'00FF80', X'7A7A7A7A7A7A7A7A7A'), CAST(n % 3 + 1 AS INT))",
    "price": "CAST(n * 3.25 - 50 AS DECIMAL(10, 2))",
    "huge": "CAST(concat(n - 20, '98765432109876543.0123456789') AS DECIMAL(38, 10))",
    "months": "make_ym_interval(CAST(n - 20 AS INT), 3)",
    "span": "make_dt_interval(CAST(n - 20 AS INT), 1, 2, 3.456789)",
    "pair": "named_struct('a', CAST(n AS INT), 'b', IF(n % 4 = 0, NULL, concat('s', n)))",
    "list": "array(n, NULL, -n)",
}
AS_VALUE = {
    **AS_KEY,
    "calendar": "make_interval(0, CAST(n - 20 AS INT), 0, 3, 4, 5, 6.789012)",
    "words": "array('', NULL, concat('w', n), '😀')",
    "amounts": "array(CAST(n AS DECIMAL(30, 4)), NULL)",
    "lookup": "map('a', n, 'b', NULL)",
    "deep": "array(named_struct('m', map(n, array('x', NULL)), 'd', DATE'2024-02-29'))",
}
WITH_VARIANT = {
    **AS_VALUE,
    "open": """parse_json(concat('{"n": ', n, ', "t": [1.5, null, "😀"], "b": 1234567890123}'))""",
}


def _nulls_among(columns: dict[str, str], every: int) -> dict[str, str]:
    """The same columns, each null for its own share of the numbers.

    Not calendar intervals: Spark's own validation rejects a state row where one is null.
    """
    return {
        name: sql if name == "calendar" else f"IF(n % {every} = {position % every}, NULL, {sql})"
        for position, (name, sql) in enumerate(columns.items())
    }


def _grouped(spark: SparkSession, place: Place, values: dict[str, str]) -> DataFrame:
    keys = [f"{sql} AS {name}" for name, sql in _nulls_among(AS_KEY, 7).items()]
    rows = json_rows(spark, place, "numbers", schema="n LONG").selectExpr("n", *keys)
    # All rows of a key have the same number, so `first` has no choice.
    firsts = [
        F.expr(f"first({sql})").alias(f"first_{name}")
        for name, sql in _nulls_among(values, 5).items()
    ]
    grouped = rows.groupBy(*AS_KEY).agg(
        F.count("*").alias("times"),
        F.expr("sum(CAST(n AS DECIMAL(25, 3)))").alias("total"),
        F.expr("max(named_struct('n', n, 't', concat('t', n)))").alias("top"),
        *firsts,
    )
    return grouped.select("big", "times", "total", "top", *[f"first_{name}" for name in values])


def every_type(spark: SparkSession, place: Place) -> DataFrame:
    return _grouped(spark, place, AS_VALUE)


def every_type_and_variant(spark: SparkSession, place: Place) -> DataFrame:
    return _grouped(spark, place, WITH_VARIANT)


def null_calendars(spark: SparkSession, place: Place) -> DataFrame:
    rows = json_rows(spark, place, "numbers", schema="n LONG")
    calendar = f"first(IF(n % 3 = 0, NULL, {AS_VALUE['calendar']}))"
    grouped = rows.groupBy("n").agg(F.count("*").alias("times"), F.expr(calendar).alias("calendar"))
    return grouped.select("n", "times", "calendar")


def gathered(spark: SparkSession, place: Place) -> DataFrame:
    rows = json_rows(spark, place, "numbers", schema="n LONG").selectExpr("n % 5 AS r", "n")
    lists = rows.groupBy("r").agg(
        F.expr("collect_list(n)").alias("l"), F.expr("collect_set(n)").alias("s")
    )
    return lists.selectExpr("r", "array_sort(l) AS l", "array_sort(s) AS s")


def over_numbers(name: str, about: str, query: Query, **more: Any) -> Case:
    usual = {"files": numbers("numbers"), "mode": "complete", "reads": (Read(),)}
    return Case(name=name, about=about, query=query, **{**usual, **more})


CASES = (
    over_numbers(
        "types",
        "every type in the key and in the value, complete mode, 3 partitions, HDFS",
        every_type,
        conf={"spark.sql.shuffle.partitions": "3"},
        reads=(Read(changes=True),),
    ),
    over_numbers(
        "types_variant",
        "as `types`, with a variant among the values",
        every_type_and_variant,
        since="4.0",
    ),
    over_numbers(
        "types_rocksdb",
        "as `types`, on RocksDB",
        every_type,
        files=numbers("numbers", files=7),
        conf=ROCKSDB,
    ),
    over_numbers(
        "null_intervals",
        "null calendar intervals, whose reserved bytes Spark leaves to chance",
        null_calendars,
        conf={"spark.sql.streaming.stateStore.formatValidation.enabled": "false"},
        reads=(Read(changes=True),),
    ),
    over_numbers(
        "collected", "collect_list and collect_set: buffers that are opaque binaries", gathered
    ),
)
