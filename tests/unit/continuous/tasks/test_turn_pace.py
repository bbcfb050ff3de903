"""When a task reads again: soon while there are rows, and less often when it is idle."""

from __future__ import annotations

import pytest
from tests.unit.continuous.tasks.test_task import FIRST, start, totals

from epochal.continuous.tasks.worker import turn_seconds


@pytest.mark.parametrize(
    ("idle_seconds", "pause"), [(0.0, 0.001), (0.9, 0.001), (1.1, 0.004), (1e9, 0.004)]
)
def test_a_task_reads_every_millisecond_until_it_had_no_rows_for_a_second(
    idle_seconds: float, pause: float
) -> None:
    assert turn_seconds(idle_seconds) == pause


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
