"""State of a task: loaded by name, written under its attempt, maintained once published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.pipeline import RunningTotal, query
from tests.unit.continuous.tasks.test_task import ListWriter

from epochal.continuous.operators.contract import Row, StateChanges
from epochal.continuous.operators.global_limit import GlobalLimit, GlobalLimitSpec
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.messages import PreparedState
from epochal.errors import EpochError, StateLoadError
from epochal.state.disk.local_database import MIN_MEMORY_BYTES
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.prepared import PreparedVersion, publish_prepared
from epochal.testing.files import MemoryFiles

PLAN = query(ListWriter(), rows=0, keys=1, state_partitions=2)
PARTITIONS = (0, 1)


WHERE: ContextVar[dict[str, Any]] = ContextVar("WHERE")


@pytest.fixture(params=["memory", "disk"], autouse=True)
def state_in(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    on_disk = {"memory_bytes": MIN_MEMORY_BYTES, "local_dir": str(tmp_path)}
    token = WHERE.set(on_disk if request.param == "disk" else {})
    yield
    WHERE.reset(token)


def stores(files: MemoryFiles, attempt: int = 1, conf: StateStoreConf | None = None) -> TaskStores:
    chosen = replace(conf or StateStoreConf(), **WHERE.get())
    return TaskStores(PLAN, PARTITIONS, files, chosen, attempt=attempt, run_id="run")


def started(files: MemoryFiles, attempt: int = 1, conf: StateStoreConf | None = None) -> TaskStores:
    opened = stores(files, attempt, conf)
    opened.load([RunningTotal(PARTITIONS)], StateStart(0, None))
    return opened


def puts(rows: Iterable[tuple[int, int, int]], partition: int = 0) -> tuple[int, StateChanges]:
    pairs: list[tuple[Row, Row]] = [((key,), (count, total)) for key, count, total in rows]
    return (0, StateChanges("default", partition, pairs, (), 0))


def loaded(files: MemoryFiles, start: StateStart) -> dict[int, dict[int, tuple[int, int]]]:
    operator = RunningTotal(PARTITIONS)
    stores(files, 9).load([operator], start)
    return operator.totals


def publish(files: MemoryFiles, states: Iterable[PreparedState]) -> None:
    for each in states:
        version = PreparedVersion(each.version, each.name, each.checksum)
        publish_prepared(files.at(f"{each.operator}/{each.partition}"), version, "store")


def test_epochs_are_prepared_on_top_of_each_other_before_any_is_decided() -> None:
    files = MemoryFiles()
    task = started(files)
    first = task.prepare(0, [puts([(7, 1, 10)])])
    second = task.prepare(1, [puts([(8, 1, 20)]), puts([(9, 1, 30)], partition=1)])
    assert [(each.partition, each.version, each.name) for each in second] == [
        (0, 2, "2.delta.prepared-a1"),
        (1, 2, "2.delta.prepared-a1"),
    ]
    publish(files, first)
    expected = {0: {7: (1, 10), 8: (1, 20)}, 1: {9: (1, 30)}}
    assert loaded(files, StateStart(2, second)) == expected
    publish(files, second)
    assert loaded(files, StateStart(2, second)) == expected
    assert loaded(files, StateStart(2, None)) == expected


def test_a_version_of_another_attempt_is_not_taken_for_the_one_that_was_named() -> None:
    files = MemoryFiles()
    named = started(files, attempt=2).prepare(0, [puts([(7, 1, 10)])])
    publish(files, started(files, attempt=1).prepare(0, [puts([(7, 99, 99)])]))
    assert loaded(files, StateStart(1, named))[0] == {7: (1, 10)}
    assert loaded(files, StateStart(1, None))[0] == {7: (99, 99)}


def test_a_store_that_the_decision_does_not_name_is_an_error() -> None:
    files = MemoryFiles()
    named = started(files).prepare(0, [])
    with pytest.raises(StateLoadError, match="names no state"):
        loaded(files, StateStart(1, named[:1]))


def test_an_epoch_cannot_be_prepared_twice_or_out_of_turn() -> None:
    task = started(MemoryFiles())
    task.prepare(0, [])
    for epoch in (0, 2):
        with pytest.raises(EpochError, match="one after the other"):
            task.prepare(epoch, [])


def test_changes_of_a_store_that_is_not_held_are_refused() -> None:
    with pytest.raises(EpochError, match="does not own"):
        started(MemoryFiles()).prepare(0, [puts([(7, 1, 1)], partition=5)])


def test_many_rows_are_encoded_as_few_are() -> None:
    few, many = MemoryFiles(), MemoryFiles()
    rows = [(key, key * 2, -key) for key in range(1_000)]
    one_by_one = started(few)
    for epoch in range(20):
        last = one_by_one.prepare(epoch, [puts(rows[epoch * 50 : epoch * 50 + 50])])
        if epoch < 19:
            publish(few, last)
    at_once = started(many).prepare(0, [puts(rows)])
    assert loaded(few, StateStart(20, last)) == loaded(many, StateStart(1, at_once))


def test_removed_keys_are_gone() -> None:
    files = MemoryFiles()
    task = started(files)
    publish(files, task.prepare(0, [puts([(1, 1, 1), (2, 1, 1)])]))
    second = task.prepare(1, [(0, StateChanges("default", 0, (), [(1,)], 1))])
    assert loaded(files, StateStart(2, second))[0] == {2: (1, 1)}


def test_maintenance_snapshots_and_cleans_up_only_what_is_published() -> None:
    files = MemoryFiles()
    conf = StateStoreConf(min_deltas_for_snapshot=3, min_versions_to_retain=2)
    task = started(files, conf=conf)
    prepared = [task.prepare(epoch, [puts([(epoch, 1, epoch)])]) for epoch in range(6)]
    task.maintain()
    assert not [name for name in files.tree if name.endswith(".snapshot")]
    for each in prepared[:5]:
        publish(files, each)
    task.maintain()
    snapshots = sorted(name for name in files.tree if name.endswith(".snapshot"))
    assert snapshots == ["0/0/5.snapshot", "0/1/5.snapshot"]
    expected = {epoch: (1, epoch) for epoch in range(6)}
    assert loaded(files, StateStart(6, prepared[5]))[0] == expected
    task.prepare(6, [])


def test_maintenance_of_an_attempt_that_is_over_touches_nothing() -> None:
    files = MemoryFiles()
    conf = StateStoreConf(min_deltas_for_snapshot=1)
    stale = started(files, attempt=1, conf=conf)
    stale.prepare(0, [puts([(7, 99, 99)])])
    decided = started(files, attempt=2, conf=conf).prepare(0, [puts([(7, 1, 10)])])
    publish(files, decided)
    for name in [name for name in files.tree if "prepared-a1" in name]:
        files.delete(name)
    before = dict(files.tree)
    stale.maintain()
    assert files.tree == before


def test_an_operator_without_a_key_has_state_in_the_first_partition_only() -> None:
    [stage] = PLAN.stages
    keyless = replace(stage, stateful=GlobalLimitSpec(5, stage.input_schemas[0]))
    plan = replace(PLAN, stages=(keyless,))
    task = TaskStores(plan, PARTITIONS, MemoryFiles(), StateStoreConf(), attempt=1, run_id="run")
    task.load([GlobalLimit(5, PARTITIONS)], StateStart(0, None))
    assert [each.partition for each in task.prepare(0, [])] == [0]
