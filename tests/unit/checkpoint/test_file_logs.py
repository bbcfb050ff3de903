"""Names in a checkpoint; compactible logs: compaction, deletion, races, with Spark's numbers."""

from __future__ import annotations

import pytest

from epochal.checkpoint.file_log import (
    FileEntry,
    FileSinkLog,
    FileSourceLog,
    SinkFileStatus,
    compaction_inputs,
    derive_compact_interval,
    first_batch_to_keep,
    is_compaction_batch,
    live_batches,
)
from epochal.checkpoint.layout import crc_target, is_temp_file, parse_partition, parse_state_file
from epochal.errors import EditError, MalformedFileError, MissingBatchError, OptionError
from epochal.testing.clock import ManualClock
from epochal.testing.files import FaultyFiles, MemoryFiles

NOW_MS = 1_700_000_000_000


def status(path: str, modified_ms: int = 100) -> SinkFileStatus:
    return SinkFileStatus(path, 100, False, modified_ms, 1, 100, "add")


def names(log: FileSinkLog | FileSourceLog) -> list[str]:
    return [info.name for _, info in log.batch_files()]


def test_a_compaction_reads_the_one_before_and_all_since() -> None:
    assert list(compaction_inputs(2, 3)) == [0, 1]
    assert list(compaction_inputs(5, 3)) == [2, 3, 4]
    assert list(compaction_inputs(8, 3)) == [5, 6, 7]
    with pytest.raises(AssertionError, match="3 is not a compaction batch"):
        compaction_inputs(3, 3)


def test_two_compact_files_tell_the_interval_and_none_leaves_the_setting() -> None:
    assert derive_compact_interval(10, []) == 10
    assert derive_compact_interval(10, [2, 5]) == 3
    assert derive_compact_interval(10, [8, 2, 5]) == 3


@pytest.mark.parametrize("setting", range(1, 25))
@pytest.mark.parametrize("latest", [0, 1, 5, 11, 22, 23, 35])
def test_a_derived_interval_divides_and_is_the_least_that_reaches_the_setting(
    setting: int, latest: int
) -> None:
    length = latest + 1
    interval = derive_compact_interval(setting, [latest])
    assert length % interval == 0
    if setting < length // 2:
        assert interval == min(i for i in range(setting, length + 1) if length % i == 0)
    else:
        assert interval == length


def test_names_follow_what_is_on_disk_and_not_the_setting() -> None:
    files = MemoryFiles({"11.compact": (b"v1", 0), "12": (b"v1", 0)})
    log = FileSinkLog(files, compact_interval=5)
    assert log.compact_interval == 6
    assert [log.path_of(i) for i in (12, 13, 16, 17)] == ["12", "13", "16", "17.compact"]


def test_the_sink_log_of_spark_2_1_is_readable() -> None:
    def lines(*numbers: int) -> bytes:
        return b"v1" + b"".join(
            b'\n{"path":"/a/b/%d","size":%d,"isDir":false,"modificationTime":%d,'
            b'"blockReplication":1,"blockSize":100,"action":"add"}' % (i, i, i)
            for i in numbers
        )

    files = MemoryFiles(
        {
            "7.compact": (lines(*range(8)) + b"\n", 0),
            "8": (lines(8) + b"\n", 0),
            "9": (lines(9) + b"\n", 0),
        }
    )
    log = FileSinkLog(files, compact_interval=3)
    assert [entry.path for entry in log.all_files()] == [f"/a/b/{i}" for i in range(10)]


def evolution(retain: int, batches: int) -> list[set[str]]:
    clock = ManualClock(NOW_MS)
    log = FileSinkLog(
        MemoryFiles(clock=clock),
        compact_interval=3,
        cleanup_delay_ms=0,
        min_batches_to_retain=retain,
        clock=clock,
    )
    seen = []
    for batch_id in range(batches):
        log.add(batch_id, [status(f"/a/b/{batch_id}")])
        seen.append({name.replace(".compact", "c") for name in names(log)})
        assert len(log.all_files()) == batch_id + 1
    return seen


EVOLUTIONS = {
    1: ["0", "0 1", "0 1 2c", "2c 3", "2c 3 4", "2c 3 4 5c", "5c 6"],
    2: ["0", "0 1", "0 1 2c", "0 1 2c 3", "2c 3 4", "2c 3 4 5c", "2c 3 4 5c 6", "5c 6 7"],
}
"""The files after each batch, by the number of batches that are retained."""


@pytest.mark.parametrize("retain", EVOLUTIONS)
def test_expired_files_go_once_a_compaction_replaces_them(retain: int) -> None:
    expected = [set(each.split()) for each in EVOLUTIONS[retain]]
    assert evolution(retain, len(expected)) == expected


def test_files_younger_than_the_delay_stay() -> None:
    clock = ManualClock(NOW_MS)
    log = FileSinkLog(
        MemoryFiles(clock=clock),
        compact_interval=3,
        cleanup_delay_ms=10_000,
        min_batches_to_retain=1,
        clock=clock,
    )
    for batch_id in range(4):
        log.add(batch_id, [])
    assert names(log) == ["0", "1", "2.compact", "3"]
    clock.advance(10)
    log.add(4, [])
    assert names(log) == ["2.compact", "3", "4"]


def test_a_compact_file_always_survives() -> None:
    for interval in range(1, 8):
        for retain in range(1, 9):
            for batch_id in range(60):
                keep = first_batch_to_keep(batch_id, interval, retain)
                if keep is not None:
                    assert is_compaction_batch(keep, interval)
                    assert keep <= live_batches(batch_id, interval)[0]
                    assert keep <= batch_id - retain


def test_retention_drops_old_entries_from_compactions_and_from_what_is_read() -> None:
    clock = ManualClock(NOW_MS)
    log = FileSinkLog(MemoryFiles(), compact_interval=3, retention_ms=60_000, clock=clock)
    old, fresh = status("/old", NOW_MS - 80_000), status("/fresh", NOW_MS - 10_000)
    log.add(0, [old, status("/older", NOW_MS - 120_000)])
    log.add(1, [fresh])
    assert log.all_files() == [fresh]
    log.add(2, [status("/now", NOW_MS)])
    assert log.get(2) == (fresh, status("/now", NOW_MS))
    edge = status("/edge", NOW_MS - 60_000)
    assert log.retains(edge, NOW_MS)
    assert FileSinkLog(MemoryFiles()).retains(status("/ancient", 0), NOW_MS)


def test_purge_is_refused() -> None:
    log = FileSinkLog(MemoryFiles(), compact_interval=3)
    log.add(0, [])
    with pytest.raises(EditError, match="deletes its obsolete files itself"):
        log.purge(1)
    assert names(log) == ["0"]


def test_adding_a_batch_again_leaves_it_also_when_it_is_a_compaction() -> None:
    log = FileSinkLog(MemoryFiles(), compact_interval=2)
    assert log.add(0, [status("/0")])
    assert not log.add(0, [status("/other")])
    assert log.add(1, [status("/1")])
    assert not log.add(1, [status("/other")])
    assert log.all_files() == [status("/0"), status("/1")]


def test_a_compaction_whose_input_is_missing_writes_nothing() -> None:
    files = MemoryFiles()
    log = FileSinkLog(files, compact_interval=3)
    log.add(0, [status("/0")])
    with pytest.raises(MissingBatchError, match="no file '1'"):
        log.add(2, [status("/2")])
    assert names(log) == ["0"]


def test_a_reader_that_loses_files_to_a_compaction_starts_over_from_it() -> None:
    inner = MemoryFiles()
    clock = ManualClock(NOW_MS)
    writer = FileSinkLog(
        inner, compact_interval=3, cleanup_delay_ms=0, min_batches_to_retain=1, clock=clock
    )
    for batch_id in range(5):
        writer.add(batch_id, [status(f"/{batch_id}")])
    reads: list[str] = []

    def compact_meanwhile(operation: str, path: str) -> None:
        if operation == "read" and not reads:
            reads.append(path)
            writer.add(5, [status("/5")])
            for name in ("2.compact", "3", "4"):
                inner.delete(name)

    reader = FileSinkLog(FaultyFiles(inner, compact_meanwhile), read_only=True, compact_interval=3)
    assert [entry.path for entry in reader.all_files()] == [f"/{i}" for i in range(6)]
    assert reads == ["2.compact"]


def test_a_reader_that_loses_files_to_nothing_known_says_so() -> None:
    files = MemoryFiles()
    log = FileSinkLog(files, compact_interval=3)
    for batch_id in range(5):
        log.add(batch_id, [status(f"/{batch_id}")])
    files.delete("3")
    with pytest.raises(MissingBatchError, match="batch 3"):
        log.all_files()


def source_log(**settings: int) -> FileSourceLog:
    clock = ManualClock(NOW_MS)
    log = FileSourceLog(
        MemoryFiles(clock=clock),
        compact_interval=settings.get("interval", 3),
        cleanup_delay_ms=0,
        min_batches_to_retain=settings.get("retain", 1),
        clock=clock,
    )
    for batch_id in range(settings.get("batches", 8)):
        log.add(batch_id, [FileEntry(f"/{batch_id}", batch_id, batch_id)])
    return log


def test_a_range_of_the_source_log_has_each_batch_with_its_own_files_only() -> None:
    log = source_log(retain=100)
    assert log.get_range(1, 3) == [(i, (FileEntry(f"/{i}", i, i),)) for i in (1, 2, 3)]
    assert log.get_range(2, 2) == [(2, (FileEntry("/2", 2, 2),))]


def test_a_range_of_the_source_log_finds_removed_batches_in_the_newest_compaction() -> None:
    log = source_log()
    assert names(log) == ["5.compact", "6", "7"]
    assert [i for i, _ in log.get_range()] == list(range(8))
    assert log.get_range(3, 6) == [(i, (FileEntry(f"/{i}", i, i),)) for i in range(3, 7)]
    with pytest.raises(MissingBatchError):
        log.get_range(7, 9)
    with pytest.raises(OptionError):
        log.get_range(5, 3)
    assert source_log(batches=0).get_range() == []


def test_a_stray_id_of_astronomic_size_does_not_stall_the_source_log() -> None:
    log = source_log(batches=2)
    log.files.create(str(2**63 - 1), b"v1")
    with pytest.raises(MissingBatchError):
        log.get_range()
    assert [i for i, _ in log.get_range(0, 1)] == [0, 1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v1\n\n",
        b"v1\n{}",
        b"v1\n[]",
        b'v1\n{"path":"/a","timestamp":"x","batchId":0}',
        b'v1\n{"path":"/a","timestamp":1e999,"batchId":0}',
        b'v1\n{"path":"/a","timestamp":NaN,"batchId":0}',
        b'v1\n{"path":"/a","timestamp":9223372036854775808,"batchId":0}',
        b'v1\n{"path":"\xff","timestamp":1,"batchId":0}',
        b'v1\n{"path":"/a","timestamp":1,"batchId":0',
        b'v1\n{"path":"/a","timestamp":1,"batchId":0,"x":' + b"[" * 100_000,
        b'\xef\xbb\xbfv1\n{"path":"/a","timestamp":1,"batchId":0}',
    ],
)
def test_bad_bytes_are_a_malformed_file_that_is_named(data: bytes) -> None:
    log = FileSourceLog(MemoryFiles({"0": (data, 0)}))
    with pytest.raises(MalformedFileError) as caught:
        log.all_files()
    assert caught.value.path == "memory:/0"


def test_a_compact_file_with_an_impossible_id_is_malformed() -> None:
    for name in ("9223372036854775807.compact", "-1.compact"):
        with pytest.raises(MalformedFileError, match="its batch id is out of range"):
            FileSinkLog(MemoryFiles({name: (b"v1", 0)})).get_latest()


def test_lines_may_end_in_carriage_returns_and_hold_keys_nobody_knows() -> None:
    data = b'v1\r\n{"path":"/a","timestamp":1,"batchId":0,"new":{"x":1}}\r\n'
    assert FileSourceLog(MemoryFiles({"0": (data, 0)})).get(0) == (FileEntry("/a", 1, 0),)


@pytest.mark.parametrize(
    "name",
    [
        "abc.delta",
        "1.delta.tmp",
        ".1.delta",
        "1.delta.crc.crc",
        ".1.delta.0f.tmp",
        "1",
        "-1.delta",
        "1.",
        "_metadata",
        "1.5.delta",
        "1_.zip",
        "٣.delta",
        "1.delta\n",
        "9" * 30 + ".delta",
    ],
)
def test_other_names_are_no_state_files(name: str) -> None:
    assert parse_state_file(name) is None


def test_partitions_are_numbers_and_nothing_else() -> None:
    assert parse_partition("17") == 17
    assert [parse_partition(name) for name in ("_metadata", "-1", "1a", "", "9" * 12)] == [None] * 5


def test_temporary_files_and_hidden_checksums_are_told_apart() -> None:
    assert is_temp_file(".3.4f0c.tmp")
    assert is_temp_file(".3.4f0c.TID12.tmp")
    assert is_temp_file("..3.4f0c.tmp.crc")
    assert not is_temp_file(".3.crc")
    assert not is_temp_file("3.tmp")
    assert crc_target(".3.crc") == "3"
    assert crc_target(".1.delta.crc.crc") == "1.delta.crc"
    assert [crc_target(name) for name in ("3", "3.crc", ".3", ".crc")] == [None] * 4
