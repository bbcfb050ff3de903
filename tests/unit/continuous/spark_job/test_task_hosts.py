"""Where tasks would rather run."""

from __future__ import annotations

from epochal.continuous.spark_job.placement import Executor
from epochal.continuous.spark_job.task_hosts import TaskHosts, TaskPlaced

ONE, TWO = Executor("host1", "0"), Executor("host2", "1")


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
