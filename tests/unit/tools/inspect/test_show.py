"""Views of intact and damaged checkpoints, a single log, and what changed between checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from epochal.tools.inspect.checkpoint_diff import (
    CheckpointDifference,
    change_lines,
    checkpoint_rows,
    diff_checkpoints,
    diff_entries,
    first_lines,
    offsets_text,
)
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


def entry(offsets: list[Any], watermark: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "offsets": offsets,
        "watermark_ms": watermark,
        "timestamp_ms": 1_700_000_000_000,
        "conf": {"spark.sql.shuffle.partitions": "2"},
        **more,
    }


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([{"logOffset": 8}], "8"),
        ([42], "42"),
        ([None], "-"),
        ([{"my.topic": {"0": 20, "1": 7}}], "my.topic 0:20 1:7"),
        ([{"t": {str(n): 10 for n in range(50)}}], "t 500 in 50 partitions"),
        ([{"logOffset": 8}, None], "0: 8; 1: -"),
        ({"orders": {"logOffset": 8}}, "orders: 8"),
        ([{"offset": 9, "partitions": {"0": 4, "1": 5}}], "offset 9, partitions 0:4 1:5"),
        ([{"a": [1, 2]}], "a [1, 2]"),
        (None, "?"),
    ],
)
def test_offsets_take_one_short_line(offsets: Any, text: str) -> None:
    assert offsets_text(offsets) == text


def test_an_entry_says_only_what_changed() -> None:
    before = entry([{"logOffset": 7}], 1_704_067_200_000)
    after = entry([{"logOffset": 8}], 1_704_067_256_300)
    assert change_lines(diff_entries(before, after), brief=True) == [
        "offset 8 (+1)",
        "watermark 2024-01-01T00:00:56.300Z (+56.3 s)",
    ]
    assert change_lines(diff_entries(before, after)) == [
        "offset 7 → 8 (+1)",
        "watermark 2024-01-01T00:00:00.000Z → 2024-01-01T00:00:56.300Z (+56.3 s)",
    ]
    assert change_lines(diff_entries(before, before)) == []


def test_the_first_entry_counts_its_settings() -> None:
    assert first_lines(entry([{"t": {"0": 5}}])) == ["t 0:5", "pins 1 setting"]


def test_a_changed_setting_and_a_new_attempt_are_told_but_not_an_epochs_files() -> None:
    ours = {"attempt": 0, "messages": ["abc"]}
    before = entry([1], epochal=ours)
    after = entry([1], epochal={"attempt": 1, "messages": ["def"]}) | {
        "conf": {"spark.sql.shuffle.partitions": "4"}
    }
    assert change_lines(diff_entries(before, after)) == [
        "spark.sql.shuffle.partitions: 2 → 4",
        "attempt: 0 → 1",
    ]


def test_many_partitions_that_moved_are_summed_up() -> None:
    before = entry([{"t": {str(n): 0 for n in range(50)}}])
    after = entry([{"t": {str(n): 3 for n in range(50)}}])
    assert change_lines(diff_entries(before, after)) == ["offset +150 in 50 partitions"]


def test_a_topic_with_dots_keeps_its_name() -> None:
    found = [CheckpointDifference("offsets.0.my.topic.3", 20, 30)]
    assert change_lines(found) == ["offset my.topic 3: 20 → 30 (+10)"]


def test_batches_that_differ_alike_share_a_line() -> None:
    setting = "conf.spark.sql.shuffle.partitions"
    found = [
        CheckpointDifference("query_id", "a", "b"),
        *(CheckpointDifference(f"batches.{n}.{setting}", "2", "4") for n in range(3)),
        *(CheckpointDifference(f"batches.{n}.timestamp_ms", 1, 2) for n in range(3, 5)),
        CheckpointDifference("batches.5.offsets.0.logOffset", 5, 7),
        CheckpointDifference("batches.6", {"batch_id": 6}, None),
        CheckpointDifference("batches.7", {"batch_id": 7}, None),
        CheckpointDifference("state.0.partitions", 2, 4),
    ]
    assert list(checkpoint_rows(found)) == [
        ("checkpoint", "query id: a → b"),
        ("batches 0 to 2", "spark.sql.shuffle.partitions: 2 → 4"),
        ("batches 3 to 4", "planned at other times"),
        ("batch 5", "offset 5 → 7 (+2)"),
        ("batches 6 to 7", "only before"),
        ("operator 0", "partitions: 2 → 4"),
    ]
