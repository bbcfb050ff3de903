"""State of a task: loaded by name, written as one file per epoch, published when ordered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.simulation.pipeline import RunningTotal, query
from tests.unit.continuous.tasks.test_task import ListWriter

from epochal.checkpoint.layout import StoreKey
from epochal.continuous.operators.contract import Row, StateChanges
from epochal.continuous.operators.global_limit import GlobalLimit, GlobalLimitSpec
from epochal.continuous.tasks.task_stores import PreparedEpoch, StateStart, TaskStores
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain
from epochal.epoch.messages import PreparedState
from epochal.errors import EpochError, StateError, StateLoadError
from epochal.state.disk.local_database import MIN_MEMORY_BYTES
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.open_provider import HDFSBackedStateStoreProvider
from epochal.state.store.store_files import write_prepared
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


def stores(files: MemoryFiles, attempt: int = 1, *, task: int = 0, tasks: int = 1) -> TaskStores:
    return TaskStores(
        PLAN,
        PARTITIONS[task::tasks],
        files,
        StateStoreConf(**WHERE.get()),
        attempt=attempt,
        run_id="run",
        task=task,
        tasks=tasks,
    )


def started(files: MemoryFiles, attempt: int = 1, *, task: int = 0, tasks: int = 1) -> TaskStores:
    opened = stores(files, attempt, task=task, tasks=tasks)
    opened.load([RunningTotal(PARTITIONS)], StateStart(0, None))
    return opened


def puts(rows: Iterable[tuple[int, int, int]], partition: int = 0) -> tuple[int, StateChanges]:
    pairs: list[tuple[Row, Row]] = [((key,), (count, total)) for key, count, total in rows]
    return (0, StateChanges("default", partition, pairs, (), 0))


def loaded(files: MemoryFiles, start: StateStart) -> dict[int, dict[int, tuple[int, int]]]:
    operator = RunningTotal(PARTITIONS)
    stores(files, 9).load([operator], start)
    return operator.totals


def after(
    epoch: int, *last: PreparedEpoch, attempt: int = 1, published: int = 0, first: int = 0
) -> StateStart:
    """The start after an epoch that one attempt decided, like all epochs before it."""
    run = EpochRun(max(first, published), epoch, attempt, tuple(each.checksum for each in last))
    return StateStart(epoch + 1, None, chain=StateChain(published, (run,)))


def publish(task: TaskStores, epoch: int, floor: int = 0) -> None:
    task.publish(epoch, task.rows_after(epoch), floor)


def state_files(files: MemoryFiles) -> list[str]:
    return sorted(name for name in files.tree if name.startswith("state/"))


def test_a_store_that_the_decision_does_not_name_is_an_error() -> None:
    files = MemoryFiles()
    named = started(files, task=0, tasks=2).prepare(0, [])
    with pytest.raises(StateLoadError, match="names no state"):
        loaded(files, after(0, named))


def test_state_that_an_earlier_release_prepared_is_loaded_by_name() -> None:
    files = MemoryFiles()
    named = []
    for partition in PARTITIONS:
        store = started(files)._stores[StoreKey(0, partition)]
        provider = store.provider
        assert isinstance(provider, HDFSBackedStateStoreProvider)
        opened = provider.get_store(0)
        opened.put((7,), (1, 10 + partition))
        made = opened.commit_prepared("a1")
        named.append(PreparedState(0, partition, "default", 1, made.name, made.checksum))
        write_prepared(files.at(f"state/0/{partition}"), 1, "a2", b"another attempt's")
    assert loaded(files, StateStart(1, tuple(named))) == {0: {7: (1, 10)}, 1: {7: (1, 11)}}


def test_an_epoch_cannot_be_prepared_twice_or_out_of_turn() -> None:
    task = started(MemoryFiles())
    task.prepare(0, [])
    for epoch in (0, 2):
        with pytest.raises(EpochError, match="one after the other"):
            task.prepare(epoch, [])


def test_changes_of_a_store_that_is_not_held_are_refused() -> None:
    with pytest.raises(EpochError, match="does not own"):
        started(MemoryFiles()).prepare(0, [puts([(7, 1, 1)], partition=5)])


def test_the_newest_versions_are_kept_to_be_published() -> None:
    task = started(MemoryFiles())
    for epoch in range(20):
        task.prepare(epoch, [])
    task.rows_after(8)
    with pytest.raises(EpochError, match="has only the versions"):
        task.rows_after(7)


def test_a_task_that_ends_while_it_publishes_makes_no_snapshot_visible() -> None:
    files = MemoryFiles()
    task = started(files)
    task.prepare(0, [puts([(key, 1, 1) for key in range(100)])])
    rows = task.rows_after(0)
    [first, *_] = rows.values()

    class Ending:
        """Rows that are being read when the task ends, so that some may be missing."""

        def items(self) -> Iterator[tuple[bytes, bytes]]:
            yield from list(first.items())[:50]
            task.close()

    with pytest.raises(StateError, match="is closed"):
        task.publish(0, cast("Any", dict.fromkeys(rows, Ending())), 0)
    assert state_files(files) == []


def test_an_operator_without_a_key_has_state_in_the_first_partition_only() -> None:
    [stage] = PLAN.stages
    keyless = replace(stage, stateful=GlobalLimitSpec(5, stage.input_schemas[0]))
    plan = replace(PLAN, stages=(keyless,))
    task = TaskStores(plan, PARTITIONS, MemoryFiles(), StateStoreConf(), attempt=1, run_id="run")
    task.load([GlobalLimit(5, PARTITIONS)], StateStart(0, None))
    task.prepare(0, [])
    assert list(task.rows_after(0)) == [(0, 0, "default")]
