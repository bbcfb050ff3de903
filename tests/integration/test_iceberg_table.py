"""The Iceberg sink writes real tables: what it makes of epochs, and what it refuses."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType
from tests.iceberg_tables import NUMBERS, QUERY_ID, SmallEngine, Warehouse, numbers

from epochal.errors import (
    MarkerError,
    OptionError,
    StorageError,
    TableError,
    TableMismatchError,
    TableRowError,
)

_EVENTS: list[tuple[str, Any]] = [
    ("id", pa.int64()),
    ("kind", pa.string()),
    ("at", pa.timestamp("us", "UTC")),
]
EVENTS = pa.schema(_EVENTS)
DAYS = [dt.datetime(2026, 1, 1 + n % 3, n, tzinfo=dt.UTC) for n in range(12)]


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def events() -> pa.Table:
    kinds = ["a", None, "b"]
    return pa.table(
        [
            pa.array(range(12), pa.int64()),
            pa.array([kinds[n % 3] for n in range(12)], pa.string()),
            pa.array(DAYS, pa.timestamp("us", "UTC")),
        ],
        schema=EVENTS,
    )


def ids(warehouse: Warehouse, **more: str) -> list[int]:
    return [row["id"] for row in warehouse.rows(**more)]


def epochs(warehouse: Warehouse) -> list[str | None]:
    """The epoch of every snapshot, under Spark's key."""
    return summaries(warehouse, "spark.sql.streaming.epochId")


def summaries(warehouse: Warehouse, key: str) -> list[str | None]:
    """What the summary of every snapshot says."""
    found = [each.summary for each in warehouse.table().metadata.snapshots]
    return [None if each is None else each[key] for each in found]


def test_an_epoch_is_one_snapshot_with_sparks_keys(warehouse: Warehouse, checkpoint: Path) -> None:
    with SmallEngine(warehouse.options(), checkpoint) as engine:
        assert engine.start() == 0
        engine.run(0, numbers(1, 2, 3), tasks=2)
        engine.run(1, numbers())
        engine.run(2, numbers(4))
    assert warehouse.rows() == [{"id": n, "v": f"v{n}"} for n in (1, 2, 3, 4)]
    table = warehouse.table()
    assert epochs(warehouse) == ["0", "2"]
    assert set(summaries(warehouse, "spark.sql.streaming.queryId")) == {QUERY_ID}
    assert '"epoch":2' in table.metadata.properties[f"epochal.{QUERY_ID}"]


def test_readers_can_skip_files_by_their_statistics(warehouse: Warehouse, checkpoint: Path) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1, 2, 3))
        engine.run(1, numbers(10, 11, 12))
    table = warehouse.table()
    assert len(list(table.scan().plan_files())) == 2
    assert len(list(table.scan(row_filter="id > 5").plan_files())) == 1
    assert len(list(table.scan(row_filter="v < 'v1' and id = 2").plan_files())) == 0
    found = table.inspect.files().select(["record_count", "null_value_counts"]).to_pylist()
    assert [row["record_count"] for row in found] == [3, 3]


def test_a_branch_of_an_empty_table_leaves_main_empty(
    warehouse: Warehouse, checkpoint: Path
) -> None:
    with SmallEngine(warehouse.options(branch="audit"), checkpoint).started() as engine:
        engine.run(0, numbers(1, 2))
    with SmallEngine(warehouse.options(branch="audit"), checkpoint, attempt=2) as engine:
        assert engine.start() == 1
        engine.run(1, numbers(3))
    assert ids(warehouse, branch="audit") == [1, 2, 3]
    assert ids(warehouse) == []


def test_rows_go_to_a_branch_that_starts_at_main(warehouse: Warehouse, checkpoint: Path) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
    options, other = warehouse.options(branch="audit"), "11111111-5f0b-4f8f-9f1a-0c1f6f2d7a11"
    with SmallEngine(options, checkpoint.with_name("other"), query_id=other).started() as engine:
        engine.run(0, numbers(2))
        engine.run(1, numbers(3))
    assert ids(warehouse) == [1]
    assert ids(warehouse, branch="audit") == [1, 2, 3]


def test_columns_of_the_query_are_added_if_that_is_allowed(
    warehouse: Warehouse, checkpoint: Path
) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
    wider = NUMBERS.append(pa.field("more", pa.float64()))
    with pytest.raises(TableMismatchError, match=r"column more \(double\) does not exist"):
        SmallEngine(warehouse.options(), checkpoint, wider)
    options = warehouse.options(mergeSchema="true")
    with SmallEngine(options, checkpoint, wider, attempt=2).started() as engine:
        rows = numbers(2).append_column("more", pa.array([0.5]))
        engine.run(1, rows)
    assert warehouse.rows() == [
        {"id": 1, "v": "v1", "more": None},
        {"id": 2, "v": "v2", "more": 0.5},
    ]


def made(warehouse: Warehouse, *fields: NestedField, **properties: str) -> None:
    catalog = warehouse.catalog()
    catalog.create_namespace("db")
    catalog.create_table("db.numbers", Schema(*fields), properties=properties)


ID, V = NestedField(1, "id", LongType()), NestedField(2, "v", StringType())


@pytest.mark.parametrize(
    ("fields", "properties", "reason"),
    [
        ((NestedField(1, "id", StringType()), V), {}, "id is long in the query, but string in the"),
        ((ID,), {}, r"column v \(string\) does not exist in the table"),
        ((ID, V, NestedField(3, "w", LongType(), required=True)), {}, "w .long. must have a value"),
        (
            (ID, V),
            {"format-version": "1"},
            "the table has format version 1, but this sink writes 2",
        ),
        ((ID, V), {"write.format.default": "orc"}, "the table is written as orc"),
        ((ID, V), {"encryption.key-id": "k"}, "the table is encrypted"),
    ],
    ids=["type", "missing", "required", "version", "format", "encrypted"],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(
    warehouse: Warehouse,
    checkpoint: Path,
    fields: tuple[NestedField, ...],
    properties: dict[str, str],
    reason: str,
) -> None:
    made(warehouse, *fields, **properties)
    with pytest.raises(TableMismatchError, match=reason):
        SmallEngine(warehouse.options(), checkpoint)
    assert warehouse.data_files() == []


def test_a_null_in_a_required_column_is_refused(warehouse: Warehouse, checkpoint: Path) -> None:
    made(warehouse, NestedField(1, "id", LongType(), required=True), V)
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
        rows = pa.table([pa.array([2, None], pa.int64()), pa.array(["a", "b"])], schema=NUMBERS)
        with pytest.raises(TableRowError, match="column id is required, but it is null in a row"):
            engine.prepare(1, rows)
    assert ids(warehouse) == [1]


@pytest.mark.parametrize(
    ("options", "more", "reason"),
    [
        ({"table": "numbers"}, {}, "named with its namespace"),
        ({"mergeKeys": "nothing"}, {"output_mode": "update"}, "mergeKeys names column nothing"),
        ({}, {"output_mode": "update"}, "Set the option mergeKeys"),
        ({"mergeKeys": "id"}, {"output_mode": "complete"}, "mergeKeys has no meaning"),
        ({}, {"partition_by": ["nothing"]}, "partitionBy names column nothing"),
        ({"catalog.type": "nothing"}, {}, "settings catalog.* are not usable"),
        ({"tabel": "x"}, {}, "Did you mean table"),
    ],
)
def test_options_that_cannot_work_are_refused(
    warehouse: Warehouse,
    checkpoint: Path,
    options: dict[str, str],
    more: dict[str, Any],
    reason: str,
) -> None:
    with pytest.raises(OptionError, match=reason.replace("*", r"\*")):
        SmallEngine({**warehouse.options(), **options}, checkpoint, **more)


def test_a_query_whose_table_is_gone_does_not_begin_anew(
    warehouse: Warehouse, checkpoint: Path
) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
        warehouse.catalog().drop_table("db.numbers")
        messages = engine.prepare(1, numbers(2))
        engine.decide(1, messages)
        with pytest.raises(TableError, match="it does not exist any more in catalog tests"):
            engine.finish(1, messages)
    with pytest.raises(MarkerError, match="does not exist in catalog tests, but the log has epoch"):
        SmallEngine(warehouse.options(), checkpoint, attempt=2)
    assert warehouse.catalog().list_tables("db") == []
    options = warehouse.options(resetMarker="0")
    with SmallEngine(options, checkpoint, attempt=3) as engine:
        assert engine.start() == 2
    assert ids(warehouse) == [2]


def test_a_table_of_the_same_name_is_not_taken_for_the_old_one(
    warehouse: Warehouse, checkpoint: Path
) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
        warehouse.catalog().drop_table("db.numbers")
        warehouse.catalog().create_table("db.numbers", NUMBERS)
        messages = engine.prepare(1, numbers(2))
        engine.decide(1, messages)
        with pytest.raises(TableError, match="another table has this name now"):
            engine.finish(1, messages)
    with (
        SmallEngine(warehouse.options(), checkpoint, attempt=2) as engine,
        pytest.raises(MarkerError, match="it is missing, but the log has epoch 1 of this sink"),
    ):
        engine.start()


def test_a_table_that_was_rolled_back_is_refused(warehouse: Warehouse, checkpoint: Path) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
        engine.run(1, numbers(2))
    table = warehouse.table()
    with table.manage_snapshots() as change:
        change.rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id)
    with (
        SmallEngine(warehouse.options(), checkpoint, attempt=2) as engine,
        pytest.raises(MarkerError, match="the table was rolled back to an earlier snapshot"),
    ):
        engine.start()
    with SmallEngine(warehouse.options(resetMarker="1"), checkpoint, attempt=3) as engine:
        assert engine.start() == 2
        engine.run(2, numbers(3))
    assert ids(warehouse) == [1, 3]


def test_a_catalog_that_is_down_loses_nothing(warehouse: Warehouse, checkpoint: Path) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
        messages = engine.prepare(1, numbers(2))
        engine.decide(1, messages)
        database = warehouse.folder / "catalog.db"
        database.rename(warehouse.folder / "away.db")
        with pytest.raises(TableError, match="catalog tests or the table's storage failed"):
            engine.finish(1, messages)
        database.unlink(missing_ok=True)
        (warehouse.folder / "away.db").rename(database)
        engine.finish(1, messages)
    assert ids(warehouse) == [1, 2]


def test_a_change_of_the_schema_meanwhile_loses_nothing(
    warehouse: Warehouse, checkpoint: Path
) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
        with warehouse.table().update_schema() as change:
            change.add_column("more", StringType())
            change.rename_column("v", "renamed")
        engine.run(1, numbers(2))
    assert warehouse.rows() == [
        {"id": 1, "renamed": "v1", "more": None},
        {"id": 2, "renamed": "v2", "more": None},
    ]


def test_a_change_of_the_partitioning_meanwhile_loses_nothing(
    warehouse: Warehouse, checkpoint: Path
) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1, 2))
        with warehouse.table().update_spec() as change:
            change.add_field("id", BucketTransform(2), "id_bucket")
        engine.run(1, numbers(3, 4, 5, 6), tasks=2)
    assert ids(warehouse) == [1, 2, 3, 4, 5, 6]
    table = warehouse.table()
    assert [row["id"] for row in table.scan(row_filter="id = 5").to_arrow().to_pylist()] == [5]
    assert {f.file.spec_id for f in table.scan().plan_files()} == {0, 1}


def test_storage_that_cannot_be_written_is_named(warehouse: Warehouse, checkpoint: Path) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        engine.run(0, numbers(1))
        data = next(p for p in (warehouse.folder / "warehouse").rglob("data"))
        shutil.rmtree(data)
        data.write_text("in the way")
        with pytest.raises(StorageError, match="/data/part-"):
            engine.prepare(1, numbers(2))
