"""A rewind removes everything after a batch from logs, state and sink, and nothing else."""

from __future__ import annotations

import io
import zipfile

import pytest
from tests.unit.checkpoint.samples import EMPTY_DELTA, START_MS, checkpoint, content, sink
from tests.unit.state.samples import KEY, VALUE

from epochal.errors import EditError
from epochal.files import Files
from epochal.state.files.schema_file import FamilySchema, encode_schema_file
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.rewind import batch_at, plan_rewind, possible_batches
from epochal.tools.edit.survey import survey


def deleted(plan: Plan, root: str = "") -> list[str]:
    assert all(change.action == "delete" for change in plan.changes)
    return [change.path for change in plan.changes if change.root == root]


def execute(files: Files, plan: Plan) -> None:
    Journal(files).execute(plan)


def empty_zip() -> bytes:
    """A RocksDB snapshot without data files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles":[],"numKeys":0}')
        archive.writestr("CURRENT", "MANIFEST-000001\n")
        archive.writestr("MANIFEST-000001", b"")
    return packed.getvalue()


def test_state_goes_first_then_both_logs_from_the_newest() -> None:
    plan = plan_rewind(survey(checkpoint()), 3)
    assert deleted(plan) == [
        "state/0/0/6.delta",
        "state/0/0/5.delta",
        "state/0/1/6.delta",
        "state/0/1/5.delta",
        "commits/5",
        "offsets/5",
        "commits/4",
        "offsets/4",
    ]


def test_snapshots_and_every_kind_of_checksum_of_later_versions_go_too() -> None:
    files = checkpoint(6, snapshots=(3, 5))
    for name in ("5.delta.crc", ".5.delta.crc.crc", ".9.delta.crc"):
        files.create(f"state/0/0/{name}", b"checksum")
    plan = plan_rewind(survey(files), 3)
    gone = [path for path in deleted(plan) if path.startswith("state/0/0/")]
    assert gone == [
        "state/0/0/.9.delta.crc",
        "state/0/0/6.delta",
        "state/0/0/5.delta",
        "state/0/0/5.delta.crc",
        "state/0/0/5.snapshot",
    ]
    execute(files, plan)
    assert not [path for path in content(files) if path.startswith("state/0/0/.5.delta.crc")]


def test_named_stores_and_unique_ids_are_found_by_their_version() -> None:
    files = checkpoint(4, stores=("left-keyToNumValues", "right-keyToNumValues"))
    store = "state/1/0"
    for version in (3, 4):
        files.create(f"{store}/{version}_0a-1b.changelog", b"")
        files.create(f"{store}/{version}.zip", empty_zip())
    plan = plan_rewind(survey(files), 2)
    assert [path for path in deleted(plan) if path.startswith("state/")] == [
        "state/0/0/left-keyToNumValues/4.delta",
        "state/0/0/right-keyToNumValues/4.delta",
        "state/0/1/left-keyToNumValues/4.delta",
        "state/0/1/right-keyToNumValues/4.delta",
        "state/1/0/4.zip",
        "state/1/0/4_0a-1b.changelog",
    ]


def test_operator_metadata_and_schemas_of_later_batches_go() -> None:
    files = checkpoint(4)
    schema = encode_schema_file([FamilySchema("default", KEY, VALUE)])
    for path in (
        "_metadata/v2/0",
        "_metadata/v2/3",
        "_stateSchema/default/0_a",
        "_stateSchema/default/3_b",
    ):
        files.create(f"state/0/{path}", schema)
    plan = plan_rewind(survey(files), 2)
    assert [path for path in deleted(plan) if "/_" in path] == [
        "state/0/_metadata/v2/3",
        "state/0/_stateSchema/default/3_b",
    ]


def test_odd_names_that_spark_would_count_as_later_batches_go() -> None:
    files = checkpoint(4, stateful=False)
    files.create("offsets/007", b"v1\n{}")
    assert deleted(plan_rewind(survey(files), 3)) == ["offsets/007"]


@pytest.mark.parametrize(
    ("to_batch", "reason"),
    [
        (5, r"commits/5 does not exist\. The earliest possible batch is 0, the latest 4"),
        (9, r"offsets/9 does not exist"),
    ],
)
def test_a_batch_that_is_not_committed_is_refused(to_batch: int, reason: str) -> None:
    with pytest.raises(EditError, match=reason):
        plan_rewind(survey(checkpoint(6, uncommitted=True)), to_batch)


def test_state_that_cleanup_took_away_is_named_with_the_earliest_possible_batch() -> None:
    files = checkpoint(6, snapshots=(3,))
    for version in (1, 2):
        files.delete(f"state/0/1/{version}.delta")
    with pytest.raises(
        EditError, match=r"needs state/0/1/1\.delta, which is missing.*earliest possible batch is 2"
    ):
        plan_rewind(survey(files), 1)
    assert list(possible_batches(survey(files))) == [2, 3, 4, 5]


def test_a_partition_that_is_gone_cannot_be_brought_back_by_going_back() -> None:
    files = checkpoint(8)
    for path in [path for path in content(files) if path.startswith("state/0/0/")]:
        files.delete(path)
    with pytest.raises(
        EditError, match=r"partition 0 of 2 has no directory\. No other batch is possible either"
    ):
        plan_rewind(survey(files), 2)


def test_in_a_log_with_gaps_the_nearest_possible_batches_are_named() -> None:
    files = checkpoint(8, stateful=False)
    for batch_id in (2, 3, 4, 6):
        files.delete(f"offsets/{batch_id}")
        files.delete(f"commits/{batch_id}")
    with pytest.raises(EditError, match=r"nearest possible batches are 1 and 5\. The newest is 7"):
        plan_rewind(survey(files), 3)


@pytest.mark.parametrize(
    ("to_batch", "advice"),
    [
        (9, r"newest possible batch is 7\.$"),
        (0, r"oldest possible batch is 1, the newest 7\.$"),
        (6, r"nearest possible batches are 5 and 7\.$"),
    ],
)
def test_beyond_a_log_with_gaps_its_end_is_named(to_batch: int, advice: str) -> None:
    files = checkpoint(8, stateful=False)
    for batch_id in (0, 2, 3, 4, 6):
        files.delete(f"offsets/{batch_id}")
        files.delete(f"commits/{batch_id}")
    with pytest.raises(EditError, match=advice):
        plan_rewind(survey(files), to_batch)


def test_partitions_that_only_a_later_repartition_made_need_not_load() -> None:
    files = checkpoint(4, partitions=2)
    files.create("state/0/2/4.snapshot", EMPTY_DELTA)
    plan = plan_rewind(survey(files), 2)
    assert "state/0/2/4.snapshot" in deleted(plan)


@pytest.mark.parametrize("stateful", [False, True])
def test_the_batch_before_the_target_must_be_there(stateful: bool) -> None:
    files = checkpoint(6, stateful=stateful)
    files.delete("offsets/2")
    with pytest.raises(EditError, match=r"a restart also needs offsets/2"):
        plan_rewind(survey(files), 3)


def test_the_batch_before_the_target_may_be_missing_if_most_batches_are() -> None:
    stateless = checkpoint(6, stateful=False)
    for batch_id in (0, 2, 4):
        stateless.delete(f"offsets/{batch_id}")
    plan = plan_rewind(survey(stateless), 3)
    assert "Only a query that runs with asyncProgressTrackingEnabled" in plan.warnings[0]


def test_an_unreadable_batch_can_be_rewound_past_but_not_to() -> None:
    files = checkpoint(6)
    files.replace("offsets/4", b"garbage")
    with pytest.raises(EditError, match=r"offsets/4 cannot be read"):
        plan_rewind(survey(files), 4)
    assert "offsets/4" in deleted(plan_rewind(survey(files), 3))


def test_the_sinks_files_can_be_kept() -> None:
    plan = plan_rewind(survey(checkpoint(6)), 3, sink=survey_sink(sink(6)), keep_sink_files=True)
    assert deleted(plan, "sink") == ["_spark_metadata/5.compact", "_spark_metadata/4"]
    assert "other readers will see duplicate rows" in plan.warnings[0]


def test_a_sink_whose_log_was_compacted_and_cleaned_cannot_go_below() -> None:
    output = sink(6)
    for name in ("0", "1", "2.compact", "3", "4"):
        output.delete(f"_spark_metadata/{name}")
    with pytest.raises(
        EditError, match=r"_spark_metadata/0: is needed to go back to batch 3.*is 5\."
    ):
        plan_rewind(survey(checkpoint(6)), 3, sink=survey_sink(output))


@pytest.mark.parametrize(
    ("seconds", "batch"), [(0, 0), (59, 0), (60, 1), (61, 1), (5 * 60, 4), (10**6, 4)]
)
def test_a_moment_means_the_last_committed_batch_cut_by_then(seconds: int, batch: int) -> None:
    found = survey(checkpoint(6, uncommitted=True))
    assert batch_at(found, START_MS + 1000 * seconds) == batch
