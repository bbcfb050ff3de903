"""A repair is the smallest change after which a restart works, and lists what it leaves."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from tests.unit.checkpoint.samples import (
    CONF,
    EMPTY_DELTA,
    QUERY_ID,
    checkpoint,
    commit,
    content,
    offsets,
    source_batch,
)

from epochal.checkpoint.entries import OFFSET_FORMAT
from epochal.checkpoint.operator_metadata import (
    OPERATOR_FORMAT,
    OperatorMetadata,
    StoreMetadata,
    read_operator,
)
from epochal.checkpoint.restart import RestartAction, RestartPlan, plan_restart
from epochal.errors import EditError, OptionError
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.repair import HANDLERS, Repair, plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import survey
from epochal.tools.inspect.show import inspect
from epochal.tools.verify.findings import RULES, Finding, finding

NEW_ID = "11111111-2222-3333-4444-555555555555"


def repaired(
    files: Files,
    *findings: tuple[str, str],
    codes: Collection[str] = (),
    may_go_back: bool = False,
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


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("CRC_ORPHAN", "offsets/.9.crc"),
        ("CHECKSUM_UNREADABLE", "state/0/0/6.delta.crc"),
        ("CHECKSUM_ORPHAN", "state/0/0/9.delta.crc"),
        ("STATE_STRAY_SNAPSHOT", "state/0/0/abc.snapshot"),
        ("STATE_STRAY_FILE", "state/0/0/abc.delta"),
    ],
)
def test_what_does_not_belong_is_moved_out(code: str, path: str) -> None:
    files = checkpoint(6)
    whole = content(files)
    files.create(path, b"stray")
    assert actions(repaired(files, (code, path))) == [("delete", path)]
    assert content(files) == whole


def test_a_stale_crc_goes_and_the_file_stays() -> None:
    files = checkpoint(6)
    repair = repaired(files, ("CRC_STALE", "commits/3"))
    assert actions(repair) == [("delete", "commits/.3.crc")]
    assert files.read("commits/3") == commit(3)


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


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(OptionError, match="No repair for NO_SUCH_CODE"):
        repaired(checkpoint(2), codes=["NO_SUCH_CODE"])


def test_an_interrupted_edit_comes_first() -> None:
    with pytest.raises(EditError, match="an edit was interrupted here"):
        repaired(checkpoint(2), ("EDIT_UNFINISHED", ".epochal/journal/0001-rewind"))


@pytest.mark.parametrize("code", ["METADATA_MISSING", "METADATA_UNREADABLE"])
def test_lost_metadata_is_written_with_the_id_that_was_given(code: str) -> None:
    files = checkpoint(3)
    if code == "METADATA_MISSING":
        files.delete("metadata")
    else:
        files.replace("metadata", b"{}")
    repair = repaired(files, (code, "metadata"))
    assert files.read("metadata") == f'{{"id":"{NEW_ID}"}}'.encode()
    assert NEW_ID in repair.plan.warnings[0]
    assert QUERY_ID != NEW_ID


def test_a_name_that_spark_does_not_write_is_moved_out() -> None:
    files = checkpoint(6)
    whole = content(files)
    odd = ("commits/007", "offsets/+6", "offsets/05")
    for path in odd:
        files.create(path, offsets(6))
    repair = repaired(files, *(("LOG_NAME_NOT_CANONICAL", path) for path in odd))
    assert actions(repair) == [("delete", path) for path in odd]
    assert content(files) == whole


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


def test_an_unreadable_commit_of_the_newest_batch_goes_so_that_the_batch_runs_again() -> None:
    files = checkpoint(6)
    files.replace("commits/5", b"v1\n{")
    repair = repaired(files, ("LOG_ENTRY_UNREADABLE", "commits/5"))
    assert actions(repair) == [("delete", "commits/5")]
    plan = restart(files)
    assert (plan.action, plan.batch_id) == (RestartAction.RERUN, 5)


def test_an_unreadable_older_commit_is_written_again_from_the_batch_after_it() -> None:
    files = checkpoint(6)
    original = files.read("commits/3")
    files.replace("commits/3", b"\xff")
    assert actions(repaired(files, ("LOG_ENTRY_UNREADABLE", "commits/3"))) == [
        ("replace", "commits/3")
    ]
    assert files.read("commits/3") == original


def test_missing_commits_are_written_again() -> None:
    files = checkpoint(6)
    for batch_id in (2, 3):
        files.delete(f"commits/{batch_id}")
    repaired(files, ("COMMITS_GAP", "commits/3"))
    assert (files.read("commits/2"), files.read("commits/3")) == (commit(2), commit(3))


def test_unreadable_offsets_that_are_not_committed_go_and_the_batch_is_cut_anew() -> None:
    files = checkpoint(6, uncommitted=True)
    files.replace("offsets/5", b"v1\n{")
    repair = repaired(files, ("LOG_ENTRY_UNREADABLE", "offsets/5"))
    assert actions(repair) == [
        ("delete", "state/0/0/6.delta"),
        ("delete", "state/0/1/6.delta"),
        ("delete", "offsets/5"),
    ]
    plan = restart(files)
    assert (plan.action, plan.batch_id) == (RestartAction.CONTINUE, 5)


def test_unreadable_offsets_of_a_committed_batch_are_gone_back_from_only_if_allowed() -> None:
    files = checkpoint(6)
    files.replace("offsets/5", b"")
    refused = repaired(files, ("LOG_ENTRY_UNREADABLE", "offsets/5"))
    assert actions(refused) == []
    assert "rewind CHECKPOINT --to-batch 4" in refused.left[0].reason
    repaired(files, ("LOG_ENTRY_UNREADABLE", "offsets/5"), may_go_back=True)
    assert restart(files).batch_id == 5


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


def test_a_hole_before_an_uncommitted_batch_drops_that_batch() -> None:
    """SPARK-38033: offsets 0, 1, 2, 4 and commits 0, 1, 2."""
    files = checkpoint(5, uncommitted=True)
    for path in ("offsets/3", "commits/3", "state/0/0/5.delta", "state/0/1/5.delta"):
        files.delete(path)
    repaired(files, ("OFFSETS_GAP", "offsets/3"))
    assert (restart(files).action, restart(files).batch_id) == (RestartAction.CONTINUE, 3)


def test_batches_that_would_be_passed_over_are_cut_anew() -> None:
    files = checkpoint(6)
    for batch_id in (4, 5):
        files.delete(f"commits/{batch_id}")
    repaired(files, ("COMMITS_BEHIND", "commits"))
    assert (restart(files).action, restart(files).batch_id) == (RestartAction.CONTINUE, 4)
    assert survey(files).missing_state(3) is None


def test_a_commit_without_offsets_goes_with_the_state_it_left() -> None:
    files = checkpoint(6)
    files.delete("offsets/5")
    [left] = repaired(files, ("COMMIT_WITHOUT_OFFSETS", "commits/5")).left
    assert "would drop the committed batch 5: run `epochal checkpoint rewind " in left.reason
    repair = repaired(files, ("COMMIT_WITHOUT_OFFSETS", "commits/5"), may_go_back=True)
    assert ("delete", "commits/5") in actions(repair)
    assert ("delete", "state/0/1/6.delta") in actions(repair)
    assert restart(files).batch_id == 5


def test_settings_that_were_lost_or_changed_are_those_of_the_batches_before() -> None:
    files = checkpoint(6)
    for batch_id in (4, 5):
        raw = files.read(f"offsets/{batch_id}")
        files.replace(
            f"offsets/{batch_id}",
            raw.replace(b'"spark.sql.shuffle.partitions":"2",', b"").replace(b"lz4", b"zstd"),
        )
    found = (("CONF_KEY_LOST", "offsets/4"), ("CONF_CHANGED", "offsets/4"))
    assert actions(repaired(files, *found)) == [("replace", "offsets/4"), ("replace", "offsets/5")]
    for batch_id in range(6):
        assert OFFSET_FORMAT.deserialize(files.read(f"offsets/{batch_id}"), "").conf == CONF


def test_an_unfinished_repartition_is_taken_back() -> None:
    files = checkpoint(6)
    files.create("offsets/6", offsets(6).replace(b'"2"', b'"4"'))
    files.create("state/0/3/7.snapshot", EMPTY_DELTA)
    repair = repaired(files, ("REPARTITION_UNFINISHED", "offsets/6"))
    assert actions(repair) == [("delete", "state/0/3/7.snapshot"), ("delete", "offsets/6")]


@pytest.mark.parametrize("code", ["STATE_AHEAD", "STATE_SNAPSHOT_AHEAD"])
def test_state_that_the_logs_have_not_decided_goes(code: str) -> None:
    files = checkpoint(6)
    files.create("state/0/0/8.delta", b"")
    files.create("state/0/0/8.snapshot", b"")
    repair = repaired(files, (code, "state/0/0/8.delta"))
    assert actions(repair) == [("delete", "state/0/0/8.delta"), ("delete", "state/0/0/8.snapshot")]


def test_a_broken_snapshot_goes_if_its_deltas_tell_the_same() -> None:
    files = checkpoint(6, snapshots=(3, 5))
    broken = "state/0/1/5.snapshot"
    assert actions(repaired(files, ("STATE_FILE_UNREADABLE", broken))) == [("delete", broken)]


def test_a_broken_snapshot_without_its_deltas_needs_a_rewind_and_there_may_be_none() -> None:
    files = checkpoint(6, snapshots=(3,))
    for version in (1, 2, 3):
        files.delete(f"state/0/1/{version}.delta")
    repair = repaired(files, ("STATE_FILE_UNREADABLE", "state/0/1/3.snapshot"), may_go_back=True)
    assert actions(repair) == []
    assert "restore files from a backup" in repair.left[0].reason


def test_of_two_broken_snapshots_neither_counts_as_the_base_of_the_other() -> None:
    files = checkpoint(6, snapshots=(3, 5))
    for version in (1, 2, 3):
        files.delete(f"state/0/1/{version}.delta")
    broken = [("STATE_FILE_UNREADABLE", f"state/0/1/{version}.snapshot") for version in (5, 3)]
    repair = repaired(files, *broken, may_go_back=True)
    assert actions(repair) == []
    assert len(repair.left) == 2


def test_a_broken_snapshot_over_a_broken_delta_is_not_taken_for_replaceable() -> None:
    files = checkpoint(6, snapshots=(3, 5))
    broken = ("STATE_FILE_UNREADABLE", "state/0/1/5.snapshot")
    delta = ("STATE_FILE_UNREADABLE", "state/0/1/5.delta")
    repaired(files, broken, delta, may_go_back=True)
    assert restart(files).batch_id == 4
    assert survey(files).missing_state(3) is None


def test_a_broken_delta_is_gone_back_from_to_the_last_version_that_loads() -> None:
    files = checkpoint(6, snapshots=(3,))
    found = ("STATE_FILE_UNREADABLE", "state/0/1/5.delta")
    refused = repaired(files, found)
    assert "rewind CHECKPOINT --to-batch 3" in refused.left[0].reason
    repaired(files, found, may_go_back=True)
    assert restart(files).batch_id == 4
    assert survey(files).missing_state(3) is None


def test_a_broken_delta_below_the_snapshot_in_use_is_left_alone() -> None:
    repair = repaired(checkpoint(6), ("STATE_FILE_UNREADABLE", "state/0/1/2.delta"))
    assert actions(repair) == []
    assert "a restart does not need it" in repair.left[0].reason


def test_operator_metadata_that_points_elsewhere_is_made_to_point_here() -> None:
    files = checkpoint(2)
    old = "file:/old/state/0/_stateSchema/default/0_ab"
    entry = OperatorMetadata(2, 0, "op", (StoreMetadata(schema_file_paths=(old,)),), "{}")
    files.create("state/0/_metadata/v2/0", OPERATOR_FORMAT.serialize(entry))
    repaired(files, ("OPERATOR_METADATA_MOVED", "state/0/_metadata/v2/0"))
    found = read_operator(files, 0)
    assert found is not None
    assert found.stores[0].schema_file_paths == ("memory:/ckpt/state/0/_stateSchema/default/0_ab",)


def test_unreadable_operator_metadata_goes_because_spark_writes_it_again() -> None:
    files = checkpoint(2)
    path = "state/0/_metadata/metadata"
    files.create(path, b"v1\n{")
    found = ("OPERATOR_METADATA_UNREADABLE", path)
    assert actions(repaired(files, found)) == [("delete", path)]


def with_source_log(batches: int, *, interval: int) -> MemoryFiles:
    files = checkpoint(0, stateful=False)
    for batch_id in range(batches):
        files.create(f"offsets/{batch_id}", offsets(batch_id))
        files.create(f"commits/{batch_id}", commit(batch_id))
        for path, data in source_batch(batch_id, interval=interval).items():
            files.create(path, data)
    return files


@pytest.mark.parametrize("name", ["0", "1", "2.compact", "3"])
def test_a_source_batch_is_written_again_from_a_later_compact_file(name: str) -> None:
    files = with_source_log(7, interval=3)
    before = files.read(f"sources/0/{name}")
    files.replace(f"sources/0/{name}", b"v1\n{")
    found = ("LOG_ENTRY_UNREADABLE", f"sources/0/{name}")
    assert actions(repaired(files, found)) == [("replace", f"sources/0/{name}")]
    assert files.read(f"sources/0/{name}") == before


def test_a_source_batch_that_is_recorded_nowhere_else_is_left() -> None:
    files = with_source_log(7, interval=3)
    files.replace("sources/0/6", b"v1\n{")
    repair = repaired(files, ("LOG_ENTRY_UNREADABLE", "sources/0/6"))
    assert actions(repair) == []
    assert "recorded nowhere else" in repair.left[0].reason


def test_a_source_batch_that_no_offsets_reach_goes() -> None:
    files = with_source_log(7, interval=3)
    files.create("sources/0/7", b"v1\n{")
    found = ("LOG_ENTRY_UNREADABLE", "sources/0/7")
    assert actions(repaired(files, found)) == [("delete", "sources/0/7")]


def test_a_source_batch_under_the_wrong_name_is_written_under_the_right_one() -> None:
    files = with_source_log(10, interval=3)
    before = files.read("sources/0/8.compact")
    files.delete("sources/0/8.compact")
    own = before.split(b"\n")
    files.create("sources/0/8", b"\n".join([own[0], own[-1]]))
    assert actions(repaired(files, ("FILE_LOG_COMPACT_NAME", "sources/0/8"))) == [
        ("create", "sources/0/8.compact"),
        ("delete", "sources/0/8"),
    ]
    assert files.read("sources/0/8.compact") == before


@pytest.mark.parametrize("code", sorted(RULES.keys() - HANDLERS.keys() - {"EDIT_UNFINISHED"}))
def test_what_has_no_repair_is_left_with_its_remedy(code: str) -> None:
    repair = repaired(checkpoint(3), (code, "offsets/1"))
    assert actions(repair) == []
    expected: list[Finding] = [finding(code, "offsets/1", "")]
    is_worth_saying = expected[0].severity != "info"
    assert [each.finding for each in repair.left] == (expected if is_worth_saying else [])
