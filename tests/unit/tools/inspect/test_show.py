"""Views of intact and damaged checkpoints, reading a single log, comparing checkpoints."""

from pathlib import Path

import pytest

from epochal.checkpoint.claim import Claim
from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog, QueryMetadata
from epochal.checkpoint.file_log import (
    FileEntry,
    FileSinkLog,
    FileSourceLog,
    KafkaInitialOffsetLog,
    KafkaInitialOffsets,
    RateLog,
    SinkFileStatus,
)
from epochal.checkpoint.restart import RestartAction
from epochal.errors import CheckpointError, MissingBatchError
from epochal.files.local import LocalFiles
from epochal.tools.inspect.checkpoint_diff import diff_checkpoints
from epochal.tools.inspect.log_entries import LogKind, read_lines
from epochal.tools.inspect.show import inspect
from epochal.tools.inspect.view_models import ConfChange, Gap, SourceView, StoreVersions

QUERY_ID = "53b62e34-0476-452d-8313-c1786e091891"


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "checkpoint", durable=False)


def fill(files: LocalFiles, offsets: list[int], commits: list[int]) -> None:
    QueryMetadata(QUERY_ID).write(files)
    log = OffsetLog(files.at("offsets"))
    for batch_id in offsets:
        entry = OffsetEntry(
            1, (f'{{"t":{{"0":{batch_id},"10":1,"9":2}}}}',), batch_id, 5 + batch_id
        )
        log.add(batch_id, entry)
    for batch_id in commits:
        CommitLog(files.at("commits")).add(batch_id, CommitEntry(next_watermark_ms=batch_id))


def test_an_asynchronous_log_restarts_only_as_such(files: LocalFiles) -> None:
    fill(files, [0, 3], [0])
    view = inspect(files)
    assert (view.restart.action, view.restart.batch_id) == (RestartAction.RERUN, 3)
    assert "only with asyncProgressTrackingEnabled" in view.restart.notes[-1]
    assert view.gaps == (Gap("offsets", 1, 2),)


def test_shows_what_can_be_read_and_names_what_cannot(files: LocalFiles) -> None:
    fill(files, [0, 1, 2], [0, 1])
    files.replace("offsets/1", b"v1")
    files.replace("metadata", b"?")
    files.create("commits/007", b"v1")
    view = inspect(files)
    assert [problem.path for problem in view.problems] == ["metadata", "offsets/1", "commits/007"]
    assert view.query_id is None
    assert [batch.offsets is None for batch in view.batches] == [False, True, False]
    assert view.restart.action is RestartAction.FAIL


def test_tells_which_settings_changed_when(files: LocalFiles) -> None:
    fill(files, [], [])
    for batch_id, conf in enumerate(({"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"b": "2"})):
        OffsetLog(files.at("offsets")).add(batch_id, OffsetEntry(1, (), conf=conf))
    assert inspect(files).conf_changes == (
        ConfChange(1, "b", "1", "2"),
        ConfChange(2, "a", "1", None),
    )


def test_an_offset_that_is_no_json_stays_text(files: LocalFiles) -> None:
    fill(files, [], [])
    OffsetLog(files.at("offsets")).add(0, OffsetEntry(2, {"a": "not json", "b": None, "c": "7"}))
    assert inspect(files).batches[0].offsets == {"a": "not json", "b": None, "c": 7}


def test_tells_sources_apart_by_what_they_keep(files: LocalFiles) -> None:
    fill(files, [0], [])
    KafkaInitialOffsetLog(files.at("sources/0")).add(0, KafkaInitialOffsets({"t": {0: 23}}))
    RateLog(files.at("sources/1")).add(0, 1794772382725)
    FileSourceLog(files.at("sources/2")).add(0, [FileEntry("file:///a", 1, 0)])
    files.make_dirs("sources/3")
    assert inspect(files).sources == (
        SourceView("0", "kafka", 1, 0, 'began at {"t":{"0":23}}'),
        SourceView("1", "rate", 1, 0, "created at 1794772382725 ms"),
        SourceView("2", "file", 1, 0),
        SourceView("3", "empty", 0, None),
    )


def test_sums_up_the_versions_of_every_store(files: LocalFiles) -> None:
    fill(files, [0, 1], [0, 1])
    for name in ("1.delta", "2.delta", "2.snapshot", ".2.delta.crc", "2.delta.crc"):
        files.create(f"state/0/0/left-keyToNumValues/{name}", b"")
    files.create("state/1/0/3_0d6a.zip", b"")
    join, other = inspect(files).operators
    assert (join.provider, join.partitions, join.name) == ("hdfs", 1, None)
    assert join.stores == {"left-keyToNumValues": (StoreVersions(0, 1, 2, 2, 2),)}
    assert (other.provider, other.stores) == (
        "rocksdb",
        {"default": (StoreVersions(0, 3, 3, 3, 1),)},
    )


def test_names_the_run_that_holds_the_checkpoint(files: LocalFiles) -> None:
    fill(files, [0], [0])
    with Claim.acquire(files, run_id="run-1", purpose="query"):
        owner = inspect(files).owner
    assert owner is not None
    assert (owner.run_id, owner.purpose, owner.has_lease) == ("run-1", "query", True)
    ended = inspect(files).owner
    assert ended is None or not ended.has_lease


def test_reads_any_log_by_what_it_is(files: LocalFiles) -> None:
    fill(files, [0, 2], [0])
    sink = FileSinkLog(files.at("out/_spark_metadata"), compact_interval=2)
    source = FileSourceLog(files.at("sources/0"), compact_interval=2)
    for n in range(4):
        sink.add(n, [SinkFileStatus(f"file:///o/{n}", n, False, n, 1, 9, "add")])
        source.add(n, [FileEntry(f"file:///i/{n}", n, n)])
    KafkaInitialOffsetLog(files.at("sources/1")).add(0, KafkaInitialOffsets({"t": {0: 23}}))
    RateLog(files.at("sources/2")).add(0, 7)
    read = {
        path: read_lines(files.at(path))
        for path in (
            *("offsets", "commits", "out/_spark_metadata", "sources/0", "sources/1", "sources/2"),
        )
    }
    kinds = {path: kind for path, (kind, _, _) in read.items()}
    assert list(kinds.values()) == [
        LogKind.OFFSETS,
        LogKind.COMMITS,
        LogKind.FILE_SINK,
        LogKind.FILE_SOURCE,
        LogKind.KAFKA,
        LogKind.RATE,
    ]
    assert [batch_id for batch_id, _ in read["offsets"][1]] == [0, 2]
    assert [batch_id for batch_id, _ in read["sources/0"][1]] == [0, 1, 2, 3]
    assert read["sources/0"][1][3] == (3, {"path": "file:///i/3", "timestamp": 3, "batchId": 3})
    assert len(read["out/_spark_metadata"][1]) == 4
    assert read["sources/1"][1] == [(0, {"t": {0: 23}})]
    assert read["sources/2"][1] == [(0, 7)]


def test_tells_a_log_by_its_content_where_its_name_does_not(files: LocalFiles) -> None:
    fill(files, [0], [0])
    files.create("copied/0", files.read("offsets/0"))
    assert read_lines(files.at("copied"))[0] is LogKind.OFFSETS
    with pytest.raises(CheckpointError, match="is not a log"):
        read_lines(files)


def test_a_log_of_files_that_lacks_one_cannot_be_listed(files: LocalFiles) -> None:
    log = FileSourceLog(files.at("log"), compact_interval=3)
    for n in range(5):
        log.add(n, [FileEntry(f"file:///i/{n}", n, n)])
    files.delete("log/2.compact")
    with pytest.raises(MissingBatchError, match="the live entries up to batch 4 depend on it"):
        read_lines(files.at("log"))


def test_compares_checkpoints(files: LocalFiles, tmp_path: Path) -> None:
    fill(files, [0, 1], [0])
    other = LocalFiles(tmp_path / "other", durable=False)
    fill(other, [0], [0])
    other.create("state/0/0/1.delta", b"")
    paths = {each.path: each for each in diff_checkpoints(inspect(files), inspect(other))}
    assert list(paths) == ["batches.1", "state.0"]
    assert paths["batches.1"].after is None
    assert paths["state.0"].before is None
