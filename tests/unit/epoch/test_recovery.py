"""What a restart makes of logs: in every state a crash can leave them, and in some it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from epochal.checkpoint.entries import CommitEntry, ControlBatch, OffsetEntry
from epochal.epoch.effects import CommitSink, LogCommit, PublishState
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, OpenUnit, commit_mark, manifest_to_json
from epochal.epoch.messages import PreparedState
from epochal.epoch.recovery import (
    DropEpoch,
    ForgetPlanned,
    Logs,
    QueryShape,
    RecoveryPlan,
    SetAside,
    open_epoch,
    plan_recovery,
)
from epochal.errors import MalformedFileError, RecoveryError

URL = "file:/checkpoint"
SHUFFLE = "spark.sql.shuffle.partitions"


def manifest(epoch: int, attempt: int = 1, watermarks: tuple[int, ...] = ()) -> Manifest:
    state = PreparedState(0, 0, "default", epoch + 1, f"{epoch + 1}.delta.prepared-a{attempt}", 5)
    positions = ({"p": f"{epoch}.5"},)
    return Manifest(
        epoch, attempt, "run-a", positions, (f"files of {epoch}".encode(),), (state,), watermarks
    )


def ours(epoch: int, **more: Any) -> OffsetEntry:
    """An entry that we wrote: with a manifest."""
    found = manifest(epoch, **more)
    return OffsetEntry(1, (str(epoch),), extra={MANIFEST_KEY: manifest_to_json(found)})


def sparks(epoch: int, **more: Any) -> OffsetEntry:
    """An entry that Spark wrote: without."""
    return OffsetEntry(1, (str(epoch),), **more)


def logs(
    entries: Mapping[int, OffsetEntry],
    commits: tuple[int, ...],
    next_watermark_ms: int = 0,
    *,
    marked: bool = True,
) -> Logs:
    mark = commit_mark("run-a") if marked else {}
    commit = CommitEntry(next_watermark_ms=next_watermark_ms, extra=mark) if commits else None
    return Logs(URL, tuple(sorted(entries)), commits, entries, commit)


def plan(found: Logs, **more: Any) -> RecoveryPlan:
    query = QueryShape(more.pop("sources", 1), more.pop("delays_ms", ()), **more.pop("query", {}))
    return plan_recovery(found, query, **{"attempt": 2, **more})


def refusal(found: Logs, **more: Any) -> RecoveryError:
    with pytest.raises(RecoveryError) as refused:
        plan(found, **more)
    return refused.value


def test_a_new_checkpoint_starts_at_epoch_0_with_nothing_known() -> None:
    assert plan(logs({}, ())) == RecoveryPlan((), 0, None, None, (), 0)
    assert plan(logs({}, ()), delays_ms=(10, 20)).highs == (-1, -1)


def test_a_committed_epoch_is_followed_by_the_next() -> None:
    found = plan(logs({3: ours(3), 4: ours(4)}, (3, 4)))
    assert found == RecoveryPlan((), 5, ours(4), manifest(4), (), 0)


def test_with_a_sink_that_decides_what_it_has_decided_is_finished() -> None:
    found = plan(logs({3: ours(3), 4: ours(4)}, (3,)), sink_decides=True, sink_decided=True)
    assert [type(step) for step in found.steps] == [CommitSink, PublishState, LogCommit]
    assert found.first_epoch == 5


def test_the_word_of_a_sink_that_does_not_decide_has_no_weight_against_a_manifest() -> None:
    found = logs({3: ours(3), 4: ours(4)}, (3,))
    assert plan(found, sink_decided=False) == plan(found, sink_decided=True)


def test_a_batch_that_spark_planned_and_did_not_write_is_run_as_planned() -> None:
    found = plan(logs({3: sparks(3), 4: sparks(4)}, (3,)), sink_decided=False)
    steps = (SetAside(4, sparks(4)), DropEpoch(4))
    assert found == RecoveryPlan(steps, 4, sparks(3), None, (), 0, planned=sparks(4))


def test_the_first_batch_of_all_is_run_as_spark_planned_it() -> None:
    found = plan(logs({0: sparks(0)}, ()))
    steps = (SetAside(0, sparks(0)), DropEpoch(0))
    assert found == RecoveryPlan(steps, 0, None, None, (), 0, planned=sparks(0))


def test_a_plan_that_was_set_aside_before_a_crash_is_still_run() -> None:
    found = plan(replace(logs({3: sparks(3)}, (3,)), planned={4: sparks(4)}))
    assert found == RecoveryPlan((), 4, sparks(3), None, (), 0, planned=sparks(4))


@pytest.mark.parametrize("epoch", [2, 3, 5])
def test_a_plan_of_another_epoch_is_forgotten(epoch: int) -> None:
    found = plan(replace(logs({3: sparks(3)}, (3,)), planned={epoch: sparks(epoch)}))
    assert found == RecoveryPlan((ForgetPlanned(epoch + 1),), 4, sparks(3), None, (), 0)


def test_a_batch_that_spark_wrote_and_did_not_log_is_logged() -> None:
    found = plan(logs({3: sparks(3), 4: sparks(4, watermark_ms=70)}, (3,)), sink_decided=True)
    assert found.steps == (LogCommit(4, 70),)
    assert (found.first_epoch, found.manifest, found.watermark_ms) == (5, None, 70)


def test_such_a_batch_is_run_again_if_only_its_commit_could_name_its_state() -> None:
    found = plan(
        logs({3: sparks(3), 4: sparks(4, watermark_ms=70)}, (3,)),
        sink_decided=True,
        query={"has_state_ids": True},
    )
    assert found.steps == (SetAside(4, sparks(4, watermark_ms=70)), DropEpoch(4))
    assert (found.first_epoch, found.planned) == (4, sparks(4, watermark_ms=70))


def test_a_checkpoint_that_spark_left_in_order_goes_by_its_offsets_and_numbers() -> None:
    found = plan(logs({3: sparks(3), 4: sparks(4)}, (3, 4), 5000), delays_ms=(1000,))
    assert found == RecoveryPlan((), 5, sparks(4), None, (6000,), 5000)


def test_ours_before_a_batch_that_spark_planned_is_gone_back_to_with_its_manifest() -> None:
    found = plan(logs({3: ours(3), 4: sparks(4)}, (3,)))
    assert found.steps == (SetAside(4, sparks(4)), DropEpoch(4))
    assert (found.manifest, found.planned) == (manifest(3), sparks(4))


@pytest.mark.parametrize("newest", [{}, {5: sparks(5)}])
def test_an_epoch_that_spark_ran_after_our_decision_goes_by_its_offsets_and_numbers(
    newest: dict[int, OffsetEntry],
) -> None:
    entries = {4: ours(4, watermarks=(9000,)), **newest}
    found = plan(logs(entries, (3, 4), 6000, marked=False), delays_ms=(1000,))
    assert (found.first_epoch, found.base, found.manifest) == (5, entries[4], None)
    assert (found.highs, found.watermark_ms) == ((7000,), 6000)


def test_commits_of_a_release_that_did_not_mark_them_are_its_own() -> None:
    entry = ours(4)
    value = {**manifest_to_json(manifest(4))}
    del value["marksCommit"]
    found = plan(logs({4: replace(entry, extra={MANIFEST_KEY: value})}, (4,), marked=False))
    assert found.manifest == replace(manifest(4), marks_commit=False)


def test_an_entry_that_a_tool_made_from_one_of_ours_goes_by_its_offsets_and_numbers() -> None:
    moved = replace(ours(4), offsets=("moved",))
    found = plan(logs({4: ours(4), 5: moved}, (4, 5)))
    assert (found.first_epoch, found.base, found.manifest) == (6, moved, None)


def test_only_the_open_epoch_is_asked_about() -> None:
    assert open_epoch(logs({}, ())) is None
    assert open_epoch(logs({3: ours(3)}, (3,))) is None
    assert open_epoch(logs({3: ours(3), 4: ours(4)}, (3,))) == 4
    assert open_epoch(logs({0: ours(0)}, ())) == 0


def test_event_times_of_the_last_decision_are_taken_up() -> None:
    found = logs({4: ours(4, watermarks=(9000, 7000))}, (4,), 6500)
    assert plan(found, delays_ms=(1000, 500)).highs == (9000, 7000)
    assert plan(found, delays_ms=(1000, 500)).watermark_ms == 6500


def test_the_watermark_of_an_epoch_that_is_finished_now_is_logged_with_it() -> None:
    found = plan(logs({3: ours(3), 4: ours(4, watermarks=(9000,))}, (3,)), delays_ms=(1000,))
    assert found.steps[-1] == LogCommit(4, 8000)
    assert found.watermark_ms == 8000


def test_a_watermark_never_goes_back() -> None:
    entry = replace(ours(4, watermarks=(2000,)), watermark_ms=5000)
    found = plan(logs({3: ours(3), 4: entry}, (3,)), delays_ms=(1000,))
    assert (found.steps[-1], found.watermark_ms) == (LogCommit(4, 5000), 5000)


def test_a_watermark_that_was_added_to_the_query_starts_where_the_query_is() -> None:
    found = plan(logs({4: ours(4, watermarks=(9000,))}, (4,), 8000), delays_ms=(1000, 300))
    assert (found.highs, found.watermark_ms) == ((9000, 8300), 8000)


def test_two_watermarks_that_are_one_now_go_on_from_the_watermark_of_the_log() -> None:
    # Earlier releases counted a DataFrame that a plan uses twice as two.
    decided = replace(manifest(4, watermarks=(9500, -1)), unit=OpenUnit((9000, -1), ({"0": "9"},)))
    entry = OffsetEntry(1, ("4",), 5000, extra={MANIFEST_KEY: manifest_to_json(decided)})
    found = plan(logs({4: entry}, (4,), 6000), delays_ms=(1000,))
    assert (found.highs, found.watermark_ms, found.late_ms) == ((7000,), 6000, 5000)
    assert found.unit is None
    found = plan(logs({3: ours(3), 4: entry}, (3,)), delays_ms=(1000,))
    assert (found.steps[-1], found.watermark_ms) == (LogCommit(4, 5000), 5000)


@pytest.mark.parametrize(
    ("entries", "commits", "named"),
    [
        pytest.param((3, 4), (2,), ("offsets/3", "offsets/4"), id="two epochs without a commit"),
        pytest.param((3, 4), (), ("offsets/0", "offsets/4"), id="offsets without any commit"),
        pytest.param((2, 4), (2,), ("offsets/3", "offsets/4"), id="a gap in the offsets"),
        pytest.param((3,), (3, 4), ("commits/4", "offsets/4"), id="a commit without offsets"),
        pytest.param((), (0,), ("commits/0", "offsets/0"), id="only a commit"),
        pytest.param((4,), (3,), ("offsets/3",), id="an open epoch whose predecessor is gone"),
    ],
)
def test_logs_that_no_crash_leaves_are_refused_by_name(
    entries: tuple[int, ...], commits: tuple[int, ...], named: tuple[str, ...]
) -> None:
    error = refusal(logs({epoch: ours(epoch) for epoch in entries}, commits))
    assert error.paths == tuple(f"{URL}/{name}" for name in named)


def test_a_decision_of_a_later_attempt_means_that_this_one_is_fenced() -> None:
    for attempt in (2, 3):
        error = refusal(logs({3: ours(3), 4: ours(4, attempt=attempt)}, (3,)))
        assert error.paths == (f"{URL}/offsets/4",)
        assert "run-a" in error.reason
    refusal(logs({3: ours(3, attempt=9), 4: sparks(4)}, (3, 4)))


def test_an_unfinished_repartition_is_left_to_spark() -> None:
    control = OffsetEntry(2, {"0": "4"}, control_batch_info=ControlBatch("REPARTITION"))
    before = OffsetEntry(2, {"0": "3"})
    assert refusal(logs({3: before, 4: control}, (3,))).paths == (f"{URL}/offsets/4",)
    was, now = sparks(3, conf={SHUFFLE: "200"}), sparks(4, conf={SHUFFLE: "10"})
    assert "from 200 to 10" in refusal(logs({3: was, 4: now}, (3,))).reason
    assert plan(logs({3: was, 4: now}, (3, 4))).first_epoch == 5


def test_another_number_of_sources_is_refused() -> None:
    assert "1 sources, but the query has 2" in refusal(logs({4: ours(4)}, (4,)), sources=2).reason
    assert "1 sources, but the query has 2" in refusal(logs({4: sparks(4)}, (4,)), sources=2).reason


def test_a_manifest_that_cannot_be_read_stops_the_start_and_names_its_file() -> None:
    broken = replace(ours(4), extra={MANIFEST_KEY: {"version": 1}})
    with pytest.raises(MalformedFileError) as refused:
        plan(logs({3: ours(3), 4: broken}, (3,)))
    assert refused.value.path == f"{URL}/offsets/4"
