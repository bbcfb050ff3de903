"""Formats of stores as Spark writes them, and that state outlasts a renaming and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from epochal.checkpoint.operator_metadata import OperatorMetadata, StoreMetadata, read_operator
from epochal.errors import OptionError, StateSchemaError, StateSchemaMismatchError, StateUsageError
from epochal.files.local import LocalFiles
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_entries import ValueWrapper
from epochal.state.files.schema_file import FamilySchema, encode_schema_file, parse_schema_file
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    parse_schema,
)
from epochal.state.store.compatibility import (
    SCHEMA_FILE,
    check_compatible,
    settle_operator,
    settle_schema,
)
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
from epochal.testing.files import FaultyFiles, MemoryFiles

INT, LONG, TIMESTAMP = AtomicType("integer"), AtomicType("long"), AtomicType("timestamp")


def struct(*kinds: DataType, prefix: str = "f", nullable: bool = True) -> StructType:
    return StructType(
        tuple(StructField(f"{prefix}{n}", kind, nullable) for n, kind in enumerate(kinds))
    )


NESTED = struct(INT, StringType())
KEY = struct(INT, StringType(), NESTED)
VALUE = struct(LONG, StringType(), NESTED)
STORED = FamilySchema("default", KEY, VALUE)


def with_last(schema: StructType, nested: StructType) -> StructType:
    """The schema with another struct in it."""
    return StructType((*schema.fields[:-1], replace(schema.fields[-1], data_type=nested)))


def changes(schema: StructType) -> dict[str, StructType]:
    """What a query may not do to a schema."""
    return {
        "a column more": StructType((*schema.fields, StructField("new", INT))),
        "a column less": StructType(schema.fields[:-1]),
        "another type": StructType(
            (replace(schema.fields[0], data_type=TIMESTAMP), *schema.fields[1:])
        ),
        "a nested column more": with_last(schema, struct(INT, StringType(), INT)),
        "a nested column less": with_last(schema, struct(INT)),
        "another nested type": with_last(schema, struct(TIMESTAMP, StringType())),
        "a struct no more": with_last(schema, struct()),
    }


def refused(stored: FamilySchema, asked: FamilySchema, *, ignore_value: bool = False) -> str:
    with pytest.raises(StateSchemaMismatchError) as caught:
        check_compatible(stored, asked, source="state/0/0", ignore_value=ignore_value)
    assert "state/0/0" in str(caught.value)
    return caught.value.condition


@pytest.mark.parametrize("change", changes(KEY))
def test_a_changed_key_is_refused_also_when_values_do_not_matter(change: str) -> None:
    asked = replace(STORED, key=changes(KEY)[change])
    for ignore_value in (False, True):
        assert refused(STORED, asked, ignore_value=ignore_value) == (
            "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"
        )


@pytest.mark.parametrize("change", changes(VALUE))
def test_a_changed_value_is_refused_unless_values_do_not_matter(change: str) -> None:
    asked = replace(STORED, value=changes(VALUE)[change])
    assert refused(STORED, asked) == "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
    check_compatible(STORED, asked, source="state/0/0", ignore_value=True)


def test_names_may_change_also_nested_ones() -> None:
    renamed = struct(INT, StringType(), struct(INT, StringType(), prefix="y"), prefix="x")
    check_compatible(STORED, replace(STORED, key=renamed), source="")
    values = struct(LONG, StringType(), struct(INT, StringType(), prefix="y"), prefix="x")
    check_compatible(STORED, replace(STORED, value=values), source="")


LOOSE = {
    "a column": (struct(INT), struct(INT, nullable=False)),
    "a nested column": (struct(struct(INT)), struct(struct(INT, nullable=False))),
    "an element": (struct(ArrayType(INT)), struct(ArrayType(INT, contains_null=False))),
    "a map's value": (struct(MapType(INT, INT)), struct(MapType(INT, INT, False))),
    "in an element": (
        struct(ArrayType(struct(INT))),
        struct(ArrayType(struct(INT, nullable=False))),
    ),
    "in a map's key": (
        struct(MapType(struct(INT), INT)),
        struct(MapType(struct(INT, nullable=False), INT)),
    ),
}


@pytest.mark.parametrize("place", LOOSE)
@pytest.mark.parametrize("side", ["key", "value"])
def test_what_is_never_null_fits_where_nulls_may_be_and_not_the_other_way_round(
    place: str, side: str
) -> None:
    nullable, never = (
        replace(STORED, key=schema) if side == "key" else replace(STORED, value=schema)
        for schema in LOOSE[place]
    )
    check_compatible(nullable, never, source="")
    assert refused(never, nullable).startswith(f"STATE_STORE_{side.upper()}_SCHEMA")


COLLATED = parse_schema(
    '{"type":"struct","fields":[{"name":"f0","type":"integer","nullable":true,"metadata":{}},'
    '{"name":"f1","type":"string","nullable":true,'
    '"metadata":{"__COLLATIONS":{"f1":"spark.UTF8_LCASE"}}}]}'
)
PLAIN = struct(INT, StringType())


def test_nulls_do_not_matter_to_a_plan_that_does_not_know_where_they_are() -> None:
    files = MemoryFiles()
    stored = FamilySchema("default", struct(INT, nullable=False), struct(LONG, nullable=False))
    files.create(SCHEMA_FILE, encode_schema_file([stored]))
    asked = FamilySchema("default", struct(INT), struct(LONG))
    assert settle_schema(files, asked, ignore_nulls=True) == stored
    with pytest.raises(StateSchemaMismatchError):
        settle_schema(files, asked)
    with pytest.raises(StateSchemaMismatchError):
        settle_schema(files, replace(asked, value=struct(INT)), ignore_nulls=True)


def test_a_collation_that_equates_different_bytes_cannot_be_in_a_key() -> None:
    asked = FamilySchema("default", COLLATED, PLAIN)
    with pytest.raises(StateSchemaMismatchError) as caught:
        settle_schema(MemoryFiles(), asked)
    assert caught.value.condition == "STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY"
    nested = FamilySchema("default", struct(ArrayType(COLLATED)), PLAIN)
    with pytest.raises(StateSchemaMismatchError):
        settle_schema(MemoryFiles(), nested)


def test_another_collation_of_a_value_is_another_type() -> None:
    plain, collated = (FamilySchema("default", PLAIN, value) for value in (PLAIN, COLLATED))
    for stored, asked in ((plain, collated), (collated, plain)):
        assert refused(stored, asked) == "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"


def test_the_first_run_writes_the_schema_and_later_ones_are_held_to_it() -> None:
    files = MemoryFiles()
    assert settle_schema(files, STORED) == STORED
    written = files.read(SCHEMA_FILE)
    assert written == encode_schema_file([STORED], version=2)
    renamed = replace(STORED, value=struct(LONG, StringType(), NESTED, prefix="x"))
    assert settle_schema(files, renamed) == STORED
    with pytest.raises(StateSchemaMismatchError):
        settle_schema(files, replace(STORED, value=struct(LONG)))
    assert settle_schema(files, replace(STORED, value=struct(LONG)), ignore_value=True) == STORED
    assert files.read(SCHEMA_FILE) == written


def test_a_schema_file_of_version_1_is_held_to_as_well() -> None:
    files = MemoryFiles({SCHEMA_FILE: (encode_schema_file([STORED], version=1), 0)})
    assert settle_schema(files, STORED) == STORED
    with pytest.raises(StateSchemaMismatchError):
        settle_schema(files, replace(STORED, key=struct(INT)))


def test_of_two_first_runs_the_slower_is_held_to_what_the_faster_wrote() -> None:
    inner = MemoryFiles()
    faster = replace(STORED, value=struct(LONG))

    def write_first(operation: str, path: str) -> None:
        if operation == "create" and inner.info(path) is None:
            inner.create(path, encode_schema_file([faster]))

    with pytest.raises(StateSchemaMismatchError):
        settle_schema(FaultyFiles(inner, write_first), STORED)
    assert parse_schema_file(inner.read(SCHEMA_FILE)) == [faster]


def test_a_schema_file_that_is_garbage_is_not_written_over() -> None:
    files = MemoryFiles({SCHEMA_FILE: (b"garbage", 0)})
    with pytest.raises(StateSchemaError):
        settle_schema(files, STORED)
    assert files.read(SCHEMA_FILE) == b"garbage"


def test_the_first_run_writes_the_operator_and_later_ones_are_held_to_its_partitions() -> None:
    files, store = MemoryFiles(), StoreMetadata("default", 1, 3)
    settle_operator(files, 2, "count", store)
    assert read_operator(files, 2) == OperatorMetadata(1, 2, "count", (store,))
    before = dict(files.tree)
    settle_operator(files, 2, "count", store)
    with pytest.raises(StateUsageError, match="has 3 partitions, the job has 4"):
        settle_operator(files, 2, "count", replace(store, num_partitions=4))
    assert files.tree == before


def test_of_two_first_operators_the_slower_is_held_to_what_the_faster_wrote() -> None:
    inner = MemoryFiles()

    def write_first(operation: str, path: str) -> None:
        if operation == "create" and inner.info(path) is None:
            settle_operator(inner, 0, "count", StoreMetadata("default", 0, 2))

    with pytest.raises(StateUsageError, match="has 2 partitions, the job has 3"):
        settle_operator(FaultyFiles(inner, write_first), 0, "count", StoreMetadata("default", 0, 3))


def test_a_new_schema_file_allows_nulls_as_spark_does_and_an_old_one_stays() -> None:
    inner = struct(INT, nullable=False)
    strict = FamilySchema("default", struct(INT, nullable=False), struct(inner, nullable=False))
    relaxed = FamilySchema("default", struct(INT), struct(struct(INT)))
    files = MemoryFiles()
    assert settle_schema(files, strict) == relaxed
    assert settle_schema(files, strict) == relaxed
    old = MemoryFiles()
    old.create("_metadata/schema", encode_schema_file([strict]))
    assert settle_schema(old, strict) == strict


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
