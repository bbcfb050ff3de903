"""Compaction, checkpoints and clean-up of a Delta table beside the epochs that write it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.contract.delta_rig import QUERY, ROWS, Rig, row
from tests.waiting import eventually

from epochal.connectors.delta import delta_sink
from epochal.connectors.delta.delta_table import TableHandle
from epochal.connectors.tables.table_maintenance import TableMaintenance

ON = {"compactInterval": "1 hour"}
"""Compaction is on. The test calls it, because the thread of `rig` does not run."""


@pytest.fixture
def live_rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


@pytest.fixture
def rig(live_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(TableMaintenance, "start", lambda _: None)
    return live_rig


def maintenance_of(sink: Any) -> TableMaintenance[Any]:
    """The maintenance of a sink's attempt once more, to be called by the test."""
    found: TableMaintenance[Any] = sink.real.open_maintenance()
    return found


def live(rig: Rig) -> int:
    return len(rig.table().file_uris())


def test_small_files_become_one_and_the_rows_stay(rig: Rig) -> None:
    sink = rig.open(options=ON)
    for epoch in range(8):
        rig.write(sink, epoch, [row(epoch)])
    before = rig.table().version()
    assert maintenance_of(sink).compact() == 8
    assert live(rig) == 1
    assert rig.rows() == [row(n) for n in range(8)]
    assert len(DeltaTable(rig.path, version=before).to_pyarrow_table()) == 8
    rig.write(sink, 8, [row(8)])
    assert rig.rows() == [row(n) for n in range(9)]
    assert rig.table().transaction_version(QUERY) == 8
    assert maintenance_of(sink).compact() == 2
    assert maintenance_of(sink).compact() == 0  # there is one file
    assert rig.rows() == [row(n) for n in range(9)]


def test_partitions_and_added_columns_are_kept(rig: Rig) -> None:
    names = ["a b/c%", None, "z"]
    sink = rig.open(options=ON, by=["name"])
    for epoch in range(3):
        rig.write(sink, epoch, [row(epoch * 3 + n, name) for n, name in enumerate(names)])
    expected = rig.rows()
    assert live(rig) == 9
    assert maintenance_of(sink).compact() == 9
    assert live(rig) == 3
    assert rig.rows() == expected
    found = rig.table().to_pyarrow_table(filters=[("name", "=", "a b/c%")])
    assert found.num_rows == 3


def test_files_of_other_writers_are_left_alone(rig: Rig) -> None:
    sink = rig.open(options=ON)
    for epoch in range(2):
        rig.write(sink, epoch, [row(epoch)])
        write_deltalake(rig.path, pa.Table.from_pylist([row(100 + epoch)], ROWS), mode="append")
    assert maintenance_of(sink).compact() == 2
    assert live(rig) == 3
    assert rig.rows() == [row(0), row(1), row(100), row(101)]


def test_a_driver_that_was_replaced_does_not_compact(rig: Rig) -> None:
    zombie = rig.open(options=ON)
    for epoch in range(4):
        rig.write(zombie, epoch, [row(epoch)])
    new = rig.open(options=ON)
    assert maintenance_of(zombie).compact() == 0
    assert live(rig) == 4
    assert len(rig.data_files()) == 4
    assert maintenance_of(new).compact() == 4
    assert rig.rows() == [row(n) for n in range(4)]


def test_a_driver_replaced_between_its_look_and_its_commit_does_not_compact(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = rig.open(options=ON)
    for epoch in range(4):
        rig.write(zombie, epoch, [row(epoch)])
    real, opened = TableHandle.replace_files, list[Any]()

    def late(self: TableHandle, *arguments: Any) -> None:
        if not opened:
            opened.append(rig.open(options=ON))
        real(self, *arguments)

    monkeypatch.setattr(TableHandle, "replace_files", late)
    assert maintenance_of(zombie).compact() == 0
    assert (live(rig), len(rig.data_files())) == (4, 4)
    assert rig.rows() == [row(n) for n in range(4)]


@pytest.mark.parametrize("rival", ["append", "compact"])
def test_a_compaction_yields_to_another_writer(
    rig: Rig, rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = rig.open(options=ON)
    for epoch in range(4):
        rig.write(sink, epoch, [row(epoch)])
    real, done = TableHandle.replace_files, list[str]()

    def late(self: TableHandle, *arguments: Any) -> None:
        if not done:
            done.append(rival)
            if rival == "compact":
                rig.table().optimize.compact()
            else:
                rig.write(sink, 4, [row(4)])
        real(self, *arguments)

    monkeypatch.setattr(TableHandle, "replace_files", late)
    replaced = maintenance_of(sink).compact()
    if rival == "compact":
        assert (replaced, live(rig)) == (0, 1)
        assert rig.rows() == [row(n) for n in range(4)]
    else:
        assert (replaced, live(rig)) == (4, 2)  # tried again after a new look
        assert rig.rows() == [row(n) for n in range(5)]


def test_epochs_and_compactions_at_the_same_time_lose_and_double_nothing(rig: Rig) -> None:
    sink, stop = rig.open(options=ON), threading.Event()
    counts: list[int] = []

    def compact() -> None:
        while not stop.is_set():
            counts.append(maintenance_of(sink).compact())

    thread = threading.Thread(target=compact)
    thread.start()
    for epoch in range(60):
        rig.write(sink, epoch, [row(epoch)], [row(1000 + epoch)])
    stop.set()
    thread.join()
    assert sum(counts) > 0
    found = sorted(each["id"] for each in rig.rows())
    assert found == [*range(60), *range(1000, 1060)]


def test_the_thread_compacts_makes_checkpoints_and_ends_with_the_sink(
    live_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_sink, "CHECKPOINT_VERSIONS", 5)
    sink = live_rig.open(options={"compactInterval": "50 ms", "logCleanupInterval": "50 ms"})
    for epoch in range(12):
        live_rig.write(sink, epoch, [row(epoch)])
    log = Path(live_rig.path) / "_delta_log"
    eventually(lambda: (log / "_last_checkpoint").exists(), "a checkpoint")
    eventually(lambda: live(live_rig) < 5, "a compaction")
    thread = sink.real.maintenance._thread
    sink.close()
    assert not thread.is_alive()
    assert sorted(each["id"] for each in live_rig.rows()) == list(range(12))
    again = live_rig.open()
    live_rig.write(again, 12, [row(12)])
    again.close()
    assert sorted(each["id"] for each in live_rig.rows()) == list(range(13))


def test_a_failing_round_is_logged_and_the_query_goes_on(
    live_rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: TableHandle) -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(TableHandle, "clean_log", broken)
    sink = live_rig.open(options={"logCleanupInterval": "20 ms"})
    live_rig.write(sink, 0, [row(0)])
    eventually(lambda: "no such luck" in caplog.text, "a warning", 20)
    live_rig.write(sink, 1, [row(1)])
    sink.close()
    assert live_rig.rows() == [row(0), row(1)]
