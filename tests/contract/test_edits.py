"""The writing tools do the same on every storage, also when they are cut off in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.library import Golden, unpack
from tests.no_file_sink import with_no_sink

from epochal.cli.main import main
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.testing.files import Crash, FaultyFiles, crash_after
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import is_crc, read_tree
from epochal.tools.edit.rewind import plan_rewind
from epochal.tools.edit.survey import survey

NOW = ("--execute", "--settle-seconds", "0")


def content(files: Files) -> dict[str, bytes]:
    return {path: files.read(path) for path in read_tree(files).infos if not is_crc(path)}


def run(*words: str) -> None:
    assert main(("checkpoint", *with_no_sink(words))) == 0, words


def test_a_checkpoint_is_copied_there_edited_undone_and_copied_back(
    shared_files: Files, tmp_path: Path
) -> None:
    origin = LocalFiles(unpack(Golden("4.3.0", "windowed"), tmp_path / "golden").checkpoint)
    whole = content(origin)
    there = shared_files.url
    run("copy", origin.url, there, *NOW)
    assert content(shared_files) == whole
    run("undo", there, "--prune", "--execute")

    run("rewind", there, "--to-batch", "8", *NOW)
    run("set-offsets", there, "--shift-by", "-1", *NOW)
    assert "offsets/10" in content(shared_files)
    run("undo", there, *NOW)
    run("undo", there, *NOW)
    assert content(shared_files) == whole

    run("copy", there, str(tmp_path / "back"), *NOW)
    assert content(LocalFiles(tmp_path / "back")) == whole


@pytest.mark.parametrize(
    "operations", [6, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 9, 15))]
)
def test_an_interrupted_rewind_is_finished_and_undone(
    shared_files: Files, operations: int, tmp_path: Path
) -> None:
    origin = LocalFiles(unpack(Golden("4.3.0", "windowed"), tmp_path / "golden").checkpoint)
    for path, data in content(origin).items():
        shared_files.create(path, data)
    whole = content(shared_files)
    plan = plan_rewind(survey(shared_files), 7)
    with pytest.raises(Crash):
        Journal(FaultyFiles(shared_files, crash_after(operations))).execute(plan)
    run("rewind", shared_files.url, "--to-batch", "7", *NOW)
    assert Journal(shared_files).unfinished() is None
    assert content(shared_files).keys() == whole.keys() - {change.path for change in plan.changes}
    run("undo", shared_files.url, *NOW)
    assert content(shared_files) == whole


def test_a_checkpoint_is_cloned_there_and_back(shared_files: Files, tmp_path: Path) -> None:
    place = unpack(Golden("4.3.0", "rocksdb_zip"), tmp_path / "golden")
    origin, back = LocalFiles(place.checkpoint), LocalFiles(tmp_path / "back")
    run("clone", origin.url, shared_files.url, "--execute")
    run("clone", shared_files.url, back.url, "--execute")
    cloned, ids = content(shared_files), [each.read("metadata") for each in (origin, back)]
    assert cloned["metadata"] not in ids
    assert len({*ids, cloned["metadata"]}) == 3
    first, second = ({**each, "metadata": b""} for each in (cloned, content(back)))
    assert first == second
    assert 0 < len(first) < len(content(origin))
    run("verify", shared_files.url)
