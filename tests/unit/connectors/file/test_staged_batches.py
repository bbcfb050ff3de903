"""Epochs that are handed to a function on the driver, with the same rows after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from epochal.connectors.contract import WriterContext
from epochal.connectors.file import staged_batches
from epochal.connectors.file.staged_batches import STAGED, StagedBatchSink
from epochal.files.local import LocalFiles

SCHEMA = pa.schema([("n", pa.int64())]).append(pa.field("N", pa.string()))


class World:
    """A sink whose function notes what it gets."""

    def __init__(self, directory: Path, *, complete: bool = False) -> None:
        self.directory, self.complete = directory, complete
        self.calls: list[tuple[int, list[Any]]] = []

    def sink(self) -> StagedBatchSink:
        files = LocalFiles(self.directory, durable=False)
        return StagedBatchSink(self.note, files, complete=self.complete)

    def note(self, paths: Sequence[str], epoch: int) -> None:
        tables = [pq.read_table(path.removeprefix("file://")) for path in paths]
        assert {tuple(table.schema.names) for table in tables} <= {("_0", "_1")}
        self.calls.append((epoch, [n for table in tables for n in table["_0"].to_pylist()]))

    def stage(self, epoch: int, *numbers: int, task: int = 0, idle: bool = False) -> bytes:
        writer: Any = self.sink().writers.open(WriterContext(task, 1, "run", SCHEMA, epoch))
        if numbers:
            values: dict[str, list[Any]] = {"n": list(numbers), "N": ["x"] * len(numbers)}
            writer.write(pa.RecordBatch.from_pydict(values, schema=SCHEMA))
        if idle:
            writer.note_idle()
        return bytes(writer.cut(epoch)())

    def files(self) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in (self.directory / STAGED).iterdir())


def test_the_rows_of_all_tasks_are_handed_over_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.sink().commit(4, [world.stage(4, 1, 2), world.stage(4, 3, task=1), world.stage(4)])
    assert world.calls == [(4, [1, 2, 3])]


def test_rows_of_a_long_epoch_are_written_before_it_ends_and_deleted_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_batches, "MAX_PART_BYTES", 40)
    world = World(tmp_path)
    writer: Any = world.sink().writers.open(WriterContext(0, 1, "run", SCHEMA, 4))
    for epoch in (4, 5):
        for n in range(3):
            values: dict[str, list[Any]] = {"n": [10 * epoch + n] * 4, "N": ["x"] * 4}
            writer.write(pa.RecordBatch.from_pydict(values, schema=SCHEMA))
        prepare = writer.cut(epoch)
        if epoch == 4:
            writer.write(pa.RecordBatch.from_pydict(values, schema=SCHEMA))  # of epoch 5 already
        world.sink().commit(epoch, [prepare()])
    numbers = [[n for n in (40, 41, 42) for _ in range(4)], [42] * 4]
    numbers[1] += [n for n in (50, 51, 52) for _ in range(4)]
    assert world.calls == [(4, numbers[0]), (5, numbers[1])]
    assert world.files() == ["5"] * 4
    writer.close()


@pytest.mark.parametrize(
    ("complete", "tasks", "calls"),
    [
        (False, [((), False), ((), False)], []),
        (True, [((), False), ((), True)], [(4, [])]),
        (True, [((1,), True), ((2,), False)], [(4, [1, 2])]),
        (True, [((1,), True), ((), True)], []),
    ],
    ids=["no rows", "an empty result", "rows of an idle task too", "no task had input"],
)
def test_a_whole_result_is_handed_over_if_a_task_had_input_and_rows_if_there_are_any(
    tmp_path: Path, *, complete: bool, tasks: list[tuple[tuple[int, ...], bool]], calls: list[Any]
) -> None:
    world = World(tmp_path, complete=complete)
    staged = [
        world.stage(4, *numbers, task=task, idle=idle) for task, (numbers, idle) in enumerate(tasks)
    ]
    world.sink().commit(4, staged)
    assert world.calls == calls


def test_an_epoch_that_an_earlier_release_decided_is_handed_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    message = world.stage(4, 1)
    world.complete = True
    world.sink().commit(4, [message])
    assert world.calls == [(4, [1])]


def test_an_epoch_that_was_handed_over_but_not_committed_comes_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    messages = [world.stage(4, 1, 2)]
    world.sink().commit(4, messages)
    assert not world.sink().decided(4)
    world.sink().commit(4, messages)
    assert world.calls == [(4, [1, 2])] * 2


def test_rows_are_kept_until_a_later_epoch_is_handed_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.stage(4, 9)  # of an attempt that failed
    world.sink().commit(4, [world.stage(4, 1)])
    world.sink().commit(5, [world.stage(5)])
    assert world.files() == ["4", "4"]
    world.sink().commit(6, [world.stage(6, 2)])
    assert world.files() == ["6"]
