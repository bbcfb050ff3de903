from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest
from tests.waiting import eventually

from epochal.checkpoint.file_log import FileEntry, FileSourceLog
from epochal.connectors.file.file_names import entry_path, path_below
from epochal.connectors.file.file_reader import own_files
from epochal.connectors.file.file_source import (
    BATCHES_AHEAD,
    FileSource,
    FileSourceOptions,
    FoundFile,
    SeenFiles,
    file_batches,
    next_files,
    parse_log_offset,
)
from epochal.errors import ConcurrentUpdateError, MalformedFileError, OptionError, StorageError
from epochal.files.local import LocalFiles
from epochal.testing.files import FaultyFiles, MemoryFiles


def seen(max_age_ms: int | None, *names: tuple[str, int], name_only: bool = False) -> SeenFiles:
    files = SeenFiles(max_age_ms, name_only=name_only)
    for name, modified_ms in names:
        files.add(name, modified_ms)
    files.purge()
    return files


def test_a_file_exactly_as_old_as_allowed_is_still_known_and_still_new_if_unknown() -> None:
    files = seen(10, ("a", 5), ("b", 15))
    assert not files.is_new("a", 5)
    assert files.is_new("c", 5)
    assert not files.is_new("d", 4)


def test_age_counts_from_the_last_purge_not_from_the_newest_file() -> None:
    files = seen(10, ("a", 5), ("b", 15))
    files.add("c", 100)
    assert files.is_new("d", 6)
    files.purge()
    assert not files.is_new("d", 6)


def test_with_file_name_only_the_same_name_in_another_directory_is_not_new() -> None:
    files = seen(None, ("s3://bucket/a/x.txt", 1), name_only=True)
    assert not files.is_new("s3n://other/x.txt", 2)


def test_the_oldest_files_come_first_unless_the_newest_are_wanted() -> None:
    there = [FoundFile("b", 2), FoundFile("a", 1), FoundFile("c", 3)]
    known = seen(None)
    assert [f.path for f in next_files(there, known, latest_first=False)][:2] == ["a", "b"]
    assert [f.path for f in next_files(there, known, latest_first=True)][:2] == ["c", "b"]


def source(tmp: Path, **options: object) -> FileSource:
    (tmp / "in").mkdir(exist_ok=True)
    given = FileSourceOptions(path=str(tmp / "in"), **options)  # type: ignore[arg-type]
    files = LocalFiles(tmp / "checkpoint", durable=False)
    return FileSource("text", given, None, files, 0, watch=False)


def test_the_log_has_the_format_of_spark(tmp_path: Path) -> None:
    files = source(tmp_path)
    (tmp_path / "in" / "a b%é.txt").write_text("x\n")
    assert files.discover_files()
    modified_ms = (tmp_path / "in" / "a b%é.txt").stat().st_mtime_ns // 1_000_000
    assert (tmp_path / "checkpoint/sources/0/0").read_text() == (
        f'v1\n{{"path":"file://{tmp_path}/in/a%20b%25é.txt","timestamp":{modified_ms},"batchId":0}}'
    )


def test_hidden_names_and_names_outside_the_pattern_are_skipped(tmp_path: Path) -> None:
    files = source(tmp_path, path_glob_filter="*.txt")
    for name in (".hidden.txt", "_temporary.txt", "a.csv", "half.txt._COPYING_", "b.txt"):
        (tmp_path / "in" / name).write_text("x\n")
    (tmp_path / "in" / "deep").mkdir()
    (tmp_path / "in" / "deep" / "c.txt").write_text("x\n")
    files.discover_files()
    log = FileSourceLog(str(tmp_path / "checkpoint/sources/0"), read_only=True)
    assert [entry.path.rpartition("/")[2] for entry in log.all_files()] == ["b.txt"]


def test_the_log_is_ahead_of_the_readers_by_a_limited_number_of_batches(tmp_path: Path) -> None:
    files = source(tmp_path)

    def log(name: str) -> bool:
        (tmp_path / "in" / name).write_text("x\n")
        return files.discover_files()

    assert [log(str(n)) for n in range(BATCHES_AHEAD + 1)] == [True] * BATCHES_AHEAD + [False]
    files.acknowledge(0, files.resume('{"logOffset":1}'))
    assert [files.discover_files(), log("x"), log("y")] == [True, True, False]


def test_another_run_on_the_same_log_is_an_error_that_every_call_repeats(tmp_path: Path) -> None:
    files, other = source(tmp_path), source(tmp_path)
    (tmp_path / "in" / "a").write_text("x\n")
    assert other.discover_files()
    with pytest.raises(ConcurrentUpdateError):
        files.discover_files()


def test_the_driver_raises_the_error_of_its_discovery_thread(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    options = FileSourceOptions(path=str(tmp_path / "in"))
    files = LocalFiles(tmp_path / "checkpoint", durable=False)
    with closing(FileSource("text", options, None, files, 0)) as watching:
        (tmp_path / "checkpoint/sources/0/0").mkdir()
        (tmp_path / "in" / "a").write_text("x\n")
        eventually(lambda: watching._error)
        with pytest.raises(MalformedFileError, match="a directory has the name of a batch"):
            watching.offset(watching.initial())
        (tmp_path / "checkpoint/sources/0/0").rmdir()
        eventually(lambda: watching._newest == 0)
        assert watching.offset(watching.initial()) == '{"logOffset":-1}'


@pytest.mark.parametrize("is_written", [False, True], ids=["not written", "written"])
def test_files_whose_batch_could_not_be_logged_are_logged_once_storage_works(
    tmp_path: Path, *, is_written: bool
) -> None:
    truth, refusals = MemoryFiles(), [errno.ENOSPC]

    def refuse(operation: str, path: str) -> None:
        if operation == "create" and refusals:
            if is_written:
                truth.create(path, entry_of(tmp_path / "in" / "a"))
            number = refusals.pop()
            raise OSError(number, os.strerror(number), path)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x\n")
    options = FileSourceOptions(path=str(tmp_path / "in"))
    files = FileSource("text", options, None, FaultyFiles(truth, refuse), 0, watch=False)
    with pytest.raises(StorageError, match="the disk is full"):
        files.discover_files()
    (tmp_path / "in" / "b").write_text("x\n")
    while files.discover_files():
        pass
    log = FileSourceLog(truth.at("sources/0"), read_only=True)
    names = [(entry.batch_id, entry.path.rpartition("/")[2]) for entry in log.all_files()]
    assert names == [(0, "a"), (1, "b")]


def entry_of(path: Path) -> bytes:
    """The log's first batch, with this file alone."""
    modified_ms = path.stat().st_mtime_ns // 1_000_000
    return f'v1\n{{"path":"file://{path}","timestamp":{modified_ms},"batchId":0}}'.encode()


def test_files_are_assigned_round_robin_and_each_batch_starts_with_another_partition() -> None:
    one = [FileEntry("f", 1, 0)]
    dealt = [own_files(batch, one, p, 2) for batch in (0, 1) for p in (0, 1)]
    assert dealt == [one, [], [], one]


@pytest.mark.parametrize(
    ("text", "batch"), [('{"logOffset":3}', 3), ("3", 3), ('{"logOffset":-1}', -1)]
)
def test_offsets_of_current_and_early_spark_releases_are_read(text: str, batch: int) -> None:
    assert parse_log_offset(text) == batch


def test_an_offset_of_another_source_is_rejected() -> None:
    with pytest.raises(MalformedFileError, match="is not of the form"):
        parse_log_offset('{"topic":{"0":3}}')


def test_patterns_in_the_path_are_rejected() -> None:
    with pytest.raises(OptionError, match="pathGlobFilter"):
        FileSourceOptions(path="/data/*.json")


def test_paths_in_logs_match_in_every_form_of_their_scheme() -> None:
    assert entry_path("/a b", "c%d/é") == "file:///a%20b/c%25d/é"
    assert path_below("/a b", "file:///a%20b/c%25d/é") == "c%d/é"
    assert path_below("/a", "file:/a/b") == "b"
    assert path_below("s3://bucket/x", "s3a://bucket/x/y") == "y"
    assert path_below("/a", "file:///ab/c") is None


def test_the_end_counts_all_files_although_a_batch_of_the_log_takes_few(tmp_path: Path) -> None:
    files = source(tmp_path, max_files_per_trigger=2)
    for n in range(2 * BATCHES_AHEAD + 3):
        (tmp_path / "in" / f"{n:03}.json").write_text("")
    assert files.offset(files.latest()) == f'{{"logOffset":{BATCHES_AHEAD + 1}}}'


def test_the_end_has_the_partitions_of_the_checkpoint(tmp_path: Path) -> None:
    found = source(tmp_path)
    found.discover(dict.fromkeys("012", ""))
    assert sorted(found.latest()) == ["0", "1", "2"]


def test_a_batch_has_as_many_files_as_the_limits_allow_and_at_least_one() -> None:
    files = [FoundFile(name, 1, size) for name, size in zip("abcde", (3, 9, 2, 2, 3), strict=True)]

    def divided(max_files: int | None, max_bytes: int | None) -> list[str]:
        batches = file_batches(files, max_files, max_bytes)
        return ["".join(file.path for file in batch) for batch in batches]

    assert divided(2, None) == ["ab", "cd", "e"]
    assert divided(None, 7) == ["a", "b", "cde"]
    assert divided(None, 4) == ["a", "b", "cd", "e"]
    assert divided(None, None) == ["abcde"]
    assert list(file_batches([], 1, None)) == []
