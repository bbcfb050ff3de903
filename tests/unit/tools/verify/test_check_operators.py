"""Checks in several processes or threads find the same as in one."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog, QueryMetadata
from epochal.files.local import LocalFiles
from epochal.testing.files import FaultyFiles
from epochal.tools.verify import check_operators
from epochal.tools.verify.check_content import EMPTY_LZ4
from epochal.tools.verify.check_operators import check_in_processes, check_in_threads
from epochal.tools.verify.findings import Finding, finding
from epochal.tools.verify.verify import verify

ITEMS = list(range(23))


def odd(share: Sequence[int], reports_progress: bool) -> list[Finding]:
    del reports_progress
    return [finding("STATE_HOLE", str(n), f"{n} ≠ even") for n in share if n % 2]


def ordered(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: int(each.path))


@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_processes_find_what_one_finds(workers: int) -> None:
    assert ordered(check_in_processes(ITEMS, odd, workers)) == odd(ITEMS, False)


def test_threads_find_what_one_finds() -> None:
    assert ordered(check_in_threads(ITEMS, odd)) == odd(ITEMS, False)


def test_nothing_to_do_is_nothing_found() -> None:
    assert check_in_processes([], odd, 4) == []
    assert check_in_threads([], odd) == []


def test_the_share_of_a_process_that_died_is_done_again() -> None:
    here = os.getpid()

    def dies_elsewhere(share: Sequence[int], reports_progress: bool) -> list[Finding]:
        if os.getpid() != here:
            os._exit(7)
        return odd(share, reports_progress)

    assert ordered(check_in_processes(ITEMS, dies_elsewhere, 3)) == odd(ITEMS, False)


def test_only_one_share_reports_progress() -> None:
    reports_progress: list[bool] = []

    def note(share: Sequence[int], shown: bool) -> list[Finding]:
        del share
        reports_progress.append(shown)
        return []

    check_in_threads(ITEMS, note)
    assert sorted(reports_progress) == [False] * 15 + [True]


@pytest.mark.parametrize("remote", [False, True])
def test_verify_finds_the_same_however_many_work_on_it(
    remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalFiles(tmp_path, durable=False)
    QueryMetadata("53b62e34-0476-452d-8313-c1786e091891").write(local)
    conf = {"spark.sql.shuffle.partitions": "9"}
    OffsetLog(local.at("offsets")).add(0, OffsetEntry(1, (), conf=conf))
    CommitLog(local.at("commits")).add(0, CommitEntry())
    for partition in range(9):
        local.create(f"state/0/{partition}/1.delta", EMPTY_LZ4 if partition % 2 else b"?")
    files = FaultyFiles(local, lambda operation, path: None) if remote else local
    monkeypatch.setattr(check_operators, "PARALLEL_FROM_FILES", 1)
    alone, together = verify(files), verify(files, workers=3)
    assert alone.findings == together.findings
    broken = [each.path for each in alone.findings if each.code == "STATE_FILE_UNREADABLE"]
    assert broken == [f"state/0/{partition}/1.delta" for partition in range(0, 9, 2)]
