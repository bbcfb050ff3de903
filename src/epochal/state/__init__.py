"""State stores: versioned keyed state in Spark's own file format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal.state.rows.types import StructType, parse_schema
    from epochal.state.store.conf import StateStoreConf
    from epochal.state.store.ids import StateStoreId, StateStoreProviderId
    from epochal.state.store.open_provider import HDFSBackedStateStoreProvider
    from epochal.state.store.prepared import PreparedVersion
    from epochal.state.store.provider import StateStoreProvider
    from epochal.state.store.rocksdb_provider import RocksDBStateStoreProvider
    from epochal.state.store.store import ReadStateStore, StateStore
    from epochal.tools.read_state.changes import read_state_changes
    from epochal.tools.read_state.read import read_state

    map_partitions_with_state_store: Any

__all__ = [
    "HDFSBackedStateStoreProvider",
    "PreparedVersion",
    "ReadStateStore",
    "RocksDBStateStoreProvider",
    "StateStore",
    "StateStoreConf",
    "StateStoreId",
    "StateStoreProvider",
    "StateStoreProviderId",
    "StructType",
    "map_partitions_with_state_store",
    "parse_schema",
    "read_state",
    "read_state_changes",
]

_HOMES = {
    "HDFSBackedStateStoreProvider": "epochal.state.store.open_provider",
    "PreparedVersion": "epochal.state.store.prepared",
    "ReadStateStore": "epochal.state.store.store",
    "RocksDBStateStoreProvider": "epochal.state.store.rocksdb_provider",
    "StateStore": "epochal.state.store.store",
    "StateStoreConf": "epochal.state.store.conf",
    "StateStoreId": "epochal.state.store.ids",
    "StateStoreProvider": "epochal.state.store.provider",
    "StateStoreProviderId": "epochal.state.store.ids",
    "StructType": "epochal.state.rows.types",
    "map_partitions_with_state_store": "epochal.continuous.spark_job.state_rdd",
    "parse_schema": "epochal.state.rows.types",
    "read_state": "epochal.tools.read_state.read",
    "read_state_changes": "epochal.tools.read_state.changes",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that neither Arrow nor PySpark is imported before."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, not the helpers of this module."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
