"""Beside the epochs: leftovers are swept, small files compacted, snapshots expired.

At last two drivers that both believe to own a query commit the same epochs.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.iceberg_tables import QUERY_ID, SmallEngine, Warehouse, numbers
from tests.waiting import eventually

from epochal.clock import SystemClock
from epochal.connectors.iceberg.iceberg_files import ICEBERG, WrittenFile
from epochal.connectors.iceberg.iceberg_maintenance import IcebergMaintained
from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.connectors.tables.table_maintenance import TableMaintenance
from epochal.options import read_options


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def maintenance_of(
    warehouse: Warehouse, engine: SmallEngine, **options: str
) -> TableMaintenance[WrittenFile]:
    """The maintenance of the engine's attempt, with other options than its sink's."""
    read = read_options(IcebergSinkOptions, warehouse.options(**options), of="iceberg")
    attempt, names = engine.attempt, engine.schema.names
    table = IcebergMaintained(read, QUERY_ID, attempt, names, SystemClock())
    return TableMaintenance(table, ICEBERG, read.compaction, engine.files, QUERY_ID, attempt)


def ids(warehouse: Warehouse) -> list[int]:
    return [row["id"] for row in warehouse.rows()]


def test_two_compactors_at_once_double_nothing(warehouse: Warehouse, checkpoint: Path) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        for turn in range(5):
            for epoch in range(turn * 10, turn * 10 + 10):
                engine.run(epoch, numbers(epoch))
            together(
                *(
                    lambda: maintenance_of(warehouse, engine, compact="true").run_all()
                    for _ in range(2)
                )
            )
            assert ids(warehouse) == list(range(turn * 10 + 10))
            assert len(warehouse.named_files()) <= 2


def test_epochs_beside_compaction_and_expiry_lose_nothing(
    warehouse: Warehouse, checkpoint: Path
) -> None:
    more = {"compact": "true", "compactMinFiles": "3", "expireSnapshotsKeep": "5"}
    with SmallEngine(warehouse.options(), checkpoint) as engine:
        maintenance = maintenance_of(warehouse, engine, **more)
        engine.start()
        ended = threading.Event()

        def keep_up() -> None:
            while not ended.is_set():
                maintenance.run_all()

        def run() -> None:
            for epoch in range(30):
                engine.run(epoch, numbers(epoch))
            ended.set()

        together(run, keep_up)
        maintenance.run_all()
    assert ids(warehouse) == list(range(30))
    assert len(warehouse.table().metadata.snapshots) <= 6


def test_a_compactor_that_was_replaced_gives_up(warehouse: Warehouse, checkpoint: Path) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        for epoch in range(12):
            engine.run(epoch, numbers(epoch))
        with SmallEngine(warehouse.options(), checkpoint, attempt=2).started() as successor:
            successor.run(12, numbers(12))
        before = warehouse.named_files()
        maintenance_of(warehouse, engine, compact="true").run_all()
    assert warehouse.named_files() == before
    assert {path.name for path in warehouse.data_files()} == before


def test_expired_snapshots_take_their_files_along_but_not_the_marker(
    warehouse: Warehouse, checkpoint: Path
) -> None:
    with SmallEngine(warehouse.options(), checkpoint).started() as engine:
        for epoch in range(12):
            engine.run(epoch, numbers(epoch))
        table = warehouse.table()
        with table.manage_snapshots() as change:
            change.create_tag(table.metadata.snapshots[3].snapshot_id, "keep")
        maintenance = maintenance_of(warehouse, engine, compact="true", expireSnapshotsKeep="1")
        maintenance.run_all()
    table = warehouse.table()
    epochs = [
        s.summary["spark.sql.streaming.epochId"] for s in table.metadata.snapshots if s.summary
    ]
    assert epochs == ["3", "11", None]
    assert ids(warehouse) == list(range(12))
    assert [r["id"] for r in table.scan().use_ref("keep").to_arrow().to_pylist()] == [3, 2, 1, 0]
    # The files of all epochs are still in the snapshot of the last one, which is kept for Spark.
    assert len(warehouse.data_files()) == 13
    with SmallEngine(warehouse.options(), checkpoint, attempt=2).started() as engine:
        engine.run(12, numbers(12))
        maintenance_of(warehouse, engine, compact="true", expireSnapshotsKeep="1").run_all()
    # Now only those of the tag, of the compaction and of the newest epoch are left.
    assert len(warehouse.data_files()) == 4 + 1 + 1
    assert ids(warehouse) == list(range(13))


def test_files_that_a_failed_attempt_left_are_swept(warehouse: Warehouse, checkpoint: Path) -> None:
    options = warehouse.options()
    with SmallEngine(options, checkpoint).started() as engine:
        engine.run(0, numbers(0))
        decided = engine.prepare(1, numbers(1))
        engine.decide(1, decided)
        engine.prepare(2, numbers(2, 3), tasks=2)
    stranger = next(p for p in warehouse.data_files()).parent / "not-ours.parquet"
    stranger.write_bytes(b"x")
    assert len(warehouse.data_files()) == 5
    with SmallEngine(options, checkpoint, attempt=2) as engine:
        assert engine.start() == 2
        assert len(warehouse.data_files()) == 5
        engine.run(2, numbers(7))
        eventually(lambda: len(warehouse.data_files()) == 4)
    assert {path.name for path in warehouse.data_files()} == {
        stranger.name,
        *warehouse.named_files(),
    }
    assert ids(warehouse) == [0, 1, 7]


def together(*works: Callable[[], object]) -> None:
    """Call functions at the same time; raise what one of them raises."""
    failures: list[BaseException] = []

    def call(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised again below
            failures.append(error)

    threads = [threading.Thread(target=call, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


EPOCHS = 30


def commit_all(
    options: dict[str, str], checkpoint: Path, messages: list[tuple[bytes, ...]]
) -> None:
    """Commit all epochs, as a driver that nobody has told to stop."""
    with SmallEngine(options, checkpoint, attempt=1) as engine:
        engine.sink.fence(1)
        for epoch, each in enumerate(messages):
            engine.sink.commit(epoch, each)


Work: TypeAlias = Callable[[dict[str, str], Path, list[tuple[bytes, ...]]], None]


def race(options: dict[str, str], checkpoint: Path, work: Work) -> None:
    """Decide all epochs, then let two processes commit them at the same time."""
    with SmallEngine(options, checkpoint) as engine:
        engine.sink.fence(1)
        messages = [engine.prepare(epoch, numbers(epoch, 1000)) for epoch in range(EPOCHS)]
        for epoch, each in enumerate(messages):
            engine.decide(epoch, each)
    context = multiprocessing.get_context("spawn")
    drivers = [context.Process(target=work, args=(options, checkpoint, messages)) for _ in "ab"]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(300)
    assert [driver.exitcode for driver in drivers] == [0, 0]


@pytest.mark.parametrize("keys", [{}, {"mergeKeys": "id"}], ids=["append", "by-key"])
def test_two_drivers_commit_every_epoch_once(tmp_path: Path, keys: dict[str, str]) -> None:
    warehouse = Warehouse(tmp_path)
    race(warehouse.options(**keys), tmp_path / "checkpoint", commit_all)
    found = [row["id"] for row in warehouse.rows()]
    assert found == [*range(EPOCHS), *([1000] * (1 if keys else EPOCHS))]
    found_summaries = [each.summary for each in warehouse.table().metadata.snapshots]
    epochs = [each["spark.sql.streaming.epochId"] for each in found_summaries if each]
    assert epochs == [str(epoch) for epoch in range(EPOCHS)]
