"""Which files make a version of a RocksDB-backed store."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from epochal.errors import StateLoadError
from epochal.state.files.codecs import compress
from epochal.state.files.rocksdb_changelog import LineageItem, encode_changelog
from epochal.state.store.contract import FileSettings
from epochal.state.store.rocksdb_directory import RocksDirectory, RocksPlan, file_name
from epochal.testing.files import MemoryFiles

ALL_FILES = [f"{version}.{kind}" for version in range(1, 5) for kind in ("changelog", "zip")]


def directory(*names: str, lineage: tuple[LineageItem, ...] = ()) -> RocksDirectory:
    files = MemoryFiles()
    for name in names:
        files.create(name, compress(encode_changelog((), lineage), "lz4"))
    return RocksDirectory(files, FileSettings("lz4"))


def item(version: int) -> LineageItem:
    return LineageItem(version, f"id{version}")


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_of_every_directory_a_version_is_its_newest_zip_and_every_changelog_after_it(
    version: int,
) -> None:
    sizes = range(len(ALL_FILES) + 1)
    for names in chain.from_iterable(combinations(ALL_FILES, size) for size in sizes):
        below = version
        needed: list[str] = []
        while below > 0 and f"{below}.zip" not in names:
            needed.insert(0, f"{below}.changelog")
            below -= 1
        missing = [name for name in needed if name not in names]
        rocks = directory(*names)
        if missing:
            with pytest.raises(StateLoadError, match=f"/{missing[0]}"):
                rocks.plan(version)
        else:
            snapshot = LineageItem(below, "") if below else None
            changelogs = tuple(LineageItem(each, "") for each in range(below + 1, version + 1))
            assert rocks.plan(version) == RocksPlan(snapshot, changelogs), names


def test_version_0_has_no_files() -> None:
    assert directory().plan(0) == RocksPlan(None, ())


def test_files_with_ids_are_no_part_of_a_history_without_ids() -> None:
    rocks = directory("1.changelog", "2.changelog", "2_id2.zip")
    assert rocks.plan(2) == RocksPlan(None, (LineageItem(1, ""), LineageItem(2, "")))


def test_only_files_of_the_lineage_count() -> None:
    names = [file_name(item(each), "changelog") for each in (1, 2, 3)]
    rocks = directory(*names, "2_other.zip", lineage=(item(1), item(2)))
    assert rocks.plan(3, "id3") == RocksPlan(None, (item(1), item(2), item(3)))


def test_a_snapshot_of_the_version_needs_no_lineage() -> None:
    assert directory("3_id3.zip").plan(3, "id3") == RocksPlan(item(3), ())


def test_a_changelog_that_the_lineage_names_must_be_there() -> None:
    rocks = directory("1_id1.changelog", "3_id3.changelog", lineage=(item(1), item(2)))
    with pytest.raises(StateLoadError, match=r"2_id2\.changelog"):
        rocks.plan(3, "id3")


@pytest.mark.parametrize("lineage", [(item(2),), (item(1), item(2), item(2)), (item(3), item(1))])
def test_a_lineage_with_a_gap_or_a_version_twice_is_refused(
    lineage: tuple[LineageItem, ...],
) -> None:
    names = [file_name(item(each), "changelog") for each in (1, 2, 3)]
    with pytest.raises(StateLoadError, match="INVALID_CHECKPOINT_LINEAGE"):
        directory(*names, lineage=lineage).plan(3, "id3")
