"""How the soak follows its table, and what it does when an incident or a recovery goes wrong."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from benchmarks.soak import running
from benchmarks.soak.feeding import Feeder
from benchmarks.soak.following import Follower, whole_table
from benchmarks.soak.model import Model
from benchmarks.soak.running import Soak
from benchmarks.soak.sampling import _pool_threads
from benchmarks.soak.schedule import Incident
from deltalake import DeltaTable, write_deltalake
from tests.fault.torment import held_by
from tests.waiting import eventually

PATIENCE = 0.2


def write(table: Path, *numbers: int) -> None:
    """Add a version with the first rows of as many keys."""
    columns = {"n": numbers, "k": numbers, "due": numbers, "total": [n + 1 for n in numbers]}
    rows = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    release = pa.array([0] * len(numbers), pa.int32())
    write_deltalake(table, rows.append_column("release", release), mode="append")


def read_all(follower: Follower) -> None:
    while follower._read_next():
        pass


def data_files(table: Path) -> int:
    return len(list(table.glob("*.parquet")))


def test_files_that_a_compaction_replaced_are_deleted_after_a_while(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    for n in range(4):
        write(tmp_path, n)
    read_all(follower)
    DeltaTable(tmp_path).optimize.compact()
    follower._delete_replaced(float("inf"))
    assert data_files(tmp_path) == 5  # it has not read yet that four of them are replaced
    read_all(follower)
    follower._delete_replaced(0)
    assert data_files(tmp_path) == 5
    follower._delete_replaced(float("inf"))
    assert data_files(tmp_path) == 1
    assert (whole_table(tmp_path).rows, follower.model.rows) == (4, 4)


def test_the_follower_says_that_the_log_was_cleaned_before_it_was_read(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    for n in range(3):
        write(tmp_path, n)
    read_all(follower)
    for n in range(3, 6):
        write(tmp_path, n)
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{3:020d}.json").unlink()
    with pytest.raises(RuntimeError, match="removed from the log before it was read"):
        read_all(follower)


class Query:
    """A query that cannot be upgraded, and whose rows appear as `rows` says."""

    def __init__(self, rows: int) -> None:
        self.model, self.failure, self.count = Model(), "", 0
        self.model.complete = rows
        self.calls: list[str] = []

    def upgrade(self) -> None:
        raise OSError("it does not stop")

    def ended(self) -> bool:
        return not self.calls

    def start(self) -> None:
        self.calls.append("start")

    def story(self) -> str:
        return "what the log says"


def soak_of(query: Query, folder: Path) -> Soak:
    nobody: Any = None
    anything: Any = query
    return Soak(anything, nobody, anything, anything, nobody, folder, 60, 1)


def test_an_incident_that_cannot_be_carried_out_is_a_fault_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    query = Query(rows=10)
    soak = soak_of(query, tmp_path)
    soak._suffer(Incident(0, 60, "upgrade"))
    (fault,) = soak.faults
    assert "upgrade could not be carried out: OSError('it does not stop')" in fault
    assert query.calls == ["start"]  # it had ended
    assert [each["what"] for each in soak.history] == ["could not be carried out"]


def test_a_slow_recovery_is_a_fault_before_it_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PATIENCE_SECONDS", PATIENCE)
    query = Query(rows=4)
    query.calls.append("started")
    soak = soak_of(query, tmp_path)
    with pytest.raises(RuntimeError, match="row 4 was not in the table"):
        soak._catch_up_to(5, "a kill")
    (fault,) = soak.faults
    assert fault.startswith("after a kill, row 4 was not in the table")
    assert "what the log says" in fault


def test_threads_of_deltas_library_are_counted_apart(tmp_path: Path) -> None:
    before = _pool_threads(os.getpid())
    write(tmp_path, 0)
    after = _pool_threads(os.getpid())
    assert 0 < after < held_by(os.getpid())[2]
    assert after >= before


def test_a_run_that_cannot_take_samples_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SAMPLE_SECONDS", 0.001)
    soak = soak_of(Query(rows=1), tmp_path)  # which has no processes
    sampler = threading.Thread(target=soak._keep_sampling, daemon=True)
    sampler.start()
    eventually(lambda: soak._sampling_failure, "the sampler gives up")
    soak._ending.set()
    sampler.join()
    soak._program.start()
    with pytest.raises(RuntimeError, match="no samples can be taken: AttributeError"):
        soak._look_for_failures()


def test_a_feeder_that_cannot_write_ends_the_run(tmp_path: Path) -> None:
    query = Query(rows=1)
    query.start()
    feeder = Feeder("127.0.0.1:1", "rows", 0, 3)  # no such rate: its thread fails
    soak = soak_of(query, tmp_path)
    soak._feeder = feeder
    soak._look_for_failures()
    feeder._keep_feeding()
    with pytest.raises(RuntimeError, match="rows could not be written to the topic"):
        soak._look_for_failures()
