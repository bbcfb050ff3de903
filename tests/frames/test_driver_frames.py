"""DataFrames and SQL under the test driver: results, crashes, functions, checkpoints of Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.golden.catalogue import CASES
from tests.golden.library import Golden, unpack
from tests.golden.place import Place

from epochal import testing

RELEASES = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
EVENTS = "at timestamp, user string, amount bigint"


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def windows(events: DataFrame) -> DataFrame:
    marked = events.withWatermark("at", "10 seconds")
    totals = marked.groupBy(F.window("at", "1 minute"), "user").agg(F.sum("amount").alias("total"))
    return totals.select("user", "total")


def in_two_branches(spark: SparkSession, other: str, calls: int) -> DataFrame:
    """Windows over a DataFrame that is used twice. Its watermark has one call, or two."""
    events = testing.frame(EVENTS, "events", spark=spark)
    marked = [events.withWatermark("at", "10 seconds") for _ in range(calls)]
    # Spark filters below the watermark.
    both = marked[0].where("user = 'ada'").union(marked[-1].where(f"user = '{other}'"))
    return both.groupBy(F.window("at", "1 minute"), "user").count().select("user", "count")


@pytest.mark.parametrize("other", ["nobody", "bob"])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_data_frame_in_two_branches_has_the_watermark_that_spark_gives_it(
    spark: SparkSession, other: str, calls: int
) -> None:
    frame = in_two_branches(spark, other, calls)
    seen = []
    for make in (testing.Driver, testing.SparkDriver):
        with make(frame) as driver:
            for rows in ([(at(1), "ada", 1), (at(2), "bob", 2)], [(at(71), "ada", 3)]):
                driver.feed(rows)
                driver.run()
            seen.append((driver.watermark_ms, sorted(row["user"] for row in driver.output)))
    shown = ["ada"] if other == "nobody" else ["ada", "bob"]
    assert seen == 2 * [(61_000, shown) if calls == 1 else (0, [])]


def test_a_checkpoint_with_a_watermark_per_branch_is_continued(spark: SparkSession) -> None:
    # As earlier releases wrote it, for a DataFrame that is used twice.
    driver = testing.Driver(in_two_branches(spark, "bob", 2))
    driver.feed([(at(1), "ada", 1), (at(40), "ada", 1), (at(20), "bob", 2)])
    driver.run()
    assert (driver.watermark_ms, driver.output) == (10_000, [])
    driver.restart(in_two_branches(spark, "bob", 1))
    driver.run()
    assert (driver.watermark_ms, driver.output) == (10_000, [])
    driver.feed([(at(71), "ada", 3)])
    driver.run()
    assert driver.watermark_ms == 61_000
    assert testing.rows_equal(driver.output, [("ada", 2), ("bob", 1)])


OF_ALL_RELEASES = (
    "dedup",
    "join_outer",
    "limit",
    "windowed",
    "per_key",
    "session",
    "chained",
    "rocksdb_changelog",
)


@pytest.mark.parametrize(
    ("release", "case"),
    [
        *((release, case) for release in RELEASES for case in OF_ALL_RELEASES),
        ("4.3.0", "transform"),
    ],
)
def test_a_copy_of_a_checkpoint_of_spark_is_continued(
    spark: SparkSession, release: str, case: str, tmp_path: Path
) -> None:
    place = unpack(Golden(release, case), tmp_path, relocate=True)
    before = {path: path.read_bytes() for path in place.checkpoint.rglob("*") if path.is_file()}
    frame, mode = CASES[case].query(spark, place), CASES[case].mode
    driver = testing.Driver(frame, checkpoint=place.checkpoint, output_mode=mode)
    for source, rows in rest_of(place):
        driver.feed(source, rows)
        driver.run()
    shown = [*place.facts["output"], *map(as_fact, driver.output)]
    expected = place.facts["undisturbed"]["output"]
    if mode == "update":
        shown = list({row["k"]: row for row in shown}.values())
    assert testing.rows_equal(shown, expected)
    after = {path: path.read_bytes() for path in place.checkpoint.rglob("*") if path.is_file()}
    assert after == before


def rest_of(place: Place) -> list[tuple[str, list[dict[str, Any]]]]:
    """The rows of the last step, file by file in the order of their numbers."""
    paths = sorted(place.rest.glob("*/*.json"), key=lambda path: (path.name, path.parent.name))
    return [
        (path.parent.name, [json.loads(line) for line in path.read_text().splitlines()])
        for path in paths
    ]


def as_fact(row: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return value

    return {name: plain(value) for name, value in row.items()}


def test_a_batch_that_spark_only_planned_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    place = unpack(Golden("4.3.0", "interrupted"), tmp_path, relocate=True)
    planned = place.facts["offsets"][-1]
    assert planned not in place.facts["commits"]
    driver = testing.Driver(CASES["interrupted"].query(spark, place), checkpoint=place.checkpoint)
    last = max((place.input / "events").glob("*.json"))
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    for rows in (lines, *(rows for _, rows in rest_of(place))):
        driver.feed(rows)
        driver.run()
    assert min(driver.output_by_epoch) == planned
    shown = [*place.facts["output"], *map(as_fact, driver.output)]
    assert testing.rows_equal(shown, place.facts["undisturbed"]["output"])


def test_rows_of_a_test_are_of_no_file(spark: SparkSession) -> None:
    columns = ("input_file_name() AS name", "input_file_block_start() AS start", "a")
    driver = testing.Driver(testing.frame("a int", spark=spark).selectExpr(*columns))
    driver.feed([(1,), {"a": 2}])
    assert driver.epoch() == [{"name": "", "start": -1, "a": 1}, {"name": "", "start": -1, "a": 2}]
