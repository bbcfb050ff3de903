"""The soak's clock steps the wall clock of running processes, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.soak.incidents import Clock

HOUR = 3600
CHILD = """
import queue, sys, threading, time
for _ in sys.stdin:
    try:
        queue.Queue().get(timeout=0.01)  # a timed wait ends, whatever the clock says
    except queue.Empty:
        threading.Event().wait(0.01)
        time.sleep(0.01)
    print(time.time(), time.monotonic(), flush=True)
"""


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def now_of(child: subprocess.Popen[str]) -> tuple[float, float]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    wall, monotonic = map(float, child.stdout.readline().split())
    return wall, monotonic


def test_a_running_process_sees_each_step_of_its_wall_clock_only(clock: Clock) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    ) as child:
        first, began = now_of(child)
        steps = []
        for offset in (HOUR, -HOUR, 0):
            clock.set(offset)
            wall, monotonic = now_of(child)
            steps.append(round((wall - first - (monotonic - began)) / HOUR, 3))
        assert steps == [1, -1, 0]
