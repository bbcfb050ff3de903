"""State stores: versioned keyed state in Spark's own files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal.state.changes import read_state_changes
    from epochal.state.conf import StateStoreConf
    from epochal.state.ids import StateStoreId, StateStoreProviderId
    from epochal.state.prepared import PreparedVersion
    from epochal.state.provider import HDFSBackedStateStoreProvider
    from epochal.state.read import read_state
    from epochal.state.store import ReadStateStore, StateStore
    from epochal.state.types import StructType, parse_schema

    map_partitions_with_state_store: Any

__all__ = [
    "HDFSBackedStateStoreProvider",
    "PreparedVersion",
    "ReadStateStore",
    "StateStore",
    "StateStoreConf",
    "StateStoreId",
    "StateStoreProviderId",
    "StructType",
    "map_partitions_with_state_store",
    "parse_schema",
    "read_state",
    "read_state_changes",
]

_HOMES = {
    "HDFSBackedStateStoreProvider": "epochal.state.provider",
    "PreparedVersion": "epochal.state.prepared",
    "ReadStateStore": "epochal.state.store",
    "StateStore": "epochal.state.store",
    "StateStoreConf": "epochal.state.conf",
    "StateStoreId": "epochal.state.ids",
    "StateStoreProviderId": "epochal.state.ids",
    "StructType": "epochal.state.types",
    "map_partitions_with_state_store": "epochal.spark.state_rdd",
    "parse_schema": "epochal.state.types",
    "read_state": "epochal.state.read",
    "read_state_changes": "epochal.state.changes",
}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: neither Arrow nor PySpark is imported before."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
