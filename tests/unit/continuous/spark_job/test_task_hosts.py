"""Where tasks would rather run, when they count as lost, and what of Spark's words is repeated."""

from __future__ import annotations

import pytest

from epochal.continuous.spark_job.barrier_job import cause_in, headline
from epochal.continuous.spark_job.placement import Executor
from epochal.continuous.spark_job.task_hosts import Pulses, TaskHosts, TaskPlaced, lost_executors
from epochal.errors import HostSilentError

ONE, TWO = Executor("host1", "0"), Executor("host2", "1")
BESIDE_ONE = Executor("host1", "2")


def test_tasks_go_back_to_where_they_were_last_seen() -> None:
    places = TaskHosts()
    for placed in (TaskPlaced(0, "host1", "0"), TaskPlaced(1, "host1", "0")):
        places.note(placed)
    places.note(TaskPlaced(1, "host2", "1"))
    assert places.wishes(2, [ONE, TWO]) == [["executor_host1_0"], ["executor_host2_1"]]


def test_nobody_waits_for_an_executor_that_is_gone() -> None:
    places = TaskHosts()
    places.note(TaskPlaced(0, "host1", "0"))
    places.note(TaskPlaced(1, "host2", "1"))
    assert places.wishes(3, [TWO]) == [[], ["executor_host2_1"], []]


def test_a_task_is_silent_once_after_ten_seconds_without_a_pulse() -> None:
    pulses = Pulses(10.0)
    for second in range(0, 9, 2):
        pulses.heard(0, float(second))
        pulses.heard(1, float(second))
        assert pulses.take_silent(float(second)) == {}
    found = []
    for tenth in range(80, 200):
        if tenth % 20 == 0:
            pulses.heard(1, tenth / 10)
        found += [(tenth, task) for task in pulses.take_silent(tenth / 10)]
    assert found == [(181, 0)]


def test_all_tasks_of_a_host_that_is_cut_off_are_silent_at_once_whenever_they_pulsed() -> None:
    for apart in (0.3, 1.9):
        pulses = Pulses(10.0)
        for task, at in ((0, 0.0), (1, apart), (2, 0.0)):
            pulses.heard(task, at)
        found = []
        for tenth in range(1, 200):
            if tenth % 20 == 0:
                pulses.heard(2, tenth / 10)
            found += [sorted(pulses.take_silent(tenth / 10))]
        assert [each for each in found if each] == [[0, 1]]


def test_a_task_that_has_left_or_never_came_is_not_silent() -> None:
    pulses = Pulses(10.0)
    pulses.heard(0, 0.0)
    pulses.left(0)
    assert [pulses.take_silent(float(second)) for second in range(30)] == [{}] * 30


def test_a_driver_that_was_suspended_itself_waits_for_the_pulses_that_wait_for_it() -> None:
    pulses = Pulses(10.0)
    pulses.heard(0, 0.0)
    assert pulses.take_silent(0.2) == {}
    assert pulses.take_silent(3600.0) == {}
    pulses.heard(0, 3600.1)
    assert pulses.take_silent(3604.0) == {}


def test_pulses_of_another_attempt_do_not_count() -> None:
    places = TaskHosts()
    places.begin(4)
    places.note(TaskPlaced(0, "host1", "0", attempt=3))
    assert places.wishes(1, [ONE]) == [[]]
    places.note(TaskPlaced(0, "host1", "0", attempt=4))
    assert places.wishes(1, [ONE]) == [["executor_host1_0"]]


@pytest.mark.parametrize(
    ("silent", "placed", "alive", "lost"),
    [
        pytest.param({1}, {0: ONE, 1: TWO}, [ONE, TWO], {TWO}, id="a host"),
        pytest.param({1}, {0: TWO, 1: TWO}, [ONE, TWO], set(), id="a task beside another"),
        pytest.param({0, 1}, {0: TWO, 1: TWO}, [ONE, TWO], {TWO}, id="all tasks, but a spare"),
        pytest.param({0, 1}, {0: ONE, 1: TWO}, [ONE, TWO], set(), id="everything"),
        pytest.param(
            {0}, {0: ONE, 1: TWO}, [ONE, TWO, BESIDE_ONE], {ONE, BESIDE_ONE}, id="its neighbour"
        ),
        pytest.param(
            {0}, {0: ONE, 1: BESIDE_ONE}, [ONE, TWO, BESIDE_ONE], {ONE}, id="not its neighbour"
        ),
        pytest.param({0}, {0: ONE, 1: TWO}, [TWO], set(), id="one that is gone already"),
        pytest.param({0}, {}, [ONE, TWO], set(), id="a task that nobody has seen"),
    ],
)
def test_executors_whose_tasks_are_all_silent_are_lost(
    silent: set[int], placed: dict[int, Executor], alive: list[Executor], lost: set[Executor]
) -> None:
    assert lost_executors(silent, placed, alive) == lost


def test_the_error_names_tasks_executors_and_the_option() -> None:
    assert str(HostSilentError({2: 10.3, 1: 9.9}, {"7"})) == (
        "Tasks 1, 2 have sent no pulse for 10 s (silenceTimeout), so their host is cut off or "
        "their processes hang. Excluded executors: 7. The query restarts on the other slots."
    )


ABORTED = (
    "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most "
    "recent failure reason: Stage failed because barrier task ResultTask(0, 1) finished "
    "unsuccessfully.\n"
)
FRAMES = "\tat org.apache.spark.Thing.run(Thing.scala:1)\n\tat java.base/java.lang.Thread.run\n"


def test_a_crashed_worker_is_named_without_frames() -> None:
    crash = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."
    text = f"{ABORTED}{crash}\n{FRAMES}Caused by: java.io.EOFException\n{FRAMES}\t... 22 more\n"
    assert cause_in(text) == f"{crash}\nCaused by: java.io.EOFException"
    assert headline(cause_in(text)) == crash


def test_a_lost_executor_is_named() -> None:
    lost = "ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: killed"
    assert headline(cause_in(f"{ABORTED}{lost}\n\nDriver stacktrace:")) == lost


def test_whatever_else_spark_says_is_kept() -> None:
    assert cause_in("Job 3 cancelled as part of cancellation of all jobs") == (
        "Job 3 cancelled as part of cancellation of all jobs"
    )
    assert cause_in(ABORTED.strip()) == ABORTED.strip()
    assert headline("") == ""
