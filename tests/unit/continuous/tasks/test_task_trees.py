"""Tasks whose plan is a tree: where rows meet, and what time it is there."""

from __future__ import annotations

from typing import Any

from tests.simulation.engine_trees import Windows, tree_plan
from tests.simulation.pipeline import EventReaders
from tests.unit.continuous.tasks.test_task import ATTEMPT, FIRST, ListWriter, Tasks, start

from epochal.continuous.operators.contract import Moment, Row
from epochal.continuous.tasks.task_sources import MAX_ROWS_PER_TURN
from epochal.epoch.messages import EpochStarted, TaskActive

KEYS = 3


class TreeTasks(Tasks):
    """The tasks of a query of one kind, over three partitions per source."""

    def __init__(self, kind: str, tasks: int, rows: int, per_read: int = 1_000_000) -> None:
        plan = tree_plan(kind, ListWriter(), EventReaders(rows, KEYS, per_read), 5)
        super().__init__(plan, tasks, source_partitions=3)

    def shown(self) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        for writer in self.writers:
            for epoch, rows in writer.epochs.items():
                found.setdefault(epoch, []).extend(rows)
        return found

    def ends(self) -> dict[int, dict[str, int]]:
        """Where each epoch ended, by partition."""
        found: dict[int, dict[str, int]] = {}
        for cut in [each for cuts in self.cuts for each in cuts]:
            for reader, position in cut.report.positions:
                found.setdefault(cut.epoch, {})[self.readers[reader].partition] = int(position)
        return found


def push(epoch: int, watermarks: dict[int, int], **how: Any) -> EpochStarted:
    known = tuple((each, watermarks[each]) for each in sorted(watermarks) if each <= epoch)
    return start(epoch, epoch_watermarks_ms=known, **how)


class Noted(Windows):
    """Notes when it was asked to expire, and has a timer at 5 000 ms."""

    def __init__(self) -> None:
        super().__init__([0, 1, 2, 3, 4])
        self.seen: list[Moment] = []

    def due_ms(self) -> int | None:
        return 5_000

    def expire(self, at: Moment) -> list[Any]:
        self.seen.append(at)
        return []


def test_a_timer_that_is_due_lets_the_epoch_end_soon() -> None:
    world = TreeTasks("join", 1, rows=0)
    world.cores[0]._stages[0].operator = Noted()
    world.settle(push(FIRST, {FIRST - 1: 0, FIRST: 0}))
    assert world.messages == []
    world.now_ms = 5_000
    world.turn(0)
    world.turn(0)
    assert world.messages == [TaskActive(ATTEMPT, 0, FIRST)]


def test_a_slow_producer_stops_a_fast_one_but_cannot_block_it() -> None:
    world = TreeTasks("twice", 2, rows=4_000, per_read=50)
    watermarks = dict.fromkeys(range(FIRST - 1, FIRST + 4), 0)
    for epoch in range(FIRST, FIRST + 3):
        for _ in range(30):  # task 1 is asleep, so task 0 is not aligned
            world.turn(0, push(epoch, watermarks))
    waiting = [
        len(each.unacked)
        for box in world.cores[0]._exchange.outboxes
        for each in box._channels.values()
    ]
    assert max(waiting) == 8
    world.settle(push(FIRST + 2, watermarks))
    world.settle(push(FIRST + 3, watermarks))
    rows = [row for rows in world.shown().values() for row in rows if row[3] == -1]
    assert len(rows) == len({row[1] for row in rows}) == 12_000


def test_a_busy_source_does_not_keep_the_next_one_from_being_read() -> None:
    world = TreeTasks("join", 1, rows=100_000)
    world.turn(0, push(FIRST, {FIRST - 1: 0, FIRST: 0}))
    world.turn(0, push(FIRST + 1, dict.fromkeys(range(FIRST - 1, FIRST + 2), 0)))
    ends = world.ends()[FIRST]
    assert sum(end for name, end in ends.items() if int(name) < 10) == MAX_ROWS_PER_TURN
    assert sum(end for name, end in ends.items() if int(name) >= 10) == MAX_ROWS_PER_TURN
