"""Output mode complete: a table becomes what Spark's result is, also if that is empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from tests.frames.streams_of_words import add_file, rows_of, stream
from tests.iceberg_tables import Warehouse
from tests.rigs.postgres import Postgres
from tests.waiting import eventually

import epochal
from epochal.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("nothing_left_running")

STEPS = ("ab", "aabb", "c", "dd")
"""The words of each file. After the second one no word is rare."""
RARE = "count < 3 AND word <> 'd'"
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Table:
    """Where a query writes to, and how to read it."""

    format: str
    options: dict[str, str]
    rows: Callable[[], Rows]


def table_of(sink: str, spark: SparkSession, folder: Path, server: Postgres) -> Table:
    name = f"t_{uuid4().hex[:12]}"
    path = str(folder / name)
    if sink == "delta":
        return Table(sink, {"path": path}, lambda: _delta_rows(path))
    if sink == "iceberg":
        warehouse = Warehouse(folder)
        return Table(
            sink,
            warehouse.options(),
            lambda: sorted(tuple(row.values()) for row in warehouse.rows()),
        )
    if sink == "postgres":
        return Table(
            sink,
            {"url": server.url, "dbtable": name},
            lambda: sorted(
                (word, int(count))
                for word, count in (row.split("|") for row in server.rows(f"TABLE {name}"))
            ),
        )
    return Table(sink, {"queryName": name}, lambda: rows_of(spark.table(name)))


def _delta_rows(path: str) -> Rows:
    return sorted(tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


def rare(spark: SparkSession, source: Path) -> DataFrame:
    return stream(spark, source).groupBy("word").count().where(RARE)


def add_words(source: Path, step: int) -> None:
    add_file(source, str(step), [{"id": 0, "word": word} for word in STEPS[step]])


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Rows]:
    """Spark's result after each step."""
    source, found = tmp_path_factory.mktemp("spark") / "in", []
    source.mkdir()
    name = f"t_{uuid4().hex[:12]}"
    query = rare(spark, source).writeStream.outputMode("complete").format("memory")
    running = query.queryName(name).start()
    for step in range(len(STEPS)):
        add_words(source, step)
        running.processAllAvailable()
        found.append(rows_of(spark.table(name)))
    running.stop()
    assert found[1] == []
    return found


@pytest.mark.parametrize("sink", ["memory", "delta", "iceberg", "postgres"])
def test_the_table_is_sparks_result_after_each_step(
    *, spark: SparkSession, tmp_path: Path, postgres: Postgres, results: list[Rows], sink: str
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    table = table_of(sink, spark, tmp_path, postgres)
    writer = epochal.write_stream(rare(spark, source)).format(sink).outputMode("complete")
    writer.options(**table.options, checkpointLocation=str(tmp_path / "ck"))
    query = writer.trigger(epoch="50 milliseconds").start()
    found = []
    for step in range(len(STEPS)):
        add_words(source, step)
        query.processAllAvailable()
        found.append(table.rows())
    query.stop()
    assert found == results


def test_a_query_without_input_leaves_the_rows_of_others_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, source, checkpoint = str(tmp_path / "table"), tmp_path / "in", tmp_path / "ck"
    source.mkdir()
    write_deltalake(path, spark.createDataFrame([("z", 9)], "word string, count long").toArrow())
    writer = epochal.write_stream(rare(spark, source)).format("delta").outputMode("complete")
    writer.options(checkpointLocation=str(checkpoint), idleEpoch="100 milliseconds")
    query = writer.trigger(epoch="50 milliseconds").start(path)

    def epochs() -> int:
        newest = Checkpoint(str(checkpoint)).commits.latest_batch_id()
        return -1 if newest is None else newest

    def some_pass(after: int) -> None:
        eventually(lambda: epochs() >= after + 3, "idle epochs")

    some_pass(-1)
    assert _delta_rows(path) == [("z", 9)]
    add_words(source, 0)
    query.processAllAvailable()
    assert _delta_rows(path) == [("a", 1), ("b", 1)]
    version = DeltaTable(path).version()
    some_pass(epochs())
    query.stop()
    assert DeltaTable(path).version() == version, "the same result is not written again"
