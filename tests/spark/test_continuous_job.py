"""Never-ending barrier jobs on a real Spark: start, fail, cancel, and the end of the JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkContext
from tests.spark.sessions import ROOT, local_session
from tests.waiting import eventually

from epochal.clock import SystemClock
from epochal.continuous.spark_job.barrier_job import (
    MAX_POLL_SECONDS,
    BarrierJob,
    failure_text,
    jvm_is_alive,
    wait_for_slots,
)
from epochal.errors import TooFewSlotsError
from epochal.testing.clock import ManualClock

pytestmark = pytest.mark.timeout(300)

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def sc() -> SparkContext:
    return local_session().sparkContext


class Ends:
    """What jobs hand to their callback."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []
        self.happened = threading.Event()

    def __call__(self, error: BaseException | None) -> None:
        self.errors.append(error)
        self.happened.set()


def job_of(
    sc: SparkContext, task: Callable[[int], None], tasks: int, group: str
) -> tuple[BarrierJob, Ends]:
    ends = Ends()
    no_wish: list[str] = []
    job = BarrierJob(sc, task, [no_wish] * tasks, group=group, description="a test", on_end=ends)
    return job.start(), ends


def touch(folder: Path) -> Callable[[int], None]:
    name = str(folder)

    def leave_a_mark(task: int) -> None:
        with open(f"{name}/{task}", "w") as mark:
            mark.write(str(os.getpid()))

    return leave_a_mark


def touch_and_stay(folder: Path) -> Callable[[int], None]:
    mark = touch(folder)

    def stay(task: int) -> None:
        mark(task)
        while True:
            time.sleep(0.05)  # a task that ends only if it is killed

    return stay


def wait_for_marks(folder: Path, count: int) -> list[int]:
    def all_marks() -> list[int]:
        pids = [found.read_text() for found in sorted(folder.iterdir())]
        return [int(pid) for pid in pids] if len(pids) == count and all(pids) else []

    return eventually(all_marks, lambda: f"{count} tasks, only {sorted(folder.iterdir())} came up")


def test_a_job_whose_tasks_return_ends_without_an_error(sc: SparkContext, tmp_path: Path) -> None:
    job, ends = job_of(sc, touch(tmp_path), 2, "returns")
    assert job.wait(60)
    assert ends.happened.wait(10)
    assert ends.errors == [None]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["0", "1"]


def test_the_error_of_a_task_names_what_the_user_raised(sc: SparkContext) -> None:
    def fail(task: int) -> None:
        if task == 1:
            raise ValueError("the vessel with the pestle")
        while True:
            time.sleep(0.05)  # a task that ends only if it is killed

    job, ends = job_of(sc, fail, 2, "fails")
    assert job.wait(60)
    assert ends.happened.wait(10)
    (error,) = ends.errors
    assert error is not None
    text = failure_text(error)
    assert text.startswith("Traceback (most recent call last)")
    assert "ValueError: the vessel with the pestle" in text
    assert "DAGScheduler" not in text


def test_a_cancelled_job_leaves_no_worker_behind(sc: SparkContext, tmp_path: Path) -> None:
    job, ends = job_of(sc, touch_and_stay(tmp_path), 2, "cancelled")
    pids = wait_for_marks(tmp_path, 2)
    assert job.end(30)
    assert ends.happened.wait(10)
    assert ends.errors[0] is not None
    eventually(
        lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), f"workers {pids} end"
    )


def test_a_killed_worker_ends_the_whole_job(sc: SparkContext, tmp_path: Path) -> None:
    job, ends = job_of(sc, touch_and_stay(tmp_path), 2, "killed")
    pids = wait_for_marks(tmp_path, 2)
    os.kill(pids[0], signal.SIGKILL)
    assert job.wait(60)
    assert ends.happened.wait(10)
    assert ends.errors[0] is not None


def test_tasks_begin_with_their_imports_and_the_users_functions_without(
    sc: SparkContext, tmp_path: Path
) -> None:
    folder, module = str(tmp_path), "epochal.continuous.tasks.worker"

    def note(task: int) -> None:
        with open(f"{folder}/{task}", "w") as found:
            found.write(str(module in sys.modules))

    job, _ = job_of(sc, note, 2, "imports")
    assert job.wait(60)
    assert [(tmp_path / str(task)).read_text() for task in range(2)] == ["True", "True"]
    assert sc.parallelize([0], 1).map(lambda _: module in sys.modules).collect() == [False]


def test_too_few_slots_are_named_after_the_timeout(sc: SparkContext) -> None:
    wait_for_slots(sc, 2, 30, CLOCK)
    clock = ManualClock()
    with pytest.raises(TooFewSlotsError) as refused:
        wait_for_slots(sc, 3, 1.0, clock)
    assert 1.0 <= clock.monotonic() < 1.0 + 2 * MAX_POLL_SECONDS
    assert (refused.value.needed, refused.value.free, refused.value.total) == (3, 2, 2)
    assert "needs 3 slots" in str(refused.value)


def test_a_stop_ends_the_wait_for_slots(sc: SparkContext) -> None:
    wait_for_slots(sc, 99, 600, CLOCK, stopped=lambda: True)


LOST_JVM = """
import os, signal, sys, threading, time
from tests.spark.sessions import session
from tests.waiting import eventually
from epochal.continuous.spark_job.barrier_job import BarrierJob, jvm_is_alive
sc = session("local[1]").sparkContext
ended = threading.Event()
errors = []
def on_end(error):
    errors.append(error)
    ended.set()
folder = sys.argv[1]
def stay(task):
    with open(f"{folder}/{task}", "w") as mark:
        mark.write(str(os.getpid()))
    while True:
        time.sleep(0.05)  # a task that ends only if it is killed
job = BarrierJob(sc, stay, [[]], group="g", description="d", on_end=on_end).start()
eventually(lambda: os.path.exists(f"{folder}/0") and open(f"{folder}/0").read(), "the task runs")
assert jvm_is_alive(sc)
os.kill(sc._gateway.proc.pid, signal.SIGKILL)
assert ended.wait(60)
sys.stdout.write(f"{type(errors[0]).__name__} {jvm_is_alive(sc)}")
sys.stdout.flush()
os._exit(0)
"""


def test_the_end_of_the_drivers_jvm_is_noticed(sc: SparkContext, tmp_path: Path) -> None:
    assert jvm_is_alive(sc)
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    run = subprocess.run(
        [sys.executable, "-c", LOST_JVM, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.stdout == "DriverLostError False", run.stderr
