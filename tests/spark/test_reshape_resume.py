"""Changed queries go on from state with other keys, other operators or columns from a table.

Spark is the oracle: the changed query, run from the start on all the input, gives what the resumed
one must give.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.spark.sessions import session_with

from epochal.cli.main import main

PROVIDERS = ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")
CONF = "spark.sql.streaming.stateStore.providerClass"
PACKAGE = "org.apache.spark.sql.execution.streaming.state"

Change = Callable[[DataFrame], DataFrame]


class Query:
    """A query over JSON files, run until it has read all of them."""

    def __init__(
        self,
        spark: SparkSession,
        base: Path,
        provider: str = PROVIDERS[0],
        schema: str = "k string, v int",
        mode: str = "update",
    ) -> None:
        self.spark, self.base, self.schema, self.mode = spark, base, schema, mode
        self.names = [field.split()[0] for field in schema.split(",")]
        spark.conf.set(CONF, f"{PACKAGE}.{provider}")
        self.rows: list[tuple[Any, ...]] = []

    @property
    def checkpoint(self) -> str:
        return str(self.base / "checkpoint")

    @property
    def latest(self) -> dict[Any, tuple[Any, ...]]:
        """The last row of each key, which is the first column."""
        return {row[0]: row[1:] for row in self.rows}

    def add(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        (self.base / "input").mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(dict(zip(self.names, row, strict=True))) for row in rows]
        path = self.base / "input" / name
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000, 1_700_000_000))

    def run(self, change: Change) -> list[tuple[Any, ...]]:
        """Read all that is there; return the rows of this run."""
        source = self.spark.readStream.schema(self.schema).json(str(self.base / "input"))
        start = len(self.rows)

        def keep(batch: DataFrame, _: int) -> None:
            self.rows += [tuple(row) for row in batch.collect()]

        writer = change(source).writeStream.outputMode(self.mode).foreachBatch(keep)
        started = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        assert started.start().awaitTermination(300)
        return self.rows[start:]

    def edit(self, command: str, *words: str) -> None:
        line = ("state", command, self.checkpoint, *words, "--execute", "--settle-seconds", "0")
        assert main((*line, "--no-file-sink")) == 0


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


class Totals(StatefulProcessor):  # type: ignore[misc]
    """Keeps the sum of each key, a list and a map; `wide` has one more column in each."""

    def __init__(self, *, wide: bool) -> None:
        self.more = ", extra BIGINT" if wide else ""
        self.wide = wide

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", f"n BIGINT{self.more}")
        self.all = handle.getListState("all", f"v BIGINT{self.more}")
        self.counts = handle.getMapState("counts", "v BIGINT", f"n BIGINT{self.more}")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        one = (1,) if self.wide else ()
        for row in rows:
            before = self.total.get() or (0, 0)
            extra = (before[1] + 1,) if self.wide else ()
            self.total.update((before[0] + row.v, *extra))
            self.all.appendValue((row.v, *one))
            counted = self.counts.getValue((row.v,)) or (0, 0)
            self.counts.updateValue((row.v,), (counted[0] + 1, *one))
        kept = (self.total.get(), list(self.all.get()), sorted(self.counts.iterator()))
        yield Row(k=key[0], shown=repr(kept))


def totals(rows: DataFrame, *, wide: bool) -> DataFrame:
    return rows.groupBy("k").transformWithState(
        statefulProcessor=Totals(wide=wide),
        outputStructType="k STRING, shown STRING",
        outputMode="Update",
        timeMode="None",
    )


def test_a_processor_whose_variables_have_one_more_column_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, PROVIDERS[1])
    query.add("0.json", [("a", 5), ("b", 70), ("a", 3), ("c", 1)])
    query.run(lambda rows: totals(rows, wide=False))
    for variable in ("total", "all", "counts"):
        query.edit("evolve", "--variable", variable, "--add", "extra:long=100")
    query.edit("repartition", "--partitions", "3")
    query.add("1.json", [("a", 4), ("d", 2)])
    query.run(lambda rows: totals(rows, wide=True))
    assert query.latest["a"] == (
        "((12, 101), [(5, 100), (3, 100), (4, 1)], "
        "[((3,), (1, 100)), ((4,), (1, 1)), ((5,), (1, 100))])",
    )
    assert query.latest["d"] == ("((2, 1), [(2, 1)], [((2,), (1, 1))])",)
