"""A copy has every file of the checkpoint except crcs, and paths that fit its location."""

from __future__ import annotations

import pytest
from tests.unit.checkpoint.samples import checkpoint, content, sink

from epochal.checkpoint.file_log import FileSourceLog
from epochal.checkpoint.operator_metadata import (
    OPERATOR_FORMAT,
    OperatorMetadata,
    StoreMetadata,
    read_operator,
)
from epochal.errors import EditError, OptionError
from epochal.files import Files
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles, crash_after
from epochal.tools.edit.copy_checkpoint import move_path, plan_copy
from epochal.tools.edit.edit_file_log import survey_sink
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan, is_crc
from epochal.tools.edit.survey import survey


def journal(target: Files, *roots: Files) -> Journal:
    return Journal(target, places=roots)


def copied(files: Files, target: Files, moved: dict[str, str] | None = None) -> Plan:
    plan = plan_copy(survey(files), target, moved or {})
    journal(target, files).execute(plan)
    return plan


def test_everything_is_copied_but_hidden_crcs_and_temporary_files() -> None:
    files, target = checkpoint(4), MemoryFiles(prefix="there")
    files.create("offsets/.5.0c1f.tmp", b"half")
    copied(files, target)
    kept = {
        path: data
        for path, data in content(files).items()
        if not is_crc(path) and not path.endswith(".tmp")
    }
    assert content(target) == kept


def test_what_a_continuous_query_needs_to_go_on_is_copied_and_its_claims_are_not() -> None:
    files, target = checkpoint(2), MemoryFiles(prefix="there")
    needed = {
        ".epochal/plan": b"the operators",
        ".epochal/planned/2": b"the batch that Spark planned",
        ".epochal/kafka/e2-a1-t0-0123abcd.arrow": b"rows of an epoch that is decided",
        ".epochal/letters/e2-a1-t0-0123abcd.arrow": b"its dead letters",
    }
    for path, data in needed.items():
        files.create(path, data)
    for own in ("attempts/0", "lease/run", "stop/run", "journal/0001-put/plan.json", "stage/x"):
        files.create(f".epochal/{own}", b"of a run or an edit")
    copied(files, target)
    there = {path: target.read(path) for path, _ in target.walk(".epochal")}
    assert {path: there[path] for path in there if "/journal/" not in path} == needed
    assert {path.split("/")[2] for path in there if "/journal/" in path} == {"0001-copy"}
    journal(target, files).undo()
    assert [path for path, _ in target.walk(".epochal") if "/journal/" not in path] == []


def test_what_was_read_back_is_held_against_what_was_copied() -> None:
    files, target = checkpoint(2), MemoryFiles(prefix="there")
    copied(files, target)
    entry = Journal(target).entries()[0]
    journal(target, files).verify(entry.id)
    target.replace("offsets/1", b"bad disk")
    with pytest.raises(EditError, match="offsets/1"):
        journal(target, files).verify(entry.id)


def test_a_place_that_is_not_empty_is_refused() -> None:
    target = MemoryFiles(prefix="there")
    target.create("offsets/0", b"another life")
    with pytest.raises(EditError, match=r"is not empty \(offsets/0\)"):
        plan_copy(survey(checkpoint(2)), target, {})


def test_a_place_inside_the_checkpoint_is_refused() -> None:
    files = checkpoint(2)
    with pytest.raises(OptionError, match="lie inside each other"):
        plan_copy(survey(files), files.at("state/copy"), {})


def test_schema_paths_of_operators_follow_the_checkpoint() -> None:
    files, target = checkpoint(2), MemoryFiles(prefix="there")
    old = "file:/old/place/state/0/_stateSchema/default/0_ab"
    entry = OperatorMetadata(
        2, 0, "transformWithStateExec", (StoreMetadata(schema_file_paths=(old,)),), "{}"
    )
    files.create("state/0/_metadata/v2/0", OPERATOR_FORMAT.serialize(entry))
    copied(files, target)
    found = read_operator(target, 0)
    assert found is not None
    assert found.stores[0].schema_file_paths == ("memory:/there/state/0/_stateSchema/default/0_ab",)


def test_a_source_log_follows_only_what_the_map_moves() -> None:
    files, target = checkpoint(11), MemoryFiles(prefix="there")
    copied(files, target, {"/data/in": "/mnt/new place"})
    log = FileSourceLog(target.at("sources/0"), read_only=True)
    assert [entry.path for entry in log.all_files()] == [
        f"file:///mnt/new%20place/{batch_id:03}.json" for batch_id in range(11)
    ]
    plain = MemoryFiles(prefix="plain")
    plan = copied(files, plain, {"/elsewhere": "/x"})
    assert plain.read("sources/0/3") == files.read("sources/0/3")
    assert "No path in the log of a source begins with one of the mapped prefixes." in plan.warnings


def test_a_moved_sinks_log_follows_the_map_in_place() -> None:
    files, output, target = checkpoint(2), sink(2), MemoryFiles(prefix="there")
    plan = plan_copy(
        survey(files), target, {"memory:/out": "memory:/new"}, sink=survey_sink(output)
    )
    assert [change.path for change in plan.changes if change.root == "sink"] == [
        "_spark_metadata/0",
        "_spark_metadata/1",
    ]
    journal(target, files, output).execute(plan)
    assert b"memory:/new/part-0.parquet" in output.read("_spark_metadata/0")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("file:///a/b/c.json", "file:///z/c.json"),
        ("file:/a/b/c.json", "file:/z/c.json"),
        ("/a/b/c.json", "/z/c.json"),
        ("file:///a/b", "file:///z"),
        ("file:///a/bc/d.json", "file:///a/bc/d.json"),
        ("s3a://bucket/x/y.json", "s3a://other/y.json"),
        ("file:///sp%20ace/y.json", "s3a://bucket/y.json"),
    ],
)
def test_logged_paths_keep_the_way_they_are_written(path: str, expected: str) -> None:
    moved = {"/a/b": "/z", "s3a://bucket/x": "s3a://other", "/sp ace": "s3a://bucket/"}
    assert move_path(path, moved) == expected


def test_a_copy_that_is_killed_anywhere_is_finished_or_says_that_it_is_whole() -> None:
    files, said = checkpoint(2), set()
    for operations in range(200):
        target = MemoryFiles(prefix="there")
        plan = plan_copy(survey(files), target, {})
        try:
            Journal(FaultyFiles(target, crash_after(operations)), places=(files,)).execute(plan)
        except Crash:
            again = journal(target, files)
            if (left := again.unfinished()) is not None:
                again.finish(left.id)
                said.add("finished")
                continue
        if not content(target):
            copied(files, target)
            said.add("copied")
            continue
        undo = f"epochal checkpoint undo {target.url} --execute"
        with pytest.raises(EditError, match=f"it has a whole copy of {files.url}.*{undo}"):
            copied(files, target)
        said.add("whole")
    assert said == {"copied", "finished", "whole"}
