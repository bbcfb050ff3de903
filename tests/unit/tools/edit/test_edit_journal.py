"""The journal makes all changes of a plan or none, finishes after a crash, and undoes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.errors import EditError, MalformedFileError, UnsupportedVersionError
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles, crash_after
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import FileRef, Plan, Tree, read_tree
from epochal.tools.edit.journal_records import PackReader, PackWriter

BEFORE = {
    "metadata": b'{"id":"q"}',
    ".metadata.crc": b"crc of metadata",
    "offsets/0": b"zero",
    "offsets/.0.crc": b"crc of zero",
    "offsets/1": b"one",
    "offsets/.1.crc": b"crc of one",
    "commits/.7.crc": b"an orphan",
    "state/0/0/1.delta": b"delta",
}


def content(files: Files) -> dict[str, bytes]:
    return {path: files.read(path) for path in read_tree(files).infos}


def fill(files: Files, tree: dict[str, bytes] = BEFORE) -> Files:
    for path in sorted(tree, key=lambda name: name.endswith(".crc")):
        files.create(path, tree[path])
    return files


def plan(files: Files) -> Plan:
    tree = read_tree(files)
    return Plan(
        command="rewrite",
        summary="one of each",
        changes=(
            tree.write("offsets/0", b"ZERO", "replaced"),
            tree.delete("offsets/1", "deleted"),
            tree.write("offsets/2", b"two", "created"),
            tree.write("commits/7", b"seven", "created beside an orphan"),
            tree.write("state/0/1/1.delta", b"new", "created in a new directory"),
        ),
        arguments={"to": "2"},
        watches=(tree.watch("offsets"), tree.watch("commits")),
    )


@pytest.fixture(params=["memory", "local"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    kept: Files = MemoryFiles() if request.param == "memory" else LocalFiles(tmp_path / "ckpt")
    return fill(kept)


def started() -> MemoryFiles:
    files = MemoryFiles(clock=ManualClock())
    fill(files)
    return files


def execute(files: Files) -> None:
    Journal(files).execute(plan(files))


def executed() -> MemoryFiles:
    files = started()
    execute(files)
    return files


def undo(files: Files) -> None:
    Journal(files).undo()


def test_a_crash_on_the_way_back_cannot_be_turned_forward_again() -> None:
    files = executed()
    with pytest.raises(Crash):
        undo(FaultyFiles(files, crash_after(2)))
    with pytest.raises(EditError, match=r"is half undone, so it cannot be finished"):
        Journal(files).finish("0001-rewrite")


def test_a_file_changed_after_planning_stops_the_edit_before_it_begins(files: Files) -> None:
    planned = plan(files)
    files.replace("offsets/1", b"somebody was here")
    held = content(files)
    with pytest.raises(EditError, match=r"offsets/1: expected 3 bytes, .* found 17 bytes"):
        Journal(files).execute(planned)
    assert content(files) == held
    assert Journal(files).entries() == []


def test_a_batch_that_appears_beside_the_plan_stops_it(files: Files) -> None:
    planned = plan(files)
    files.create("offsets/3", b"a live query")
    with pytest.raises(EditError, match=r"offsets/3: appeared since this rewrite was planned"):
        Journal(files).execute(planned)
    assert Journal(files).entries() == []


def test_undo_refuses_when_a_touched_file_has_changed_since(files: Files) -> None:
    Journal(files).execute(plan(files))
    files.create("offsets/1", b"written anew")
    held = content(files)
    with pytest.raises(EditError, match=r"offsets/1: expected 3 bytes, found 12 bytes of other"):
        Journal(files).undo()
    assert content(files) == held


def test_undoing_an_unknown_edit_names_the_known_ones(files: Files) -> None:
    Journal(files).execute(plan(files))
    with pytest.raises(EditError, match=r"no edit '9' in the journal; known: 0001-rewrite"):
        Journal(files).undo("9")


def test_an_unfinished_edit_blocks_the_next_one() -> None:
    files = started()
    with pytest.raises(Crash):
        execute(FaultyFiles(files, crash_after(5)))
    with pytest.raises(EditError, match=r"a rewrite that was interrupted is unfinished here"):
        Journal(files).execute(Plan("other", "", ()))


def test_what_remains_of_a_finished_edit_is_its_plan_marks_and_backups(files: Files) -> None:
    journal = Journal(files)
    journal.execute(plan(files))
    where = ".epochal/journal/0001-rewrite"
    assert [info.name for info in files.list(where)] == ["before-00000.pack", "done", "plan.json"]
    journal.undo()
    assert [info.name for info in files.list(where)] == ["done", "plan.json", "undoing", "undone"]


def test_content_from_another_root_must_not_change_meanwhile() -> None:
    files, source = MemoryFiles(), MemoryFiles()
    source.create("f", b"as planned")

    def changing(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("plan.json"):
            source.replace("f", b"other text")

    copied = Plan(
        "copy", "", (Tree({}).write("f", FileRef("source", "f", 10), ""),), roots={"source": source}
    )
    journal = Journal(FaultyFiles(files, changing), places=[source])
    with pytest.raises(EditError, match="f: expected 10 bytes of other content"):
        journal.execute(copied)
    journal.undo()
    assert content(files) == {}


def test_progress_counts_preparation_and_execution(files: Files) -> None:
    seen: list[tuple[int, int]] = []
    Journal(files).execute(plan(files), lambda done, total: seen.append((done, total)))
    assert seen == [(step, 10) for step in range(1, 11)]


def test_a_journal_of_a_newer_release_is_not_touched(files: Files) -> None:
    files.create(".epochal/journal/0001-rewind/plan.json", b'{"version":2,"later":"things"}')
    with pytest.raises(UnsupportedVersionError):
        Journal(files).execute(plan(files))
    assert content(files) == BEFORE


def test_a_truncated_plan_is_named(files: Files) -> None:
    files.create(".epochal/journal/0001-rewind/plan.json", b'{"version":1,"comm')
    with pytest.raises(MalformedFileError, match=r"0001-rewind/plan\.json"):
        Journal(files).undo()


def test_a_damaged_backup_is_noticed_before_it_is_restored(files: Files) -> None:
    Journal(files).execute(plan(files))
    pack = ".epochal/journal/0001-rewrite/before-00000.pack"
    files.replace(pack, files.read(pack).replace(b"one", b"0ne"))
    with pytest.raises(MalformedFileError, match="do not have the recorded checksum"):
        Journal(files).undo()


def test_packs_split_at_their_size_and_give_every_blob_back() -> None:
    files = MemoryFiles()
    contents = [bytes([letter]) * length for letter, length in enumerate((3, 4, 9, 0, 5, 6))]
    with PackWriter(files, "before", pack_bytes=8) as writer:
        blobs = [writer.add(content) for content in contents]
    assert [info.size for info in files.list()] == [7, 9, 5, 6]
    reader = PackReader(files, "before")
    assert [reader.get(blob) for blob in reversed(blobs)] == contents[::-1]


def test_undo_goes_back_step_by_step_from_the_last_change() -> None:
    files = executed()
    done: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation in ("create", "replace", "delete") and not path.startswith(".epochal"):
            done.append(path)

    undo(FaultyFiles(files, note))
    assert [path for path in done if "crc" not in path and path != "metadata"] == [
        "state/0/1/1.delta",
        "commits/7",
        "offsets/2",
        "offsets/1",
        "offsets/0",
    ]


def test_a_file_that_somebody_creates_at_the_last_moment_is_not_overwritten() -> None:
    files = started()

    def racing(operation: str, path: str) -> None:
        if operation == "create" and path == "offsets/2":
            files.create(path, b"theirs")

    with pytest.raises(FileExistsError):
        execute(FaultyFiles(files, racing))
    assert files.read("offsets/2") == b"theirs"


def test_an_edit_of_metadata_itself_comes_last_and_is_undone(files: Files) -> None:
    tree = read_tree(files)
    repaired = Plan(
        "repair", "", (tree.write("metadata", b'{"id":"new"}', ""), tree.delete("offsets/1", ""))
    )
    journal = Journal(files)
    journal.execute(repaired)
    assert files.read("metadata") == b'{"id":"new"}'
    assert files.info(".metadata.crc") is None
    journal.undo()
    assert content(files) == BEFORE


def test_metadata_changed_by_somebody_else_stops_the_undo(files: Files) -> None:
    Journal(files).execute(plan(files))
    files.replace("metadata", b'{"id":"another query"}')
    with pytest.raises(EditError, match=r"metadata: expected"):
        Journal(files).undo()


def test_a_checkpoint_without_metadata_has_none_afterwards() -> None:
    files = MemoryFiles()
    for path in BEFORE:
        if "metadata" not in path:
            files.create(path, BEFORE[path])
    before = content(files)
    journal = Journal(files)
    journal.execute(plan(files))
    assert "metadata" not in content(files)
    journal.undo()
    assert content(files) == before
