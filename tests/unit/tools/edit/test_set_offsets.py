"""Moving a source adds a committed batch with other offsets, but the same settings and state."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from tests.unit.checkpoint.samples import EMPTY_DELTA, checkpoint, content, sink

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry
from epochal.checkpoint.file_log import FileSinkLog
from epochal.checkpoint.restart import RestartAction, plan_restart
from epochal.errors import EditError, OptionError
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import LineageItem, parse_changelog
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import FileRef, Plan
from epochal.tools.edit.offset_targets import ShiftBy, ToOffset
from epochal.tools.edit.set_offsets import plan_set_offsets
from epochal.tools.edit.survey import survey

KAFKA = '{"t":{"0":10,"1":20}}'


def ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"id-{next(numbers)}"


def created(plan: Plan) -> list[str]:
    assert all(change.action == "create" for change in plan.changes)
    return [change.path for change in plan.changes if not change.root]


def written(plan: Plan, path: str) -> bytes:
    found = next(change.after for change in plan.changes if change.path == path)
    assert isinstance(found, bytes)
    return found


def test_one_batch_is_added_with_a_delta_for_every_store() -> None:
    files = checkpoint(6, source_offsets=[KAFKA])
    plan = plan_set_offsets(survey(files), "0", ToOffset(("t:0:99",)))
    assert created(plan) == ["state/0/0/7.delta", "state/0/1/7.delta", "offsets/6", "commits/6"]
    assert written(plan, "state/0/1/7.delta") == EMPTY_DELTA


def test_the_batch_copies_settings_and_goes_on_with_the_watermark() -> None:
    files = checkpoint(6, source_offsets=[KAFKA, None])
    plan = plan_set_offsets(survey(files), "0", ToOffset(("t:0:99",)))
    last = OFFSET_FORMAT.deserialize(files.read("offsets/5"), "")
    added = OFFSET_FORMAT.deserialize(written(plan, "offsets/6"), "")
    assert added.offsets == ('{"t":{"0":99,"1":20}}', None)
    assert (added.conf, added.timestamp_ms) == (last.conf, last.timestamp_ms)
    assert added.watermark_ms == 6000
    commit = COMMIT_FORMAT.deserialize(written(plan, "commits/6"), "")
    assert commit == CommitEntry(1, 6000)


def test_a_restart_continues_after_the_added_batch() -> None:
    files = checkpoint(6, source_offsets=[KAFKA])
    Journal(files).execute(plan_set_offsets(survey(files), "0", ToOffset(("t:0:99",))))
    found = survey(files)
    restart = plan_restart(
        sorted(found.offsets), sorted(found.commits), found.offsets, found.commits
    )
    assert (restart.action, restart.batch_id) == (RestartAction.CONTINUE, 7)
    assert restart.start is not None
    assert restart.start.offsets == ('{"t":{"0":99,"1":20}}',)
    assert found.missing_state(6) is None


def test_a_file_source_goes_back_in_two_batches_because_spark_asks_it_for_the_last_again() -> None:
    files = checkpoint(6)
    plan = plan_set_offsets(survey(files), "0", ShiftBy(-3))
    assert created(plan)[-4:] == ["offsets/6", "commits/6", "offsets/7", "commits/7"]
    assert "state/0/1/8.delta" in created(plan)
    assert written(plan, "offsets/6") == written(plan, "offsets/7")
    assert "rows will be read again, and the state will count them again" in plan.warnings[0]


def test_a_file_source_goes_forward_in_one_batch() -> None:
    files = checkpoint(6, source_offsets=['{"logOffset":2}'])
    assert created(plan_set_offsets(survey(files), "0", ShiftBy(3)))[-2:] == [
        "offsets/6",
        "commits/6",
    ]


def test_an_unknown_source_is_named_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"no source 'x' in offsets/5\. It has: 0"):
        plan_set_offsets(survey(checkpoint(6)), "x", ShiftBy(0))


def test_a_batch_that_is_under_way_is_not_overtaken() -> None:
    with pytest.raises(
        EditError, match=r"batch 5 has started but is not committed.*--to-batch 4 --sink OUTPUT`"
    ):
        plan_set_offsets(survey(checkpoint(6, uncommitted=True)), "0", ShiftBy(0))


def test_a_state_that_cannot_be_loaded_is_not_built_upon() -> None:
    files = checkpoint(6)
    files.delete("state/0/1/6.delta")
    with pytest.raises(EditError, match=r"needs state/0/1/6\.delta"):
        plan_set_offsets(survey(files), "0", ShiftBy(0))


def test_undo_leaves_nothing_of_it() -> None:
    files = checkpoint(6)
    before = content(files)
    journal = Journal(files)
    journal.execute(plan_set_offsets(survey(files), "0", ShiftBy(-1)))
    journal.undo()
    assert content(files) == before


def test_the_sinks_log_gets_the_batch_too_also_where_it_must_compact() -> None:
    files, output = checkpoint(7, source_offsets=[KAFKA]), sink(7)
    for expected in ("_spark_metadata/7", "_spark_metadata/8.compact"):
        plan = plan_set_offsets(survey(files), "0", ShiftBy(1), sink=survey_sink(output))
        assert [change.path for change in plan.changes if change.root] == [expected]
        Journal(files).execute(plan)
    log = FileSinkLog(output.at("_spark_metadata"), read_only=True)
    assert [entry.path for entry in log.all_files()] == [
        f"memory:/out/part-{batch_id}.parquet" for batch_id in range(7)
    ]


def rocks(commit: bytes, names: dict[str, bytes]) -> MemoryFiles:
    files = checkpoint(3, stateful=False, source_offsets=[KAFKA])
    files.replace("commits/2", commit)
    for name, data in names.items():
        files.create(f"state/0/0/{name}", data)
    return files


def test_a_rocksdb_snapshot_is_taken_over_under_the_next_version() -> None:
    files = rocks(COMMIT_FORMAT.serialize(CommitEntry()), {"3.zip": b"zip"})
    plan = plan_set_offsets(survey(files), "0", ShiftBy(1))
    assert [(each.path, each.after) for each in plan.changes[:1]] == [
        ("state/0/0/4.zip", FileRef("", "state/0/0/3.zip", 3))
    ]


def test_a_rocksdb_changelog_is_followed_by_an_empty_one_of_the_same_layout() -> None:
    tagged = compress(b"\0\2v2\0", "lz4")
    names = {f"{version}.changelog": tagged for version in (1, 2, 3)}
    files = rocks(COMMIT_FORMAT.serialize(CommitEntry()), names)
    plan = plan_set_offsets(survey(files), "0", ShiftBy(1))
    assert decompress(written(plan, "state/0/0/4.changelog"), "lz4") == b"\0\2v2\0"


def test_unique_ids_get_a_new_one_with_the_lineage_of_the_last_and_the_commit_names_it() -> None:
    lineage = b'[{"version":2,"checkpointUniqueId":"b"}]'
    plain = b"\0\2v3" + len(lineage).to_bytes(2, "big") + lineage + b"\xff\xff\xff\xff"
    commit = CommitEntry(2, 7, {0: (("c",),)})
    files = rocks(
        COMMIT_FORMAT.serialize(commit),
        {"2_b.zip": b"zip", "3_c.changelog": compress(plain, "lz4"), "3_lost.changelog": b""},
    )
    plan = plan_set_offsets(survey(files), "0", ShiftBy(1), new_id=ids())
    assert created(plan) == ["state/0/0/4_id-1.changelog", "offsets/3", "commits/3"]
    made = parse_changelog(decompress(written(plan, "state/0/0/4_id-1.changelog"), "lz4"), "")
    assert (made.layout, made.records) == (3, ())
    assert made.lineage == (LineageItem(2, "b"), LineageItem(3, "c"))
    added = COMMIT_FORMAT.deserialize(written(plan, "commits/3"), "")
    assert added.state_unique_ids == {0: (("id-1",),)}
