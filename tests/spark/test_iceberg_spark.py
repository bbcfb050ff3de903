"""Spark with Iceberg's own connector reads our tables and goes on from our checkpoints."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import SparkSession
from tests.iceberg_tables import SmallEngine, Warehouse, numbers
from tests.spark.releases import ROOT, environment_of
from tests.waiting import eventually

import epochal
from epochal.testing.jars import resolve

RELEASE = "4.0.5"
JARS = (
    "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    "org.xerial:sqlite-jdbc:3.49.1.0",
)
_EVENTS: list[tuple[str, Any]] = [
    ("id", pa.int64()),
    ("kind", pa.string()),
    ("at", pa.timestamp("us", "UTC")),
]
EVENTS = pa.schema(_EVENTS)


def partitioned(warehouse: Warehouse, checkpoint: Path) -> None:
    """A table by day and bucket, with a null in each column but the first."""
    catalog = warehouse.catalog()
    catalog.create_namespace_if_not_exists("db")
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "kind", StringType()),
        NestedField(3, "at", TimestamptzType()),
    )
    fields = [PartitionField(3, 1000, DayTransform(), "day")]
    fields.append(PartitionField(2, 1001, BucketTransform(4), "bucket"))
    catalog.create_table("db.events", schema, partition_spec=PartitionSpec(*fields))
    times = [dt.datetime(2026, 1, 1 + n % 3, n, tzinfo=dt.UTC) for n in range(12)]
    rows = pa.table(
        [
            pa.array(range(13), pa.int64()),
            pa.array([*(f"k{n}" for n in range(12)), None], pa.string()),
            pa.array([*times, None], pa.timestamp("us", "UTC")),
        ],
        schema=EVENTS,
    )
    with SmallEngine(warehouse.options("db.events"), checkpoint, EVENTS).started() as engine:
        engine.run(0, rows, tasks=2)


def merged(warehouse: Warehouse, checkpoint: Path) -> None:
    """A table that was merged by key, compacted and freed of old snapshots."""
    options = warehouse.options(
        mergeKeys="id",
        compact="true",
        compactMinFiles="2",
        expireSnapshotsKeep="1",
        maintenanceInterval="10 milliseconds",
    )
    with SmallEngine(options, checkpoint, output_mode="update").started() as engine:
        for epoch in range(10):
            engine.run(epoch, numbers(epoch, epoch + 1, text=str(epoch)))
        eventually(lambda: len(warehouse.table().metadata.snapshots) <= 2)


class Witness:
    """Spark in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "witness.log"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.iceberg_child", folder, *resolve(*JARS)],
                cwd=ROOT,
                env=environment_of(RELEASE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, do: str, **given: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise AssertionError(self._log.read_text()[-6000:])

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("iceberg")


@pytest.fixture(scope="module")
def witness(folder: Path) -> Iterator[Witness]:
    Warehouse(folder).catalog()  # creates the database
    found = Witness(folder)
    yield found
    found.end()


@pytest.mark.timeout(600)
def test_spark_reads_merged_and_compacted_tables(folder: Path, witness: Witness) -> None:
    merged(Warehouse(folder), folder / "numbers")
    assert witness.ask("release") == RELEASE
    expected = [{"id": n, "v": str(min(n, 9))} for n in range(11)]
    assert witness.ask("rows", table="db.numbers", where="true") == expected


@pytest.mark.timeout(600)
def test_spark_reads_the_partitions_that_a_filter_needs(folder: Path, witness: Witness) -> None:
    partitioned(Warehouse(folder), folder / "events")
    where = "at >= '2026-01-03' or kind is null"
    found = witness.ask("rows", table="db.events", where=where)
    assert [row["id"] for row in found] == [2, 5, 8, 11, 12]
    found = witness.ask("rows", table="db.events", where="kind = 'k7'")
    assert [row["id"] for row in found] == [7]


class Turns:
    """One query on one checkpoint, run by Spark or by us until all input is read."""

    def __init__(self, spark: SparkSession, witness: Witness, folder: Path) -> None:
        self._spark, self._witness, self._options = spark, witness, Warehouse(folder).options()
        self._input, self._checkpoint = folder / "turns" / "input", folder / "turns" / "checkpoint"
        self._input.mkdir(parents=True)
        self._next = 0

    def feed(self) -> None:
        """Add a file of ten rows."""
        numbers = range(self._next, self._next + 10)
        self._next += 10
        lines = [json.dumps({"id": number, "v": f"v{number}"}) for number in numbers]
        (self._input / f"{self._next:04d}.json").write_text("\n".join(lines))

    def sparks(self) -> None:
        given = {"source": str(self._input), "checkpoint": str(self._checkpoint)}
        assert self._witness.ask("stream", table="db.turns", **given) == "done"

    def ours(self) -> None:
        frame = self._spark.readStream.schema("id long, v string").json(str(self._input))
        options = {**self._options, "checkpointLocation": str(self._checkpoint)}
        del options["table"]
        writer = epochal.write_stream(frame).format("iceberg").options(**options)
        query = writer.trigger(availableNow=True).start("db.turns")
        query.awaitTermination()
        assert query.exception() is None

    def forget_commit(self) -> None:
        """Make it look as if the query had been killed right after the table's commit."""
        commits = self._checkpoint / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)

    def ids(self) -> list[int]:
        found = self._witness.ask("rows", table="db.turns", where="true")
        return [row["id"] for row in found]


@pytest.mark.timeout(900)
def test_spark_and_epochal_take_turns_and_skip_what_the_other_has_committed(
    spark: SparkSession, folder: Path, witness: Witness
) -> None:
    turns = Turns(spark, witness, folder)
    order = (turns.ours, turns.sparks, turns.ours, turns.ours, turns.sparks, turns.sparks)
    for number, run in enumerate(order):
        turns.feed()
        run()
        assert turns.ids() == list(range(number * 10 + 10))
        turns.forget_commit()
    turns.ours()
    assert turns.ids() == list(range(60))
