"""State stores: versioned keyed state in Spark's own file format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal import map_partitions_with_state_store as map_partitions_with_state_store
    from epochal import read_state as read_state
    from epochal import read_state_changes as read_state_changes
    from epochal.state.rows.types import StructType, parse_schema
    from epochal.state.store.conf import StateStoreConf, StateStoreId, StateStoreProviderId
    from epochal.state.store.open_provider import (
        HDFSBackedStateStoreProvider,
        RocksDBStateStoreProvider,
    )
    from epochal.state.store.provider import StateStoreProvider
    from epochal.state.store.store import ReadStateStore, StateStore
    from epochal.state.store.store_files import PreparedVersion

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
    "parse_schema",
]

_HOMES = {
    "HDFSBackedStateStoreProvider": "epochal.state.store.open_provider",
    "PreparedVersion": "epochal.state.store.store_files",
    "ReadStateStore": "epochal.state.store.store",
    "RocksDBStateStoreProvider": "epochal.state.store.open_provider",
    "StateStore": "epochal.state.store.store",
    "StateStoreConf": "epochal.state.store.conf",
    "StateStoreId": "epochal.state.store.conf",
    "StateStoreProvider": "epochal.state.store.provider",
    "StateStoreProviderId": "epochal.state.store.conf",
    "StructType": "epochal.state.rows.types",
    "parse_schema": "epochal.state.rows.types",
}
_MOVED = ("map_partitions_with_state_store", "read_state", "read_state_changes")
"""Names of `epochal` that were first published here."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that neither Arrow nor PySpark is imported before."""
    from importlib import import_module

    if name in _MOVED:
        import epochal

        return getattr(epochal, name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, not the helpers of this module."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
