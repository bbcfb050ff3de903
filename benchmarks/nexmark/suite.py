"""The events of Nexmark, the views of its queries, and its oracle."""

from __future__ import annotations

import datetime

import duckdb
import pyarrow as pa
from benchmarks.nexmark.texts import DELAY_SECONDS, NexmarkQuery, generator
from pyspark.sql import DataFrame, SparkSession

BEGIN = datetime.datetime(2026, 1, 1, 7, 59, 50, tzinfo=datetime.UTC)
DELAY = f"{DELAY_SECONDS} seconds"
KINDS = ("bid", "auction", "person")
SETTINGS = {"spark.sql.exchange.reuse": "false"}
"""Settings of the session. In q5 two aggregations have the same input. Spark 4.3 then computes the
exchange below them once, and does not find the watermark of the aggregation that reuses it: its
windows never close, and the query has no result."""


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
