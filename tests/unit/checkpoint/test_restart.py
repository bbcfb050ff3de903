"""What a restart would do next, by Spark's rules, for both engines, and with which settings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import CommitEntry, OffsetEntry, QueryMetadata, SinkMetadata
from epochal.checkpoint.restart import (
    LEGACY_DEFAULTS,
    NEW_QUERY_DEFAULTS,
    RestartAction,
    RestartPlan,
    commit_log_version,
    conf_in_force,
    conf_of_new_query,
    offset_log_version,
    plan_restart,
)
from epochal.errors import OptionError
from epochal.testing.files import MemoryFiles

QUERY = QueryMetadata("53b62e34-0476-452d-8313-c1786e091891")


def offset(batch_id: int, partitions: str = "2") -> OffsetEntry:
    return OffsetEntry(
        1, (str(batch_id),), batch_id * 100, conf={"spark.sql.shuffle.partitions": partitions}
    )


def planned(
    offset_ids: Sequence[int], commit_ids: Sequence[int], *, async_progress: bool = False
) -> RestartPlan:
    return plan_restart(
        offset_ids,
        commit_ids,
        {i: offset(i) for i in offset_ids},
        {i: CommitEntry(1, i * 100 + 150) for i in commit_ids},
        async_progress=async_progress,
    )


def test_an_empty_checkpoint_begins_with_batch_0() -> None:
    assert planned([], []) == RestartPlan(RestartAction.BEGIN, 0)


def test_a_committed_batch_is_followed_by_a_new_one_from_where_it_ended() -> None:
    assert planned([0, 1, 2], [0, 1, 2]) == RestartPlan(
        RestartAction.CONTINUE, 3, start=offset(2), watermark_ms=350
    )


def test_the_watermark_never_goes_back() -> None:
    plan = plan_restart([0], [0], {0: offset(0)}, {0: CommitEntry(1, -1)})
    assert plan.watermark_ms == 0


def test_an_uncommitted_batch_runs_again_between_the_same_offsets() -> None:
    """SPARK-24156: the incomplete batch is re-run first."""
    assert planned([0, 1, 2], [0, 1]) == RestartPlan(
        RestartAction.RERUN, 2, start=offset(1), end=offset(2), watermark_ms=200
    )
    assert planned([0], []) == RestartPlan(RestartAction.RERUN, 0, end=offset(0))


def test_without_any_commit_only_the_newest_batch_runs_again() -> None:
    plan = planned([0, 1, 2], [])
    assert (plan.action, plan.batch_id, plan.start) == (RestartAction.RERUN, 2, offset(1))
    assert plan.notes == ("no commits: batch 2 runs again, earlier ones count as done",)


def test_a_commit_log_further_behind_is_no_obstacle_but_noted() -> None:
    plan = planned([0, 1, 2, 3], [0])
    assert (plan.action, plan.batch_id, plan.start) == (RestartAction.RERUN, 3, offset(2))
    assert len(plan.notes) == 1


def test_the_entry_before_the_newest_must_be_there() -> None:
    """SPARK-38033: offsets 0, 1, 2, 4 and commits 0, 1, 2."""
    plan = planned([0, 1, 2, 4], [0, 1, 2])
    assert plan.action is RestartAction.FAIL
    assert "batch 3 doesn't exist" in plan.reason


def test_a_purged_log_needs_its_two_newest_entries_only() -> None:
    assert planned([7, 8], [7, 8]).batch_id == 9
    assert planned([8], [8]).action is RestartAction.FAIL


@pytest.mark.parametrize(
    ("offset_ids", "commit_ids", "action", "batch_id", "start"),
    [
        ([0, 1, 2, 4], [0, 1, 2], RestartAction.RERUN, 4, 2),
        ([0, 2, 5], [0, 2], RestartAction.RERUN, 5, 2),
        ([0, 2], [0], RestartAction.RERUN, 2, 0),
        ([0, 3], [0], RestartAction.RERUN, 3, 0),
        ([3], [], RestartAction.RERUN, 3, None),
        ([0, 3], [0, 3], RestartAction.CONTINUE, 4, 3),
        ([3, 7], [3, 7], RestartAction.CONTINUE, 8, 7),
        ([0], [], RestartAction.RERUN, 0, None),
    ],
)
def test_asynchronous_progress_starts_after_the_entry_before_whichever_it_is(
    offset_ids: list[int],
    commit_ids: list[int],
    action: RestartAction,
    batch_id: int,
    start: int | None,
) -> None:
    plan = planned(offset_ids, commit_ids, async_progress=True)
    assert (plan.action, plan.batch_id) == (action, batch_id)
    assert plan.start == (None if start is None else offset(start))
    assert plan.notes in (
        (),
        (f"no commits: batch {batch_id} runs again, earlier ones count as done",),
    )


def test_commits_beyond_the_offsets_cannot_go_on() -> None:
    plan = planned([0, 1], [0, 1, 2])
    assert plan.action is RestartAction.FAIL
    assert plan.condition == "CONCURRENT_STREAM_LOG_UPDATE"
    assert "commits reach batch 2, offsets only 1" in plan.reason


def test_an_unfinished_repartition_stops_the_query() -> None:
    offsets = {1: offset(1, "2"), 2: offset(2, "5")}
    plan = plan_restart([1, 2], [1], offsets, {1: CommitEntry()})
    assert plan.action is RestartAction.FAIL
    assert plan.condition == "STREAMING_UNFINISHED_REPARTITION_DETECTED"
    finished = plan_restart([1, 2], [1, 2], offsets, {2: CommitEntry()})
    assert finished.action is RestartAction.CONTINUE
    never_committed = plan_restart([1, 2], [], offsets, {})
    assert never_committed.action is RestartAction.RERUN
    without_pinned_conf = {1: OffsetEntry(1, ("1",)), 2: offset(2)}
    assert plan_restart([1, 2], [1], without_pinned_conf, {1: CommitEntry()}).batch_id == 2


def test_logs_without_a_query_id_stop_the_query() -> None:
    for offset_ids, commit_ids in (([0], []), ([], [0]), ([0], [0])):
        plan = plan_restart(
            offset_ids,
            commit_ids,
            {i: offset(i) for i in offset_ids},
            {i: CommitEntry() for i in commit_ids},
            has_query_metadata=False,
        )
        assert plan.condition == "STREAMING_CHECKPOINT_MISSING_METADATA_FILE"
    assert plan_restart([], [], {}, {}, has_query_metadata=False).action is RestartAction.BEGIN


def test_a_new_query_needs_an_empty_place() -> None:
    plan = plan_restart([], [], {}, {}, occupied=["state"])
    assert plan.condition == "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"
    assert "state" in plan.reason
    assert planned([], [3]).condition == "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"


def test_an_entry_that_cannot_be_read_stops_the_query() -> None:
    assert plan_restart([0, 1], [0], {0: offset(0)}, {0: CommitEntry()}).reason == (
        "offsets/1 cannot be read"
    )
    both = {0: offset(0), 1: offset(1)}
    assert plan_restart([0, 1], [1], both, {}).reason == "commits/1 cannot be read"


def checkpoint(**extra: bytes) -> Checkpoint:
    files = MemoryFiles()
    QUERY.write(files)
    for path, data in extra.items():
        files.create(path.replace("__", "/"), data)
    return Checkpoint(files)


def test_a_checkpoint_tells_its_own_plan() -> None:
    found = checkpoint(offsets__0=b"v1\n{}\n0", offsets__1=b"v1\n{}\n1", commits__0=b"v1\n{}")
    assert found.metadata() == QUERY
    plan = found.plan_restart()
    assert (plan.action, plan.batch_id) == (RestartAction.RERUN, 1)
    assert plan.start == OffsetEntry(1, ("0",))


def test_a_checkpoint_with_bad_files_has_a_plan_that_fails() -> None:
    assert checkpoint(offsets__0=b"xyz").plan_restart().reason == "offsets/0 cannot be read"
    broken = Checkpoint(MemoryFiles({"metadata": (b"xyz", 0)})).plan_restart()
    assert broken.action is RestartAction.FAIL
    assert "metadata" in broken.reason


def test_leftover_checksums_do_not_make_a_place_occupied_but_state_does() -> None:
    assert checkpoint(offsets__0=b"v1\n{}").plan_restart().action is RestartAction.RERUN
    files = MemoryFiles({"offsets/.0.crc": (b"", 0)})
    assert Checkpoint(files).plan_restart().action is RestartAction.BEGIN
    files.create("state/0/0/1.delta", b"")
    assert Checkpoint(files).plan_restart().action is RestartAction.FAIL


def test_a_checkpoint_lists_its_sources_and_operators() -> None:
    found = checkpoint(
        sources__10__0=b"v1\n17", sources__2__0=b"v1", sources__srcA__0=b"v1", state__0__0__x=b""
    )
    assert found.sources() == ["2", "10", "srcA"]
    assert found.operators() == {0: None}
    log = found.source_log(10)
    assert log is not None
    assert log.get(0) == 17
    assert found.source_log(77) is None


ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
CHECKSUM = "spark.sql.streaming.stateStore.rowChecksum.enabled"
MERGES = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"
PROTOBUF = "spark.sql.function.protobufExtensions.enabled"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
OFFSETS = "spark.sql.streaming.offsetLog.formatVersion"
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
STATE = "spark.sql.streaming.stateStore.checkpointFormatVersion"

V1, V2 = OffsetEntry(1, ("0",)), OffsetEntry(2, {"0": "0"})


def test_a_new_query_pins_defaults_and_what_the_session_sets() -> None:
    conf = conf_of_new_query({})
    assert (conf[ENCODING], conf[CHECKSUM], conf[MERGES]) == ("unsaferow", "false", "2")
    assert len(conf) == 17
    asked = conf_of_new_query({ENCODING: "avro", CHECKSUM: "true", MERGES: "1", "other": "x"})
    assert (asked[ENCODING], asked[CHECKSUM], asked[MERGES]) == ("avro", "true", "1")
    assert "other" not in asked


def test_the_number_of_state_partitions_is_pinned_under_its_old_name() -> None:
    internal = "spark.sql.streaming.internal.stateStore.partitions"
    assert conf_of_new_query({PARTITIONS: "7"})[PARTITIONS] == "7"
    assert conf_of_new_query({PARTITIONS: "7", internal: "9"})[PARTITIONS] == "9"


@pytest.mark.parametrize(
    ("key", "session", "meaning"),
    [
        (ENCODING, "avro", "unsaferow"),
        (CHECKSUM, "true", "false"),
        (MERGES, "2", "1"),
        (PROTOBUF, "true", "false"),
        (EVOLUTION, "true", "false"),
    ],
)
def test_a_key_the_checkpoint_lacks_means_what_it_meant_before_it_existed(
    key: str, session: str, meaning: str
) -> None:
    assert conf_in_force({}, {key: session})[key] == meaning


@pytest.mark.parametrize("key", sorted(NEW_QUERY_DEFAULTS))
def test_what_the_checkpoint_pins_wins(key: str) -> None:
    assert conf_in_force({key: "pinned"}, {key: "session"})[key] == "pinned"


def test_what_has_no_old_meaning_stays_as_the_session_has_it() -> None:
    assert set(NEW_QUERY_DEFAULTS) - set(LEGACY_DEFAULTS) == {
        PROVIDER,
        PARTITIONS,
        "spark.sql.streaming.stateStore.rocksdb.formatVersion",
    }
    assert conf_in_force({}, {PROVIDER: "mine", PARTITIONS: "3"})[PROVIDER] == "mine"
    assert conf_in_force({}, {PARTITIONS: "3"})[PARTITIONS] == "3"


@pytest.mark.parametrize(
    ("first", "session", "version"),
    [
        (None, {}, 1),
        (None, {OFFSETS: "2"}, 2),
        (None, {EVOLUTION: "true"}, 2),
        (V1, {OFFSETS: "2"}, 1),
        (V2, {OFFSETS: "1"}, 2),
        (V2, {EVOLUTION: "true"}, 2),
    ],
)
def test_a_new_offset_log_has_the_version_asked_for_and_another_keeps_its_own(
    first: OffsetEntry | None, session: dict[str, str], version: int
) -> None:
    assert offset_log_version(first, session) == version


NAMED = CommitEntry(3, 0, None, {"a": SinkMetadata("a", "-", "p", "DSv2")})


@pytest.mark.parametrize(
    ("first", "session", "version"),
    [
        (None, {}, 1),
        (None, {STATE: "2"}, 2),
        (None, {STATE: "3"}, 2),
        (CommitEntry(1), {STATE: "2"}, 1),
        (CommitEntry(2), {STATE: "1"}, 2),
        (NAMED, {}, 3),
    ],
)
def test_a_new_commit_log_follows_the_state_format_and_another_keeps_its_version(
    first: CommitEntry | None, session: dict[str, str], version: int
) -> None:
    assert commit_log_version(first, session) == version


def test_named_sources_cannot_be_turned_on_over_positional_offsets() -> None:
    with pytest.raises(OptionError, match=r"CANNOT_ENABLE_ON_EXISTING_CHECKPOINT.*version 1"):
        offset_log_version(V1, {EVOLUTION: "true"})
