"""Spark with Iceberg's own connector reads our tables and goes on from our checkpoints."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from tests.iceberg_tables import SmallEngine, Warehouse, numbers
from tests.spark.releases import ROOT, tree
from tests.waiting import eventually

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
    catalog.create_namespace("db")
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
    with SmallEngine(warehouse.options("db.events"), checkpoint, EVENTS) as engine:
        engine.start()
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
    with SmallEngine(options, checkpoint, output_mode="update") as engine:
        engine.start()
        for epoch in range(10):
            engine.run(epoch, numbers(epoch, epoch + 1, text=str(epoch)))
        eventually(lambda: len(warehouse.table().metadata.snapshots) <= 2)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("iceberg")
    warehouse = Warehouse(folder)
    partitioned(warehouse, folder / "events")
    merged(warehouse, folder / "numbers")
    request = {
        "warehouse": str(folder),
        "jars": [str(jar) for jar in resolve(*JARS)],
        "tables": {"db.numbers": "true", "db.events": "at >= '2026-01-03' or kind is null"},
        "folder": str(folder / "turns"),
    }
    path = os.pathsep.join((str(tree(RELEASE)), str(ROOT / "src"), str(ROOT)))
    environment = {key: text for key, text in os.environ.items() if key != "SPARK_HOME"}
    environment |= {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark.iceberg_child", json.dumps(request)],
        cwd=ROOT,
        env={**environment, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert child.returncode == 0, f"{child.stdout[-2000:]}\n{child.stderr[-6000:]}"
    found: dict[str, Any] = json.loads(child.stdout.strip().splitlines()[-1])
    assert found["release"] == RELEASE
    return found


@pytest.mark.timeout(900)
def test_spark_reads_merged_and_compacted_tables(answer: dict[str, Any]) -> None:
    expected = [{"id": n, "v": str(min(n, 9))} for n in range(11)]
    assert answer["db.numbers"] == expected


@pytest.mark.timeout(900)
def test_spark_reads_the_partitions_that_a_filter_needs(answer: dict[str, Any]) -> None:
    assert [row["id"] for row in answer["db.events"]] == [2, 5, 8, 11, 12]


@pytest.mark.timeout(900)
def test_spark_and_epochal_take_turns_and_skip_what_the_other_has_committed(
    answer: dict[str, Any],
) -> None:
    # After each turn the query looks as if it had died before it could log its commit.
    assert answer["turns"] == [[10 * n, 10 * n] for n in (1, 2, 3, 4, 5, 6, 6)]
