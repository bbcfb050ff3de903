"""Our form of RocksDB stores and of their families against what each release of Spark wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.golden.cases_python import HOUR_MS, _processor
from tests.golden.library import Golden, cases, unpack

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import JOIN_STORES, state_schema_log_path, state_store_path
from epochal.checkpoint.operator_metadata import read_operator
from epochal.checkpoint.restart import conf_in_force
from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec
from epochal.state.files.codecs import decompress
from epochal.state.files.rocksdb_changelog import parse_changelog
from epochal.state.files.rocksdb_family import FAMILY_BYTES, family_prefix
from epochal.state.files.schema_file import parse_schema_file
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import open_provider
from epochal.state.store.rocksdb_directory import RocksDirectory
from epochal.tools.read_state.read_target import StateBatch

PLAIN = {
    "rocksdb_changelog",
    "rocksdb_checksum",
    "rocksdb_dedup",
    "rocksdb_retention",
    "rocksdb_session",
    "rocksdb_zip",
    "rocksdb_zstd",
    "types_rocksdb",
    "join_rocksdb",
}
GOLDENS = [golden for golden in cases() if golden.case in PLAIN]


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_a_store_of_spark_is_loaded_and_written_with_the_same_bytes(
    golden: Golden, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(str(unpack(golden, tmp_path).checkpoint))
    batch = StateBatch(checkpoint)
    conf = StateStoreConf.from_spark(conf_in_force(batch.offsets.conf, {}))
    stores = JOIN_STORES if golden.case == "join_rocksdb" else ("default",)
    seen = 0
    for name in stores:
        target = batch.store(0, name)
        for partition in target.partitions:
            files = checkpoint.files.at(state_store_path(0, partition, name))
            provider = open_provider(
                StateStoreId(f"{checkpoint.url}/state", 0, partition, name),
                target.schema.key,
                target.schema.value,
                conf,
                num_cols_prefix_key=target.encoder.prefix_columns,
                files=files,
            )
            stored = RocksDirectory(files, batch.settings).load(batch.version).entries
            rows = provider.get_store(batch.version).items_raw()
            delta = provider._files.encode_delta(batch.version + 1, rows)
            written = decompress(delta, conf.compression_codec)
            records = parse_changelog(written, "ours").records
            assert {record.key: record.value for record in records} == stored
            seen += len(stored)
    assert seen


FIELDS: list[tuple[str, pa.DataType]] = [("k", pa.string()), ("v", pa.int64())]
INPUT = pa.schema(FIELDS)


def spec(ttl_ms: int | None, mode: str) -> TransformWithStateSpec:
    return TransformWithStateSpec.plan(
        _processor(ttl_ms=ttl_ms, timers=True),
        ["k"],
        INPUT,
        pa.schema([("k", pa.string())]),
        time_mode=mode,
        pandas=True,
        spark_layout=True,
    )


CASES = {
    "transform": spec(None, "EventTime"),
    "transform_ttl": spec(24 * HOUR_MS, "ProcessingTime"),
}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_schemas_and_the_metadata_are_sparks(case: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(unpack(Golden("4.3.0", case), tmp_path).checkpoint))
    metadata = read_operator(checkpoint.files, 0)
    assert metadata is not None
    path = metadata.stores[0].schema_file_paths[0].rpartition("/")[2]
    stored = checkpoint.files.read(f"{state_schema_log_path(0, 'default')}/{path}")
    [store] = CASES[case].stores
    ours = sorted(
        (schema for family in store.families for schema in family.schemas),
        key=lambda schema: schema.name,
    )
    assert ours == parse_schema_file(stored)
    assert CASES[case].name == metadata.operator_name
    mine, theirs = json.loads(store.properties_json), json.loads(metadata.properties_json)
    for each in (mine, theirs):
        each["stateVariables"].sort(key=lambda variable: variable["stateName"])
    assert mine == theirs


def test_rows_and_indexes_have_sparks_bytes(case: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(unpack(Golden("4.3.0", case), tmp_path).checkpoint))
    batch = StateBatch(checkpoint)
    form = batch.settings.form
    seen = 0
    for partition in batch.partitions(0):
        content = RocksDirectory(checkpoint.files.at(f"state/0/{partition}"), batch.settings).load(
            batch.version
        )
        prefixes = {name: family_prefix(number) for name, number in content.families.items()}
        made: dict[bytes, bytes | None] = {}
        for family in CASES[case].stores[0].families:
            prefix = prefixes[family.name]
            rows = [
                (
                    family.rows.decode_key(key[FAMILY_BYTES:], "golden"),
                    family.rows.decode_value(key, value, form, "golden"),
                )
                for key, value in content.entries.items()
                if key[:FAMILY_BYTES] == prefix
            ]
            made.update(family.changes(rows, (), prefixes.__getitem__, made.get, form))
        assert made == content.entries
        seen += len(made)
    assert seen > 20
