"""The state stores of a task: loaded into its operators once, written at every cut.

Versions follow each other epoch by epoch under names of the attempt, long before the driver has
decided the first of them: each is made from the one before it, in memory. The driver gives the
decided ones Spark's plain names. Some time later maintenance finds out that it has, and writes
snapshots of them and deletes what is no longer needed, as Spark's own would.

What a reader would get wrong: a version is opened by the name and checksum that the last decision
gave it, never because a file has the right number: a task that outlived its attempt may have
written that. Only where Spark wrote the last epoch is there no name, and the number is right.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.continuous.operators.contract import Row, StateChanges, StatefulOperator, StoreSchema
from epochal.continuous.plan.stages import QueryPlan
from epochal.epoch.messages import PreparedState
from epochal.errors import EpochError, StateError, StateLoadError
from epochal.files import Files
from epochal.state.files.chain import attempt_label
from epochal.state.rows.arrow_types import AnyArrowType, arrow_type
from epochal.state.rows.types import AtomicType, DataType, StringType, StructType
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreId
from epochal.state.store.prepared import PreparedVersion
from epochal.state.store.provider import HDFSBackedStateStoreProvider
from epochal.state.store.versions import Draft, FrozenVersion

logger = logging.getLogger(__name__)

_WORTH_COLUMNS = 64
"""Below this many rows, encoding them one at a time is quicker."""

_KEPT_VERSIONS = 16
"""Prepared versions kept in memory for maintenance: more than can wait for a decision."""

_WRITERS = 4
"""Stores written at the same time: most of it is waiting for the disk."""

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
"""Types whose values in rows are what Arrow takes for this type, of the same width."""


@dataclass(frozen=True, slots=True)
class StateStart:
    """Which version the first epoch follows."""

    version: int
    named: tuple[PreparedState, ...] | None
    """As the last decision names them; None if the number is all there is to go by."""


@dataclass(slots=True)
class _Held:
    """One store of one partition."""

    operator: int
    partition: int
    schema: StoreSchema
    provider: HDFSBackedStateStoreProvider
    version: int = 0
    rows: FrozenVersion | None = None
    prepared: deque[PreparedVersion] = field(default_factory=deque)


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
        self._held = {
            (stage.operator_id, partition, schema.name): _Held(
                stage.operator_id,
                partition,
                schema,
                _provider(stage.operator_id, partition, schema, files, conf, run_id),
            )
            for stage in plan.stages
            for partition in partitions
            for schema in stage.stateful.stores
        }
        self._pool = (
            ThreadPoolExecutor(writers, thread_name_prefix="epochal-state")
            if writers > 1 and len(self._held) > 1
            else None
        )
        self._operators = [stage.operator_id for stage in plan.stages]

    def load(self, operators: Sequence[StatefulOperator], start: StateStart) -> None:
        """Read every store and hand its rows to the operator it belongs to."""
        by_id = dict(zip(self._operators, operators, strict=True))
        named = {(each.operator, each.partition, each.store): each for each in start.named or ()}
        for place, held in self._held.items():
            found = named.get(place)
            if start.named is not None and found is None:
                raise StateLoadError(
                    str(held.provider.store_id),
                    f"the last decided epoch names no state of it (version {start.version})",
                    "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
                )
            version = None if found is None else _as_version(found)
            store = held.provider.get_store(start.version, from_prepared=version)
            held.rows, held.version = store.loaded_rows, start.version
            by_id[held.operator].load(held.partition, held.schema.name, store.iterator())
            if version is not None:
                held.provider.release(version)

    def prepare(
        self, epoch: int, changes: Iterable[tuple[int, StateChanges]]
    ) -> tuple[PreparedState, ...]:
        """Write what an epoch changed, every store, under names of this attempt."""
        by_place = {(operator, c.partition, c.store): c for operator, c in changes}
        unknown = by_place.keys() - self._held.keys()
        if unknown:
            raise EpochError(f"Operators changed stores that this task does not hold: {unknown}.")
        jobs = [(held, epoch, by_place.get(place)) for place, held in self._held.items()]
        if self._pool is None:
            return tuple(self._prepare_one(*job) for job in jobs)
        return tuple(self._pool.map(lambda job: self._prepare_one(*job), jobs))

    def maintain(self) -> None:
        """Snapshot and clean up each store, as far as its versions have been published."""
        for held in list(self._held.values()):
            try:
                self._maintain_one(held)
            except (StateError, OSError) as error:
                # Maintenance can be late; the next round tries again.
                logger.warning("maintenance of %s: %s", held.provider.store_id, error)

    def close(self) -> None:
        """Let go of everything; what is prepared stays."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for held in self._held.values():
            held.provider.close()

    def _prepare_one(self, held: _Held, epoch: int, change: StateChanges | None) -> PreparedState:
        provider, version = held.provider, epoch + 1
        if held.rows is None or held.version != epoch:
            raise EpochError(
                f"{provider.store_id} is at version {held.version}, so epoch {epoch} cannot be "
                f"made durable: epochs must be prepared one after the other."
            )
        draft = held.rows.draft()
        if change is not None:
            _apply(draft, provider, change)
        prepared = provider.prepare(version, draft, self._attempt)
        held.rows = provider.get_store(version, from_prepared=prepared).loaded_rows
        held.version = version
        with self._lock:
            held.prepared.append(prepared)
            gone = held.prepared.popleft() if len(held.prepared) > _KEPT_VERSIONS else None
        if gone is not None:
            provider.release(gone)
        return PreparedState(
            held.operator,
            held.partition,
            held.schema.name,
            version,
            prepared.name,
            prepared.checksum,
        )

    def _maintain_one(self, held: _Held) -> None:
        with self._lock:
            kept = list(held.prepared)
        # The driver publishes, and the last step of that is to remove the attempt's name.
        published = [each for each in kept if held.provider.is_gone(each)]
        if not published:
            return
        held.provider.publish(published[-1])
        held.provider.do_maintenance()
        for each in published:
            held.provider.release(each)
        with self._lock:
            held.prepared = deque(each for each in held.prepared if each not in published)


def _provider(
    operator: int,
    partition: int,
    schema: StoreSchema,
    files: Files,
    conf: StateStoreConf,
    run_id: str,
) -> HDFSBackedStateStoreProvider:
    store_id = StateStoreId(files.url, operator, partition, schema.name)
    return HDFSBackedStateStoreProvider(
        store_id,
        schema.key,
        schema.value,
        conf,
        files=files.at(store_id.path),
        query_run_id=run_id,
    )


def _as_version(state: PreparedState) -> PreparedVersion:
    return PreparedVersion(state.version, state.name, state.checksum)


def _apply(draft: Draft, provider: HDFSBackedStateStoreProvider, change: StateChanges) -> None:
    codec = provider.codec
    if len(change.puts) < _WORTH_COLUMNS:
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
    """Many rows as bytes: by columns where Arrow takes the values as they are."""
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
