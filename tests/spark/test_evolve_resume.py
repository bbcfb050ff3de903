"""A query that was changed goes on from state that `evolve` made fit, and its output is right."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.sessions import session_with

from epochal.cli.main import main

pytestmark = pytest.mark.timeout(600)

FIRST = [("a", 5), ("b", 70), ("a", 3), ("c", 1)]
REST = [("a", 4), ("b", 900), ("d", 2), ("a", -1)]

Aggregate = Callable[[DataFrame], DataFrame]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with({"spark.sql.streaming.stateStore.autoSnapshotRepair.enabled": "false"})


class Query:
    """An aggregation over JSON files, run until it has read all of them."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark, self.base = spark, base
        self.rows: dict[str, tuple[Any, ...]] = {}

    @property
    def checkpoint(self) -> str:
        return str(self.base / "checkpoint")

    def add(self, name: str, rows: list[tuple[str, int]]) -> None:
        (self.base / "input").mkdir(exist_ok=True)
        lines = [json.dumps({"k": k, "v": v}) for k, v in rows]
        path = self.base / "input" / name
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000, 1_700_000_000))

    def run(self, aggregate: Aggregate) -> None:
        source = self.spark.readStream.schema("k string, v int").json(str(self.base / "input"))

        def keep(batch: DataFrame, _: int) -> None:
            for row in batch.collect():
                self.rows[row[0]] = tuple(row)[1:]

        writer = aggregate(source).writeStream.outputMode("update").foreachBatch(keep)
        started = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        assert started.start().awaitTermination(300)

    def evolve(self, *words: str) -> None:
        line = ("state", "evolve", self.checkpoint, *words, "--execute", "--settle-seconds", "0")
        assert main(line) == 0


def of_key(rows: list[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for key, value in rows:
        found[key].append(value)
    return found


def test_spark_refuses_the_changed_query_without_evolve(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.add("0.json", FIRST)
    query.run(lambda rows: rows.groupBy("k").agg(F.max("v")))
    query.add("1.json", REST)
    with pytest.raises(Exception, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
        query.run(lambda rows: rows.groupBy("k").agg(F.max("v"), F.sum("v")))


def test_a_query_with_one_more_aggregate_goes_on_from_its_default(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.add("0.json", FIRST)
    query.run(lambda rows: rows.groupBy("k").agg(F.count("v"), F.max("v")))
    query.evolve("--add", "sum:long=1000")
    query.add("1.json", REST)
    query.run(lambda rows: rows.groupBy("k").agg(F.count("v"), F.max("v"), F.sum("v")))
    everything, later = of_key(FIRST + REST), of_key(REST)
    known = of_key(FIRST)
    assert {key: query.rows[key] for key in later} == {
        key: (
            len(everything[key]),
            max(everything[key]),
            sum(values) + (1000 if key in known else 0),
        )
        for key, values in later.items()
    }


def test_a_query_whose_column_became_wider_goes_on_with_its_values(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.add("0.json", FIRST)
    query.run(lambda rows: rows.groupBy("k").agg(F.max("v"), F.min("v")))
    query.evolve("--widen", "max:long")
    query.add("1.json", REST)
    wider = F.max(F.col("v").cast("long") * F.lit(1 << 40))
    query.run(lambda rows: rows.groupBy("k").agg(wider, F.min("v")))
    before = of_key(FIRST)
    assert {key: query.rows[key] for key in of_key(REST)} == {
        key: (
            max([value << 40 for value in values] + before[key]),
            min(values + before[key]),
        )
        for key, values in of_key(REST).items()
    }
