"""What the soak decides, how it follows its table, and what it does when things go wrong."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from benchmarks.soak import running
from benchmarks.soak.feeding import Feeder
from benchmarks.soak.flatness import Limit, Series, judge
from benchmarks.soak.following import Follower, whole_table
from benchmarks.soak.model import Model
from benchmarks.soak.releases import parallelism, weight
from benchmarks.soak.running import Soak
from benchmarks.soak.sampling import _pool_threads
from benchmarks.soak.schedule import CALM_QUARTER, Incident, plan
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


HOURS = 7200.0
LIMIT = Limit(1.1, 5.0)


def quarter_of(incident: Incident, seconds: float = HOURS) -> int:
    return int(4 * incident.at_seconds / seconds)


def test_two_hours_have_every_kind_of_incident() -> None:
    assert {each.kind for each in plan(HOURS, 4)} == {
        "worker",
        "executor",
        "driver",
        "driver's JVM",
        "broker",
        "broker pause",
        "partition",
        "clock",
        "upgrade",
    }


@pytest.mark.parametrize("seconds", [240.0, 600.0, HOURS])
def test_the_quarters_that_are_compared_suffer_the_same_in_the_same_order(seconds: float) -> None:
    quarters: list[list[tuple[float, str, int]]] = [[] for _ in range(4)]
    for each in plan(seconds, 5):
        number = quarter_of(each, seconds)
        at = round(each.at_seconds - number * seconds / 4, 6)
        quarters[number].append((at, each.kind, each.step_seconds))
    assert quarters[1] == quarters[3]
    assert [kind for _, kind, _ in quarters[0]] != [kind for _, kind, _ in quarters[1]]


@pytest.mark.parametrize("minutes", [4, 5, 6, 8, 10, 20, 60, 120, 240])
def test_the_quarters_that_are_compared_begin_with_the_same_number_of_tasks(minutes: int) -> None:
    release, at_start = 0, dict[int, int]()
    for each in plan(minutes * 60, 5):
        at_start.setdefault(quarter_of(each, minutes * 60), parallelism(release))
        release += each.kind == "upgrade"
    assert at_start[1] == at_start[3]


def test_the_third_quarter_replaces_no_process() -> None:
    calm = {each.kind for each in plan(HOURS, 6) if quarter_of(each) == CALM_QUARTER}
    assert calm <= {"broker", "broker pause", "clock", "partition"}
    assert calm


def test_the_clock_of_the_third_quarter_does_not_make_spark_replace_executors() -> None:
    calm = [each for seed in range(50) for each in plan(HOURS, seed) if quarter_of(each) == 2]
    assert max(each.step_seconds for each in calm) < 60


def series(value: float = 100.0, per_second: float = 0.0, noise: float = 0.0) -> Series:
    rng = Random(1)
    return [(at, value + at * per_second + rng.uniform(-noise, noise)) for at in range(0, 400, 2)]


def test_a_figure_with_noise_and_peaks_is_flat() -> None:
    noisy = [(at, v * (9 if at % 50 == 0 else 1)) for at, v in series(noise=10)]
    assert judge(noisy, 400, LIMIT).reasons == ()


def test_a_leak_shows_in_level_and_slope() -> None:
    verdict = judge(series(per_second=0.2), 400, LIMIT)
    assert verdict.rise == pytest.approx(20)
    assert len(verdict.reasons) == 2


def test_a_leak_that_restarts_hide_shows_in_the_slope_of_the_third_quarter() -> None:
    saw = [(at, 100 + (0.5 * (at - 200) if 200 <= at < 300 else 0)) for at in range(0, 400, 2)]
    (reason,) = judge(saw, 400, LIMIT).reasons
    assert "third quarter" in reason


def test_a_step_between_the_compared_quarters_shows_in_the_level() -> None:
    stepped = [(at, 100.0 if at < 300 else 130.0) for at in range(0, 400, 2)]
    (reason,) = judge(stepped, 400, LIMIT).reasons
    assert "last quarter" in reason


def test_a_quarter_without_samples_is_not_flat() -> None:
    assert judge([(at, 1.0) for at in range(200)], 400, LIMIT).reasons == (
        "a quarter has no samples from a time in which nothing went wrong",
    )


def rows(*numbers: int, key: int = 7, total: int = 0, release: int = 0, handled: int = 0) -> Model:
    """The model after these rows of one key were written in this order."""
    model = Model()
    _write(model, numbers, key, total, release, handled)
    return model


def _write(
    model: Model, numbers: tuple[int, ...], key: int, total: int, release: int, handled: int
) -> None:
    for n in numbers:
        total, handled = total + n + weight(release), handled + 1
        count = handled if release else None
        model.add("here", [[key], [total], [n], [release], [count]])


def test_the_model_accepts_rows_in_any_order_whose_totals_follow_each_other() -> None:
    model = rows(2, 0, 1)
    assert (model.faults, model.rows, model.complete) == ([], 3, 3)


def test_the_model_sees_a_row_that_is_there_twice() -> None:
    assert rows(0, 1, 1).faults == ["here: row 1 is there twice"]


def test_the_model_sees_a_total_that_was_computed_from_old_state() -> None:
    model = rows(0, 1)
    model.add("later", [[7], [1 + 2 + 3 + 4], [2], [0], [None]])
    assert model.faults == ["later: row 2 of key 7 has the total 10, not 6"]


def test_the_model_knows_what_each_release_adds() -> None:
    model = rows(0)
    _write(model, (1, 2), key=7, total=weight(0), release=1, handled=1)
    assert model.faults == []
    assert model.totals == {7: (0 + 1) + (1 + 2) + (2 + 2)}


def test_the_model_sees_a_state_variable_that_was_lost() -> None:
    model = rows(0, 1, release=1)
    total = model.totals[7] + 2 + weight(1)
    model.add("later", [[7], [total], [2], [1], [1]])
    assert model.faults == ["later: row 2 of key 7 is number 1, not 3"]
