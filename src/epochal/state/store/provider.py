"""Provides the versions of one state store from a directory of delta and snapshot files.

A version is loaded from the newest snapshot at or below it plus the deltas after it, or from the
cache. Each commit writes a delta. Maintenance writes snapshots and deletes files that no retained
version needs. `state.files.chain` decides which files; this module reads, writes and deletes them.

Note: two processes may have providers of one store, because a task was run again elsewhere. The
last one to commit a version wins on disk. The loser's cached map is then a version that does not
exist. So a cached version is used, for reads and for snapshots, only while its delta is still the
file that this provider wrote or read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from epochal.clock import Clock, SystemClock
from epochal.errors import EpochalError, OptionError, StateLoadError
from epochal.files import AtomicFile, FileInfo, Files, open_files
from epochal.state.files.chain import (
    SnapshotPlan,
    below_snapshot,
    deletable,
    is_prepared,
    plan_snapshots,
    snapshot_due,
)
from epochal.state.rows.row_codec import RowCodec, encode_tuples
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import Row
from epochal.state.store.conf import StateStoreConf, StateStoreId, StateStoreProviderId
from epochal.state.store.contract import PlainForm, RowForm
from epochal.state.store.store import (
    CACHE_HITS,
    CACHE_MISSES,
    CURRENT_VERSION_BYTES,
    FORCED_SNAPSHOTS,
    SNAPSHOTS_REPAIRED,
    ReadStateStore,
    StateStore,
    StateStoreMetrics,
    check_prefix,
    closed_error,
    last_snapshot_metric,
)
from epochal.state.store.store_coordinator import StateStoreCoordinatorRef
from epochal.state.store.store_files import (
    EncodedVersion,
    PreparedVersion,
    StoreFiles,
    cancel,
    publish_prepared,
    read_prepared,
    write_prepared,
)
from epochal.state.store.versions import EMPTY, Draft, FrozenVersion, VersionMaker, memory_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Cached:
    """A version in memory, and the delta that was on disk when the version was cached."""

    rows: FrozenVersion
    delta: FileInfo | None


class StateStoreProvider:
    """Opens any version of one state store, and maintains the store's files."""

    files_class: ClassVar[type[StoreFiles]]

    def __init__(
        self,
        store_id: StateStoreId,
        key_schema: StructType,
        value_schema: StructType,
        conf: StateStoreConf | None = None,
        *,
        num_cols_prefix_key: int = 0,
        files: Files | None = None,
        query_run_id: str = "",
        coordinator: StateStoreCoordinatorRef | None = None,
        clock: Clock | None = None,
        disk: VersionMaker | None = None,
    ) -> None:
        self.store_id, self.conf = store_id, conf or StateStoreConf()
        self.provider_id = StateStoreProviderId(store_id, query_run_id)
        check_prefix(store_id, key_schema, num_cols_prefix_key)
        self.check(store_id, self.conf)
        self.codec = RowCodec(key_schema, value_schema, num_cols_prefix_key)
        self._files = self.files_class(
            open_files(store_id.location) if files is None else files,
            self.codec,
            self.conf,
            str(store_id),
        )
        self._kinds = self._files.kinds
        self._coordinator, self._clock = coordinator, clock or SystemClock()
        self._disk = disk
        """Where the rows of versions are; None if they are in memory."""
        self._lock = threading.RLock()
        self._cache: dict[int, _Cached] = {}
        self._prepared: dict[str, FrozenVersion] = {}
        self._hits = self._misses = 0
        self._repaired = False
        self._last_snapshot = -1
        self._closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}[ {self.provider_id} ]"

    @classmethod
    def check(cls, store_id: StateStoreId, conf: StateStoreConf) -> None:
        """Raise StateUsageError unless this provider can keep state with these settings."""
        raise NotImplementedError

    def get_store(
        self,
        version: int,
        *,
        from_prepared: PreparedVersion | None = None,
        unique_id: str = "",
        force_snapshot_on_commit: bool = False,
    ) -> StateStore:
        """Open `version` for reading, and for building `version + 1` on it.

        With `from_prepared`, open exactly that undecided version. In state whose files have unique
        ids, `unique_id` is the one that the commit log names.
        """
        if from_prepared is None:
            rows = self._open(version, unique_id)
        elif from_prepared.version == version:
            rows = self._load_prepared(from_prepared)
        else:
            raise OptionError(
                f"{from_prepared.name} is a prepared version {from_prepared.version}; it cannot be "
                f"opened as version {version}."
            )
        return StateStore(self, version, rows, force_snapshot=force_snapshot_on_commit)

    def get_read_store(self, version: int, unique_id: str = "") -> ReadStateStore:
        """Open `version` for reading."""
        return ReadStateStore(self, version, self._open(version, unique_id))

    def upgrade_read_store(
        self, store: ReadStateStore, *, force_snapshot_on_commit: bool = False
    ) -> StateStore:
        """Turn a store that was opened for reading into one that can commit, without reloading."""
        rows = store.loaded_rows
        return StateStore(self, store.version, rows, force_snapshot=force_snapshot_on_commit)

    def latest_version(self) -> int:
        """The newest version on disk; 0 if there is none."""
        return self._kinds.latest_version(self._files.names())

    def cached_versions(self) -> list[int]:
        """The versions in memory, newest first."""
        with self._lock:
            return sorted(self._cache, reverse=True)

    def forget_cache(self) -> None:
        """Drop all cached versions, because another process may have written since."""
        with self._lock:
            self._cache.clear()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Drop the cache. Open stores stay usable; new ones are refused."""
        with self._lock:
            self._closed = True
            self._cache.clear()
            self._prepared.clear()

    def tables(self, version: FrozenVersion) -> Iterator[tuple[str, Iterable[tuple[Row, Any]]]]:
        """The rows of each table of the store: itself, or each of its column families."""
        yield self.store_id.store_name, self.codec.decoded(version.items())

    def forms(self, scan_columns: int = 0) -> dict[str, RowForm]:
        """How the rows of each table are encoded. Keys are found by `scan_columns` of them."""
        codec = RowCodec(self.codec.key_schema, self.codec.value_schema, scan_columns)
        return {self.store_id.store_name: PlainForm(codec)}

    def apply(
        self, draft: Draft, table: str, puts: Sequence[tuple[Row, Any]], removes: Iterable[Row]
    ) -> None:
        """Change rows of one table."""
        if puts:
            keys, values = zip(*puts, strict=True)
            key_rows = encode_tuples(keys, self.codec.key_schema)
            draft.put_many(key_rows, encode_tuples(values, self.codec.value_schema))
        for key in removes:
            draft.remove(self.codec.encode_key(key))

    def start_delta(self, version: int) -> AtomicFile:
        """Open the delta of a version for writing."""
        return self._files.start_delta(version)

    def commit(
        self, version: int, draft: Draft, delta: AtomicFile, *, force_snapshot: bool
    ) -> None:
        """Publish a delta, replacing an existing one, and cache the version that it makes."""
        data = self._files.encode_delta(version, draft.changes.items())
        rows = draft.freeze()
        with self._lock:
            delta.write(data)
            self._files.drop_checksum(self._kinds.delta_name(version))
            # A snapshot of this version is from another attempt, and loaders would prefer it to the
            # new delta. So replace it.
            stale = self._files.files.info(self._kinds.snapshot_name(version)) is not None
            delta.close()
            if stale or force_snapshot:
                self._publish_snapshot(version, self._files.stage_snapshot(version, rows.items()))
            self._remember(version, rows, len(data))
        if self._coordinator is not None and self.conf.commit_validation_enabled:
            self._coordinator.report_state_store_commit(self.provider_id, version)

    def encode_version(self, version: int, draft: Draft, attempt: str) -> EncodedVersion:
        """The file of the next version. The caller makes it durable."""
        data = self._files.encode_delta(version, draft.changes.items())
        return EncodedVersion(self._kinds.delta_name(version), data, draft.freeze())

    def prepare(self, version: int, draft: Draft, attempt: str) -> PreparedVersion:
        """Write a version under a name with the attempt, and keep its rows for the next version."""
        encoded = self.encode_version(version, draft, attempt)
        files, kinds = self._files.files, self._kinds
        prepared = write_prepared(
            files, version, attempt, encoded.data, kinds, is_snapshot=encoded.is_snapshot
        )
        with self._lock:
            self._prepared[prepared.name] = encoded.rows
        return prepared

    def load_chain(
        self, base: int, unique_id: str, later: Sequence[tuple[str, bytes]]
    ) -> FrozenVersion:
        """The rows of a version that no files in the store's directory make yet.

        `base` is the version that they make, and `later` the name and content of the file of each
        version after it.
        """
        with self._lock:
            draft = self._open(base, unique_id).draft()
            self._cache.clear()  # it would keep the rows of `base` in memory
            for version, (name, data) in enumerate(later, base + 1):
                draft = self._files.advance(draft, version, name, data, self._version_of)
                if self._disk is not None:
                    draft = draft.freeze().draft()
            return draft.freeze()

    def write_base(self, version: int, rows: FrozenVersion) -> None:
        """Write a snapshot of a decided version, from which Spark and `load_chain` can start.

        Rows on disk are written while they are read; they are never all in memory.
        """
        staged = self._files.stage_snapshot(version, rows.items())
        if self._closed:
            # The local database is closed after the provider, so rows may be missing.
            cancel(staged)
            raise closed_error(self.store_id)
        self._publish_snapshot(version, staged)

    def delete_below(self, version: int) -> None:
        """Delete the files that only versions below this one need."""
        self._delete(below_snapshot(self._files.names(), version, self._kinds))

    def publish(self, prepared: PreparedVersion) -> None:
        """Give a decided version its plain name. Safe to repeat, also after a crash."""
        with self._lock:
            publish_prepared(self._files.files, prepared, str(self.store_id))
            rows = self._prepared.pop(prepared.name, None)
            if rows is not None:
                self._remember(prepared.version, rows, None)

    def release(self, prepared: PreparedVersion) -> None:
        """Drop a prepared version's rows from memory; its file stays."""
        with self._lock:
            self._prepared.pop(prepared.name, None)

    def discard(self, keep: tuple[PreparedVersion, ...] = ()) -> list[str]:
        """Delete all prepared versions except those in `keep`; return the deleted names."""
        names = frozenset(prepared.name for prepared in keep)
        with self._lock:
            self._prepared = {n: rows for n, rows in self._prepared.items() if n in names}
            dropped = [n for n in self._files.names() if is_prepared(n) and n not in names]
            for name in dropped:
                self._files.files.delete(name)
            return dropped

    def do_maintenance(self) -> None:
        """Write a snapshot if one is due, then delete files that are no longer needed."""
        self.do_snapshot()
        self.do_cleanup()

    def do_snapshot(self) -> None:
        """Write a snapshot of the newest version if enough deltas follow the last one."""
        due = snapshot_due(
            self._files.names(),
            self.cached_versions(),
            self.conf.min_deltas_for_snapshot,
            self._kinds,
        )
        with self._lock:
            cached = None if due is None else self._fresh(due)
        if due is None or cached is None:
            return
        # Encode without the lock: the rows are frozen, and tasks can continue meanwhile.
        staged = self._files.stage_snapshot(due, cached.rows.items())
        with self._lock:
            if self._fresh(due) is not cached:
                cancel(staged)
                return  # the version was committed again meanwhile
            self._publish_snapshot(due, staged)
            if self._files.delta_info(due) != cached.delta:
                # Another process replaced the delta while we wrote a snapshot of its old content.
                self._files.files.delete(self._kinds.snapshot_name(due))

    def do_cleanup(self) -> None:
        """Delete the files that no retained version needs."""
        retained = self.conf.min_versions_to_retain
        self._delete(deletable(self._files.names(), retained, self._kinds))

    def metrics_of(
        self, num_keys: int, rows: FrozenVersion, *, forced: bool = False
    ) -> StateStoreMetrics:
        """The metrics of a store of this provider."""
        with self._lock:
            cached = [cached.rows for cached in self._cache.values()]
            custom = {
                CURRENT_VERSION_BYTES: memory_bytes([rows]),
                CACHE_HITS: self._hits,
                CACHE_MISSES: self._misses,
                SNAPSHOTS_REPAIRED: int(self._repaired),
                FORCED_SNAPSHOTS: int(forced),
            }
            name = last_snapshot_metric(self.store_id.partition_id, self.store_id.store_name)
            return StateStoreMetrics(
                num_keys, memory_bytes(cached), custom, {name: self._last_snapshot}
            )

    def _open(self, version: int, unique_id: str) -> FrozenVersion:
        with self._lock:
            if version > 0:
                self._files.open_version(version, unique_id)
            return self._load(version)

    def _load(self, version: int) -> FrozenVersion:
        if version < 0:
            raise StateLoadError(
                str(self.store_id),
                f"the version cannot be {version}: it must be at least 0",
                "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION",
            )
        with self._lock:
            if self._closed:
                raise closed_error(self.store_id)
            self._repaired = False
            if version == 0:
                return self._empty()
            cached = self._fresh(version)
            if cached is not None:
                self._hits += 1
                return cached.rows
            self._misses += 1
            # Before the delta is read: if it is replaced meanwhile, it differs from this, and the
            # cached version is not used again.
            before = self._files.delta_info(version)
            try:
                rows = self._read(version)
            except OSError as error:
                raise StateLoadError(
                    str(self.store_id), str(error), "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"
                ) from error
            self._insert(version, _Cached(rows, before))
            return rows

    def _load_prepared(self, prepared: PreparedVersion) -> FrozenVersion:
        with self._lock:
            rows = self._prepared.get(prepared.name)
            if rows is None:
                data = read_prepared(self._files.files, prepared, str(self.store_id))
                self._files.open_prepared(prepared, data)
                draft = self._load(prepared.version - 1).draft()
                self._files.apply_bytes(data, prepared.name, draft)
                rows = self._prepared[prepared.name] = draft.freeze()
            return rows

    def _read(self, version: int) -> FrozenVersion:
        cached = [v for v in list(self._cache) if self._fresh(v) is not None]
        there = frozenset(self._files.names())
        snapshots = [*self._kinds.snapshot_versions(there), *cached]
        plan = plan_snapshots(
            version,
            snapshots,
            repair=self.conf.auto_snapshot_repair_enabled,
            failures_before_repair=self.conf.auto_snapshot_repair_num_failures_before_activating,
            max_replay=self.conf.auto_snapshot_repair_max_change_file_replay,
        )
        start, rows = self._read_start(plan, there)
        if start < version:
            draft = rows.draft()
            # The missing deltas are read, too: `apply_delta` fails and names the file.
            for delta in range(start + 1, version + 1):
                self._files.apply_delta(delta, draft, there)
                if self._disk is not None:
                    draft = draft.freeze().draft()
            rows = draft.freeze()
        self._report_snapshot(start)
        return rows

    def _read_start(self, plan: SnapshotPlan, there: frozenset[str]) -> tuple[int, FrozenVersion]:
        for attempt, version in enumerate(plan.attempts):
            try:
                rows = self._start_at(version, there)
            except (EpochalError, OSError) as error:
                if not self.conf.auto_snapshot_repair_enabled:
                    raise
                last = error
                logger.warning("%s: cannot use snapshot %d: %s", self.store_id, version, error)
            else:
                self._repaired = attempt >= plan.repairs_from
                return version, rows
        raise StateLoadError(
            str(self.store_id),
            f"snapshot {plan.latest} cannot be read, and neither can the older ones that were "
            f"tried: {', '.join(map(str, plan.selected))} "
            f"(of {', '.join(map(str, plan.eligible))})",
            "CANNOT_LOAD_STATE_STORE.AUTO_SNAPSHOT_REPAIR_FAILED",
        ) from last

    def _start_at(self, version: int, there: frozenset[str]) -> FrozenVersion:
        if version == 0:
            return self._empty()
        cached = self._fresh(version)
        if cached is not None:
            return cached.rows
        if self._disk is not None:
            return self._disk.of(self._files.snapshot_parts(version, there))
        return FrozenVersion.of(self._files.read_snapshot(version, there))

    def _empty(self) -> FrozenVersion:
        return EMPTY if self._disk is None else self._disk.empty()

    def _version_of(self, rows: dict[bytes, bytes]) -> FrozenVersion:
        return FrozenVersion.of(rows) if self._disk is None else self._disk.of([rows.items()])

    def _delete(self, old: Sequence[str]) -> None:
        if old:
            self._files.delete_old(old)
            logger.debug("deleted %d old files of %s", len(old), self.store_id)

    def _publish_snapshot(self, version: int, staged: Iterable[tuple[str, AtomicFile]]) -> None:
        self._files.publish_snapshot(staged)
        self._last_snapshot = max(self._last_snapshot, version)
        logger.info("wrote snapshot %d of %s", version, self.store_id)
        self._report_snapshot(version)

    def _report_snapshot(self, version: int) -> None:
        if self._coordinator is not None and self.conf.report_snapshot_upload_lag:
            self._coordinator.snapshot_uploaded(self.provider_id, version, self._clock.now_ms())

    def _fresh(self, version: int) -> _Cached | None:
        """The cached version, unless its delta has been replaced or removed since."""
        cached = self._cache.get(version)
        if cached is not None and self._files.delta_info(version) != cached.delta:
            logger.warning("%s: another process has replaced version %d", self.store_id, version)
            del self._cache[version]
            return None
        return cached

    def _remember(self, version: int, rows: FrozenVersion, delta_bytes: int | None) -> None:
        # A delta of another size is not the one just written: another process was faster.
        info = self._files.delta_info(version)
        self._cache.pop(version, None)
        if info is not None and delta_bytes in (None, info.size):
            self._insert(version, _Cached(rows, info))

    def _insert(self, version: int, cached: _Cached) -> None:
        """Cache a version and keep only the newest few, which may not include this one."""
        if self._closed:
            return
        self._cache[version] = cached
        limit = max(0, self.conf.max_versions_to_retain_in_memory)
        for old in sorted(self._cache, reverse=True)[limit:]:
            del self._cache[old]
