"""A function that cannot run is refused when the query is written down, with what to do instead."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import local_session

from epochal.continuous.catalyst.translation import read_plan
from epochal.errors import UnsupportedPlanError

REFUSED = {
    "a function": ("to_xml(struct(value))", "StructsToXml"),
    "an option": (
        "from_json(s, 'a int', map('allowComments', 'true'))",
        "JsonToStructs with allowComments",
    ),
    "a pattern of an option": (
        "from_json(s, 'a timestamp', map('timestampFormat', 'Y'))",
        "timestampFormat (",
    ),
    "a pattern of times": ("date_format(timestamp, 'EEEEE')", "DateFormatClass ("),
    "a format of values": ("format_string('%tY', timestamp)", "the format '%tY'"),
    "a pattern of numbers": ("format_number(value, '0.0%')", "the pattern '0.0%'"),
    "a collation": ("s COLLATE UTF8_LCASE", "collation UTF8_LCASE"),
    "an interval as text": (
        "CAST(timestamp - TIMESTAMP '2020-01-01' AS STRING)",
        "Cast of an interval day to second",
    ),
    "months as text": (
        "CAST(make_ym_interval(1, CAST(value AS INT)) AS STRING)",
        "Cast of an interval year to month",
    ),
    "an interval in JSON": (
        "to_json(struct(make_ym_interval(1, CAST(value AS INT)) AS i))",
        "interval year to month",
    ),
}


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return local_session()


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_that_cannot_run_is_refused_with_a_way_out(
    spark: SparkSession, case: str
) -> None:
    text, words = REFUSED[case]
    frame = spark.readStream.format("rate").load().selectExpr("*", "CAST(value AS STRING) AS s")
    with pytest.raises(UnsupportedPlanError) as caught:
        read_plan(frame.selectExpr(f"{text} AS r"))
    assert words in str(caught.value)
    assert "Instead: " in str(caught.value)
