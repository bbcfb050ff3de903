"""A batch that an edit adds gets its entry in the log of the query's file sink.

The caller names the sink; what the checkpoint says of it is offered, and never opened.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.unit.checkpoint.samples import (
    SINK_FORMAT,
    checkpoint,
    content,
    offsets,
    sink,
    sink_status,
)

from epochal.checkpoint.entries import (
    COMMIT_FORMAT,
    OFFSET_FORMAT,
    CommitEntry,
    OffsetEntry,
    SinkMetadata,
)
from epochal.checkpoint.file_log import FileSinkLog
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.errors import EditError
from epochal.files import Files
from epochal.testing.files import MemoryFiles
from epochal.tools.edit.edit_file_log import (
    FILE_SINK,
    NamedSink,
    add_sink_batches,
    find_sink,
    obsolete_compacts,
    rewind_sink,
    survey_sink,
)
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.offset_targets import ShiftBy
from epochal.tools.edit.repair import Repair, plan_repair
from epochal.tools.edit.repair_draft import RepairOptions
from epochal.tools.edit.set_offsets import plan_set_offsets
from epochal.tools.edit.survey import survey
from epochal.tools.verify.findings import finding
from epochal.tools.verify.verify import verify

PLAN = Plan("put", "an edit", ())


def entries(output: Files) -> list[str]:
    log = FileSinkLog(output.at("_spark_metadata"), read_only=True)
    return [entry.path.rpartition("/")[2] for entry in log.all_files()]


def test_an_empty_entry_continues_the_log() -> None:
    output = sink(6)
    plan = add_sink_batches(PLAN, survey_sink(output), range(6, 7))
    assert [(c.root, c.path, c.after) for c in plan.changes] == [
        ("sink", "_spark_metadata/6", b"v1")
    ]
    assert plan.arguments == {"sink": "memory:/out"}
    assert plan.roots == {"sink": output}


def test_a_compaction_that_is_due_repeats_every_entry() -> None:
    plan = add_sink_batches(PLAN, survey_sink(sink(5)), range(5, 7))
    everything = SINK_FORMAT.serialize([sink_status(each) for each in range(5)])
    assert [(c.path, c.after) for c in plan.changes] == [
        ("_spark_metadata/5.compact", everything),
        ("_spark_metadata/6", b"v1"),
    ]


def test_before_the_first_compaction_the_plan_says_which_interval_it_assumes() -> None:
    plan = add_sink_batches(PLAN, survey_sink(sink(6, interval=10)), range(6, 7))
    assert "no compact file yet" in plan.warnings[0]


@pytest.mark.parametrize(
    ("batches", "gone", "reason"),
    [
        (7, None, r"has batch 6, but the newest batch of the checkpoint is 5"),
        (5, None, r"lacks batch 5.*checkpoint repair CHECKPOINT --sink memory:/out"),
        (6, "5.compact", r"lacks batch 5.*checkpoint repair CHECKPOINT --sink memory:/out"),
    ],
)
def test_a_log_that_does_not_end_where_the_checkpoint_does_is_refused(
    batches: int, gone: str | None, reason: str
) -> None:
    output = sink(batches)
    if gone is not None:
        output.delete(f"_spark_metadata/{gone}")
    with pytest.raises(EditError, match=reason):
        add_sink_batches(PLAN, survey_sink(output), range(6, 7))


def edited_without_its_sink(batches: int) -> tuple[MemoryFiles, MemoryFiles]:
    """A checkpoint whose newest batch was added by an edit that did not know of the sink."""
    files, output = checkpoint(batches), sink(batches)
    Journal(files).execute(plan_set_offsets(survey(files), "0", ShiftBy(0)))
    return files, output


def repair(files: Files, output: Files) -> Repair:
    found = verify(files, sink=output).findings
    holes = [each for each in found if each.code == "FILE_LOG_HOLE"]
    options = RepairOptions(query_id="")
    return plan_repair(survey(files), holes, options, sink=survey_sink(output))


def test_a_hole_after_which_the_query_went_on_is_filled_too() -> None:
    files, output = edited_without_its_sink(5)
    for batch_id in (6, 7):
        files.create(f"offsets/{batch_id}", offsets(batch_id))
        output.create(f"_spark_metadata/{batch_id}", SINK_FORMAT.serialize([sink_status(batch_id)]))
    found = repair(files, output)
    assert [change.path for change in found.plan.changes] == ["_spark_metadata/5.compact"]
    Journal(files, places=[output]).execute(found.plan)
    assert entries(output) == [f"part-{each}.parquet" for each in (0, 1, 2, 3, 4, 6, 7)]


def test_the_entry_of_a_batch_that_wrote_files_is_not_invented() -> None:
    files, output = checkpoint(5), sink(5)
    output.delete("_spark_metadata/3")
    found = repair(files, output)
    assert found.plan.changes == ()
    [left] = found.left
    assert "batch 3 was not added by an edit" in left.reason
    assert "rewind CHECKPOINT --to-batch 2 --sink OUTPUT`" in left.reason


TORN = finding("LOG_ENTRY_UNREADABLE", "commits/5", "")
LOST = {
    "missing": finding("STATE_BEHIND", "state/0/1", ""),
    "damaged": finding("STATE_FILE_UNREADABLE", "state/0/1/6.delta", ""),
}


def torn(how: str = "") -> MemoryFiles:
    """What a full disk leaves of batch 5: an empty commit, and perhaps a state file too few."""
    files = checkpoint(6)
    files.replace("commits/5", b"")
    if how == "missing":
        files.delete("state/0/1/6.delta")
    return files


@pytest.mark.parametrize("how", LOST)
def test_a_sink_forgets_a_batch_that_must_compute_its_state_again(how: str) -> None:
    files, output = torn(how), sink(6)
    repair = plan_repair(
        survey(files), [TORN, LOST[how]], RepairOptions(query_id=""), sink=survey_sink(output)
    )
    assert repair.left == ()
    Journal(files, places=[output]).execute(repair.plan)
    assert "commits/5" not in content(files)
    assert entries(output) == [f"part-{each}.parquet" for each in range(5)]


def test_a_sink_keeps_a_batch_whose_state_is_whole() -> None:
    files, output = torn(), sink(6)
    options = RepairOptions(query_id="")
    repair = plan_repair(survey(files), [TORN], options, sink=survey_sink(output))
    assert [(change.root, change.path) for change in repair.plan.changes] == [("", "commits/5")]


def test_a_rewind_past_a_hole_in_the_sinks_log_deletes_what_the_rest_lists() -> None:
    output = sink(8, interval=10)
    output.delete("_spark_metadata/5")
    paths = [change.path for change in rewind_sink(survey_sink(output), 4)]
    assert paths == ["_spark_metadata/7", "_spark_metadata/6", "part-6.parquet", "part-7.parquet"]


def test_compact_files_that_hide_the_newest_one_are_removed() -> None:
    assert obsolete_compacts({"2.compact": "abc", "7": "h", "8.compact": "abcdefghi"}) == [
        "2.compact"
    ]
    assert (
        obsolete_compacts({"2.compact": "abc", "5.compact": "abcdef", "8.compact": "abcdefghi"})
        == []
    )
    assert (
        obsolete_compacts({"2.compact": "abc", "3": "d", "4.compact": "abc"}) == []
    )  # a stray copy


def codes(files: Files, output: Files) -> set[str]:
    return {each.code for each in verify(files, sink=output).findings if "SINK" in each.code}


def test_an_output_with_batches_from_before_the_query_is_found() -> None:
    old, new = sink(9), checkpoint(6)
    assert codes(checkpoint(9), old) == set()
    for path in ("offsets/0", "offsets/1", "offsets/2", "offsets/3", "offsets/4", "offsets/5"):
        entry = OFFSET_FORMAT.deserialize(new.read(path), path)
        later = replace(entry, timestamp_ms=entry.timestamp_ms + 3_600_000)
        new.replace(path, OFFSET_FORMAT.serialize(later))
    assert codes(new, old) == {"SINK_OF_ANOTHER_QUERY"}
    for log in ("offsets", "commits"):
        for batch_id in range(6):
            new.delete(f"{log}/{batch_id}")
    assert codes(new, old) == {"SINK_OF_ANOTHER_QUERY"}


NOTHING_SAID = NamedSink()
NO_FILE_SINK = NamedSink(is_absent=True)


def with_manifest(path: str) -> Files:
    """A checkpoint of a continuous query that wrote a file in its epoch 4."""
    files = checkpoint(6)
    entry: OffsetEntry = OFFSET_FORMAT.deserialize(files.read("offsets/4"), "")
    message = msgspec.json.encode([msgspec.structs.replace(sink_status(4), path=path)])
    manifest = Manifest(4, 0, "run", (), (b"[]", message), ())
    extra = {MANIFEST_KEY: manifest_to_json(manifest)}
    files.replace("offsets/4", OFFSET_FORMAT.serialize(replace(entry, extra=extra, keys=None)))
    return files


def test_a_sink_that_a_manifest_names_is_offered_and_not_opened() -> None:
    files = with_manifest("webhdfs://attacker:9870/out/day=1/part-0.parquet")
    with pytest.raises(
        EditError, match=r"offsets/4 lists files in webhdfs://attacker:9870/out\. .*--sink"
    ):
        find_sink(survey(files), NOTHING_SAID)
    assert find_sink(survey(files), NO_FILE_SINK) is None


SILENT = "does not say where its query writes.*--sink, or --no-file-sink"


def test_a_sink_that_an_earlier_edit_changed_is_offered_until_the_edit_is_undone() -> None:
    files, output = checkpoint(6), sink(6)
    with pytest.raises(EditError, match=SILENT):
        find_sink(survey(files), NOTHING_SAID)
    plan = plan_set_offsets(survey(files), "0", ShiftBy(0), sink=survey_sink(output))
    journal = Journal(files)
    journal.execute(plan)
    with pytest.raises(EditError, match=f"earlier edit changed the file sink in {output.url}"):
        find_sink(survey(files), NOTHING_SAID)
    journal.undo()
    with pytest.raises(EditError, match=SILENT):
        find_sink(survey(files), NOTHING_SAID)


def test_a_file_sink_that_the_commit_log_names_without_its_path_must_be_named() -> None:
    files = checkpoint(6)
    named = {"archive": SinkMetadata("archive", "-", FILE_SINK, "DSv1", True)}
    files.replace("commits/5", COMMIT_FORMAT.serialize(CommitEntry(3, 6000, sink_metadata=named)))
    with pytest.raises(EditError, match=r"commits/5 says .* file sink.*pass .* with --sink"):
        find_sink(survey(files), NOTHING_SAID)
    assert find_sink(survey(files), NO_FILE_SINK) is None
