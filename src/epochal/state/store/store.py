"""One version of a store, for reading, or for building the next version on it.

Rows are tuples in the order of the schema, or dictionaries by column name; engines pass Arrow
batches instead. A store is used by one thread, and once: after `commit` or `abort`, using it is an
error.

Iterators show the store as it was when they were created. Putting and removing while iterating is
allowed; `get` and new iterators see the change at once. (Spark's two providers differ here. RocksDB
behaves like this one; the HDFS-backed map may or may not show later changes.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from epochal.errors import EpochalError, StateCommitError, StateUsageError
from epochal.files import AtomicFile
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import Row
from epochal.state.store.conf import StateStoreId
from epochal.state.store.versions import Draft, FrozenVersion

if TYPE_CHECKING:
    import pyarrow as pa

    from epochal.state.store.provider import StateStoreProvider
    from epochal.state.store.store_files import PreparedVersion

logger = logging.getLogger(__name__)

RowLike: TypeAlias = Sequence[Any] | Mapping[str, Any]


class StoreState(StrEnum):
    """Where a store is in its life."""

    UPDATING = "updating"
    COMMITTED = "committed"
    ABORTED = "aborted"


class ReadStateStore:
    """A version of a store, open for reading."""

    def __init__(self, provider: StateStoreProvider, version: int, rows: FrozenVersion) -> None:
        self._provider = provider
        self._codec: RowCodec = provider.codec
        self._draft = Draft(rows)
        self.version = version

    def __repr__(self) -> str:
        return f"{type(self).__name__}[ {self.id}, version={self.version} ]"

    @property
    def id(self) -> StateStoreId:
        return self._provider.store_id

    @property
    def loaded_rows(self) -> FrozenVersion:
        """The version that was opened, without later changes."""
        return self._draft.parent

    def get(self, key: RowLike) -> Row | None:
        """The value row of a key, or None."""
        value = self._draft.get(self._codec.encode_key(key))
        return None if value is None else self._codec.decode_value(value)

    def multi_get(self, keys: Iterable[RowLike]) -> list[Row | None]:
        """The value rows of many keys, in order; None for a key that does not exist."""
        return [self.get(key) for key in keys]

    def iterator(self) -> Iterator[tuple[Row, Row]]:
        """Every key and value, as of this call."""
        return self._codec.decoded(self._draft.items())

    def get_range(
        self, start: RowLike | None = None, end: RowLike | None = None
    ) -> Iterator[tuple[Row, Row]]:
        """Every key between `start` and `end`, both included; unordered.

        A bound has the leading columns of a key; nulls sort first. This scans the whole store,
        because its rows are not ordered.
        """
        within = self._codec.range_test(start, end)
        return (row for row in self.iterator() if within(row[0]))

    def prefix_scan(self, prefix: RowLike) -> Iterator[tuple[Row, Row]]:
        """Every key whose first `num_cols_prefix_key` columns equal `prefix`."""
        if self._codec.num_cols_prefix_key == 0:
            raise StateUsageError(
                str(self.id),
                "a prefix scan needs a provider that was created with num_cols_prefix_key above 0.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
        rows = self._draft.with_prefix(self._codec.encode_prefix(prefix), self._codec.prefixes_of)
        return self._codec.decoded(iter(rows))

    def get_batch(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BooleanArray]:
        """The values of many keys, row by row, and whether each key exists.

        For a key that does not exist, the row of values is all null.
        """
        values = self._draft.get_many(self._codec.encode_keys(keys))
        return self._codec.decode_values(values)

    def items_raw(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key and value as Spark's bytes, as of this call."""
        return self._draft.items()

    def get_raw(self, key: bytes) -> bytes | None:
        """The value bytes of the key with these bytes, or None."""
        return self._draft.get(key)

    @property
    def metrics(self) -> StateStoreMetrics:
        return self._provider.metrics_of(len(self._draft), self._draft.parent)

    def abort(self) -> None:
        """End the use of this version."""

    def __len__(self) -> int:
        return len(self._draft)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class StateStore(ReadStateStore):
    """A version of a store, open for reading and for building the next version."""

    def __init__(
        self,
        provider: StateStoreProvider,
        version: int,
        rows: FrozenVersion,
        *,
        force_snapshot: bool = False,
    ) -> None:
        super().__init__(provider, version, rows)
        self._force_snapshot = force_snapshot
        self._state = StoreState.UPDATING
        self._delta: AtomicFile | None = None

    @property
    def has_committed(self) -> bool:
        return self._state is StoreState.COMMITTED

    def put(self, key: RowLike, value: RowLike) -> None:
        """Set the value of a key."""
        if value is None:
            raise StateUsageError(
                str(self.id), "cannot put a null value; remove the key.", "INVALID_PARAMETER_VALUE"
            )
        self.put_raw(self._codec.encode_key(key), self._codec.encode_value(value))

    def remove(self, key: RowLike) -> None:
        """Remove a key if it exists."""
        self.remove_raw(self._codec.encode_key(key))

    def put_raw(self, key: bytes, value: bytes) -> None:
        """Set the value of a key, both as Spark's bytes."""
        self._updating("put")
        self._draft.put(key, value)

    def remove_raw(self, key: bytes) -> None:
        """Remove a key, given as Spark's bytes, if it exists."""
        self._updating("remove")
        self._draft.remove(key)

    def put_batch(self, keys: pa.RecordBatch, values: pa.RecordBatch) -> None:
        """Set many values, row by row. If a key repeats, its last value wins."""
        self._updating("put")
        if keys.num_rows != values.num_rows:
            raise StateUsageError(
                str(self.id),
                f"{keys.num_rows} keys were given but {values.num_rows} values: pass one per key.",
                "INVALID_PARAMETER_VALUE",
            )
        self._draft.put_many(self._codec.encode_keys(keys), self._codec.encode_values(values))

    def remove_batch(self, keys: pa.RecordBatch) -> None:
        """Remove those of the keys that exist."""
        self._updating("remove")
        for key in self._codec.encode_keys(keys):
            self._draft.remove(key)

    def commit(self) -> int:
        """Make the changes durable and return the new version.

        If the version exists already, it is replaced: the last one to commit wins.
        """
        self._check_updating("commit")
        version = self.version + 1
        try:
            self._provider.commit(
                version, self._draft, self._opened_delta(), force_snapshot=self._force_snapshot
            )
        except (EpochalError, OSError) as error:
            self.abort()
            raise StateCommitError(str(self.id), version, str(error)) from error
        self._state = StoreState.COMMITTED
        logger.info("committed version %d of %s", version, self.id)
        return version

    def commit_prepared(self, attempt: str) -> PreparedVersion:
        """Make the changes durable under a name with the attempt, to be published later."""
        self._check_updating("commit")
        version = self.version + 1
        self._cancel_delta()
        try:
            prepared = self._provider.prepare(version, self._draft, attempt)
        except (EpochalError, OSError) as error:
            self.abort()
            raise StateCommitError(str(self.id), version, str(error)) from error
        self._state = StoreState.COMMITTED
        return prepared

    def abort(self) -> None:
        """Drop all changes. Does nothing after a commit."""
        if self._state is StoreState.UPDATING:
            self._state = StoreState.ABORTED
            self._cancel_delta()
            logger.info("aborted version %d of %s", self.version + 1, self.id)

    @property
    def metrics(self) -> StateStoreMetrics:
        return self._provider.metrics_of(
            len(self._draft), self._draft.parent, forced=self._force_snapshot
        )

    def _updating(self, operation: str) -> None:
        self._check_updating(operation)
        if self._delta is None:
            # Open the delta at the first change, so that a checkpoint that cannot be written fails
            # now and not at commit.
            self._opened_delta()

    def _check_updating(self, operation: str) -> None:
        if self._state is not StoreState.UPDATING:
            raise StateUsageError(
                str(self.id),
                f"cannot {operation} version {self.version + 1}: it is {self._state}. Get a new "
                f"store from the provider.",
                "STATE_STORE_OPERATION_OUT_OF_ORDER",
            )

    def _opened_delta(self) -> AtomicFile:
        if self._delta is None:
            self._delta = self._provider.start_delta(self.version + 1)
        return self._delta

    def _cancel_delta(self) -> None:
        delta, self._delta = self._delta, None
        if delta is not None:
            delta.cancel()


def check_prefix(store_id: StateStoreId, key_schema: StructType, num_cols_prefix_key: int) -> None:
    """Raise StateUsageError unless a key has more columns than its prefix."""
    if not 0 <= num_cols_prefix_key < max(1, len(key_schema.fields)):
        raise StateUsageError(
            str(store_id),
            f"a key of {len(key_schema.fields)} columns cannot have a prefix of "
            f"{num_cols_prefix_key}.",
            "STATE_STORE_INCORRECT_NUM_PREFIX_COLS_FOR_PREFIX_SCAN",
        )


def closed_error(store_id: StateStoreId) -> StateUsageError:
    """What a provider raises when it is used after `close`."""
    return StateUsageError(
        str(store_id),
        "the provider is closed because another process has taken over the store, or because the "
        "query has ended. Get a new provider.",
        "STATE_STORE_OPERATION_OUT_OF_ORDER",
    )


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
    for store in metrics:
        num_keys += store.num_keys
        memory += store.memory_used_bytes
        instance |= store.instance
        for name, value in store.custom.items():
            custom[name] = custom.get(name, 0) + value
    return StateStoreMetrics(num_keys, memory, custom, instance)
