"""A store's promises: versions, visibility, commit, abort, iteration, and Arrow batches as rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.state.stores import (
    KEY,
    VALUE,
    content,
    content_at,
    files_in,
    provider,
    put,
    temp_files_in,
)

from epochal.errors import StateCommitError, StateLoadError, StateUsageError, StateValueError
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import HDFSBackedStateStoreProvider
from epochal.state.store.store import CACHE_HITS, CACHE_MISSES, FORCED_SNAPSHOTS, combine
from epochal.testing.files import FaultyFiles, MemoryFiles

pytestmark = pytest.mark.usefixtures("rows_in")

CODECS = [
    "lz4",
    "lzf",
    "snappy",
    "zstd",
    "org.apache.spark.io.LZ4CompressionCodec",
    "org.apache.spark.io.ZStdCompressionCodec",
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("row_checksums", [False, True], ids=["plain", "checksums"])
def test_versions_are_made_read_and_reloaded(
    tmp_path: Path, codec: str, row_checksums: bool
) -> None:
    def fresh() -> HDFSBackedStateStoreProvider:
        return provider(tmp_path, codec=codec, row_checksums=row_checksums)

    first = fresh()
    store = first.get_store(0)
    assert content(store) == {}
    assert store.get(("a", 0)) is None
    store.put(("a", 0), (1,))
    assert store.get(("a", 0)) == (1,)
    store.put({"key1": "b", "key2": 0}, {"value": 2})
    store.put(("aa", 0), (3,))
    store.remove(("a", 0))
    store.remove(("aa", 0))
    assert content(store) == {("b", 0): 2}
    with pytest.raises(StateLoadError, match="does not exist"):
        fresh().get_store(1)
    assert store.has_committed is False
    assert store.commit() == 1
    assert store.has_committed is True
    assert content_at(fresh(), 1) == {("b", 0): 2}

    reloaded = fresh()
    assert put(reloaded, 1, ("c", 0, 4)) == 2
    assert content_at(fresh(), 2) == {("b", 0): 2, ("c", 0): 4}
    assert content_at(fresh(), 1) == {("b", 0): 2}
    assert content_at(first, 1) == {("b", 0): 2}


def test_a_store_cannot_be_used_after_commit(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    store.put(("a", 0), (1,))
    store.commit()
    for use in (lambda: store.put(("b", 0), (1,)), lambda: store.remove(("a", 0)), store.commit):
        with pytest.raises(StateUsageError) as refused:
            use()
        assert refused.value.condition == "STATE_STORE_OPERATION_OUT_OF_ORDER"
    store.abort()
    assert store.has_committed is True


def test_leaving_a_store_without_commit_aborts_it(tmp_path: Path) -> None:
    states = provider(tmp_path)
    with states.get_store(0) as store:
        store.put(("a", 0), (1,))
    assert temp_files_in(tmp_path) == []
    with states.get_store(0) as store:
        store.put(("a", 0), (1,))
        store.commit()
    assert files_in(tmp_path) == {"1.delta"}


def test_versions_that_cannot_be_are_refused_by_condition(tmp_path: Path) -> None:
    for committed in range(3):
        states = provider(tmp_path)
        for ask in (states.get_store, states.get_read_store):
            with pytest.raises(StateLoadError) as refused:
                ask(-1)
            assert refused.value.condition == "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION"
            with pytest.raises(StateLoadError) as refused:
                ask(committed + 1)
            assert refused.value.condition == (
                "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS"
            )
            assert f"{committed + 1}.delta" in str(refused.value)
        put(states, committed, ("a", 0, committed))


def test_a_reader_let_go_after_the_writer_committed_loses_nothing(tmp_path: Path) -> None:
    states = provider(tmp_path)
    put(states, 0, ("a", 0, 1))
    for upgraded in (False, True):
        version = states.latest_version()
        reader = states.get_read_store(version)
        writer = states.upgrade_read_store(reader) if upgraded else states.get_store(version)
        found = writer.get(("a", 0))
        assert found is not None
        writer.put(("a", 0), (found[0] + 1,))
        assert writer.commit() == version + 1
        reader.abort()
        assert content(reader) == {("a", 0): version}
        assert content_at(states, version + 1) == {("a", 0): version + 1}
    assert content_at(provider(tmp_path), 3) == {("a", 0): 3}


def test_a_prefix_scan_finds_exactly_the_keys_with_that_prefix(tmp_path: Path) -> None:
    states = provider(tmp_path, prefix=1)
    put(states, 0, ("a", 1, 1), ("a", 2, 2), ("b", 1, 3))

    store = states.get_store(1)
    store.put(("a", 3), (4,))
    store.remove(("a", 1))
    assert dict(store.prefix_scan(("a",))) == {("a", 2): (2,), ("a", 3): (4,)}
    assert dict(store.prefix_scan({"key1": "non-exist"})) == {}
    store.abort()
    store = provider(tmp_path, prefix=1).get_store(1)
    assert dict(store.prefix_scan(("a",))) == {("a", 1): (1,), ("a", 2): (2,)}


def test_a_prefix_scan_needs_a_provider_made_for_it(tmp_path: Path) -> None:
    with pytest.raises(StateUsageError) as refused:
        provider(tmp_path).get_store(0).prefix_scan(("a",))
    assert refused.value.condition == "STATE_STORE_UNSUPPORTED_OPERATION"
    with pytest.raises(StateUsageError):
        provider(tmp_path, prefix=2)


def test_a_range_holds_both_its_ends(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    for key1, key2 in (("a", 1), ("b", 1), ("b", 5), ("c", 1)):
        store.put((key1, key2), (0,))
    store.put((None, None), (0,))
    assert {key for key, _ in store.get_range(("b",), ("b",))} == {("b", 1), ("b", 5)}
    assert {key for key, _ in store.get_range(("b", 2), ("c", 1))} == {("b", 5), ("c", 1)}
    assert {key for key, _ in store.get_range(end=("a",))} == {(None, None), ("a", 1)}
    assert len(list(store.get_range())) == 5
    store.abort()


def test_values_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    with pytest.raises(StateUsageError, match="null value"):
        store.put(("a", 0), None)  # type: ignore[arg-type]
    for key, value in (
        (("a", "zero"), (1,)),
        (("a", 0), (1 << 40,)),
        (("a",), (1,)),
        (({"key1": "a"}), (1,)),
        (("a", 0), {"value": 1, "other": 2}),
    ):
        with pytest.raises(StateValueError):
            store.put(key, value)
    assert content(store) == {}


def test_no_file_is_made_before_the_first_change_and_none_but_the_delta_stays(
    tmp_path: Path,
) -> None:
    where = tmp_path / "store"
    states = provider(where)
    store = states.get_store(0)
    assert not where.exists()
    store.put(("a", 0), (1,))
    assert len(temp_files_in(where)) == 1
    store.put(("b", 0), (1,))
    store.remove(("a", 0))
    assert len(temp_files_in(where)) == 1
    store.commit()
    assert temp_files_in(where) == []
    assert files_in(where) == {"1.delta"}
    removing = states.get_store(1)
    assert temp_files_in(where) == []
    removing.remove(("b", 0))
    assert len(temp_files_in(where)) == 1
    removing.abort()
    assert temp_files_in(where) == []


def test_a_commit_without_changes_still_writes_a_delta(tmp_path: Path) -> None:
    states = provider(tmp_path)
    put(states, 0, ("a", 0, 1))
    store = states.get_store(1)
    assert store.commit() == 2
    assert files_in(tmp_path) == {"1.delta", "2.delta"}
    assert content_at(provider(tmp_path), 2) == {("a", 0): 1}
    assert (tmp_path / "2.delta").read_bytes().hex() == (
        "4c5a34426c6f636b150400000004000000db804d08ffffffff"
        "4c5a34426c6f636b15000000000000000000000000"
    )


def test_a_commit_that_cannot_be_published_fails_and_names_the_store() -> None:
    def refuse(operation: str, path: str) -> None:
        if operation == "replace":
            raise OSError("rename failed")

    states = provider(FaultyFiles(MemoryFiles(), refuse), partition=7)
    store = states.get_store(0)
    store.put(("a", 0), (1,))
    with pytest.raises(StateCommitError) as refused:
        store.commit()
    assert refused.value.condition == "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT"
    assert "operatorId=0, partitionId=7" in str(refused.value)
    assert "rename failed" in str(refused.value)
    assert store.has_committed is False
    with pytest.raises(StateLoadError):
        states.get_store(1)


def test_a_failed_commit_leaves_no_temporary_file(tmp_path: Path) -> None:
    states = provider(tmp_path)
    store = states.get_store(0)
    store.put(("a", 0), (1,))
    (tmp_path / "1.delta").mkdir()
    with pytest.raises(StateCommitError):
        store.commit()
    assert temp_files_in(tmp_path) == []


def test_a_checksum_left_by_spark_does_not_outlive_the_file_it_is_of(tmp_path: Path) -> None:
    states = provider(tmp_path)
    put(states, 0, ("a", 0, 1))
    for name in ("1.delta.crc", ".1.delta.crc", ".1.delta.crc.crc"):
        (tmp_path / name).write_bytes(b"{}")
    put(states, 0, ("a", 0, 2))
    assert {path.name for path in tmp_path.iterdir()} == {"1.delta"}


def test_cache_hits_and_misses_are_counted(tmp_path: Path) -> None:
    def counts(states: HDFSBackedStateStoreProvider, version: int) -> tuple[int, int]:
        custom = states.get_store(version).metrics.custom
        return custom[CACHE_HITS], custom[CACHE_MISSES]

    states = provider(tmp_path)
    assert counts(states, 0) == (0, 0)
    put(states, 0, ("a", 0, 1))
    assert counts(states, 1) == (1, 0)
    put(states, 1, ("b", 0, 1))
    reloaded = provider(tmp_path)
    assert counts(reloaded, 1) == (0, 1)
    assert counts(reloaded, 2) == (0, 2)
    assert counts(reloaded, 1) == (1, 2)


@pytest.mark.parametrize("rows_in", ["memory"], indirect=True)
def test_memory_used_grows_with_the_data(tmp_path: Path) -> None:
    states = provider(tmp_path)
    store = states.get_store(0)
    empty = store.metrics.memory_used_bytes
    assert empty >= 0
    put(states, 0, ("a", 0, 1))
    one = states.get_store(1).metrics
    assert one.memory_used_bytes > empty
    put(states, 1, *(("k", n, n) for n in range(100)))
    many = states.get_store(2).metrics
    assert many.memory_used_bytes > one.memory_used_bytes
    assert (
        many.custom["stateOnCurrentVersionSizeBytes"] > one.custom["stateOnCurrentVersionSizeBytes"]
    )


def test_metrics_of_several_stores_add_up_by_name(tmp_path: Path) -> None:
    first, second = provider(tmp_path / "0"), provider(tmp_path / "1", partition=1)
    put(first, 0, ("a", 0, 1))
    put(second, 0, ("a", 0, 1), ("b", 0, 1))
    one, two = first.get_store(1).metrics, second.get_store(1).metrics
    both = combine([one, two])
    assert both.num_keys == 3
    assert both.memory_used_bytes == one.memory_used_bytes + two.memory_used_bytes
    assert both.custom[CACHE_HITS] == 2
    assert both.instance == {
        "SnapshotLastUploaded.partition_0_default": -1,
        "SnapshotLastUploaded.partition_1_default": -1,
    }


def test_a_forced_snapshot_is_written_with_the_commit(tmp_path: Path) -> None:
    states = provider(tmp_path)
    store = states.get_store(0, force_snapshot_on_commit=True)
    store.put(("a", 0), (1,))
    store.commit()
    assert files_in(tmp_path) == {"1.delta", "1.snapshot"}
    assert store.metrics.custom[FORCED_SNAPSHOTS] == 1
    assert store.metrics.instance == {"SnapshotLastUploaded.partition_0_default": 1}
    (tmp_path / "1.delta").unlink()
    assert content_at(provider(tmp_path), 1) == {("a", 0): 1}


def test_checkpoints_of_another_kind_are_refused(tmp_path: Path) -> None:
    store_id = StateStoreId(str(tmp_path), 0, 0)
    with pytest.raises(StateUsageError) as refused:
        HDFSBackedStateStoreProvider(
            store_id, KEY, VALUE, StateStoreConf(checkpoint_format_version=2)
        )
    assert refused.value.condition == "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED"
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with pytest.raises(StateUsageError) as refused:
        HDFSBackedStateStoreProvider(store_id, KEY, VALUE, StateStoreConf(provider_class=rocks))
    assert refused.value.condition == "STATE_STORE_INVALID_PROVIDER"


def test_a_provider_finds_its_files_by_its_id(tmp_path: Path) -> None:
    store_id = StateStoreId(str(tmp_path), 3, 2, "left")
    put(HDFSBackedStateStoreProvider(store_id, KEY, VALUE), 0, ("a", 0, 1))
    assert files_in(tmp_path / "3" / "2" / "left") == {"1.delta"}


def test_reading_makes_no_directory(tmp_path: Path) -> None:
    states = provider(tmp_path / "none")
    assert content_at(states, 0) == {}
    states.do_maintenance()
    with pytest.raises(StateLoadError):
        states.get_read_store(3)
    assert list(tmp_path.iterdir()) == []


def keys(*rows: tuple[str | None, int]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows])],
        names=["key1", "key2"],
    )


def values(*rows: int | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows, pa.int32())], names=["value"])


def test_a_batch_put_is_read_row_by_row_and_the_other_way_round(tmp_path: Path) -> None:
    states = provider(tmp_path)
    store = states.get_store(0)
    store.put_batch(keys(("a", 0), ("b", 1), ("ü" * 9, 2)), values(1, 2, 3))
    store.put(("c", 3), (4,))
    assert store.get(("ü" * 9, 2)) == (3,)
    found, there = store.get_batch(keys(("c", 3), ("zz", 0), ("a", 0)))
    assert found.to_pydict() == {"value": [4, None, 1]}
    assert there.to_pylist() == [True, False, True]
    store.commit()
    assert content_at(provider(tmp_path), 1) == {
        ("a", 0): 1,
        ("b", 1): 2,
        ("ü" * 9, 2): 3,
        ("c", 3): 4,
    }


def test_large_batches_equal_small_ones(tmp_path: Path) -> None:
    rows = [(f"key-{n % 700}", n) for n in range(2000)]
    store = provider(tmp_path / "batch").get_store(0)
    store.put_batch(keys(*rows), values(*range(2000)))
    store.remove_batch(keys(*rows[::3]))
    one_by_one = provider(tmp_path / "rows").get_store(0)
    for n, row in enumerate(rows):
        one_by_one.put(row, (n,))
    for row in rows[::3]:
        one_by_one.remove(row)
    assert dict(store.items_raw()) == dict(one_by_one.items_raw())
    store.commit()
    one_by_one.commit()
    assert (tmp_path / "batch" / "1.delta").read_bytes() == (
        tmp_path / "rows" / "1.delta"
    ).read_bytes()


def test_a_null_value_in_a_row_is_not_a_missing_row(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    store.put_batch(keys(("a", 0)), values(None))
    found, there = store.get_batch(keys(("a", 0), ("b", 0)))
    assert found.to_pydict() == {"value": [None, None]}
    assert there.to_pylist() == [True, False]
    store.abort()


def test_batches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    with pytest.raises(StateUsageError):
        store.put_batch(keys(("a", 0)), values(1, 2))
    with pytest.raises(StateValueError):
        store.put_batch(values(1), values(1))
    assert content(store) == {}
    store.abort()
    assert temp_files_in(tmp_path) == []
    with pytest.raises(StateUsageError):
        store.put_batch(keys(("a", 0)), values(1))


def test_a_prefix_scan_over_many_keys_finds_them_all(tmp_path: Path) -> None:
    states = provider(tmp_path, prefix=1)
    put(states, 0, *((f"p{n % 10}", n, n) for n in range(500)))
    store = provider(tmp_path, prefix=1).get_read_store(1)
    assert dict(store.prefix_scan(("p3",))) == {("p3", n): (n,) for n in range(3, 500, 10)}
