"""Spark jobs whose partitions run on the executor that has their state in memory.

Partition i of the data is processed with version v of state store i: `fn(store, rows)` reads and
changes the store, commits it, and yields its results. Spark calls this StateStoreRDD.

State is cached in Python workers, and an executor has one worker per core. Spark can only be asked
for an executor; which of its workers runs the task is chance. With one core per executor it is
always the same worker, so the cache is always used. With more cores, another worker loads the files
that it has not cached. State jobs use a separate pool of workers, so that other Python code does
not take them. Spark ends workers that were idle for a minute, and after every task with
`spark.python.worker.reuse=false`; then the files are read again too.

The result is the same in all cases: the coordinator knows which worker had a store last, and all
other workers drop their cached copy.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark import RDD, SparkContext

from epochal.checkpoint.layout import DEFAULT_STORE, state_store_path
from epochal.checkpoint.operator_metadata import StoreMetadata
from epochal.clock import SystemClock
from epochal.connectors.worker_python import worker_python
from epochal.continuous.spark_job.placement import placed_beside, this_executor, unpacked
from epochal.files import open_files
from epochal.rpc.client import RpcClient
from epochal.rpc.envelope import RpcAddress
from epochal.rpc.server import RpcServer, driver_address
from epochal.state.files.schema_file import DEFAULT_FAMILY, FamilySchema
from epochal.state.rows.types import StructType, parse_schema
from epochal.state.store.compatibility import settle_operator, settle_schema
from epochal.state.store.conf import StateStoreConf, StateStoreId, StateStoreProviderId
from epochal.state.store.loaded import LoadedProviders
from epochal.state.store.open_provider import HDFSBackedStateStoreProvider
from epochal.state.store.store import StateStore
from epochal.state.store.store_coordinator import (
    StateStoreCoordinatorEndpoint,
    StateStoreCoordinatorRef,
    WorkerLocation,
)

Update: TypeAlias = Callable[[StateStore, Iterator[Any]], Iterable[Any]]

ASK_TIMEOUT_SECONDS = 120.0
"""As long as Spark's executors wait for their driver."""

OPERATOR_NAME = "mapPartitionsWithStateStore"
"""The operator name that Spark's `state-metadata` source shows by default."""

_POOL_VARIABLE = "EPOCHAL_WORKER_POOL"


class StateCoordinator:
    """The state store coordinator of one driver; serves its executors until stopped."""

    def __init__(self, sc: SparkContext, conf: StateStoreConf | None = None) -> None:
        address = driver_address(dict(sc.getConf().getAll()))
        self._endpoint = StateStoreCoordinatorEndpoint(SystemClock(), conf)
        self._server = RpcServer(advertised_host=address.host, bind_host=address.bind)
        self._endpoint.register(self._server)
        self._server.start()
        self.ref = self._endpoint.ref()
        self.address = self._server.address

    def stop(self) -> None:
        """Stop serving. Jobs that still run fail when they next open a store."""
        self._server.stop()


def map_partitions_with_state_store(
    rdd: RDD[Any],
    fn: Update,
    *,
    checkpoint: str,
    version: int,
    query_run_id: str,
    key_schema: Any,
    value_schema: Any,
    operator_id: int = 0,
    store_name: str = DEFAULT_STORE,
    num_cols_prefix_key: int = 0,
    operator_name: str = OPERATOR_NAME,
    conf: StateStoreConf | None = None,
    coordinator: StateCoordinator | None = None,
) -> RDD[Any]:
    """Run `fn(store, rows)` for each partition, with the store of its index at `version`.

    `fn` must commit the store, which creates `version + 1`; an uncommitted store is aborted.
    Running the same version again replaces what it committed. Schemas are PySpark's `StructType`,
    its JSON, or ours. Jobs with the same `query_run_id` share cached state; a restarted query needs
    a new one.

    The driver checks schemas and the number of partitions before anything runs. The first job
    stores them where Spark and `epochal state` look; later jobs must match them.
    """
    sc = rdd.context
    coordinator = coordinator or _coordinators.get(sc)
    if coordinator is None:
        coordinator = _coordinators[sc] = StateCoordinator(sc)
        weakref.finalize(sc, coordinator.stop)
    task = StateTask(
        f"{checkpoint.rstrip('/')}/state",
        operator_id,
        store_name,
        version,
        query_run_id,
        _schema(key_schema),
        _schema(value_schema),
        num_cols_prefix_key,
        conf or StateStoreConf(),
        coordinator.address,
    )
    count, files = rdd.getNumPartitions(), open_files(checkpoint)
    asked = FamilySchema(DEFAULT_FAMILY, task.key_schema, task.value_schema)
    settle_schema(files.at(state_store_path(operator_id, 0, store_name)), asked)
    metadata = StoreMetadata(store_name, num_cols_prefix_key, count)
    settle_operator(files, operator_id, operator_name, metadata)
    locations = [coordinator.ref.get_location(task.provider_id(n)) for n in range(count)]
    wishes = [[] if location is None else [location] for location in locations]
    results = placed_beside(rdd, wishes).mapPartitionsWithIndex(
        lambda index, chunks: task.run(index, fn, chunks)
    )
    with _worker_pool(sc, "state"), worker_python(sc):
        built = results._jrdd
    # Not the pipelined RDD: Spark would run the user's later steps in the state workers too.
    return RDD(built, sc, results._jrdd_deserializer)


@dataclass(frozen=True, slots=True)
class StateTask:
    """Everything that a task needs; sent pickled to a worker."""

    root: str
    operator_id: int
    store_name: str
    version: int
    query_run_id: str
    key_schema: StructType
    value_schema: StructType
    num_cols_prefix_key: int
    conf: StateStoreConf
    coordinator: RpcAddress

    def provider_id(self, partition: int) -> StateStoreProviderId:
        store_id = StateStoreId(self.root, self.operator_id, partition, self.store_name)
        return StateStoreProviderId(store_id, self.query_run_id)

    def run(self, partition: int, fn: Update, chunks: Iterator[list[bytes]]) -> Iterator[Any]:
        """On a worker: open the store, call `fn`, abort the store if it was not committed."""
        loaded = _loaded_here(self.coordinator, self.conf)
        provider_id = self.provider_id(partition)
        provider, force = loaded.get(provider_id, lambda: self._load(provider_id))
        rows = (row for chunk in chunks for row in unpacked(chunk))
        store = provider.get_store(self.version, force_snapshot_on_commit=force)
        try:
            yield from fn(store, rows)
        finally:
            store.abort()
            if self.conf.unload_on_commit:
                loaded.unload(provider_id)

    def _load(self, provider_id: StateStoreProviderId) -> HDFSBackedStateStoreProvider:
        return HDFSBackedStateStoreProvider(
            provider_id.store_id,
            self.key_schema,
            self.value_schema,
            self.conf,
            num_cols_prefix_key=self.num_cols_prefix_key,
            query_run_id=provider_id.query_run_id,
            coordinator=_coordinator_ref(self.coordinator),
        )


_coordinators: weakref.WeakKeyDictionary[SparkContext, StateCoordinator] = (
    weakref.WeakKeyDictionary()
)
_clients: dict[RpcAddress, RpcClient] = {}
_loaded: dict[tuple[int, RpcAddress], LoadedProviders] = {}
"""What a worker keeps between tasks, by process and driver. By process, because a forked worker
inherits its parent's dictionary but must not use its sockets."""


def _coordinator_ref(address: RpcAddress) -> StateStoreCoordinatorRef:
    client = _clients.setdefault(address, RpcClient(address, timeout_seconds=ASK_TIMEOUT_SECONDS))
    return StateStoreCoordinatorRef.through(client)


def _loaded_here(address: RpcAddress, conf: StateStoreConf) -> LoadedProviders:
    key = (os.getpid(), address)
    if key not in _loaded:
        executor, seconds = this_executor(), conf.maintenance_interval_ms / 1000
        here = WorkerLocation(executor.host, executor.executor_id, str(os.getpid()))
        _loaded[key] = LoadedProviders(here, _coordinator_ref(address), interval_seconds=seconds)
    return _loaded[key]


def _schema(schema: Any) -> StructType:
    if isinstance(schema, StructType):
        return schema
    return parse_schema(schema if isinstance(schema, str) else schema.json())


@contextmanager
def _worker_pool(sc: SparkContext, name: str) -> Iterator[None]:
    """Run the Python functions that are wrapped meanwhile in a separate pool of workers.

    Spark pools workers by their environment variables, so one more variable makes another pool.
    """
    before = dict(sc.environment)
    sc.environment[_POOL_VARIABLE] = name
    try:
        yield
    finally:
        sc.environment.clear()
        sc.environment.update(before)
