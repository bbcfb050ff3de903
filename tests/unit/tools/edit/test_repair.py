"""A repair is the smallest change after which a restart works, and lists what it leaves."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from tests.unit.checkpoint.samples import CONF, checkpoint, commit, content

from epochal.checkpoint.entries import OFFSET_FORMAT
from epochal.checkpoint.restart import RestartAction, RestartPlan, plan_restart
from epochal.errors import EditError
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.repair import HANDLERS, Repair, plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import survey
from epochal.tools.inspect.show import inspect
from epochal.tools.verify.findings import RULES, finding

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


def test_a_hole_before_an_uncommitted_batch_drops_that_batch() -> None:
    """SPARK-38033: offsets 0, 1, 2, 4 and commits 0, 1, 2."""
    files = checkpoint(5, uncommitted=True)
    for path in ("offsets/3", "commits/3", "state/0/0/5.delta", "state/0/1/5.delta"):
        files.delete(path)
    repaired(files, ("OFFSETS_GAP", "offsets/3"))
    assert (restart(files).action, restart(files).batch_id) == (RestartAction.CONTINUE, 3)


def test_a_broken_snapshot_without_its_deltas_needs_a_rewind_and_there_may_be_none() -> None:
    files = checkpoint(6, snapshots=(3,))
    for version in (1, 2, 3):
        files.delete(f"state/0/1/{version}.delta")
    repair = repaired(files, ("STATE_FILE_UNREADABLE", "state/0/1/3.snapshot"), may_go_back=True)
    assert actions(repair) == []
    assert "restore files from a backup" in repair.left[0].reason
