from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.state.stores import KEY, VALUE, content, content_at, put, update_to

from epochal.checkpoint.restart import HDFS_PROVIDER_CLASS, ROCKSDB_PROVIDER_CLASS
from epochal.errors import OptionError, StateFormatError, StateLoadError, StateUsageError
from epochal.files import Files
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import LineageItem, Operation, parse_changelog
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import open_provider
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.rocksdb_directory import read_metadata
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles, crash_after

CONF = StateStoreConf(
    provider_class=ROCKSDB_PROVIDER_CLASS, min_deltas_for_snapshot=2, min_versions_to_retain=2
)


def provider(files: Files, conf: StateStoreConf = CONF, prefix: int = 0) -> StateStoreProvider:
    store = StateStoreId("checkpoint/state", 0, 0)
    return open_provider(store, KEY, VALUE, conf, files=files, num_cols_prefix_key=prefix)


def names(files: Files) -> set[str]:
    return {info.name for info in files.list() if not info.is_dir}


def tables(files: Files) -> set[str]:
    return {info.name for info in files.list("SSTs")}


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("checksums", [False, True])
def test_what_was_committed_loads_from_changelogs_and_from_a_snapshot(
    prefix: int, checksums: bool
) -> None:
    files, conf = MemoryFiles(), replace(CONF, row_checksum_enabled=checksums)
    writer = provider(files, conf, prefix)
    many = [(f"k{n}", n, n * n) for n in range(100)]
    assert put(writer, 0, *many, ("gone", 1, 1)) == 1
    store = writer.get_store(1)
    store.remove(("gone", 1))
    store.put(("k3", 3), (-7,))
    assert store.commit() == 2
    expected = {(a, b): c for a, b, c in many} | {("k3", 3): -7}
    assert names(files) == {"1.changelog", "2.changelog"}
    assert content_at(provider(files, conf, prefix), 2) == expected
    put(writer, 2, ("a", 0, 1))
    writer.do_maintenance()
    assert names(files) == {"1.changelog", "2.changelog", "3.changelog", "3.zip"}
    for version in (1, 2, 3):
        files.delete(f"{version}.changelog")
    assert content_at(provider(files, conf, prefix), 3) == {**expected, ("a", 0): 1}


def test_a_changelog_holds_keys_and_values_as_spark_encodes_them() -> None:
    for prefix in (0, 1):
        files = MemoryFiles()
        store = provider(files, prefix=prefix).get_store(0)
        store.put(("a", 5), (9,))
        store.commit()
        raw = decompress(files.read("1.changelog"), "lz4")
        assert raw[:2] != b"\0\2"  # the oldest layout has no version string
        [record] = parse_changelog(raw, "1.changelog").records
        plain = bytes(8) + (24 << 32 | 1).to_bytes(8, "little") + (5).to_bytes(8, "little")
        letter = b"a" + bytes(7)
        first = bytes(8) + (16 << 32 | 1).to_bytes(8, "little") + letter
        expected = {
            0: b"\0" + plain + letter,
            1: (len(first) + 1).to_bytes(4, "little")
            + (b"\0" + first + b"\0" + bytes(8) + (5).to_bytes(8, "little")),
        }
        assert (record.change, record.key) == (Operation.PUT, expected[prefix])
        assert record.value == b"\0" + bytes(8) + (9).to_bytes(8, "little")


def test_old_versions_and_their_tables_are_deleted() -> None:
    files = MemoryFiles()
    writer = provider(files)
    version = 0
    for _ in range(4):
        version = update_to(writer, version, version + 3)
        writer.do_maintenance()
    writer.do_maintenance()  # a snapshot hides the changelog of its version for one round
    kept = {9, 10, 11, 12}
    assert names(files) == {f"{each}.changelog" for each in kept} | {"9.zip", "12.zip"}
    named = [read_metadata(files, LineageItem(each, "")).files for each in (9, 12)]
    assert tables(files) == {each.path.removeprefix("SSTs/") for each in (*named[0], *named[1])}
    assert content_at(provider(files), 10) == {("a", 0): 10}


def test_a_table_that_a_kept_snapshot_shares_stays() -> None:
    files = MemoryFiles()
    writer = provider(files)
    update_to(writer, 0, 3)
    writer.do_maintenance()
    files.replace("2.zip", files.read("3.zip"))  # as if Spark's snapshots shared their tables
    update_to(writer, 3, 6)
    writer.do_maintenance()
    assert "2.zip" not in names(files)
    assert {"3.zip", "6.zip"} <= names(files)
    assert content_at(provider(files), 4) == {("a", 0): 4}


def prepare(states: StateStoreProvider) -> Any:
    store = states.get_store(1)
    store.put(("b", 0), (5,))
    return store.commit_prepared("a1")


def test_a_prepared_version_is_a_changelog_under_the_name_of_its_attempt() -> None:
    files = MemoryFiles()
    states = provider(files)
    update_to(states, 0, 1)
    prepared = prepare(states)
    assert prepared.name == "2.changelog.prepared-a1"
    with pytest.raises(StateLoadError):
        provider(files).get_store(2)
    again = provider(files).get_store(2, from_prepared=prepared)
    assert content(again) == {("a", 0): 1, ("b", 0): 5}


@pytest.mark.parametrize("changes", range(7))
def test_a_crash_anywhere_between_prepare_and_publish_leaves_a_state_that_loads(
    changes: int,
) -> None:
    files = MemoryFiles()
    update_to(provider(files), 0, 1)
    # An undecided batch of Spark left a snapshot of the version that is published.
    stale = provider(files, replace(CONF, min_deltas_for_snapshot=0))
    put(stale, 1, ("stale", 0, 1))
    stale.do_snapshot()
    files.delete("2.changelog")
    files.delete("1.zip")
    states = provider(FaultyFiles(files, crash_after(changes)))
    prepared = None
    try:
        prepared = prepare(states)
        states.publish(prepared)
        crashed = False
    except Crash:
        crashed = True
    assert crashed == (changes < 6)
    assert content_at(provider(files), 1) == {("a", 0): 1}
    if prepared is not None:
        provider(files).publish(prepared)
        assert content_at(provider(files), 2) == {("a", 0): 1, ("b", 0): 5}
        assert "2.zip" not in names(files)


def test_records_that_only_lists_have_are_refused() -> None:
    files = MemoryFiles()
    states = provider(files, replace(CONF, compression_codec="zstd"))
    update_to(states, 0, 1)
    merge = b"\0\2v2" + b"\x11" + b"\0\0\0\1k" + b"\0\0\0\1v" + b"\0"
    files.replace("1.changelog", compress(merge, "zstd"))
    with pytest.raises(StateFormatError, match="MERGE records, which only lists need"):
        provider(files, replace(CONF, compression_codec="zstd")).get_store(1)


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        (replace(CONF, checkpoint_format_version=3), "checkpointFormatVersion is 3"),
        (replace(CONF, encoding_format="avro"), "encoded as avro"),
        (replace(CONF, provider_class="com.vendor.Provider"), HDFS_PROVIDER_CLASS),
    ],
)
def test_settings_that_we_cannot_write_are_refused(conf: StateStoreConf, reason: str) -> None:
    files = MemoryFiles()
    with pytest.raises(StateUsageError, match=reason):
        provider(files, conf)
    assert files.list() == []


def test_without_rocksdict_the_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(OptionError, match=r"pip install 'epochal\[rocksdb\]'"):
        provider(MemoryFiles())
