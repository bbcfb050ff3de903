"""The state stores of a task: loaded into its operators once, written at every cut.

Every epoch writes a new version of every store, built in memory from the version before it. The
file name carries the attempt, because the driver may not have decided even the previous epoch yet.
After the decision the driver publishes the version under Spark's plain name. Maintenance later sees
that it was published, writes snapshots and deletes old files, as Spark's maintenance does.

Note: a version is loaded by the name and checksum in the last decided manifest, never by its number
alone. A task of an earlier attempt that is still running may have written a file with that number.
Only if Spark wrote the last epoch is there no manifest; then the number is right, or the unique id
in the commit log.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.checkpoint.entries import CommitEntry
from epochal.continuous.operators.contract import Row, StateChanges, StatefulOperator, StoreSchema
from epochal.continuous.plan.stages import QueryPlan, partitions_of_stage
from epochal.epoch.messages import PreparedState
from epochal.errors import EpochError, StateError, StateLoadError
from epochal.files import Files
from epochal.state.disk.disk_rows import DiskRows, PlainForm, RowForm
from epochal.state.disk.disk_version import DiskStates, DiskVersion
from epochal.state.disk.local_database import LocalDatabase
from epochal.state.files.chain import attempt_label
from epochal.state.rows.arrow_types import AnyArrowType, arrow_type
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.types import AtomicType, DataType, StringType, StructType
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreId
from epochal.state.store.prepared import PreparedVersion
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.rocksdb_family_store import RocksDBFamilyProvider
from epochal.state.store.rocksdb_provider import open_provider
from epochal.state.store.store import StateStore
from epochal.state.store.versions import Draft, FrozenVersion

logger = logging.getLogger(__name__)

_MIN_COLUMNAR_ROWS = 64
"""With fewer rows than this, encoding them one at a time is faster than by columns."""

_KEPT_VERSIONS = 16
"""Prepared versions kept in memory for maintenance. More than can be undecided at a time."""

_WRITERS = 4
"""Stores written in parallel: a write mostly waits for storage."""

_READERS = 16
"""Stores read in parallel when a task starts."""

_PLAIN: dict[str, AnyArrowType] = {
    "long": pa.int64(),
    "timestamp": pa.int64(),
    "timestamp_ntz": pa.int64(),
    "integer": pa.int32(),
    "date": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "float": pa.float32(),
    "binary": pa.binary(),
}
"""Spark types whose Python values Arrow accepts unchanged as this type of the same width."""


@dataclass(frozen=True, slots=True)
class StateStart:
    """The state version that the first epoch starts from."""

    version: int
    named: tuple[PreparedState, ...] | None
    """The versions that the last manifest names; None if Spark wrote the last epoch."""
    commit: CommitEntry = field(default_factory=CommitEntry)
    """Of the last epoch, with the unique ids of its state files, if Spark wrote it."""


@dataclass(slots=True)
class _PartitionStore:
    """One store of one state partition, and the newest version prepared of it."""

    operator: int
    partition: int
    schema: StoreSchema
    provider: StateStoreProvider
    version: int = 0
    rows: FrozenVersion | None = None
    prepared: deque[PreparedVersion] = field(default_factory=deque)
    """Versions that may not be published yet, oldest first."""


class TaskStores:
    """All stores of all state partitions that a task holds."""

    def __init__(
        self,
        plan: QueryPlan,
        partitions: Sequence[int],
        files: Files,
        conf: StateStoreConf,
        *,
        attempt: int,
        run_id: str,
        writers: int = _WRITERS,
    ) -> None:
        self._attempt = attempt_label(attempt)
        self._lock = threading.Lock()
        self._database = None
        if conf.memory_bytes is not None and plan.stages:
            self._database = LocalDatabase(conf.local_dir, conf.memory_bytes)
        self._stores = {
            (stage.operator_id, partition, schema.name): _PartitionStore(
                stage.operator_id,
                partition,
                schema,
                _provider(
                    stage.operator_id, partition, schema, files, conf, run_id, self._database
                ),
            )
            for stage in plan.stages
            for partition in partitions_of_stage(stage, partitions)
            for schema in stage.stateful.stores
        }
        self._pool = (
            ThreadPoolExecutor(writers, thread_name_prefix="epochal-state")
            if writers > 1 and len(self._stores) > 1
            else None
        )
        self._homes = {
            (stage.operator_id, family.name): schema.name
            for stage in plan.stages
            for schema in stage.stateful.stores
            for family in schema.families
        }
        """The store of each column family, by operator and family."""
        self._operators = [stage.operator_id for stage in plan.stages]

    def load(self, operators: Sequence[StatefulOperator], start: StateStart) -> None:
        """Read every store and pass its rows to its operator."""
        by_id = dict(zip(self._operators, operators, strict=True))
        stores = list(self._stores.values())
        # Files are read in parallel, because storage may be far away. Rows are decoded here, one
        # store after the other: that is Python's work, which threads would only take in turns.
        # State on disk is read one store at a time: files that are being read take memory.
        readers = _READERS if self._database is None else 1
        with (
            _no_collection(),
            ThreadPoolExecutor(readers, thread_name_prefix="epochal-load") as pool,
        ):
            named = {
                (each.operator, each.partition, each.store): each for each in start.named or ()
            }
            reading = pool.map(lambda store: self._open(store, start, named), stores)
            for store, opened in zip(stores, reading, strict=True):
                self._load_one(store, opened, by_id[store.operator])

    def _open(
        self,
        store: _PartitionStore,
        start: StateStart,
        named: Mapping[tuple[int, int, str], PreparedState],
    ) -> StateStore:
        place = (store.operator, store.partition, store.schema.name)
        found = named.get(place)
        if start.named is not None and found is None:
            raise StateLoadError(
                str(store.provider.store_id),
                f"the last decided epoch names no state of it (version {start.version})",
                "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
            )
        version = None if found is None else _as_version(found)
        opened = store.provider.get_store(
            start.version, from_prepared=version, unique_id=start.commit.state_id(*place)
        )
        store.rows, store.version = opened.loaded_rows, start.version
        if version is not None:
            store.provider.release(version)
        return opened

    def _load_one(
        self, store: _PartitionStore, opened: StateStore, operator: StatefulOperator
    ) -> None:
        provider = store.provider
        if self._database is not None:
            for name, on_disk in self._on_disk(store, self._database):
                operator.load(store.partition, name, on_disk)
        elif isinstance(provider, RocksDBFamilyProvider):
            assert store.rows is not None
            for family in provider.families:
                rows = provider.rows_of(family, store.rows)
                operator.load(store.partition, family, rows)
        else:
            operator.load(store.partition, store.schema.name, opened.iterator())

    def prepare(
        self, epoch: int, changes: Iterable[tuple[int, StateChanges]]
    ) -> tuple[PreparedState, ...]:
        """Write the next version of every store under this attempt's names.

        A store without changes gets a version too: Spark expects every version of every store.
        """
        by_place: dict[tuple[int, int, str], list[StateChanges]] = {}
        for operator, each in changes:
            store = self._homes.get((operator, each.store), each.store)
            by_place.setdefault((operator, each.partition, store), []).append(each)
        unknown = by_place.keys() - self._stores.keys()
        if unknown:
            raise EpochError(
                f"Operators changed the stores {unknown}, which this task does not own: another "
                f"task would overwrite them. This is a bug in the operator's partitioning."
            )
        jobs = [(store, epoch, by_place.get(place, ())) for place, store in self._stores.items()]
        if self._pool is None:
            return tuple(self._prepare_one(*job) for job in jobs)
        return tuple(self._pool.map(lambda job: self._prepare_one(*job), jobs))

    def maintain(self) -> None:
        """Write snapshots and delete old files of each store, up to its published version."""
        for store in list(self._stores.values()):
            try:
                self._maintain_one(store)
            except (StateError, OSError) as error:
                # Maintenance may be late; the next round tries again.
                logger.warning("maintenance of %s failed: %s", store.provider.store_id, error)

    def close(self) -> None:
        """Close all stores. Prepared files stay on disk: their epochs may still be decided."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for store in self._stores.values():
            store.provider.close()
        if self._database is not None:
            self._database.close()

    def _on_disk(
        self, store: _PartitionStore, database: LocalDatabase
    ) -> Iterator[tuple[str, DiskRows]]:
        """The rows of a store, or of each family of it, for its operator."""

        def newest() -> DiskVersion:
            assert isinstance(store.rows, DiskVersion)
            return store.rows

        def saved_epoch() -> int:
            return store.version - 1

        provider, schema = store.provider, store.schema
        forms: dict[str, RowForm]
        if isinstance(provider, RocksDBFamilyProvider):
            forms = {name: provider.form_of(name) for name in provider.families}
        else:
            codec = RowCodec(schema.key, schema.value, schema.scan_columns)
            forms = {schema.name: PlainForm(codec)}
        share = database.memory_bytes // 4 // len(self._stores) // len(forms)
        for name, form in forms.items():
            yield name, DiskRows(database, newest, form, saved_epoch, share)

    def _prepare_one(
        self, store: _PartitionStore, epoch: int, changes: Sequence[StateChanges]
    ) -> PreparedState:
        provider, version = store.provider, epoch + 1
        if store.rows is None or store.version != epoch:
            raise EpochError(
                f"{provider.store_id} is at version {store.version}, so epoch {epoch} cannot be "
                f"made durable: epochs must be prepared one after the other. This is a bug."
            )
        draft = store.rows.draft()
        for change in changes:
            if isinstance(provider, RocksDBFamilyProvider):
                provider.apply(draft, change.store, change.puts, change.removes)
            else:
                _apply(draft, provider, change)
        prepared = provider.prepare(version, draft, self._attempt)
        store.rows = provider.get_store(version, from_prepared=prepared).loaded_rows
        store.version = version
        with self._lock:
            store.prepared.append(prepared)
            gone = store.prepared.popleft() if len(store.prepared) > _KEPT_VERSIONS else None
        if gone is not None:
            provider.release(gone)
        return PreparedState(
            store.operator,
            store.partition,
            store.schema.name,
            version,
            prepared.name,
            prepared.checksum,
        )

    def _maintain_one(self, store: _PartitionStore) -> None:
        with self._lock:
            waiting = list(store.prepared)
        # Publishing ends with the removal of the file under the attempt's name, so its absence
        # proves that the driver has published the version. No message is needed.
        published = [each for each in waiting if store.provider.is_gone(each)]
        if not published:
            return
        store.provider.publish(published[-1])
        store.provider.do_maintenance()
        for each in published:
            store.provider.release(each)
        with self._lock:
            store.prepared = deque(each for each in store.prepared if each not in published)


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


def _provider(
    operator: int,
    partition: int,
    schema: StoreSchema,
    files: Files,
    conf: StateStoreConf,
    run_id: str,
    database: LocalDatabase | None,
) -> StateStoreProvider:
    store_id = StateStoreId(files.url, operator, partition, schema.name)
    disk = None
    if database is not None:
        scanned = RowCodec(schema.key, schema.value, schema.scan_columns)
        disk = DiskStates(database, scanned.prefixes_of if schema.scan_columns else None)
    if schema.families:
        return RocksDBFamilyProvider(
            store_id,
            schema.families,
            conf,
            files=files.at(store_id.path),
            query_run_id=run_id,
            disk=disk,
        )
    return open_provider(
        store_id,
        schema.key,
        schema.value,
        conf,
        num_cols_prefix_key=schema.prefix_columns,
        files=files.at(store_id.path),
        query_run_id=run_id,
        disk=disk,
    )


def _as_version(state: PreparedState) -> PreparedVersion:
    return PreparedVersion(state.version, state.name, state.checksum)


def _apply(draft: Draft, provider: StateStoreProvider, change: StateChanges) -> None:
    codec = provider.codec
    if len(change.puts) < _MIN_COLUMNAR_ROWS:
        for key, value in change.puts:
            draft.put(codec.encode_key(key), codec.encode_value(value))
    else:
        keys, values = zip(*change.puts, strict=True)
        draft.put_many(
            _encoded(keys, codec.key_schema, codec.encode_key, codec.encode_keys),
            _encoded(values, codec.value_schema, codec.encode_value, codec.encode_values),
        )
    for key in change.removes:
        draft.remove(codec.encode_key(key))


def _encoded(
    rows: Sequence[Row],
    schema: StructType,
    one: Callable[[Row], bytes],
    many: Callable[[pa.RecordBatch], list[bytes]],
) -> list[bytes]:
    """Encode many rows: by columns if Arrow accepts the values unchanged, else one by one."""
    columns = _columns(rows, schema)
    return [one(row) for row in rows] if columns is None else many(columns)


def _columns(rows: Sequence[Row], schema: StructType) -> pa.RecordBatch | None:
    types = [_plain_type(each.data_type) for each in schema.fields]
    if not types or any(each is None for each in types):
        return None
    arrays = [
        pa.array(column, type_).view(arrow_type(each.data_type))
        for column, type_, each in zip(zip(*rows, strict=True), types, schema.fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def _plain_type(data_type: DataType) -> AnyArrowType | None:
    match data_type:
        case AtomicType(name):
            return _PLAIN.get(name)
        case StringType():
            return pa.string()
    return None
