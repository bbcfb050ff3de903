"""Tasks joined by a network of lists: what they read, exchange, cut and put out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from tests.simulation.pipeline import EVENTS, TOTALS, Account, RunningTotal, RunningTotalSpec, query

from epochal.connectors.contract import Prepare, SinkWriter, WriterContext
from epochal.continuous.operators.contract import Moment, Row, StateChanges
from epochal.continuous.operators.stateless.row_operators import ObserveEventTimeSpec
from epochal.continuous.plan.stages import (
    Branch,
    QueryPlan,
    StagePlan,
    Target,
    Watermark,
    readers_of,
    readers_of_task,
)
from epochal.continuous.tasks.frames import Frame, FrameKind
from epochal.continuous.tasks.task import EpochCut, TaskCore
from epochal.continuous.tasks.task_sources import MAX_ROWS_PER_TURN
from epochal.epoch.messages import EpochStarted, TaskActive

ATTEMPT, FIRST = 2, 5


@dataclass(slots=True)
class ListWriter(SinkWriter):
    rows: list[Row] = field(default_factory=list)
    epochs: dict[int, list[Row]] = field(default_factory=dict)

    def open(self, context: WriterContext) -> ListWriter:
        del context
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += [tuple(row.values()) for row in batch.to_pylist()]

    def cut(self, epoch: int) -> Prepare:
        self.epochs[epoch], self.rows = self.rows, []
        return lambda: b""

    def close(self) -> None:
        pass


class Tasks:
    """All tasks of a query; frames travel between turns."""

    def __init__(self, plan: QueryPlan, tasks: int, source_partitions: int) -> None:
        """Partitions of the second source have numbers from 10 on."""
        partitions = [range(10 * n, 10 * n + source_partitions) for n in range(len(plan.sources))]
        self.readers = readers_of([dict.fromkeys(map(str, each), "0") for each in partitions])
        self.writers = [ListWriter() for _ in range(tasks)]
        self.cores = [
            TaskCore(
                plan,
                task=task,
                tasks=tasks,
                attempt=ATTEMPT,
                first_epoch=FIRST,
                readers=readers_of_task(self.readers, task, tasks),
                writer=self.writers[task],
            )
            for task in range(tasks)
        ]
        self.wires: list[deque[Frame]] = [deque() for _ in range(tasks)]
        self.sent: list[Frame] = []
        self.messages: list[TaskActive] = []
        self.cuts: list[list[EpochCut]] = [[] for _ in range(tasks)]
        self.now_ms = 1_000

    def turn(self, task: int, *pushes: EpochStarted) -> bool:
        frames = list(self.wires[task])
        self.wires[task].clear()
        out = self.cores[task].turn(self.now_ms, frames, pushes)
        for target, frame in out.frames:
            self.wires[target].append(frame)
            self.sent.append(frame)
        self.messages += out.messages
        self.cuts[task] += out.cuts
        return bool(out.frames or out.busy or out.cuts)

    def settle(self, push: EpochStarted | None = None) -> None:
        """Let everybody work until nobody has anything to do."""
        for task in range(len(self.cores)):
            self.turn(task, *([] if push is None else [push]))
        for _ in range(10_000):
            worked = [self.turn(task) for task in range(len(self.cores))]
            if not any(worked):
                return
        raise AssertionError("the tasks never come to rest")

    def ended(self) -> set[tuple[int, int, str]]:
        """(epoch, reader, position) of all epochs that were cut."""
        return {
            (cut.epoch, reader, position)
            for cuts in self.cuts
            for cut in cuts
            for reader, position in cut.report.positions
        }

    def output(self) -> list[Row]:
        return [row for writer in self.writers for rows in writer.epochs.values() for row in rows]

    def state(self) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for core in self.cores:
            for operator in core.operators:
                assert isinstance(operator, RunningTotal)
                for totals in operator.totals.values():
                    found.update(totals)
        return found


def start(epoch: int, **how: Any) -> EpochStarted:
    return EpochStarted(ATTEMPT, epoch, **how)


def totals(tasks: int, *, rows: int = 200, per_read: int = 1_000_000) -> Tasks:
    plan = query(ListWriter(), rows=rows, keys=13, state_partitions=5, per_read=per_read)
    return Tasks(plan, tasks, source_partitions=3)


@pytest.mark.parametrize("tasks", [1, 3])
def test_rows_above_the_split_size_travel_in_several_frames(
    tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.continuous.tasks.task.SPLIT_BYTES", 200)
    world = totals(tasks)
    world.settle(start(FIRST))
    world.settle(start(FIRST + 1))
    account = Account(3, 200, 13)
    account.check_totals(world.output(), world.state())
    assert account.wrong == []
    sizes = [frame.batch.nbytes for frame in world.sent if frame.batch is not None]
    assert (max(sizes, default=0) <= 200, len(sizes) > 50) == (True, tasks > 1)


def test_a_cut_names_every_store_of_the_task_also_those_that_did_not_change() -> None:
    world = totals(2, rows=0)
    world.settle(start(FIRST))
    world.settle(start(FIRST + 1))
    assert [[change.partition for _, change in cut[0].changes] for cut in world.cuts] == [
        [0, 2, 4],
        [1, 3],
    ]


def test_the_first_rows_of_an_epoch_are_announced_once() -> None:
    world = totals(1, rows=100, per_read=1)
    for epoch in (FIRST, FIRST, FIRST + 1):
        world.turn(0, start(epoch))
    assert world.messages == [TaskActive(ATTEMPT, 0, FIRST), TaskActive(ATTEMPT, 0, FIRST + 1)]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_source_that_has_a_row_at_every_moment_is_asked_once_a_turn_for_each_partition(
    partitions: int,
) -> None:
    plan = query(ListWriter(), rows=500, keys=3, state_partitions=1, per_read=1, stages=0)
    world = Tasks(plan, 1, source_partitions=partitions)
    world.turn(0, start(FIRST))
    assert [world.turn(0) for _ in range(2)] == [False, False]
    world.turn(0, start(FIRST + 1))
    assert world.ended() == {(FIRST, reader, "3") for reader in range(partitions)}


def test_a_task_that_gets_no_credit_stops_reading_and_goes_on_when_it_does() -> None:
    world = totals(2, rows=MAX_ROWS_PER_TURN * 40)
    world.turn(0, start(FIRST))
    for _ in range(50):
        frames = [frame for frame in world.wires[0] if frame.kind is not FrameKind.CREDIT]
        world.wires[0] = deque(frames)
        world.turn(0)
    sent = [frame for frame in world.wires[1] if frame.kind is FrameKind.DATA]
    assert 0 < len(sent) <= 8
    read = sum(map(int, world.cores[0]._sources.positions().values()))
    assert 0 < read <= 10 * MAX_ROWS_PER_TURN


class Clockwork(RunningTotal):
    """Notes the moments it is asked to act in; has a timer at 5 000 ms."""

    def __init__(self, partitions: Sequence[int], seen: list[Moment]) -> None:
        super().__init__(partitions)
        self.seen, self.due = seen, 5_000

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> list[pa.RecordBatch]:
        return []

    def due_ms(self) -> int | None:
        return self.due

    def expire(self, at: Moment) -> list[pa.RecordBatch]:
        self.seen.append(at)
        if at.now_ms >= self.due:
            self.due += 10_000
        return []

    def cut(self, epoch: int) -> list[StateChanges]:
        return []


@dataclass(frozen=True, slots=True)
class ClockworkSpec(RunningTotalSpec):
    seen: list[Moment] = field(default_factory=list)

    def open(self, partitions: Sequence[int], state_partitions: int) -> Clockwork:
        return Clockwork(partitions, self.seen)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Amounts as event times, in seconds."""

    def open(self) -> Stamp:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> list[pa.RecordBatch]:
        times = pa.array([each * 1_000_000 for each in batch.column(2).to_pylist()], pa.int64())  # type: ignore[operator]
        columns = [*batch.columns, times.cast(pa.timestamp("us", "UTC"))]
        return [pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "time"])]


def clockwork(rows: int) -> tuple[Tasks, list[Moment]]:
    plan = query(ListWriter(), rows=rows, keys=3, state_partitions=1, per_read=1_000_000)
    spec = ClockworkSpec()
    schema = EVENTS.append(pa.field("time", pa.timestamp("us", "UTC")))
    branch = Branch((Stamp(), ObserveEventTimeSpec(0, "time")), Target(0))
    source = replace(plan.sources[0], branches=(branch,))
    plan = replace(
        plan,
        sources=(source,),
        stages=(StagePlan(0, spec, (schema,), (), Target(1)),),
        watermarks=(Watermark(0, "time", 1_500),),
    )
    return Tasks(plan, 1, source_partitions=1), spec.seen


def test_an_operator_expires_after_input_by_the_clock_and_when_the_watermark_moves() -> None:
    world, seen = clockwork(rows=4)
    world.turn(0)
    assert seen == []
    world.settle(start(FIRST))
    # Event times were 1, 2, 3 and 4 s, with 1.5 s to wait; all were read in one turn.
    assert [(at.watermark_ms, at.late_ms) for at in seen] == [(2_500, 0)]
    world.turn(0)
    assert len(seen) == 1
    world.now_ms = 5_000
    world.turn(0)
    assert (seen[1].now_ms, seen[1].late_ms) == (5_000, 2_500)
    world.turn(0, start(FIRST, watermarks=(9_000,)))
    assert (seen[2].watermark_ms, seen[2].late_ms) == (7_500, 2_500)
    assert len(seen) == 3


def test_a_cut_says_the_highest_event_time_of_its_own_rows() -> None:
    world, _ = clockwork(rows=MAX_ROWS_PER_TURN)
    world.turn(0, start(FIRST))
    world.settle(start(FIRST + 1))
    world.settle(start(FIRST + 2))
    assert [cut.report.watermarks for cut in world.cuts[0]] == [(11_000,), (11_000,)]


def test_a_batch_that_is_not_what_the_plan_says_is_refused_by_name() -> None:
    plan = query(ListWriter(), rows=3, keys=3, state_partitions=1)
    plan = replace(plan, stages=(StagePlan(0, RunningTotalSpec(), (TOTALS,), (), Target(1)),))
    world = Tasks(plan, 1, source_partitions=1)
    with pytest.raises(Exception, match=r"\['key', 'id', 'amount'\], the plan says"):
        world.settle(start(FIRST))
