"""Identifies a state store by its place in the checkpoint, and by the run that uses it.

The root is the checkpoint's `state` directory, not the checkpoint. A provider id also contains the
run id, so a restarted query never reuses a provider of an earlier run with its cached maps.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochal.checkpoint.layout import DEFAULT_STORE, STATE, StoreKey


@dataclass(frozen=True, slots=True)
class StateStoreId:
    """One store of one partition of one stateful operator."""

    checkpoint_root: str
    operator_id: int
    partition_id: int
    store_name: str = DEFAULT_STORE

    @property
    def key(self) -> StoreKey:
        """Which store of the checkpoint it is."""
        return StoreKey(self.operator_id, self.partition_id, self.store_name)

    @property
    def path(self) -> str:
        """The store's directory below the root; the default store adds no level."""
        return self.key.path.removeprefix(f"{STATE}/")

    @property
    def location(self) -> str:
        """The directory of the store's files: Spark's storeCheckpointLocation."""
        return f"{self.checkpoint_root.rstrip('/')}/{self.path}"

    def __str__(self) -> str:
        return (
            f"StateStoreId[ operatorId={self.operator_id}, partitionId={self.partition_id}, "
            f"storeName={self.store_name} ]"
        )


@dataclass(frozen=True, slots=True)
class StateStoreProviderId:
    """A store, as used by one run of the query."""

    store_id: StateStoreId
    query_run_id: str

    def __str__(self) -> str:
        return f"StateStoreProviderId[ storeId={self.store_id}, queryRunId={self.query_run_id} ]"
