"""Every archive is whole, and holds what its facts promise."""

from pathlib import Path

import pytest
from tests.golden.catalogue import CASES
from tests.golden.library import Golden, cases, facts, unpack
from tests.golden.shape import InputFile
from tests.spark.releases import RELEASES

ARCHIVES = cases()

UNREAD = {Golden("4.0.5", case) for case in ("rocksdb_v2", "rocksdb_v2_zip", "transform_ids")}
"""Archives with 4.0's own errors in place of state: it cannot read the checkpoints it wrote."""


def test_the_archives_are_those_of_every_case_a_release_can_run() -> None:
    expected = {
        Golden(release, name)
        for release in RELEASES
        for name, case in CASES.items()
        if case.runs_on(release)
    }
    assert set(ARCHIVES) == expected


@pytest.mark.parametrize("golden", ARCHIVES, ids=str)
def test_an_archive_holds_the_logs_and_the_input_its_facts_speak_of(
    golden: Golden, tmp_path: Path
) -> None:
    unpacked = unpack(golden, tmp_path)
    said, case = unpacked.facts, CASES[golden.case]
    assert (said["release"], said["case"]) == (golden.release, golden.case)
    assert said["query_id"] in (unpacked.checkpoint / "metadata").read_text()
    assert _batches(unpacked.checkpoint / "offsets") == said["offsets"]
    assert _batches(unpacked.checkpoint / "commits") == said["commits"]
    seen = [file for file in case.files if file.step < case.last_step]
    rest = [file for file in case.files if file.step == case.last_step]
    assert _modified(unpacked.input) == _expected(seen)
    assert _modified(unpacked.rest) == _expected(rest)


@pytest.mark.parametrize("golden", sorted(set(ARCHIVES) - UNREAD), ids=str)
def test_spark_could_read_every_state_it_promises(golden: Golden) -> None:
    said, case = facts(golden), CASES[golden.case]
    asked = [(dict(read.options), batch) for read in case.reads for batch in said["commits"]]
    assert [(each["options"], each["batch_id"]) for each in said["state"]] == asked
    for read in case.reads:
        readable = [
            each["batch_id"]
            for each in said["state"]
            if each["options"] == read.options and "rows" in each
        ]
        assert readable == said["commits"][-len(readable) :], "a batch in the middle is unreadable"
        assert readable, f"nothing readable with {read.options}"


def _batches(log: Path) -> list[int]:
    return sorted(int(path.name) for path in log.iterdir() if path.name.isdigit())


def _modified(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): int(path.stat().st_mtime)
        for path in directory.rglob("*.json")
    }


def _expected(files: list[InputFile]) -> dict[str, int]:
    return {each.name: each.modified for each in files}
