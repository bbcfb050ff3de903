"""The metadata log: the first writer wins, listings match the disk, nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from epochal.checkpoint.entries import OffsetEntry, OffsetLog
from epochal.checkpoint.metadata_log import (
    MetadataLog,
    parse_batch_id,
    parse_version,
    verify_batch_ids,
)
from epochal.errors import (
    ConcurrentUpdateError,
    EditError,
    MalformedFileError,
    MissingBatchError,
    OptionError,
    StorageError,
    UnsupportedVersionError,
)
from epochal.files.local import LocalFiles
from epochal.testing.files import FaultyFiles, MemoryFiles


class TextFormat:
    """Entries whose bytes are the file."""

    def serialize(self, entry: str) -> bytes:
        return entry.encode()

    def deserialize(self, data: bytes, path: str) -> str:
        return data.decode()


def text_log(location: str | MemoryFiles | FaultyFiles | LocalFiles) -> MetadataLog[str]:
    return MetadataLog(location, TextFormat())


def filled(*batch_ids: int) -> MetadataLog[str]:
    log = text_log(MemoryFiles())
    for batch_id in batch_ids:
        log.add(batch_id, f"batch{batch_id}")
    return log


def test_adding_an_id_again_leaves_the_first_content_and_says_so() -> None:
    log = filled(0, 1)
    assert log.add(1, "other") is False
    assert log.get(1) == "batch1"


def test_a_newest_entry_that_cannot_be_read_is_an_error_or_is_skipped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemoryFiles()
    log: MetadataLog[dict[str, int]] = MetadataLog(files)
    log.add(7, {"seven": 7})
    files.create("8", b"{torn")
    with pytest.raises(MalformedFileError):
        log.get_latest()
    assert log.get_latest(skip_unreadable=True) == (7, {"seven": 7})
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert warning.getMessage().startswith("skipped batch 8: ")


def test_without_a_format_entries_are_plain_json() -> None:
    files = MemoryFiles()
    log: MetadataLog[dict[str, object]] = MetadataLog(files)
    log.add(0, {"name": "é", "offsets": [1, None]})
    assert files.read("0").decode() == '{"name":"é","offsets":[1,null]}'
    assert log.get(0) == {"name": "é", "offsets": [1, None]}


def test_a_directory_named_like_a_batch_is_not_a_batch(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    log = text_log(str(tmp_path))
    assert log.get_latest() is None
    assert log.batch_ids() == []
    assert log.get(0) is None
    with pytest.raises(MalformedFileError, match="a directory has the name of a batch"):
        log.add(0, "x")


@pytest.mark.parametrize(
    ("operation", "batch_id", "left"),
    [("purge", 2, [2, 3]), ("purge_after", 1, [0, 1]), ("remove", 1, [0, 2, 3])],
)
def test_whatever_removes_entries_removes_every_crc_with_them(
    tmp_path: Path, operation: str, batch_id: int, left: list[int]
) -> None:
    log = text_log(str(tmp_path))
    for each in range(4):
        log.add(each, f"batch{each}")
        (tmp_path / f".{each}.crc").write_bytes(b"crc")
    for _ in range(2):
        getattr(log, operation)(batch_id)
    names = [*(f".{each}.crc" for each in left), *map(str, left)]
    assert sorted(os.listdir(tmp_path)) == names
    assert log.get(batch_id) == (f"batch{batch_id}" if batch_id in left else None)
    assert log.get_latest() == (left[-1], f"batch{left[-1]}")
    assert log.add(7, "anew")


def deletions_of(operation: str, threshold: int) -> list[str]:
    order: list[str] = []

    def before(name: str, path: str) -> None:
        if name == "delete":
            order.append(path)

    files = MemoryFiles()
    for batch_id in range(12):
        files.create(str(batch_id), b"x")
    getattr(text_log(FaultyFiles(files, before)), operation)(threshold)
    return order


def test_a_purge_that_crashes_leaves_no_hole() -> None:
    assert deletions_of("purge", 11) == [str(i) for i in range(11)]
    assert deletions_of("purge_after", 0) == [str(i) for i in range(11, 0, -1)]


@pytest.mark.parametrize(
    ("name", "batch_id"),
    [
        ("0", 0),
        ("007", 7),
        ("+9", 9),
        ("-3", -3),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("٣", 3),
        ("9223372036854775808", None),
        ("1.5", None),
        ("x", None),
        ("10 ", None),
        (" 10", None),
        ("1_0", None),
        ("", None),
        ("+", None),
        ("1\n", None),
        ("\U0001d7db", None),
        ("²", None),
        ("1234a", None),
        (".1.crc", None),
        ("9" * 5000, None),
    ],
)
def test_a_name_is_an_id_where_java_reads_a_long(name: str, batch_id: int | None) -> None:
    assert parse_batch_id(name) == batch_id


def test_temporary_files_and_odd_names_are_not_listed() -> None:
    files = MemoryFiles()
    for name in ("0", "1", ".2.abc.tmp", ".1.crc", "x", "1.5", "0.compact", "10 "):
        files.create(name, b"x")
    assert text_log(files).batch_ids() == [0, 1]


def test_an_id_whose_file_has_an_odd_name_is_reported_and_not_taken_for_empty() -> None:
    files = MemoryFiles()
    files.create("007", b"x")
    with pytest.raises(MissingBatchError, match="batch 7 was listed, but there is no file '7'"):
        text_log(files).get_latest()


@pytest.mark.parametrize(
    "text", ["", "xyz", "v10.x", "10", "v0", "v-10", "v", "v 1", "v99999999999", "v1_0", "v\ufeff1"]
)
def test_a_version_that_is_not_v_and_a_positive_number_is_malformed(text: str) -> None:
    with pytest.raises(MalformedFileError) as caught:
        parse_version(text, 100, "log/0")
    assert caught.value.path == "log/0"
    assert repr(text) in caught.value.reason


def test_a_version_up_to_the_newest_is_accepted() -> None:
    assert parse_version("v10", 10, "") == 10
    assert parse_version("v10", 100, "") == 10
    assert parse_version("v+1", 1, "") == 1


def test_a_newer_version_is_refused_naming_both_and_a_newer_spark() -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        parse_version("v200", 100, "log/0")
    assert (caught.value.version, caught.value.newest) == (200, 100)
    assert "v200" in str(caught.value)
    assert "v100" in str(caught.value)
    assert "newer release of Spark" in str(caught.value)
    assert "log/0" in str(caught.value)


@pytest.mark.parametrize(
    ("batch_ids", "start", "end", "missing"),
    [
        ([], 1, None, (1,)),
        ([], None, 1, (1,)),
        ([2, 3, 4], 1, None, (1,)),
        ([2, 3, 4], None, 5, (5,)),
        ([2, 3, 4], 1, 5, (1,)),
        ([1, 2, 4, 5], None, None, (3,)),
        ([0, 3, 6], None, None, (1, 2, 4, 5)),
    ],
)
def test_ids_that_are_missing_are_named(
    batch_ids: list[int], start: int | None, end: int | None, missing: tuple[int, ...]
) -> None:
    with pytest.raises(MissingBatchError) as caught:
        verify_batch_ids(batch_ids, start, end, "log")
    assert caught.value.missing == missing
    assert "exist" in caught.value.detail


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(OptionError, match="starts at batch 2, after its end 1"):
        verify_batch_ids([1, 2], 2, 1)
    with pytest.raises(OptionError):
        filled(0, 1, 2).get_range(2, 1)


def test_a_hole_of_astronomic_size_is_reported_at_once() -> None:
    with pytest.raises(MissingBatchError) as caught:
        filled(0, 2**63 - 1).get_range()
    assert len(caught.value.missing) == 100
    assert caught.value.missing[:3] == (1, 2, 3)


def test_get_range_takes_both_bounds_inclusive() -> None:
    log = filled(3, 4, 5, 6)
    assert [i for i, _ in log.get_range(4, 5)] == [4, 5]
    assert [i for i, _ in log.get_range(5)] == [5, 6]
    assert [i for i, _ in log.get_range(end=4)] == [3, 4]
    assert filled().get_range() == []


def test_the_previous_batch_is_the_newest_below_if_one_at_or_above_exists() -> None:
    log = filled(0, 3, 7)
    assert [log.prev_batch_id(i) for i in (0, 1, 3, 5, 7, 8)] == [None, 0, 0, 3, 3, None]
    assert filled().prev_batch_id(0) is None


def test_a_read_only_log_creates_nothing_and_refuses_to_write(tmp_path: Path) -> None:
    log = MetadataLog(str(tmp_path / "absent"), TextFormat(), read_only=True)
    assert log.get_latest() is None
    assert log.batch_ids() == []
    assert log.get(0) is None
    for refused in (lambda: log.add(0, "x"), lambda: log.purge(1), lambda: log.purge_after(1)):
        with pytest.raises(EditError):
            refused()
    assert list(tmp_path.iterdir()) == []


def test_the_loser_of_a_race_is_told_that_somebody_else_was_first() -> None:
    files = MemoryFiles()

    def other_writes_first(operation: str, path: str) -> None:
        if operation == "create":
            files.create(path, b"winner")

    log = text_log(FaultyFiles(files, other_writes_first))
    with pytest.raises(ConcurrentUpdateError) as caught:
        log.add(5, "loser")
    assert caught.value.batch_id == 5
    assert log.get(5) == "winner"


def test_an_error_while_writing_leaves_nothing_and_names_the_file(tmp_path: Path) -> None:
    def disk_full(operation: str, path: str) -> None:
        if operation == "create":
            raise OSError(28, "No space left on device")

    log = text_log(FaultyFiles(LocalFiles(tmp_path), disk_full))
    with pytest.raises(StorageError, match="/0: the disk is full"):
        log.add(0, "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operation", ["list", "read", "info", "delete"])
def test_storage_that_refuses_is_a_storage_error(operation: str) -> None:
    inner = MemoryFiles()
    inner.create("0", b"x")

    def refuse(asked: str, path: str) -> None:
        if asked == operation:
            raise PermissionError(13, "Permission denied")

    log = text_log(FaultyFiles(inner, refuse))
    attempts: dict[str, Callable[[], object]] = {
        "list": log.batch_ids,
        "read": lambda: log.get(0),
        "info": lambda: log.add(0, "x"),
        "delete": lambda: log.purge(5),
    }
    with pytest.raises(StorageError, match="Permission denied"):
        attempts[operation]()


def test_a_file_where_the_directory_must_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "offsets").write_text("not a directory")
    with pytest.raises(StorageError, match="offsets"):
        text_log(str(tmp_path / "offsets"))
    with pytest.raises(StorageError, match="offsets"):
        MetadataLog(str(tmp_path / "offsets"), TextFormat(), read_only=True).batch_ids()


def test_ten_thousand_batches_are_listed_once_and_opened_once_each() -> None:
    asked: dict[str, int] = {}

    def count(operation: str, path: str) -> None:
        asked[operation] = asked.get(operation, 0) + 1

    files = MemoryFiles({str(i): (b"v1\n{}\n7", 0) for i in range(10_000)})
    log = OffsetLog(FaultyFiles(files, count))
    asked.clear()
    assert len(log.get_range()) == 10_000
    assert asked == {"list": 1, "read": 10_000}
    asked.clear()
    assert log.latest_batch_id() == 9_999
    assert asked == {"list": 1}
    asked.clear()
    assert log.get_latest() == (9_999, OffsetEntry(1, ("7",)))
    assert asked == {"list": 1, "read": 1}
