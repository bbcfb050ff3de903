"""When a task reads again: soon while there are rows, and less often when it is idle."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.continuous.tasks.test_task import FIRST, start, totals

from epochal.continuous.tasks.task_sources import TaskSources
from epochal.continuous.tasks.worker import EARLY_TURNS, TURN_SECONDS, next_woken_read, turn_seconds


@pytest.mark.parametrize(
    ("idle_seconds", "pause"), [(0.0, 0.001), (0.9, 0.001), (1.1, 0.004), (1e9, 0.004)]
)
def test_a_task_reads_every_millisecond_until_it_had_no_rows_for_a_second(
    idle_seconds: float, pause: float
) -> None:
    assert turn_seconds(idle_seconds) == pause


@given(st.lists(st.floats(0.0, 0.01), max_size=40))
@example([0.0] * 40)
def test_woken_reads_are_a_millisecond_apart_on_average_and_some_come_early(
    gaps: list[float],
) -> None:
    """Rows come after these pauses, each counted from the read before."""
    now = earliest = 100.0
    reads = []
    for gap in gaps:
        due = now + gap
        now = max(due, earliest)
        assert now - due <= TURN_SECONDS + 1e-6
        reads.append(now)
        earliest = next_woken_read(earliest, now)
        assert earliest <= now + TURN_SECONDS + 1e-6
    for first in range(len(reads)):
        for last in range(first, len(reads)):
            most = (reads[last] - reads[first]) / TURN_SECONDS + EARLY_TURNS + 1
            assert last - first <= most + 1e-6


def test_rows_that_come_singly_do_not_wait() -> None:
    earliest, times = 0.0, [100.0, 100.0002, 100.003, 100.0031, 100.006, 100.0061]
    for now, following in pairwise(times):
        earliest = next_woken_read(earliest, now)
        assert earliest <= following


def test_a_turn_says_whether_rows_were_read_or_came_from_other_tasks() -> None:
    world = totals(2, rows=3)
    reader, other = world.cores
    assert not reader.turn(0).had_rows
    out = reader.turn(0, (), [start(FIRST)])
    assert out.had_rows
    assert not reader.turn(0).had_rows
    frames = [frame for target, frame in out.frames if target == 1]
    received = other.turn(0, frames, [start(FIRST)], read=False)
    assert (len(frames) > 0, received.had_rows) == (True, True)
    assert not other.turn(0, read=False).had_rows


def test_a_task_with_state_never_waits_in_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must notice rows of other tasks, and timers."""
    monkeypatch.setattr(TaskSources, "wait", lambda *_: True)
    assert not totals(2, rows=3).cores[0].wait(1.0)
