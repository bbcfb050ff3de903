"""A task in the worker's real loop, which notes the CPU time and the rows of each turn.

A turn lasts from one call of `TaskCore.turn` to the next, so it includes the wait at its end and
the receipt of the next turn's frames. The time is that of the data thread; other threads of the
process, such as those of the Kafka client, are not in it. Only calls that bound a turn, or tell how
many rows it had, are wrapped.

Note: with `profile` the figures are inflated by the profiler, small calls most of all. Use the
profile to see where time goes, and a run without it to see how much.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from epochal.continuous.tasks import task_sources, worker
from epochal.continuous.tasks.task import TaskCore
from epochal.continuous.tasks.worker import TaskAssignment, run_task

COLD_SECONDS = 0.002
MAX_TURNS = 2_000_000
COLUMNS = ("end_ns", "cpu_ns", "rows_read")


@dataclass(frozen=True, slots=True)
class Watch:
    """How to run the loop, and where to put what was noted."""

    file: str
    rows_per_turn: int | None = None
    """At most this many rows are read in a turn; None for the engine's own limit."""
    sleep: bool = False
    """Whether to sleep between turns, so that caches are cold as they are at a low rate."""
    hurry: bool = False
    """Whether turns without rows follow each other at once."""
    profile: bool = False


class TurnNotes:
    """The turns of the data thread."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._turns = np.zeros((MAX_TURNS, len(COLUMNS)), np.int64)
        self._count = 0
        self._begin = 0
        self.read = 0

    def end_turn(self) -> None:
        now = time.thread_time_ns()
        if self._begin and self._count < MAX_TURNS:
            spent = now - self._begin
            self._turns[self._count] = (time.time_ns(), spent, self.read)
            self._count += 1
        self.read = 0
        if self._watch.sleep:
            time.sleep(COLD_SECONDS)
        self._begin = time.thread_time_ns()

    def save(self) -> None:
        np.save(self._watch.file, self._turns[: self._count])


def run_watched(assignment: TaskAssignment, watch: Watch) -> None:
    """Run a task until it is told to leave; write the turns that it took to `watch.file`."""
    notes = TurnNotes(watch)
    _wrap(notes)
    if watch.rows_per_turn:
        task_sources.MAX_ROWS_PER_TURN = watch.rows_per_turn
    if watch.hurry:
        worker.TURN_SECONDS = worker.IDLE_TURN_SECONDS = worker.WOKEN_TURN_SECONDS = 0.0
    if watch.profile:
        profiler = cProfile.Profile()
        profiler.runcall(run_task, assignment)
        with Path(watch.file).with_suffix(".txt").open("w") as out:
            pstats.Stats(profiler, stream=out).sort_stats("tottime").print_stats(45)
    else:
        run_task(assignment)
    notes.save()


def _wrap(notes: TurnNotes) -> None:
    turn, read = TaskCore.turn, task_sources.OpenSource.read

    def noted_turn(self: TaskCore, *words: Any, **named: Any) -> Any:
        notes.end_turn()
        return turn(self, *words, **named)

    def counted_read(self: Any) -> Any:
        batches, more = read(self)
        for batch in batches:
            notes.read += batch.num_rows
        return batches, more

    TaskCore.turn = noted_turn  # type: ignore[method-assign]
    task_sources.OpenSource.read = counted_read  # type: ignore[method-assign]
