"""The engine's options: which are its own, what they are, what they refuse."""

from __future__ import annotations

from datetime import timedelta

import pytest

from epochal.continuous.run.query_settings import (
    EngineOptions,
    check_reserved,
    no_slot_left,
    split_options,
    task_count,
)
from epochal.errors import OptionError


def test_options_that_the_engine_does_not_know_are_the_sinks() -> None:
    engine, rest = split_options(
        {"CheckpointLocation": "/c", "epoch": "50 ms", "path": "/out", "maxRestarts": "2"}
    )
    assert engine.checkpoint_location == "/c"
    assert (engine.epoch, engine.max_restarts) == (timedelta(milliseconds=50), 2)
    assert rest == {"path": "/out"}


def test_the_coordinator_is_paced_by_the_options() -> None:
    options = EngineOptions(
        epoch=timedelta(seconds=20), max_epochs_in_flight=3, epoch_backlog_queue_size=9
    )
    assert options.pace.epoch_seconds == 20
    assert options.pace.idle_epoch_seconds == 20  # never shorter than an epoch with data
    assert (options.pace.max_epochs_in_flight, options.pace.max_backlog) == (3, 9)


def test_restarts_are_limited_by_the_options() -> None:
    policy = EngineOptions(max_restarts=1, outage_timeout=timedelta(minutes=2)).restarts
    assert (policy.max_restarts, policy.outage_seconds) == (1, 120)


@pytest.mark.parametrize(
    "wrong",
    [
        {"parallelism": "0"},
        {"statePartitions": "-1"},
        {"epoch": "0 ms"},
        {"minBatchesToRetain": "0"},
        {"maxEpochsInFlight": "0"},
        {"stallTimeout": "0 s"},
        {"readyTimeout": "0 s"},
        {"lease": "0 s"},
        {"queryName": ""},
        {"queryName": " "},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        split_options(wrong)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"parallelism": "40", "epochBacklogQueueSize": "39"}, "is 39, .* 40 tasks"),
        ({"epochBacklogQueueSize": "0"}, "is 0, .* at least 1 tasks"),
    ],
)
def test_values_that_cannot_work_together_are_refused(options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        split_options(options)


def test_an_idle_epoch_may_be_longer_than_the_stall_timeout() -> None:
    engine, _ = split_options({"idleEpoch": "10 minutes", "stallTimeout": "5 s"})
    assert (engine.pace.idle_epoch_seconds, engine.pace.stall_seconds) == (600, 5)


@pytest.mark.parametrize(
    ("parallelism", "readers", "stateful", "slots", "tasks"),
    [
        (None, 1, False, 8, 1),
        (None, 50, False, 8, 7),
        (None, 1, True, 8, 7),
        (None, 7, False, 8, 7),
        (None, 50, True, 3, 2),
        (None, 50, True, 2, 2),
        (None, 50, True, 1, 1),
        (None, 50, True, 0, 1),
        (None, 0, False, 8, 1),
        (3, 1, False, 8, 3),
        (12, 50, True, 8, 12),
    ],
)
def test_tasks_are_as_many_as_have_something_to_do(
    parallelism: int | None, readers: int, stateful: bool, slots: int, tasks: int
) -> None:
    options = EngineOptions(parallelism=parallelism)
    assert task_count(options, readers, stateful, slots) == tasks


def test_a_query_that_takes_every_slot_names_the_option_that_leaves_one() -> None:
    assert no_slot_left(2, 2) == (
        "The query takes every free task slot of Spark, 2 in all, for as long as it runs. Other "
        "jobs, such as spark.read...show(), then wait for a slot without a message. If you have "
        "such jobs, set .option('parallelism', 1) for this query, or give Spark more slots: "
        "local[3] has one more."
    )
    assert "such jobs, give Spark more slots: local[2] has one more." in no_slot_left(1, 1)


@pytest.mark.parametrize(("slots", "tasks"), [(1, 1), (2, 1), (3, 2), (8, 7)])
def test_a_slot_is_left_to_jobs_over_the_output(slots: int, tasks: int) -> None:
    assert task_count(EngineOptions(), readers=9, stateful=True, free=slots, reserved=1) == tasks


def test_tasks_that_leave_no_slot_to_such_jobs_are_refused() -> None:
    check_reserved(tasks=1, total=2, reserved=1, sink="foreachBatch")
    with pytest.raises(OptionError) as refused:
        check_reserved(tasks=2, total=2, reserved=1, sink="foreachBatch")
    assert "foreachBatch: the query has 2 tasks that never end and Spark has 2" in str(
        refused.value
    )
    assert "local[3]" in str(refused.value)
