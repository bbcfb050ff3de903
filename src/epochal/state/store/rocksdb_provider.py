"""Keeps a store in the files of Spark's RocksDB provider, without a RocksDB that stays open.

The rows of a version are in memory, as with the HDFS-backed provider; only the files differ.
RocksDB itself, through `rocksdict`, is needed just to read and write snapshots.
"""

from __future__ import annotations

from typing import Any

from epochal.checkpoint.pinned import ROCKSDB_PROVIDER_CLASS, STATE_ENCODING, STATE_FORMAT
from epochal.errors import StateUsageError
from epochal.state.files.rocksdb_snapshot import import_rocksdict
from epochal.state.rows.types import StructType
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreId
from epochal.state.store.provider import HDFSBackedStateStoreProvider, StateStoreProvider
from epochal.state.store.rocksdb_files import RocksStoreFiles

UNSAFE_ROW = "unsaferow"


class RocksDBStateStoreProvider(StateStoreProvider):
    """Keeps a store in `N.changelog` and `N.zip` files, as Spark's RocksDB provider does."""

    files_class = RocksStoreFiles

    @classmethod
    def check(cls, store_id: StateStoreId, conf: StateStoreConf) -> None:
        """Raise unless this provider can keep state with these settings, and can run here."""
        if conf.provider_class != ROCKSDB_PROVIDER_CLASS:
            raise StateUsageError(
                str(store_id),
                f"the query keeps its state with {conf.provider_class}; this is the provider for "
                f"{ROCKSDB_PROVIDER_CLASS}.",
                "STATE_STORE_INVALID_PROVIDER",
            )
        if conf.checkpoint_format_version > 1:
            raise StateUsageError(
                str(store_id),
                f"the state has unique ids in its file names ({STATE_FORMAT} is "
                f"{conf.checkpoint_format_version}); Epochal reads such state but writes only "
                f"format 1. Run the query with Spark.",
                "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED",
            )
        if conf.encoding_format.lower() != UNSAFE_ROW:
            raise StateUsageError(
                str(store_id),
                f"the state's rows are encoded as {conf.encoding_format} ({STATE_ENCODING}); "
                f"Epochal reads such state but writes only {UNSAFE_ROW}. Run the query with Spark.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
        import_rocksdict()


def provider_class(conf: StateStoreConf) -> type[StateStoreProvider]:
    """The provider that the settings name. Providers of other vendors are refused when opened."""
    if conf.provider_class == ROCKSDB_PROVIDER_CLASS:
        return RocksDBStateStoreProvider
    return HDFSBackedStateStoreProvider


def open_provider(
    store_id: StateStoreId,
    key_schema: StructType,
    value_schema: StructType,
    conf: StateStoreConf,
    **options: Any,
) -> StateStoreProvider:
    """Open a store with the provider that the settings name."""
    return provider_class(conf)(store_id, key_schema, value_schema, conf, **options)
