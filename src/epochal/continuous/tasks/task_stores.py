"""The state stores of a task: loaded into its operators once, written at every cut.

Every epoch makes a new version of every store, built in memory from the version before it. What all
stores of the task changed is written as one file, whose name carries the attempt, because the
driver may not have decided even the previous epoch yet. Now and then the driver orders the task to
publish a committed version: to write a snapshot of every store under Spark's names. Files of
Spark's that are no longer needed are deleted then. That happens on a thread of its own: the rows of
a version never change, so they are written while later epochs go on.

Note: a version is loaded by the names and checksums in the last decided manifest, never by its
number alone. A task of an earlier attempt that is still running may have written a file with that
number. Only if Spark wrote the last epoch is there no manifest; then the number is right, or the
unique id in the commit log.
"""

from __future__ import annotations

import gc
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from epochal.checkpoint.entries import CommitEntry
from epochal.checkpoint.layout import EPOCHS, STATE, StoreKey
from epochal.clock import Clock
from epochal.continuous.operators.contract import Row, StateChanges, StatefulOperator, StoreSchema
from epochal.continuous.plan.stages import QueryPlan, partitions_of_stage
from epochal.epoch.epoch_files.chain_files import in_parallel, read_chain, write_epoch
from epochal.epoch.epoch_files.epoch_file import Header, StoreFileEntry, encode_epoch, file_name
from epochal.epoch.epoch_files.state_chain import StateChain
from epochal.epoch.messages import EpochStarted, PreparedState, StatePublished, by_store
from epochal.epoch.open_epoch import MAX_EPOCHS_IN_FLIGHT
from epochal.errors import EpochalError, EpochError, StateLoadError
from epochal.files import Files
from epochal.state.disk.disk_rows import DiskRows, DiskStates, DiskVersion
from epochal.state.disk.local_database import LocalDatabase
from epochal.state.files.chain import attempt_label, id_of_version, prepared_label
from epochal.state.rows.row_codec import RowCodec
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import open_provider
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.store_files import EncodedVersion, PreparedVersion
from epochal.state.store.versions import FrozenVersion

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""When to publish again after a failure, and to report again if the driver repeats its order."""

_MORE_VERSIONS = 4
"""Versions kept in memory besides those of epochs in flight, because a hold and the limits after it
end epochs regardless of that bound."""

_WRITERS = 4
"""Stores published in parallel: a write mostly waits for storage."""

_READERS = 16
"""Stores read in parallel when a task starts."""

_Order: TypeAlias = tuple[int, Mapping[StoreKey, FrozenVersion], int]
"""What to publish: the state after an epoch, its rows, and the floor."""


@dataclass(frozen=True, slots=True)
class StateStart:
    """The state version that the first epoch starts from."""

    version: int
    named: tuple[PreparedState, ...] | None
    """The versions that the last manifest names; None if Spark wrote the last epoch."""
    commit: CommitEntry = field(default_factory=CommitEntry)
    """With the unique ids of the files to load: those of the last epoch if Spark wrote it, or those
    that the chain starts from."""
    chain: StateChain | None = None
    """The files with the version; None if Spark's files have all of it."""


@dataclass(frozen=True, slots=True)
class PreparedEpoch:
    """A task's part of an epoch's state, which is durable but not decided."""

    checksum: int = -1
    """Of the task's epoch file; -1 if the query has no state."""
    state: tuple[PreparedState, ...] = ()
    """The unique ids of the versions; empty if Spark's names have none."""


@dataclass(slots=True)
class _PartitionStore:
    """One store of one state partition, and the newest version prepared of it."""

    key: StoreKey
    schema: StoreSchema
    provider: StateStoreProvider
    version: int = 0
    rows: FrozenVersion | None = None


class TaskStores:
    """All stores of all state partitions that a task holds, in the checkpoint `files`."""

    def __init__(
        self,
        plan: QueryPlan,
        partitions: Sequence[int],
        files: Files,
        conf: StateStoreConf,
        *,
        attempt: int,
        run_id: str,
        task: int = 0,
        tasks: int = 1,
        max_epochs_in_flight: int = MAX_EPOCHS_IN_FLIGHT,
        writers: int = _WRITERS,
    ) -> None:
        self._attempt, self._task, self._tasks = attempt, task, tasks
        self._epochs = files.at(EPOCHS)
        self._before = -1
        self._lock = threading.Lock()
        """Of `_kept` only: the durable thread fills it and the data thread looks things up. The
        versions in it never change, so the publisher needs no lock to write them."""
        self._kept: dict[int, Mapping[StoreKey, FrozenVersion]] = {}
        self._keep = max_epochs_in_flight + _MORE_VERSIONS
        self._database = None
        if conf.memory_bytes is not None and plan.stages:
            self._database = LocalDatabase(conf.local_dir, conf.memory_bytes)
        # State on disk: one store at a time, because a file that is read or written takes memory.
        self._readers, self._writers = (_READERS, writers) if self._database is None else (1, 1)
        keyed = {
            StoreKey(stage.operator_id, partition, schema.name): schema
            for stage in plan.stages
            for partition in partitions_of_stage(stage, partitions)
            for schema in stage.stateful.stores
        }
        self._stores = {
            key: _PartitionStore(
                key, schema, self._open_provider(key, schema, files.at(STATE), conf, run_id)
            )
            for key, schema in keyed.items()
        }
        self._homes = {
            (stage.operator_id, family.name): schema.name
            for stage in plan.stages
            for schema in stage.stateful.stores
            for family in schema.families
        }
        """The store of each column family, by operator and family."""
        self._operators = [stage.operator_id for stage in plan.stages]
        self._is_stateful = bool(plan.stages)

    def load(self, operators: Sequence[StatefulOperator], start: StateStart) -> None:
        by_id = dict(zip(self._operators, operators, strict=True))
        stores = list(self._stores.values())
        # Files are read in parallel, because storage may be far away. Rows are decoded here, one
        # store after the other: that is Python's work, which threads would only take in turns.
        with (
            _no_collection(),
            ThreadPoolExecutor(self._readers, thread_name_prefix="epochal-load") as pool,
        ):
            named = {StoreKey(*by_store(state)): state for state in start.named or ()}
            later = None if start.chain is None else self._read_chain(start.chain)
            reading = pool.map(lambda store: _open(store, start, named, later), stores)
            for store, rows in zip(stores, reading, strict=True):
                store.rows, store.version = rows, start.version
                for name, table in self._tables(store, rows):
                    by_id[store.key.operator].load(store.key.partition, name, table)
        self._keep_version(start.version)

    def prepare(self, epoch: int, changes: Iterable[tuple[int, StateChanges]]) -> PreparedEpoch:
        """Make the next version of every store durable, in one file of this attempt.

        A store without changes gets a version too: Spark expects every version of every store.
        """
        by_key: dict[StoreKey, list[StateChanges]] = {}
        for operator, change in changes:
            name = self._homes.get((operator, change.store), change.store)
            by_key.setdefault(StoreKey(operator, change.partition, name), []).append(change)
        unknown = by_key.keys() - self._stores.keys()
        if unknown:
            raise EpochError(
                f"Operators changed the stores {unknown}, which this task does not own: another "
                f"task would overwrite them. This is a bug in the operator's partitioning."
            )
        if not self._is_stateful:
            return PreparedEpoch()
        encoded = [
            (store.key, self._encode(store, epoch, by_key.get(key, ())))
            for key, store in self._stores.items()
        ]
        entries = tuple(
            StoreFileEntry(*key, version.name, len(version.data)) for key, version in encoded
        )
        header = Header(epoch, self._attempt, self._task, self._tasks, self._before, entries)
        data = encode_epoch(header, [version.data for _, version in encoded])
        name = file_name(epoch, self._task, self._attempt)
        # After a crash from here on the file is a stray, until a decision names it. The driver
        # hears of it only after this has returned.
        self._before = write_epoch(self._epochs, name, data)
        self._keep_version(epoch + 1)
        label = prepared_label(attempt_label(self._attempt))
        state = tuple(
            PreparedState(*key, epoch + 1, version.name + label, -1)
            for key, version in encoded
            if id_of_version(version.name)
        )
        return PreparedEpoch(self._before, state)

    def rows_after(self, epoch: int) -> Mapping[StoreKey, FrozenVersion]:
        """The rows of every store after an epoch, to be published."""
        with self._lock:
            rows = self._kept.get(epoch + 1)
        if rows is None:
            raise EpochError(
                f"The state after epoch {epoch} is to be published, but the task has only the "
                f"versions {sorted(self._kept)}. This is a bug."
            )
        return rows

    def publish(self, epoch: int, rows: Mapping[StoreKey, FrozenVersion], floor: int) -> None:
        """Write the state after a committed epoch under Spark's names.

        Then delete files that only versions below `floor` need. Safe to repeat.
        """

        # The floor is never above a version that all tasks have published. So a crash at any point
        # leaves that version whole, and a store may be ahead of the others.
        providers, threads = {key: self._stores[key].provider for key in rows}, self._writers
        in_parallel(lambda key: providers[key].write_base(epoch + 1, rows[key]), rows, threads)
        in_parallel(lambda key: providers[key].delete_below(floor), rows, threads)

    def close(self) -> None:
        """Close all stores. Epoch files stay on disk: their epochs may still be decided."""
        for store in self._stores.values():
            store.provider.close()
        if self._database is not None:
            self._database.close()

    def _open_provider(
        self, key: StoreKey, schema: StoreSchema, files: Files, conf: StateStoreConf, run_id: str
    ) -> StateStoreProvider:
        disk = None
        if self._database is not None:
            scanned = RowCodec(schema.key, schema.value, schema.scan_columns)
            disk = DiskStates(self._database, scanned.prefixes_of if schema.scan_columns else None)
        store_id = StateStoreId(files.url, *key)
        return open_provider(
            store_id,
            schema.key,
            schema.value,
            conf,
            families=schema.families if schema.has_families else None,
            num_cols_prefix_key=schema.prefix_columns,
            files=files.at(store_id.path),
            query_run_id=run_id,
            disk=disk,
        )

    def _tables(
        self, store: _PartitionStore, loaded: FrozenVersion
    ) -> Iterator[tuple[str, Iterable[tuple[Row, Row]]]]:
        """The rows of a store, or of each family of it, for its operator."""
        database = self._database
        if database is None:
            yield from store.provider.tables(loaded)
            return

        def newest() -> DiskVersion:
            assert isinstance(store.rows, DiskVersion)
            return store.rows

        def saved_epoch() -> int:
            return store.version - 1

        forms = store.provider.forms(store.schema.scan_columns)
        share = database.memory_bytes // 4 // len(self._stores) // len(forms)
        for name, form in forms.items():
            yield name, DiskRows(database, newest, form, saved_epoch, share)

    def _encode(
        self, store: _PartitionStore, epoch: int, changes: Sequence[StateChanges]
    ) -> EncodedVersion:
        provider = store.provider
        if store.rows is None or store.version != epoch:
            raise EpochError(
                f"{provider.store_id} is at version {store.version}, so epoch {epoch} cannot be "
                f"made durable: epochs must be prepared one after the other. This is a bug."
            )
        draft = store.rows.draft()
        for change in changes:
            provider.apply(draft, change.store, change.puts, change.removes)
        encoded = provider.encode_version(epoch + 1, draft, attempt_label(self._attempt))
        store.rows, store.version = encoded.rows, epoch + 1
        return encoded

    def _keep_version(self, version: int) -> None:
        rows = {key: store.rows for key, store in self._stores.items() if store.rows is not None}
        with self._lock:
            self._kept[version] = rows
            self._kept.pop(version - self._keep, None)

    def _read_chain(self, chain: StateChain) -> dict[StoreKey, list[tuple[str, bytes]]]:
        """Read the files of the versions after the published one, by store."""
        files_by_store = self._versions_in(chain, self._task)
        length = chain.version - chain.published
        if any(len(files) != length for files in files_by_store.values()):
            # The attempt that wrote them assigned partitions to tasks in another way.
            files_by_store = self._versions_in(chain, None)
        for key, files in files_by_store.items():
            if len(files) != length:
                raise _not_named(self._stores[key].provider, chain.version)
        return files_by_store

    def _versions_in(
        self, chain: StateChain, task: int | None
    ) -> dict[StoreKey, list[tuple[str, bytes]]]:
        files_by_store: dict[StoreKey, list[tuple[str, bytes]]] = {key: [] for key in self._stores}
        for file in read_chain(
            self._epochs, chain, task=task, tasks=self._tasks, readers=self._readers
        ):
            for entry, data in file.items():
                if entry.key in files_by_store:
                    files_by_store[entry.key].append((entry.name, data))
        return files_by_store


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend the collection of reference cycles while many objects are made that all stay.

    It would visit what is loaded so far again and again, and take half of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _open(
    store: _PartitionStore,
    start: StateStart,
    named: Mapping[StoreKey, PreparedState],
    later: Mapping[StoreKey, Sequence[tuple[str, bytes]]] | None,
) -> FrozenVersion:
    """Read the rows of a store; `later` has its files in the chain, if there is one."""
    provider, unique_id = store.provider, start.commit.state_id(*store.key)
    if later is not None and start.chain is not None:
        return provider.load_chain(start.chain.published, unique_id, later[store.key])
    state = named.get(store.key)
    if start.named is not None and state is None:
        raise _not_named(provider, start.version)
    version = None
    if state is not None:
        version = PreparedVersion(state.version, state.name, state.checksum)
    opened = provider.get_store(start.version, from_prepared=version, unique_id=unique_id)
    provider.forget_cache()
    if version is not None:
        provider.release(version)
    return opened.loaded_rows


def _not_named(provider: StateStoreProvider, version: int) -> StateLoadError:
    return StateLoadError(
        str(provider.store_id),
        f"the last decided epoch names no state of it (version {version})",
        "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
    )


class StatePublisher(threading.Thread):
    """Publishes a task's state in the background, when the driver orders it.

    The driver repeats an order until all tasks have reported, because reports can be lost with a
    connection.
    """

    def __init__(
        self,
        stores: TaskStores,
        attempt: int,
        task: int,
        report: Callable[[StatePublished], None],
        clock: Clock,
    ) -> None:
        super().__init__(name="epochal-publisher", daemon=True)
        self._stores, self._attempt, self._task = stores, attempt, task
        self._report, self._clock = report, clock
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        # No lock: only the data thread calls `hear`, and only this thread sets `_done`. If `hear`
        # reads it too early, the driver repeats its order, and the next one reports.
        self._heard = self._done = -1
        self._reported = 0.0

    def hear(self, started: EpochStarted) -> None:
        """Note the order in a push of the driver, if there is one. Does not wait."""
        epoch = started.publish
        if epoch > self._heard:
            self._heard = epoch
            self._orders.put((epoch, self._stores.rows_after(epoch), started.floor))
        elif 0 <= epoch == self._done and self._clock.monotonic() - self._reported > AGAIN_SECONDS:
            self._tell(epoch)

    def run(self) -> None:
        while (order := self._orders.get()) is not None and not self._ended.is_set():
            while not self._publish(order):
                if self._ended.wait(AGAIN_SECONDS):
                    return

    def close(self) -> None:
        """End after the store that is being written now."""
        self._ended.set()
        self._orders.put(None)

    def _publish(self, order: _Order) -> bool:
        epoch = order[0]
        try:
            self._stores.publish(*order)
        except (EpochalError, OSError) as error:
            # Publication may be late: a restart needs only the epoch files.
            logger.warning("the state after epoch %d is not published: %s", epoch, error)
            return False
        self._done = epoch
        self._tell(epoch)
        return True

    def _tell(self, epoch: int) -> None:
        self._reported = self._clock.monotonic()
        self._report(StatePublished(self._attempt, self._task, epoch))
