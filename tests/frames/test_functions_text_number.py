"""Functions of numbers and texts have the values that they have in Spark.

`make test` compares few rows in one Spark job for all expressions; `make test-full` compares more
rows, other seeds and ANSI mode, in which many expressions fail, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.frames import number_functions, text_functions
from tests.frames.comparing import differences, known, stored
from tests.frames.function_rows import Rows
from tests.spark.sessions import INTERPRETED, session_with

TOPICS = {
    "arithmetic": number_functions.arithmetic(),
    "casts": number_functions.casts(),
    "formats": text_functions.listed(text_functions.FORMATS),
    "comparisons": number_functions.comparisons(),
    "patterns": text_functions.listed(text_functions.PATTERNS),
    "texts": text_functions.listed(text_functions.TEXTS),
    "to_json": text_functions.listed(text_functions.TO_JSON),
    "try_casts": number_functions.casts("try_cast"),
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = session_with(INTERPRETED)
    session.sparkContext.setLogLevel("OFF")  # it prints a page for each error
    yield session
    session.sparkContext.setLogLevel("WARN")


ANSI, ZONE = "spark.sql.ansi.enabled", "spark.sql.session.timeZone"
POLICY = "spark.sql.mapKeyDedupPolicy"


def compared(
    spark: SparkSession, folder: Path, rows: pa.Table, texts: list[str], *, ansi: bool, zone: str
) -> list[str]:
    spark.conf.set(ANSI, str(ansi).lower())
    spark.conf.set(ZONE, zone)
    frame = stored(spark, rows, folder)
    accepted = known(frame, texts)
    parts = [accepted[first : first + 60] for first in range(0, len(accepted), 60)]
    return [line for part in parts for line in differences(spark, frame, rows, part)]


@pytest.mark.parametrize("topic", TOPICS)
def test_functions_have_sparks_values(spark: SparkSession, tmp_path: Path, topic: str) -> None:
    # Operations on decimals of 38 digits fail for some rows, which takes a Spark job for each.
    wide = re.compile(r"\b[xyz]\b")
    rows, texts = Rows(1, 24).table(), [each for each in TOPICS[topic] if not wide.search(each)]
    zone = "America/New_York"
    assert compared(spark, tmp_path, rows, texts[::3], ansi=False, zone=zone) == []


def rounds(first: int) -> list[Any]:
    """Three tables for each topic, one of them in CI."""
    return [
        pytest.param(
            topic,
            first + each,
            id=f"{topic}-{first + each}",
            marks=() if each == number % 3 else pytest.mark.long,
        )
        for number, topic in enumerate(TOPICS)
        for each in range(3)
    ]


@pytest.mark.parametrize(("topic", "seed"), rounds(2))
def test_functions_have_sparks_values_in_larger_tables(
    spark: SparkSession, tmp_path: Path, topic: str, seed: int
) -> None:
    rows, texts = Rows(seed, 300).table(), TOPICS[topic]
    zone = ["Asia/Kolkata", "UTC", "America/New_York"][seed % 3]
    assert compared(spark, tmp_path, rows, texts, ansi=False, zone=zone) == []


@pytest.mark.parametrize(("topic", "seed"), rounds(5))
def test_functions_fail_where_spark_fails(
    spark: SparkSession, tmp_path: Path, topic: str, seed: int
) -> None:
    rows, texts = Rows(seed, 3).table(), TOPICS[topic]
    assert compared(spark, tmp_path, rows, texts, ansi=True, zone="UTC") == []


@pytest.mark.parametrize("function", ["cast", "try_cast"])
def test_texts_that_are_nearly_values_are_cast_as_in_spark(
    spark: SparkSession, tmp_path: Path, function: str
) -> None:
    rows = pa.table({"s": pa.array(number_functions.special_texts(), pa.string())})
    kinds = [*number_functions.KINDS.split(), *number_functions.DECIMALS]
    texts = [f"{function}(s AS {kind})" for kind in kinds]
    ansi = function == "try_cast"
    assert compared(spark, tmp_path, rows, texts, ansi=ansi, zone="America/New_York") == []


def test_json_is_read_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"s": pa.array(text_functions.RECORDS, pa.string())})
    texts = text_functions.json_functions()
    assert compared(spark, tmp_path, rows, texts, ansi=False, zone="America/New_York") == []


def test_addresses_and_paths_are_read_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"s": pa.array(text_functions.ADDRESSES, pa.string())})
    texts = text_functions.listed(text_functions.SPECIAL)
    spark.conf.set(POLICY, "LAST_WIN")  # a repeated key is an error otherwise
    try:
        found = compared(spark, tmp_path, rows, texts, ansi=False, zone="America/New_York")
    finally:
        spark.conf.set(POLICY, "EXCEPTION")
    assert found == []


def test_the_last_of_equal_keys_wins_if_the_session_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = pa.table({"l": pa.array([1, 2, None], pa.int64())})
    texts = [
        "map(1, l, 2, 5L, 1, 7L)",
        "map_concat(map(1, l, 3, 4L), map(1, 2L))",
        "map_from_arrays(array(1, 2, 1), array(l, 5L, 9L))",
        "map_from_entries(array(struct(1 AS k, l AS v), struct(1 AS k, 5L AS v)))",
        "transform_keys(map(1, l, 2, 5L), (k, v) -> 0)",
    ]
    spark.conf.set(POLICY, "LAST_WIN")
    try:
        found = compared(spark, tmp_path, rows, texts, ansi=True, zone="UTC")
    finally:
        spark.conf.set(POLICY, "EXCEPTION")
    assert found == []


def test_an_argument_after_a_null_may_fail_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table(
        {"l": pa.array([1, None, 3], pa.int64()), "s": pa.array(["1", "x", "0"], pa.string())}
    )
    texts = ["l + CAST(s AS BIGINT)", "l > CAST(s AS BIGINT)", "CAST(s AS BIGINT) / l"]
    assert compared(spark, tmp_path, rows, texts, ansi=True, zone="UTC") == []


@pytest.mark.parametrize("record", ['{"a":"x"}', '{"a":1', '{"a":1}'])
def test_a_record_that_is_not_of_the_schema_fails_in_failfast_mode(
    spark: SparkSession, tmp_path: Path, record: str
) -> None:
    rows = pa.table({"s": pa.array([record], pa.string())})
    texts = ["from_json(s, 'a int', map('mode', 'FAILFAST'))"]
    assert compared(spark, tmp_path, rows, texts, ansi=True, zone="UTC") == []
