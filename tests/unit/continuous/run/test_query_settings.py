"""The engine's options and what they refuse, and what a checkpoint demands of a query."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from epochal.checkpoint.entries import CommitEntry, OffsetEntry, OffsetLog
from epochal.checkpoint.restart import STATE_FORMAT, conf_of_new_query
from epochal.continuous.run.query_settings import (
    EngineOptions,
    check_reserved,
    no_slot_left,
    split_options,
    task_count,
)
from epochal.continuous.run.take_over import AGGREGATION_FORMAT, FoundCheckpoint, find_checkpoint
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.epoch.messages import PreparedState
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


SHUFFLE = "spark.sql.shuffle.partitions"


def found(changes: Mapping[str, str], commit: CommitEntry | None = None) -> FoundCheckpoint:
    conf = {**conf_of_new_query({}), **changes}
    return FoundCheckpoint("file:/ck", OffsetEntry(1, ("1",), conf=conf), commit)


def refusal(
    checkpoint: FoundCheckpoint, *operators: str, session: Mapping[str, str] | None = None
) -> str:
    with pytest.raises(OptionError) as refused:
        checkpoint.check(operators, session or {})
    return str(refused.value)


def test_a_missing_setting_has_the_value_from_before_it_existed() -> None:
    old = FoundCheckpoint("file:/ck", OffsetEntry(1, ("1",)))
    assert f"{AGGREGATION_FORMAT} = 1" in refusal(old, "stateStoreSave")


IDS = CommitEntry(version=2, state_unique_ids={0: (("a",),)})


@pytest.mark.parametrize(
    ("commit", "session", "expected"),
    [
        (IDS, "1", 2),
        (CommitEntry(), "2", 1),
        (CommitEntry(version=2, state_unique_ids={}), "1", 2),
        (None, "2", 2),
        (None, "1", 1),
    ],
)
def test_the_format_of_the_state_is_that_of_the_commits_or_the_sessions(
    commit: CommitEntry | None, session: str, expected: int
) -> None:
    assert found({}, commit).state_format({STATE_FORMAT: session}) == expected


@pytest.mark.parametrize(("name", "expected"), [("1.delta", 1), ("1_an-id.changelog", 2)])
def test_before_the_first_commit_the_decision_shows_the_format(name: str, expected: int) -> None:
    state = (PreparedState(0, 0, "default", 1, f"{name}.prepared-a1", 7),)
    manifest = manifest_to_json(Manifest(0, 1, "run", ({},), (), state))
    decided = OffsetEntry(1, ("1",), extra={MANIFEST_KEY: manifest})
    other = {STATE_FORMAT: str(3 - expected)}
    assert FoundCheckpoint("file:/ck", decided).state_format(other) == expected


def test_named_sources_are_refused_and_numbered_ones_are_not() -> None:
    named = FoundCheckpoint("file:/ck", OffsetEntry(2, {"orders": "1"}))
    assert "has named sources (orders)" in refusal(named)
    FoundCheckpoint("file:/ck", OffsetEntry(2, {"0": "1"})).check((), {})


def test_the_number_of_state_partitions_is_pinned_or_the_sessions() -> None:
    assert FoundCheckpoint().partitions({}) == 200
    assert FoundCheckpoint().partitions({SHUFFLE: "7"}) == 7
    assert found({SHUFFLE: "5"}).partitions({SHUFFLE: "7"}) == 5


def test_a_batch_that_was_set_aside_still_pins_its_settings(tmp_path: Path) -> None:
    assert find_checkpoint(str(tmp_path / "none")).pinned is None
    assert not (tmp_path / "none").exists()
    entry = OffsetEntry(1, ("1",), conf={"k": "v"})
    OffsetLog(str(tmp_path / "ck" / ".epochal" / "planned")).add(0, entry)
    assert find_checkpoint(str(tmp_path / "ck")).pinned == {"k": "v"}
