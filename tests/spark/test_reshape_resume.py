"""Changed queries go on from state with other keys, other operators or columns from a table.

Spark is the oracle: the changed query, run from the start on all the input, gives what the resumed
one must give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F
from tests.spark.evolving import PROVIDERS, Change, Query
from tests.spark.sessions import session_with

pytestmark = pytest.mark.timeout(600)

FIRST = [("a1", 5), ("b1", 70), ("a2", 3), ("c1", 1), ("a1", -2)]
REST = [("a3", 4), ("b1", 900), ("d1", 2), ("a2", -1)]
TIMED = "k string, v int, s long"
EARLY = [("a", 5, 0), ("b", -7, 10), ("a", 3, 30), ("c", 1, 70), ("b", 2, 130), ("c", -4, 125)]
LATE = [("a", 4, 100), ("b", -3, 140), ("b", 8, 141), ("a", 6, 190), ("z", 1, 100_000)]
LAST = [("z", 0, 200_000)]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with(
        {
            "spark.sql.streaming.stateStore.autoSnapshotRepair.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
        }
    )


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fresh(query: Query, base: Path, change: Change, *files: list[tuple[Any, ...]]) -> Query:
    """The changed query on all the input, from the start."""
    made = Query(query.spark, base, schema=query.schema, mode=query.mode)
    for number, rows in enumerate(files):
        made.add(f"{number}.json", rows)
        made.run(change)
    return made


def by_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("v"), F.max("v"), F.sum("v"))


def by_letter(rows: DataFrame) -> DataFrame:
    first = F.substring("k", 1, 1).alias("letter")
    return rows.groupBy(first).agg(F.count("v"), F.max("v"), F.sum("v"))


def by_number(rows: DataFrame) -> DataFrame:
    number = F.substring("k", 2, 1).cast("int").alias("number")
    letter = F.substring("k", 1, 1).alias("letter")
    return rows.groupBy(number, letter).agg(F.count("v"), F.max("v"), F.sum("v"))


FUNCTIONS = """
def letter(key, value):
    return {"letter": key["k"][0]}

def number(key, value):
    return {"number": int(key["k"][1]), "letter": key["k"][0]}

def both(key, one, other):
    return {
        "count": one["count"] + other["count"],
        "max": max(one["max"], other["max"]),
        "sum": one["sum"] + other["sum"],
    }
"""


def test_a_query_with_coarser_keys_goes_on_with_merged_state(
    spark: SparkSession, provider: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Query(spark, tmp_path / "one", provider)
    query.add("0.json", FIRST)
    query.run(by_key)
    functions = tmp_path / "functions.py"
    functions.write_text(FUNCTIONS)
    words = ("--key-function", f"{functions}:letter", "--key-schema", "letter string")
    with pytest.raises(AssertionError):
        query.edit("rekey", *words)
    shown = capsys.readouterr().err
    assert "Give a merge function" in shown
    assert '{"k": "a1"}' in shown
    assert '{"k": "a2"}' in shown
    query.edit("rekey", *words, "--merge-function", f"{functions}:both")
    query.add("1.json", REST)
    query.run(by_letter)
    oracle = fresh(query, tmp_path / "two", by_letter, FIRST, REST)
    later = {row[0][0] for row in REST}
    assert {k: query.latest[k] for k in later} == {k: oracle.latest[k] for k in later}


def test_a_query_with_keys_of_another_type_finds_them(
    spark: SparkSession, provider: str, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path / "one", provider)
    query.add("0.json", FIRST)
    query.run(by_key)
    functions = tmp_path / "functions.py"
    functions.write_text(FUNCTIONS)
    query.edit(
        "rekey",
        "--key-function",
        f"{functions}:number",
        "--key-schema",
        "number int, letter string",
    )
    query.add("1.json", REST)
    found = query.run(by_number)
    oracle = fresh(query, tmp_path / "two", by_number, FIRST, REST)
    assert Counter(found) == Counter(oracle.rows[-len(found) :])


def grouped(rows: DataFrame) -> GroupedData:
    moments = rows.withColumn("t", F.timestamp_seconds("s")).withWatermark("t", "10 seconds")
    return moments.groupBy(F.window("t", "1 minute").alias("w"), "k")


def sums(rows: DataFrame) -> DataFrame:
    return grouped(rows.where("v > 0")).agg(F.sum("v").alias("n"), F.lit("sum").alias("of"))


def counts(rows: DataFrame) -> DataFrame:
    return grouped(rows).agg(F.count("v").alias("n"), F.lit("count").alias("of"))


def in_one(rows: DataFrame) -> DataFrame:
    positive = F.when(F.col("v") > 0, F.col("v"))
    found = grouped(rows).agg(F.sum(positive).alias("s"), F.count("v").alias("n"))
    # Queries with two aggregations read their source twice. So does this one: the number of sources
    # must stay the same.
    nothing = rows.where("k is null").selectExpr("s", "k", "s", "s")
    return found.selectExpr("unix_seconds(w.start)", "k", "s", "n").union(nothing)


def in_two(rows: DataFrame) -> DataFrame:
    found = sums(rows).union(counts(rows))
    return found.selectExpr("unix_seconds(w.start)", "k", "of", "n")


def in_two_swapped(rows: DataFrame) -> DataFrame:
    found = counts(rows).union(sums(rows))
    return found.selectExpr("unix_seconds(w.start)", "k", "of", "n")


def timed_query(spark: SparkSession, base: Path, provider: str) -> Query:
    query = Query(spark, base, provider, TIMED, "append")
    query.add("0.json", EARLY)
    return query


def finish(query: Query, change: Change) -> Counter[tuple[Any, ...]]:
    """The rows of the changed query after the early input."""
    query.add("1.json", LATE)
    found = query.run(change)
    query.add("2.json", LAST)
    return Counter(found + query.run(change))


def oracle_rows(
    query: Query, base: Path, change: Change, closed: Iterable[tuple[Any, ...]]
) -> Counter[tuple[Any, ...]]:
    """What the changed query gives from the start, without windows that were closed before."""
    rows = fresh(query, base, change, EARLY, LATE, LAST).rows
    early = {row[:2] for row in closed}
    return Counter(row for row in rows if row[:2] not in early)


def test_an_aggregation_is_split_in_two(spark: SparkSession, provider: str, tmp_path: Path) -> None:
    query = timed_query(spark, tmp_path / "one", provider)

    def whole(rows: DataFrame) -> DataFrame:
        return in_one(rows.where("v > 0"))

    def halves(rows: DataFrame) -> DataFrame:
        return in_two(rows.where("v > 0"))

    closed = query.run(whole)
    query.edit("split", "--columns", "count", "--to", "1")
    found = finish(query, halves)
    assert closed
    assert found == oracle_rows(query, tmp_path / "two", halves, closed)


def test_two_aggregations_are_merged_with_nulls_for_the_keys_of_one(
    spark: SparkSession, provider: str, tmp_path: Path
) -> None:
    query = timed_query(spark, tmp_path / "one", provider)
    closed = query.run(in_two)
    query.edit("merge", "--other", "1")
    found = finish(query, in_one)
    assert found == oracle_rows(query, tmp_path / "two", in_one, closed)
    assert any(row[2] is None for row in found)


def test_operators_that_changed_places_find_their_state(
    spark: SparkSession, provider: str, tmp_path: Path
) -> None:
    query = timed_query(spark, tmp_path / "one", provider)
    closed = query.run(in_two)
    for source, to in ((0, 2), (1, 0), (2, 1)):
        query.edit("move", "--operator", str(source), "--to", str(to))
    found = finish(query, in_two_swapped)
    expected = oracle_rows(query, tmp_path / "two", in_two_swapped, closed)
    assert found == expected

    # Spark takes the state of the wrong operator without a word, because the types are equal.
    untouched = timed_query(spark, tmp_path / "three", provider)
    untouched.run(in_two)
    assert finish(untouched, in_two_swapped) != expected


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("v"))


def counted_and_summed(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.count("v"), F.sum("v"))


def test_a_new_aggregate_goes_on_from_the_values_of_a_table(
    spark: SparkSession, provider: str, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path / "one", provider)
    query.add("0.json", FIRST)
    query.run(counted)
    before = [("d1", 40)]
    sums_so_far: Counter[str] = Counter()
    for key, value in FIRST + before:
        sums_so_far[key] += value
    table = pa.table(
        {
            "k": list(sums_so_far),
            "sum": pa.array(list(sums_so_far.values()), pa.int64()),
            "count": pa.array([sum(k == key for k, _ in FIRST + before) for key in sums_so_far]),
        }
    )
    pq.write_table(table, str(tmp_path / "sums.parquet"))
    query.edit(
        "evolve", "--add", "sum:long", "--from", str(tmp_path / "sums.parquet"), "--add-keys"
    )
    query.add("1.json", REST)
    query.run(counted_and_summed)
    oracle = fresh(query, tmp_path / "two", counted_and_summed, FIRST + before, REST)
    later = {row[0] for row in REST}
    assert {k: query.latest[k] for k in later} == {k: oracle.latest[k] for k in later}
