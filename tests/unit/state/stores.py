"""Builders for tests of state stores: key (k: string, n: int), value (v: int), as Spark's suite."""

from __future__ import annotations

import json
import os
from contextvars import ContextVar
from pathlib import Path

from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.state.disk.disk_rows import DiskStates
from epochal.state.disk.local_database import LocalDatabase
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.types import AtomicType, StringType, StructField, StructType
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import HDFSBackedStateStoreProvider
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.store import ReadStateStore
from epochal.state.store.store_files import checksum_of

KEY = StructType((StructField("key1", StringType()), StructField("key2", AtomicType("integer"))))
VALUE = StructType((StructField("value", AtomicType("integer")),))

Content = dict[tuple[str, int], int]

on_disk: ContextVar[LocalDatabase | None] = ContextVar("on_disk", default=None)
"""The database of the providers that a test makes; None for rows in memory."""


def provider(
    where: Path | Files,
    *,
    prefix: int = 0,
    partition: int = 0,
    key: StructType = KEY,
    value: StructType = VALUE,
    min_deltas: int = 10,
    in_memory: int = 2,
    retain: int = 2,
    codec: str = "lz4",
    row_checksums: bool = False,
    validate: bool = True,
    repair: bool = False,
    max_replay: int = 500,
    database: LocalDatabase | None = None,
) -> HDFSBackedStateStoreProvider:
    conf = StateStoreConf(
        min_deltas_for_snapshot=min_deltas,
        max_versions_to_retain_in_memory=in_memory,
        min_versions_to_retain=retain,
        compression_codec=codec,
        row_checksum_enabled=row_checksums,
        format_validation_enabled=validate,
        auto_snapshot_repair_enabled=repair,
        auto_snapshot_repair_max_change_file_replay=max_replay,
    )
    files = LocalFiles(where, durable=False) if isinstance(where, Path) else where
    store_id = StateStoreId("checkpoint/state", 0, partition)
    database = database or on_disk.get()
    disk = None
    if database is not None:
        disk = DiskStates(database, RowCodec(key, value, prefix).prefixes_of if prefix else None)
    return HDFSBackedStateStoreProvider(
        store_id, key, value, conf, num_cols_prefix_key=prefix, files=files, disk=disk
    )


def content(store: ReadStateStore) -> Content:
    return {(key[0], key[1]): value[0] for key, value in store.iterator()}


def content_at(where: StateStoreProvider, version: int) -> Content:
    return content(where.get_read_store(version))


def put(where: StateStoreProvider, version: int, *rows: tuple[str, int, int]) -> int:
    """Commit the rows on top of `version`."""
    store = where.get_store(version)
    for key1, key2, value in rows:
        store.put((key1, key2), (value,))
    return store.commit()


def update_to(where: StateStoreProvider, version: int, target: int) -> int:
    """Commit versions up to `target`, each setting a's value to its number."""
    while version < target:
        version = put(where, version, ("a", 0, version + 1))
    return version


def checksum_file(data: bytes) -> bytes:
    """The visible checksum file that Spark 4.1 leaves beside a state file with this content."""
    checksum = checksum_of(data)
    document = {
        "algorithm": "CRC32C",
        "value": checksum.value,
        "mainFileSize": checksum.size,
        "timestampMs": 5,
        "creator": {"executorId": "driver", "taskInfo": "Task= 0.0, Stage= 1.0"},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def files_in(where: Path) -> set[str]:
    return {name for name in os.listdir(where) if not name.startswith(".")}


def temp_files_in(where: Path) -> list[str]:
    if not where.exists():
        return []
    return [name for name in os.listdir(where) if name.endswith(".tmp")]
