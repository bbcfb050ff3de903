"""Names, settings and formats of state stores, as Spark spells and writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.errors import OptionError
from epochal.files.local import LocalFiles
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_entries import ValueWrapper
from epochal.state.rows.byte_spans import spans_of
from epochal.state.store.conf import StateStoreConf, StateStoreId, StateStoreProviderId
from epochal.state.store.contract import FileSettings, Selection, StoredVersion
from epochal.state.store.store_format import (
    FORMATS,
    HDFS,
    ROCKSDB,
    StoreFormat,
    format_of_class,
    format_of_files,
)

ROWS = {b"first...": b"one.....", b"first..2": b"two.....", b"second..": b"three..."}
SETTINGS = FileSettings("lz4", ValueWrapper(checksummed=True))


def test_the_endings_of_files_tell_the_format_and_a_database_replaces_rows() -> None:
    endings: tuple[list[str], ...] = (["delta"], ["snapshot"], ["changelog"], ["delta", "zip"], [])
    assert [format_of_files(each) for each in endings] == [HDFS, HDFS, ROCKSDB, ROCKSDB, HDFS]


def test_the_class_of_another_vendor_has_no_format() -> None:
    classes = (*(each.provider_class for each in FORMATS), "com.vendor.Provider")
    assert [format_of_class(each) for each in classes] == [HDFS, ROCKSDB, None]


@pytest.mark.parametrize("store_format", FORMATS, ids=str)
def test_a_new_store_has_the_rows_that_it_was_given(
    tmp_path: Path, store_format: StoreFormat
) -> None:
    files, versions = LocalFiles(tmp_path, durable=False), store_format.versions
    rows = Rows(spans_of(list(ROWS)), spans_of(list(ROWS.values())), "test")
    for name, data in versions.first_files([rows], 3, SETTINGS).items():
        files.replace(name, data)
    stored = StoredVersion(files, 3, "", SETTINGS)
    names = versions.file_names(stored, [info.name for info in files.list()])
    found = {
        key: value
        for part in versions.read_rows(stored, Selection())
        for key, value in zip(
            versions.unwrap(part.keys, part.source),
            versions.unwrap(part.values, part.source),
            strict=True,
        )
    }
    assert (found, len(versions.read_content(stored))) == (ROWS, len(ROWS))
    assert names == sorted(info.name for info in files.list())


def test_a_read_of_plain_rows_can_be_limited_to_a_beginning_of_keys(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path, durable=False)
    rows = Rows(spans_of(list(ROWS)), spans_of(list(ROWS.values())), "test")
    for name, data in HDFS.versions.first_files([rows], 1, SETTINGS).items():
        files.replace(name, data)
    stored = StoredVersion(files, 1, "", SETTINGS)
    (part,) = HDFS.versions.read_rows(stored, Selection(prefix=b"first"))
    assert list(part.keys) == [b"first...", b"first..2"]


def test_ids_are_written_as_spark_writes_them() -> None:
    store = StateStoreId("/c/state", 0, 1)
    assert str(store) == "StateStoreId[ operatorId=0, partitionId=1, storeName=default ]"
    assert str(StateStoreProviderId(store, "53b62e34-0476-452d-8313-c1786e091891")) == (
        "StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId=1, "
        "storeName=default ], queryRunId=53b62e34-0476-452d-8313-c1786e091891 ]"
    )


def test_settings_are_read_by_sparks_keys() -> None:
    conf = StateStoreConf.from_spark(
        {
            "spark.sql.streaming.stateStore.compression.codec": "zstd",
            "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
            "spark.sql.streaming.minBatchesToRetain": "7",
            "spark.sql.streaming.stateStore.maintenanceInterval": "30s",
        }
    )
    assert conf == StateStoreConf(
        compression_codec="zstd",
        row_checksum_enabled=True,
        min_deltas_for_snapshot=3,
        min_versions_to_retain=7,
        maintenance_interval_ms=30_000,
    )


def test_a_codec_may_be_named_by_its_class() -> None:
    key = "spark.sql.streaming.stateStore.compression.codec"
    conf = StateStoreConf.from_spark({key: "org.apache.spark.io.SnappyCompressionCodec"})
    assert conf.compression_codec == "snappy"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.streaming.stateStore.compression.codec", "brotli"),
        ("spark.sql.streaming.stateStore.rowChecksum.enabled", "yes"),
        ("spark.sql.streaming.stateStore.minDeltasForSnapshot", "ten"),
        ("spark.sql.streaming.stateStore.maintenanceInterval", "1 fortnight"),
        ("spark.sql.streaming.minBatchesToRetain", "0"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(key: str, value: str) -> None:
    with pytest.raises(OptionError):
        StateStoreConf.from_spark({key: value})
