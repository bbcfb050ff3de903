"""A rewind removes what is after a batch; a repair is the smallest change that helps."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection
from pathlib import Path

import pytest
from tests.unit.checkpoint.samples import (
    CONF,
    EMPTY_DELTA,
    START_MS,
    checkpoint,
    commit,
    content,
    sink,
)
from tests.unit.state.samples import KEY, VALUE

from epochal.checkpoint.entries import OFFSET_FORMAT
from epochal.checkpoint.restart import RestartAction, RestartPlan, plan_restart
from epochal.errors import EditError
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.state.files.schema_file import FamilySchema, encode_schema_file
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.repair import HANDLERS, Repair, plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.rewind import batch_at, plan_rewind, possible_batches
from epochal.tools.edit.survey import survey
from epochal.tools.inspect.show import inspect
from epochal.tools.verify.findings import RULES, finding


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


@pytest.mark.parametrize(
    ("to_batch", "advice"),
    [
        (9, r"newest possible batch is 7\.$"),
        (0, r"oldest possible batch is 1, the newest 7\.$"),
        (3, r"nearest possible batches are 1 and 5\. The newest is 7\.$"),
        (6, r"nearest possible batches are 5 and 7\.$"),
    ],
)
def test_in_a_log_with_gaps_the_nearest_possible_batches_are_named(
    to_batch: int, advice: str
) -> None:
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


NEW_ID = "11111111-2222-3333-4444-555555555555"


def repaired(
    files: Files, *findings: tuple[str, str], codes: Collection[str] = (), may_go_back: bool = False
) -> Repair:
    """Plan and apply a repair, undo it to see that the bytes return, then apply it again."""
    found = [finding(code, path, "") for code, path in findings]
    options = RepairOptions(query_id=NEW_ID, codes=codes, may_go_back=may_go_back)
    repair = plan_repair(survey(files), found, options)
    if repair.plan.changes:
        before = content(files)
        journal = Journal(files)
        journal.execute(repair.plan)
        journal.undo()
        assert content(files) == before
        journal.execute(plan_repair(survey(files), found, options).plan)
    return repair


def actions(repair: Repair) -> list[tuple[str, str]]:
    return [(change.action, change.path) for change in repair.plan.changes]


def restart(files: Files) -> RestartPlan:
    found = survey(files)
    return plan_restart(
        found.listing.offsets.ids, found.listing.commits.ids, found.offsets, found.commits
    )


def test_every_code_with_a_repair_is_one_that_verify_knows() -> None:
    assert set(HANDLERS) <= set(RULES)


@pytest.mark.parametrize("code", ["CHECKSUM_MISMATCH", "CRC_REFUSED"])
def test_a_checksum_that_may_be_right_is_dropped_only_when_its_code_is_named(code: str) -> None:
    files = checkpoint(6)
    files.create("state/0/0/6.delta.crc", b"{}")
    path = "state/0/0/6.delta"
    refused = repaired(files, (code, path))
    assert actions(refused) == []
    assert "name this code to trust the file" in refused.left[0].reason
    expected = {"CHECKSUM_MISMATCH": f"{path}.crc", "CRC_REFUSED": "state/0/0/.6.delta.crc"}
    assert actions(repaired(files, (code, path), codes=[code])) == [("delete", expected[code])]


def test_only_named_codes_are_mended_if_any_is_named() -> None:
    files = checkpoint(6)
    files.create("offsets/.9.crc", b"")
    files.create("state/0/0/abc.snapshot", b"")
    found = (("CRC_ORPHAN", "offsets/.9.crc"), ("STATE_STRAY_SNAPSHOT", "state/0/0/abc.snapshot"))
    repair = repaired(files, *found, codes=["CRC_ORPHAN"])
    assert actions(repair) == [("delete", "offsets/.9.crc")]
    assert [left.reason for left in repair.left] == ["not asked for"]


def test_an_interrupted_edit_comes_first() -> None:
    with pytest.raises(EditError, match="an edit was interrupted here"):
        repaired(checkpoint(2), ("EDIT_UNFINISHED", ".epochal/journal/0001-rewind"))


def test_a_name_that_spark_does_not_write_is_renamed_if_its_place_is_empty() -> None:
    files = checkpoint(6)
    for path, raw in (("commits/3", commit(3)), ("commits/2", b"junk")):
        files.delete(path)
        files.create(path.replace("/", "/0"), raw)
    repair = repaired(
        files, ("LOG_NAME_NOT_CANONICAL", "commits/03"), ("LOG_NAME_NOT_CANONICAL", "commits/02")
    )
    assert actions(repair) == [
        ("create", "commits/3"),
        ("delete", "commits/03"),
        ("delete", "commits/02"),
    ]
    assert files.read("commits/3") == commit(3)


def test_a_directory_with_the_name_of_a_batch_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "ckpt", durable=False)
    for path, data in content(checkpoint(3)).items():
        files.create(path, data)
    files.make_dirs("offsets/3")
    files.create("commits/3/inside", b"x")
    repaired(files, ("LOG_NAME_TAKEN", "offsets/3"), ("LOG_NAME_TAKEN", "commits/3"))
    assert files.info("offsets/3") is None
    assert files.info("commits/3") is None
    Journal(files).undo()
    assert files.info("offsets/3") is not None
    assert files.read("commits/3/inside") == b"x"


@pytest.mark.parametrize("gone", [True, False])
def test_the_batch_before_a_committed_one_gets_a_stand_in(gone: bool) -> None:
    files = checkpoint(6)
    found = ("OFFSETS_GAP", "offsets/4") if gone else ("LOG_ENTRY_UNREADABLE", "offsets/4")
    if gone:
        files.delete("offsets/4")
    else:
        files.replace("offsets/4", b"")
    assert restart(files).action is RestartAction.FAIL
    repaired(files, found)
    assert (restart(files).action, restart(files).batch_id) == (RestartAction.CONTINUE, 6)
    entry = OFFSET_FORMAT.deserialize(files.read("offsets/4"), "")
    assert entry.offsets == ('{"logOffset":5}',)
    assert (entry.watermark_ms, entry.conf) == (3000, CONF)
    assert entry.extra == {"epochalStandIn": 5}
    [made_up] = [each for each in inspect(files).batches if each.stand_in_for is not None]
    assert (made_up.batch_id, made_up.stand_in_for) == (4, 5)


def test_nothing_goes_back_to_offsets_that_were_made_up() -> None:
    """They are those of the next batch, whose rows a query that goes on from them would lose."""
    files = checkpoint(6)
    files.delete("offsets/4")
    repaired(files, ("OFFSETS_GAP", "offsets/4"))
    with pytest.raises(EditError, match=r"made up by a repair .* rows of batch 5 would be lost"):
        plan_rewind(survey(files), 4)
    assert plan_rewind(survey(files), 3).changes
    files.replace("commits/5", b"v1\nnonsense")
    files.replace("offsets/5", b"")
    repaired(files, ("LOG_ENTRY_UNREADABLE", "offsets/5"), may_go_back=True)
    assert restart(files).batch_id == 4  # after batch 3, not after the one that was made up


def test_a_broken_snapshot_without_its_deltas_needs_a_rewind_and_there_may_be_none() -> None:
    files = checkpoint(6, snapshots=(3,))
    for version in (1, 2, 3):
        files.delete(f"state/0/1/{version}.delta")
    repair = repaired(files, ("STATE_FILE_UNREADABLE", "state/0/1/3.snapshot"), may_go_back=True)
    assert actions(repair) == []
    assert "restore files from a backup" in repair.left[0].reason
