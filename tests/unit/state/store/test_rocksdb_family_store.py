from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.state.store.test_rocksdb_provider import CONF, names

from epochal.errors import StateUsageError
from epochal.files import Files
from epochal.state.files.codecs import decompress
from epochal.state.files.rocksdb_changelog import LineageItem, parse_changelog
from epochal.state.files.rocksdb_family import EMPTY_ROW, Family, FamilyRows, Index, Row, RowOrList
from epochal.state.files.schema_file import FamilySchema, KeyEncoder
from epochal.state.rows.types import AtomicType, StructField, StructType
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import RocksDBFamilyProvider
from epochal.state.store.rocksdb_directory import read_metadata
from epochal.state.store.store_files import PreparedVersion
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles, crash_after

LONG = AtomicType("long")
KEY = StructType((StructField("k", LONG),))
PAIR = StructType((StructField("key", KEY), StructField("at", LONG)))
REVERSED = StructType((StructField("at", LONG), StructField("key", KEY)))
VALUE = StructType((StructField("v", LONG),))
NOTHING = StructType((StructField("empty", AtomicType("void")),))


def reverse(key: Row, value: RowOrList) -> tuple[Row, Row]:
    return (key[1], key[0]), EMPTY_ROW


def count(key: Row, value: RowOrList) -> tuple[Row, Row]:
    return key, (len(value),)


VALUES = Family(FamilyRows(FamilySchema("values", KEY, VALUE)))
LISTS = Family(
    FamilyRows(FamilySchema("lists", KEY, VALUE), is_list=True),
    (Index(FamilyRows(FamilySchema("$counts", KEY, VALUE)), count),),
)
TIMERS = Family(
    FamilyRows(FamilySchema("$timers", PAIR, NOTHING, encoder=KeyEncoder("prefix", 1))),
    (
        Index(
            FamilyRows(
                FamilySchema(
                    "$byTime", REVERSED, NOTHING, encoder=KeyEncoder("range", ordering=(0,))
                )
            ),
            reverse,
        ),
    ),
)
ALL = (VALUES, LISTS, TIMERS)


def provider(
    files: Files, conf: StateStoreConf = CONF, families: tuple[Family, ...] = ALL
) -> RocksDBFamilyProvider:
    return RocksDBFamilyProvider(
        StateStoreId("checkpoint/state", 0, 0), families, conf, files=files
    )


def rows(states: RocksDBFamilyProvider, version: int, family: str) -> dict[Row, RowOrList]:
    return dict(states.rows_of(family, states.get_store(version).loaded_rows))


def write(states: RocksDBFamilyProvider, version: int, attempt: str = "a1") -> PreparedVersion:
    """Prepare the version after `version`; it has that number in every family."""
    draft = states.get_store(version).loaded_rows.draft()
    states.apply(draft, "values", [((1,), (version,))], [])
    states.apply(draft, "lists", [((1,), [(n,) for n in range(version)])], [])
    timer = ((1,), -version)
    states.apply(draft, "$timers", [(timer, EMPTY_ROW)], [((1,), 1 - version)])
    return states.prepare(version + 1, draft, attempt)


def expect(states: RocksDBFamilyProvider, version: int) -> None:
    last = version - 1
    assert rows(states, version, "values") == {(1,): (last,)}
    assert rows(states, version, "lists") == {(1,): [(n,) for n in range(last)]}
    assert rows(states, version, "$timers") == {((1,), -last): EMPTY_ROW}


def index_keys(states: RocksDBFamilyProvider, version: int) -> set[bytes]:
    prefix = states._files.numbers.by_name["$byTime"].to_bytes(2, "little")
    found = states.get_store(version).items_raw()
    return {key[2:] for key, _ in found if key[:2] == prefix}


@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("merges", [1, 2])
def test_the_first_version_is_a_snapshot_and_the_next_ones_are_changelogs(
    checksums: bool, merges: int
) -> None:
    conf = replace(CONF, row_checksum_enabled=checksums, merge_operator_version=merges)
    files = MemoryFiles()
    states = provider(files, conf)
    for version in range(4):
        states.publish(write(states, version))
        expect(states, version + 1)
    assert names(files) == {"1.zip", "2.changelog", "3.changelog", "4.changelog"}
    expect(provider(files, conf), 4)
    metadata = read_metadata(files, LineageItem(1, ""))
    assert metadata.families == {
        "default": 1, "values": 2, "lists": 3, "$counts": 4, "$timers": 5, "$byTime": 6,
    }  # fmt: skip
    assert (metadata.keys, metadata.internal_keys, metadata.highest_family) == (2, 3, 6)
    assert parse_changelog(decompress(files.read("2.changelog"), "lz4"), "2").layout == 2
    states.do_maintenance()
    assert "4.zip" in names(files)
    for version in (2, 3, 4):
        files.delete(f"{version}.changelog")
    expect(provider(files, conf), 4)


def test_an_index_follows_its_rows() -> None:
    files = MemoryFiles()
    states = provider(files)
    states.publish(write(states, 0))
    states.publish(write(states, 1))
    [key] = index_keys(states, 2)
    assert b"\0" + (-1).to_bytes(8, "big", signed=True) in key  # negative, then the time


def test_a_new_family_makes_a_snapshot_and_keeps_the_numbers_of_others() -> None:
    files = MemoryFiles()
    old = provider(files, families=(VALUES, TIMERS))
    draft = old.get_store(0).loaded_rows.draft()
    old.apply(draft, "values", [((1,), (7,))], [])
    old.publish(old.prepare(1, draft, "a1"))
    states = provider(files)
    prepared = write(states, 1, "a2")
    assert prepared.name == "2.zip.prepared-a2"
    states.publish(prepared)
    expect(provider(files), 2)
    first, second = (read_metadata(files, LineageItem(n, "")).families for n in (1, 2))
    assert second == {**first, "lists": 5, "$counts": 6}


def test_families_that_the_query_does_not_know_stay() -> None:
    files = MemoryFiles()
    states = provider(files)
    states.publish(write(states, 0))
    fewer = provider(files, families=(VALUES,))
    draft = fewer.get_store(1).loaded_rows.draft()
    fewer.apply(draft, "values", [], [(1,)])
    fewer.publish(fewer.prepare(2, draft, "a1"))
    assert names(files) == {"1.zip", "2.changelog"}
    assert rows(provider(files), 2, "values") == {}
    assert rows(provider(files), 2, "lists") == {(1,): []}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("changes", range(8))
def test_a_crash_between_prepare_and_publish_leaves_a_state_that_loads(
    version: int, changes: int
) -> None:
    files = MemoryFiles()
    for number in range(version):
        states = provider(files)
        states.publish(write(states, number))
    before = names(files)
    prepared = None
    faulty = FaultyFiles(files, crash_after(changes))
    try:
        prepared = write(provider(faulty), version)
        provider(faulty).publish(prepared)
    except Crash:
        pass
    if version:
        expect(provider(files), version)
    if prepared is None:
        assert names(files) - {f"{version + 1}.zip.prepared-a1"} == before
        return
    opened = provider(files).get_store(version + 1, from_prepared=prepared)
    assert len(opened) == 5
    provider(files).publish(prepared)
    expect(provider(files), version + 1)
    assert not [name for name in names(files) if "prepared" in name]


def test_a_store_with_families_cannot_be_committed_without_a_decision() -> None:
    store = provider(MemoryFiles()).get_store(0)
    with pytest.raises(StateUsageError, match="written by `prepare` and `publish`"):
        store._provider.commit(1, store._draft, None, force_snapshot=False)  # type: ignore[arg-type]
