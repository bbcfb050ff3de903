"""Our RocksDB provider on the state that each release of Spark wrote: it writes the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.library import Golden, cases, unpack

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import JOIN_STORES, state_store_path
from epochal.checkpoint.restart import conf_in_force
from epochal.state.files.codecs import decompress
from epochal.state.files.rocksdb_changelog import parse_changelog
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import open_provider
from epochal.state.store.rocksdb_directory import RocksDirectory
from epochal.tools.read_state.read_target import StateBatch

CASES = {
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
GOLDENS = [golden for golden in cases() if golden.case in CASES]


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
