"""Opens a store with the provider that its settings name; has Spark's default provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epochal.checkpoint.restart import HDFS_PROVIDER_CLASS, ROCKSDB_PROVIDER_CLASS
from epochal.errors import StateUsageError
from epochal.state.files.rocksdb_family import Family
from epochal.state.rows.types import StructType
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreId
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.rocksdb_family_store import RocksDBFamilyProvider
from epochal.state.store.rocksdb_provider import RocksDBStateStoreProvider
from epochal.state.store.store_files import StoreFiles


class HDFSBackedStateStoreProvider(StateStoreProvider):
    """Keeps a store in `N.delta` and `N.snapshot` files, as Spark's default provider does."""

    files_class = StoreFiles

    @classmethod
    def check(cls, store_id: StateStoreId, conf: StateStoreConf) -> None:
        """Raise StateUsageError unless this provider can keep state with these settings."""
        if conf.provider_class != HDFS_PROVIDER_CLASS:
            raise StateUsageError(
                str(store_id),
                f"the query keeps its state with {conf.provider_class}; this is the provider for "
                f"{HDFS_PROVIDER_CLASS}. Convert the state with `epochal state convert`.",
                "STATE_STORE_INVALID_PROVIDER",
            )
        if conf.checkpoint_format_version > 1:
            raise StateUsageError(
                str(store_id),
                f"HDFSBackedStateStoreProvider does not support checkpointFormatVersion "
                f"{conf.checkpoint_format_version}, only 1.",
                "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED",
            )


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
    *,
    families: Sequence[Family] | None = None,
    num_cols_prefix_key: int = 0,
    **options: Any,
) -> StateStoreProvider:
    """Open a store. One with column families has the schemas of those."""
    if families is not None:
        return RocksDBFamilyProvider(store_id, families, conf, **options)
    options["num_cols_prefix_key"] = num_cols_prefix_key
    return provider_class(conf)(store_id, key_schema, value_schema, conf, **options)
