"""Every code of `verify` is found where, and only where, its fault was planted."""

import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.golden.library import Golden, unpack
from tests.golden.planted import FAULTS, Fault
from tests.unit.checkpoint.trees import digest_of

from epochal.files.local import LocalFiles
from epochal.tools.verify.findings import RULES, Depth
from epochal.tools.verify.verify import verify


class Originals:
    """Golden checkpoints, each unpacked once; tests get copies."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._done: dict[tuple[Golden, bool], Path] = {}

    def copy(self, golden: Golden, relocate: bool, into: Path) -> Path:
        key = (golden, relocate)
        if key not in self._done:
            place = self._base / str(len(self._done))
            unpack(golden, place, relocate=relocate)
            self._done[key] = place
        shutil.copytree(self._done[key], into / "copy")
        return into / "copy" / "checkpoint"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    return Originals(tmp_path_factory.mktemp("originals"))


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_finds_exactly_the_planted_fault(
    fault: Fault, originals: Originals, tmp_path: Path
) -> None:
    golden = Golden(fault.release, fault.case)
    checkpoint = originals.copy(golden, fault.relocate, tmp_path)
    fault.plant(checkpoint)
    before = digest_of(tmp_path)
    report = verify(
        LocalFiles(checkpoint),
        depth=Depth.DEEP,
        sink=LocalFiles(checkpoint.parent / "output") if fault.with_sink else None,
    )
    assert [each.code for each in report.findings] == [fault.code], report.findings
    [found] = report.findings
    assert fnmatch(found.path, fault.path), found
    assert found.severity == (fault.severity or RULES[fault.code].severity)
    assert report.healthy == (found.severity == "info")
    assert digest_of(tmp_path) == before


def test_a_schema_that_the_metadata_names_is_missed(tmp_path: Path) -> None:
    place = unpack(Golden("4.3.0", "transform"), tmp_path, relocate=True)
    shutil.rmtree(place.checkpoint / "state/0/_stateSchema/default")
    [found] = verify(LocalFiles(place.checkpoint)).findings
    assert (found.code, found.severity) == ("STATE_SCHEMA_MISSING", "error")
    assert found.path.startswith("state/0/_stateSchema/default/0_")


@pytest.mark.parametrize("case", ["rocksdb_zip", "rocksdb_changelog"])
def test_the_files_of_one_rocksdb_partition_over_another_are_found_deep(
    case: str, tmp_path: Path
) -> None:
    place = unpack(Golden("4.3.0", case), tmp_path, relocate=True)
    assert verify(LocalFiles(place.checkpoint), depth=Depth.DEEP).findings == ()
    first, second = (place.checkpoint / f"state/0/{partition}" for partition in (0, 1))
    shutil.rmtree(second)
    shutil.copytree(first, second)
    assert verify(LocalFiles(place.checkpoint)).findings == ()
    found = verify(LocalFiles(place.checkpoint), depth=Depth.DEEP).findings
    assert {each.code for each in found} == {"STATE_KEY_WRONG_PARTITION"}
    newest = {each.path: each.message for each in found}[
        f"state/0/1/{'11.zip' if case == 'rocksdb_zip' else '9.zip'}"
    ]
    assert newest.startswith("partition 1 of 2 has ")


def test_without_rocksdb_a_deep_check_says_what_it_did_not_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = unpack(Golden("4.3.0", "rocksdb_zip"), tmp_path, relocate=True)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert verify(LocalFiles(place.checkpoint)).healthy
    report = verify(LocalFiles(place.checkpoint), depth=Depth.DEEP)
    [found] = report.findings
    assert (report.healthy, found.code, found.path) == (False, "ROCKSDB_UNCHECKED", "state/0")
    assert "Run `pip install 'epochal[rocksdb]'`" in found.message


def test_every_code_has_a_fault_that_shows_it() -> None:
    """But for the one that is about the name of the directory: tests/unit has that."""
    assert {fault.code for fault in FAULTS} == set(RULES) - {"PATH_ESCAPED"}
