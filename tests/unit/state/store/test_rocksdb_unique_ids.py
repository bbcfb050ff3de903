"""Which files make a version of RocksDB's state, with the unique ids of checkpoint format 2 too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations

import pytest
from tests.unit.state.store.test_rocksdb_family_store import expect, write
from tests.unit.state.store.test_rocksdb_family_store import provider as family_provider
from tests.unit.state.store.test_rocksdb_provider import CONF, names, provider, tables
from tests.unit.state.stores import content

from epochal.errors import StateLoadError, StateUsageError
from epochal.files import Files
from epochal.state.files.chain import id_of_prepared
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import LineageItem, encode_changelog, parse_changelog
from epochal.state.store import rocksdb_files
from epochal.state.store.contract import FileSettings
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.rocksdb_directory import (
    RocksDirectory,
    RocksPlan,
    file_name,
    read_metadata,
)
from epochal.state.store.store_files import PreparedVersion
from epochal.testing.files import MemoryFiles

IDS = replace(CONF, checkpoint_format_version=2)


def prepare(states: StateStoreProvider, version: int, attempt: str = "a1") -> PreparedVersion:
    """Prepare a version in which the value of `a` is its number."""
    draft = states.get_store(version - 1).loaded_rows.draft()
    draft.put(states.codec.encode_key(("a", 0)), states.codec.encode_value((version,)))
    return states.prepare(version, draft, attempt)


def publish_to(states: StateStoreProvider, first: int, last: int) -> Iterator[LineageItem]:
    for version in range(first, last + 1):
        prepared = prepare(states, version)
        states.publish(prepared)
        yield LineageItem(version, id_of_prepared(prepared.name))


def lineage(files: Files, item: LineageItem) -> tuple[LineageItem, ...]:
    name = f"{item.version}_{item.unique_id}.changelog"
    return parse_changelog(decompress(files.read(name), "lz4"), name).lineage


def value_at(files: Files, item: LineageItem) -> int:
    store = provider(files, IDS).get_store(item.version, unique_id=item.unique_id)
    return content(store)["a", 0]


def test_the_same_attempt_gives_a_version_the_same_id_and_another_attempt_another() -> None:
    prepared = [
        prepare(provider(MemoryFiles(), IDS), 1, label).name for label in ("a1", "a1", "a2")
    ]
    assert prepared[0] == prepared[1]
    first, other = map(id_of_prepared, prepared[1:])
    assert first != other
    assert prepared[0] == f"1_{first}.changelog.prepared-a1"


def test_a_version_is_not_found_by_its_number_alone() -> None:
    files = MemoryFiles()
    [item] = publish_to(provider(files, IDS), 1, 1)
    with pytest.raises(StateLoadError, match="cannot be found by its number alone"):
        provider(files, IDS).get_store(1)
    with pytest.raises(StateLoadError, match=re.escape("1_other.changelog")):
        provider(files, IDS).get_store(1, unique_id="other")
    assert value_at(files, item) == 1


def test_a_version_of_another_history_is_neither_read_nor_continued() -> None:
    files = MemoryFiles()
    base, dead = publish_to(provider(files, IDS), 1, 2)
    states = provider(files, IDS)
    states.get_store(1, unique_id=base.unique_id)
    live = prepare(states, 2, "a2")
    states.publish(live)
    third = prepare(states, 3, "a2")
    states.publish(third)
    item = LineageItem(3, id_of_prepared(third.name))
    assert lineage(files, item) == (base, LineageItem(2, id_of_prepared(live.name)))
    assert dead not in lineage(files, item)
    assert value_at(files, item) == 3


def test_a_prepared_version_is_found_by_name_before_and_after_it_is_published() -> None:
    files = MemoryFiles()
    states = provider(files, IDS)
    list(publish_to(states, 1, 2))
    prepared = prepare(states, 3)
    for _ in range(2):
        again = provider(files, IDS)
        assert content(again.get_store(3, from_prepared=prepared)) == {("a", 0): 3}
        following = prepare_on(again, prepared)
        assert [item.version for item in following] == [1, 2, 3]
        again.publish(prepared)


def prepare_on(states: StateStoreProvider, prepared: PreparedVersion) -> tuple[LineageItem, ...]:
    """Prepare the version after a prepared one; what its changelog lists."""
    draft = states.get_store(prepared.version, from_prepared=prepared).loaded_rows.draft()
    name = states.prepare(prepared.version + 1, draft, "a9").name
    raw = decompress(states._files.files.read(name), "lz4")
    return parse_changelog(raw, name).lineage


def test_after_a_snapshot_the_list_begins_with_it() -> None:
    files = MemoryFiles()
    states = provider(files, IDS)
    items = list(publish_to(states, 1, 3))
    states.do_maintenance()
    snapshot = f"3_{items[2].unique_id}.zip"
    assert snapshot in names(files)
    items += publish_to(states, 4, 5)
    assert lineage(files, items[4]) == tuple(items[2:4])
    for item in items[:3]:
        files.delete(f"{item.version}_{item.unique_id}.changelog")
    assert value_at(files, items[4]) == 5


def test_maintenance_deletes_old_versions_of_all_histories_and_keeps_what_is_live() -> None:
    files = MemoryFiles()
    states = provider(files, IDS)
    for version in (2, 10):
        files.replace(f"{version}_dead.changelog", b"")
    items: list[LineageItem] = []
    for first in range(1, 13, 3):
        items += publish_to(states, first, first + 2)
        states.do_maintenance()
    kept = {f"{item.version}_{item.unique_id}.changelog" for item in items[8:]}
    zips = {f"{item.version}_{item.unique_id}.zip" for item in (items[8], items[11])}
    assert names(files) == kept | zips | {"10_dead.changelog"}
    named = [read_metadata(files, item).files for item in (items[8], items[11])]
    assert tables(files) == {each.path.removeprefix("SSTs/") for each in (*named[0], *named[1])}
    assert [value_at(files, item) for item in items[9:]] == [10, 11, 12]


def test_maintenance_deletes_nothing_while_it_does_not_know_the_whole_history() -> None:
    files = MemoryFiles()
    items = list(publish_to(provider(files, replace(IDS, min_deltas_for_snapshot=100)), 1, 9))
    again = provider(files, IDS)
    again.get_store(9, unique_id=items[8].unique_id)
    list(publish_to(again, 10, 10))
    again.do_cleanup()
    assert len(names(files)) == 10


def test_a_list_that_would_become_too_long_makes_the_version_a_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rocksdb_files, "MAX_LINEAGE", 2)
    files = MemoryFiles()
    states = provider(files, IDS)
    items = list(publish_to(states, 1, 5))
    assert {name.partition(".")[2] for name in names(files) if name.startswith("4_")} == {"zip"}
    assert lineage(files, items[4]) == (items[3],)
    assert [value_at(files, item) for item in items] == [1, 2, 3, 4, 5]
    prepared = PreparedVersion(4, f"4_{items[3].unique_id}.zip.prepared-a1", 0)
    with pytest.raises(StateLoadError):
        provider(files, IDS).get_store(4, from_prepared=prepared)  # its checksum is another


def test_a_commit_without_a_name_is_refused() -> None:
    store = provider(MemoryFiles(), IDS).get_store(0)
    store.put(("a", 0), (1,))
    with pytest.raises(Exception, match="written by `prepare` and `publish`") as refused:
        store.commit()
    assert isinstance(refused.value.__cause__, StateUsageError)


def test_families_have_ids_too() -> None:
    files = MemoryFiles()
    states = family_provider(files, IDS)
    ids = []
    for version in range(4):
        prepared = write(states, version)
        states.publish(prepared)
        ids.append(id_of_prepared(prepared.name))
        expect(states, version + 1)
    changelogs = {f"{n}_{ids[n - 1]}.changelog" for n in (2, 3, 4)}
    assert names(files) == {f"1_{ids[0]}.zip", *changelogs}
    name = f"4_{ids[3]}.changelog"
    parsed = parse_changelog(decompress(files.read(name), "lz4"), name)
    assert (parsed.layout, [item.version for item in parsed.lineage]) == (4, [1, 2, 3])
    again = family_provider(files, IDS)
    again.get_store(4, unique_id=ids[3])
    expect(again, 4)
    again.publish(write(again, 4, "a2"))
    expect(again, 5)


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
    for chosen in chain.from_iterable(combinations(ALL_FILES, size) for size in sizes):
        below = version
        needed: list[str] = []
        while below > 0 and f"{below}.zip" not in chosen:
            needed.insert(0, f"{below}.changelog")
            below -= 1
        missing = [name for name in needed if name not in chosen]
        rocks = directory(*chosen)
        if missing:
            with pytest.raises(StateLoadError, match=f"/{missing[0]}"):
                rocks.plan(version)
        else:
            snapshot = LineageItem(below, "") if below else None
            changelogs = tuple(LineageItem(each, "") for each in range(below + 1, version + 1))
            assert rocks.plan(version) == RocksPlan(snapshot, changelogs), chosen


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
