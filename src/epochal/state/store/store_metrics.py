"""The metrics of a store, under the names that Spark's progress reports use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CURRENT_VERSION_BYTES = "stateOnCurrentVersionSizeBytes"
CACHE_HITS = "loadedMapCacheHitCount"
CACHE_MISSES = "loadedMapCacheMissCount"
SNAPSHOTS_REPAIRED = "numSnapshotsAutoRepaired"
FORCED_SNAPSHOTS = "forceSnapshotCount"

SUPPORTED_CUSTOM_METRICS: Mapping[str, str] = {
    CURRENT_VERSION_BYTES: "estimated size of state only on current version",
    CACHE_HITS: "count of cache hit on states cache in provider",
    CACHE_MISSES: "count of cache miss on states cache in provider",
    SNAPSHOTS_REPAIRED: "number of snapshots that were automatically repaired during store load",
    FORCED_SNAPSHOTS: "number of stores that had forced snapshot",
}


@dataclass(frozen=True, slots=True)
class StateStoreMetrics:
    """The metrics of one store, or of several combined."""

    num_keys: int
    memory_used_bytes: int
    custom: Mapping[str, int] = field(default_factory=dict)
    instance: Mapping[str, int] = field(default_factory=dict)
    """Metrics of single partitions, which are never added up."""


def last_snapshot_metric(partition_id: int, store_name: str) -> str:
    """The name under which a store reports the version of its newest snapshot, -1 for none."""
    return f"SnapshotLastUploaded.partition_{partition_id}_{store_name}"


def combine(metrics: Iterable[StateStoreMetrics]) -> StateStoreMetrics:
    """Add up the metrics of several stores; custom metrics are added by name."""
    num_keys = memory = 0
    custom: dict[str, int] = {}
    instance: dict[str, int] = {}
    for each in metrics:
        num_keys += each.num_keys
        memory += each.memory_used_bytes
        instance |= each.instance
        for name, value in each.custom.items():
            custom[name] = custom.get(name, 0) + value
    return StateStoreMetrics(num_keys, memory, custom, instance)
