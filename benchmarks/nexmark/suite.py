"""The events and queries of Nexmark, for the tests and for the benchmark."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
BEGIN = datetime.datetime(2026, 1, 1, 7, 59, 50, tzinfo=datetime.UTC)
DELAY = "4 seconds"
KINDS = ("bid", "auction", "person")

REFUSED = {
    4: "an aggregation without a window above another one",
    6: "a window function over rows",
    9: "a window function over rows",
    15: "an aggregate of distinct values",
    16: "an aggregate of distinct values",
    18: "a window function over rows",
    19: "a window function over rows",
}
"""The queries that Spark's analyser does not accept as streams, and why."""


@dataclass(frozen=True, slots=True)
class NexmarkQuery:
    """One query, for Spark and for the oracle."""

    number: int
    spark: str
    oracle: str
    mode: str = "append"
    keys: int = 0

    def __str__(self) -> str:
        return f"q{self.number}"


def queries() -> list[NexmarkQuery]:
    """All queries, by number."""
    found = []
    for section in (HERE / "queries.sql").read_text().split("\n--- q")[1:]:
        head, _, body = section.partition("\n")
        number, _, how = head.partition(" | ")
        mode, _, keys = how.partition(" ")
        text, _, oracle = body.partition(">>>")
        found.append(
            NexmarkQuery(
                int(number),
                text.strip(),
                (oracle or text).strip(),
                mode or "append",
                int(keys or 0),
            )
        )
    return found


def generator(numbers: str) -> str:
    """The SQL that computes events from a relation with the columns `value` and `ts`."""
    return (HERE / "generator.sql").read_text().format(numbers=numbers)


def events(first: int, count: int, per_second: int) -> pa.Table:
    """Some events as a table. Their times are `per_second` events apart."""
    with duckdb.connect() as oracle:
        oracle.execute("SET TimeZone = 'UTC'")
        step_us = 1_000_000 // per_second
        numbers = (
            f"(SELECT range AS value, TIMESTAMPTZ '{BEGIN.isoformat()}' "
            f"+ range * INTERVAL '{step_us} microseconds' AS ts "
            f"FROM range({first}, {first + count}))"
        )
        found: pa.Table = oracle.sql(generator(numbers)).to_arrow_table()
        return found


def side_input() -> pa.Table:
    """The table of q13."""
    keys = list(range(0, 10_000, 3))
    return pa.table({"key": keys, "value": [f"side-{key}" for key in keys]})


def register_views(spark: SparkSession, stream: DataFrame) -> None:
    """Make the views that the queries use, from a stream of events."""
    marked = stream.withWatermark("ts", DELAY)
    for kind in KINDS:
        marked.where(f"kind = '{kind}'").createOrReplaceTempView(kind)
    spark.createDataFrame(side_input()).createOrReplaceTempView("side_input")


def expected(query: NexmarkQuery, rows: pa.Table) -> pa.Table:
    """The oracle's answer over these events."""
    side = side_input()
    with duckdb.connect() as oracle:
        oracle.execute("SET TimeZone = 'UTC'")
        oracle.register("events", rows)
        oracle.register("side_input", side)
        for kind in KINDS:
            oracle.execute(f"CREATE VIEW {kind} AS SELECT * FROM events WHERE kind = '{kind}'")
        found: pa.Table = oracle.sql(query.oracle).to_arrow_table()
        return found
