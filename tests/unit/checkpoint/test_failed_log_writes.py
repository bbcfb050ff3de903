"""Failed log writes: a restart depends only on what is on disk."""

from __future__ import annotations

import errno

import pytest

from epochal.checkpoint import Checkpoint
from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog, QueryMetadata
from epochal.checkpoint.restart import RestartAction
from epochal.errors import StorageError
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles
from epochal.tools.verify.verify import verify

QUERY = QueryMetadata("53b62e34-0476-452d-8313-c1786e091891")


class Query:
    """A query over numbers; each batch logs its end, passes its rows to the sink, and commits."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.sink: list[tuple[int, tuple[int, ...]]] = []
        self.broken = ""
        self.error: BaseException = OSError(errno.EIO, "Input/output error")
        if files.info("metadata") is None:
            QUERY.write(files)

    def run(self, newest: int) -> None:
        """Read up to `newest`: first the batch that a restart would run, then new ones."""
        plan = Checkpoint(self.files).plan_restart()
        assert plan.batch_id is not None
        assert plan.action is not RestartAction.FAIL
        start = 0 if plan.start is None else end_of(plan.start)
        if plan.end is not None:
            self._finish(plan.batch_id, start, end_of(plan.end))
            return self.run(newest)
        if start < newest:
            self._log("offsets").add(plan.batch_id, OffsetEntry(1, (str(newest),)))
            self._finish(plan.batch_id, start, newest)
        return None

    def _finish(self, batch_id: int, start: int, end: int) -> None:
        self.sink.append((batch_id, tuple(range(start, end))))
        self._commits().add(batch_id, CommitEntry())

    def _log(self, name: str) -> OffsetLog:
        return OffsetLog(FaultyFiles(self.files.at(name), self._fail, base=name))

    def _commits(self) -> CommitLog:
        return CommitLog(FaultyFiles(self.files.at("commits"), self._fail, base="commits"))

    def _fail(self, operation: str, path: str) -> None:
        if operation == "create" and path == self.broken:
            raise self.error


def end_of(entry: OffsetEntry) -> int:
    (offset,) = entry.by_source.values()
    assert offset is not None
    return int(offset)


ERRORS = {"an error": OSError(errno.EIO, "Input/output error"), "a crash": Crash()}


@pytest.mark.parametrize("what", ERRORS)
def test_a_batch_whose_commit_could_not_be_written_runs_again_with_the_same_rows(
    what: str,
) -> None:
    query = Query(MemoryFiles())
    query.run(2)
    query.broken, query.error = "commits/1", ERRORS[what]
    with pytest.raises((StorageError, Crash)):
        query.run(4)
    query.broken = ""
    query.run(7)
    assert query.sink == [(0, (0, 1)), (1, (2, 3)), (1, (2, 3)), (2, (4, 5, 6))]


@pytest.mark.parametrize("what", ERRORS)
def test_a_batch_whose_offsets_could_not_be_written_never_ran_and_is_cut_anew(what: str) -> None:
    query = Query(MemoryFiles())
    query.run(2)
    query.broken, query.error = "offsets/1", ERRORS[what]
    with pytest.raises((StorageError, Crash)):
        query.run(4)
    assert query.sink == [(0, (0, 1))]
    assert sorted(query.files.tree) == ["commits/0", "metadata", "offsets/0"]
    query.broken = ""
    query.run(7)
    assert query.sink == [(0, (0, 1)), (1, (2, 3, 4, 5, 6))]


def test_a_deleted_commit_has_its_batch_run_again_before_anything_new() -> None:
    query = Query(MemoryFiles())
    for newest in (2, 4):
        query.run(newest)
    query.files.delete("commits/1")
    query.run(6)
    assert query.sink[2:] == [(1, (2, 3)), (2, (4, 5))]


def test_without_any_commit_the_newest_batch_runs_again_and_the_query_goes_on() -> None:
    query = Query(MemoryFiles())
    for newest in (2, 4):
        query.run(newest)
    query.files.delete_tree("commits")
    query.run(6)
    assert query.sink[2:] == [(1, (2, 3)), (2, (4, 5))]
    assert Checkpoint(query.files).commits.batch_ids() == [1, 2]


@pytest.mark.parametrize(
    ("retained", "batches", "left"),
    [(1, 3, [1, 2]), (2, 4, [1, 2, 3]), (2, 5, [2, 3, 4]), (100, 5, [0, 1, 2, 3, 4])],
)
def test_purging_before_each_batch_leaves_the_batches_that_spark_leaves(
    retained: int, batches: int, left: list[int]
) -> None:
    offsets, commits = OffsetLog(MemoryFiles()), CommitLog(MemoryFiles())
    for batch_id in range(batches):
        for log in (offsets, commits):
            log.purge(batch_id - retained)
        offsets.add(batch_id, OffsetEntry(1, (str(batch_id),)))
        commits.add(batch_id, CommitEntry())
    assert offsets.batch_ids() == commits.batch_ids() == left


LOGS = {
    "nothing": ((), True),
    "offsets": (("offsets/0",), False),
    "commits": (("commits/0",), False),
    "both": (("offsets/0", "commits/0"), False),
}


@pytest.mark.parametrize("there", LOGS)
@pytest.mark.parametrize("has_id", [True, False], ids=["with id", "without"])
def test_only_logs_need_the_query_s_id(there: str, has_id: bool) -> None:
    paths, may_lack = LOGS[there]
    files = MemoryFiles({path: (b"v1\n{}\n0" if "off" in path else b"v1\n{}", 0) for path in paths})
    files.create("sources/0/0", b"v1\n0")
    if has_id:
        QUERY.write(files)
    codes = [each.code for each in verify(files).findings]
    assert ("METADATA_MISSING" in codes) is (not has_id and not may_lack)
    condition = Checkpoint(files).plan_restart().condition
    assert (condition == "STREAMING_CHECKPOINT_MISSING_METADATA_FILE") is (
        not has_id and not may_lack
    )
    if has_id:
        assert Checkpoint(files).metadata() == QueryMetadata(QUERY.id)
