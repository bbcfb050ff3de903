"""An epoch's storage: requests, CPU and wall time by the number of state stores.

The real driver and the real stores of two tasks, in this process and on local disk, without Spark,
sockets and operators: what is left is what an epoch does to storage. Each store changes five keys
per epoch. "A file per store" is the protocol of earlier releases: every store's version is prepared
under a name of its own, then published.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from benchmarks.harness import Report, arguments, percentile

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import StoreKey
from epochal.continuous.operators.contract import StateChanges, StoreSchema
from epochal.continuous.plan.stages import QueryPlan, StagePlan, Target, partitions_of_task
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.contract import CommittedSink, LoggedSource
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    EpochStarted,
    IncrementAndGetEpoch,
    PreparedState,
    RegisterTask,
    StatePublished,
    TaskReady,
)
from epochal.epoch.open_epoch import Pace
from epochal.files import Files
from epochal.files.local import LocalFiles
from epochal.state.rows.types import AtomicType, StructField, StructType
from epochal.state.store.conf import StateStoreConf
from epochal.testing.clock import ManualClock
from epochal.testing.files import FaultyFiles

SIZES = (8, 64, 512)
TASKS = 2
KEYS = 5
CHANGES = ("create", "replace", "delete")
SCHEMA = pa.schema([("key", pa.int64()), ("total", pa.int64())])
STORE = StoreSchema(
    "default",
    StructType((StructField("key", AtomicType("long")),)),
    StructType((StructField("total", AtomicType("long")),)),
)


def main() -> None:
    asked = arguments("epoch").parse_args()
    report = Report("epoch", busy=asked.busy, quick=asked.quick)
    for stores in SIZES:
        for protocol, engine in PROTOCOLS.items():
            with tempfile.TemporaryDirectory() as folder:
                made = engine(LocalFiles(Path(folder)), stores)
                measure(report, protocol, made, quick=asked.quick)


def measure(report: Report, protocol: str, engine: Engine, *, quick: bool) -> None:
    epochs = max(4, (60 if quick else 400) // max(1, engine.stores // 16))
    engine.run(2)
    engine.requests.clear()
    walls, cpus = [], []
    for _ in range(epochs):
        wall, cpu = time.perf_counter(), time.process_time()
        engine.run(1)
        walls.append(1000 * (time.perf_counter() - wall))
        cpus.append(1000 * (time.process_time() - cpu))
    found = engine.requests
    reads = sum(count for name, count in found.items() if name not in CHANGES)
    report.row(
        f"an epoch with {engine.stores} stores, {protocol}",
        stores=engine.stores,
        tasks=TASKS,
        protocol=protocol,
        epochs=epochs,
        puts=(found["create"] + found["replace"]) / epochs,
        gets=reads / epochs,
        deletes=found["delete"] / epochs,
        cpu_milliseconds_p50=percentile(cpus, 50),
        cpu_milliseconds_p99=percentile(cpus, 99),
        wall_milliseconds_p50=percentile(walls, 50),
        wall_milliseconds_p99=percentile(walls, 99),
    )


@dataclass(frozen=True, slots=True)
class TotalSpec:
    """A stateful operator, as far as stores depend on it."""

    name: str = "stateStoreSave"
    keys: tuple[tuple[str, ...], ...] = (("key",),)
    output_schema: pa.Schema = SCHEMA
    stores: tuple[StoreSchema, ...] = (STORE,)

    def open(self, partitions: Sequence[int], state_partitions: int) -> Total:
        del partitions, state_partitions
        return Total()


class Total:
    """Forgets what it loads."""

    def load(self, partition: int, store: str, rows: object) -> None:
        pass


class Source(LoggedSource):
    """One partition whose position is the number of the epoch."""

    acknowledges_in_tasks = False

    def initial(self) -> Mapping[str, str]:
        return {"0": "0"}

    def resume(self, offset: str) -> Mapping[str, str]:
        return {"0": offset}

    def offset(self, positions: Mapping[str, str]) -> str:
        return positions["0"]

    def boundary(self, positions: Mapping[str, str]) -> Mapping[str, str]:
        return positions

    def acknowledge(self, epoch: int, positions: Mapping[str, str]) -> None:
        pass


@dataclass(slots=True)
class OneFileSink(CommittedSink):
    """Output is one file per epoch."""

    files: Files
    decides: bool = False

    def fence(self, attempt: int) -> None:
        pass

    def decided(self, epoch: int) -> bool:
        return False

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        self.files.create(f"out/{epoch}", b"".join(messages))


class Engine:
    """A driver and the stores of its tasks, without anything between them."""

    def __init__(
        self, files: Files, stores: int, *, publish_seconds: float = 1e9, attempt: int = 1
    ) -> None:
        self.stores, self.attempt = stores, attempt
        self.requests: Counter[str] = Counter()
        self.files = FaultyFiles(files, self._count)
        self.started: EpochStarted | None = None
        stage = StagePlan(0, TotalSpec(), (SCHEMA,), (), Target(1))  # type: ignore[arg-type]
        nobody: Any = None
        self._plan = QueryPlan((), (), (stage,), nobody, SCHEMA, stores)
        self._clock = ManualClock()
        self.driver = EpochDriver(
            EpochResources(
                url=files.url,
                offsets=OffsetLog(self.files.at("offsets")),
                commits=CommitLog(self.files.at("commits")),
                sources=[Source()],
                sink=OneFileSink(self.files),
                state=StateFiles(self.files),
                owned=lambda: True,
                run_id="run",
                is_stateful=True,
            ),
            Listeners(push=self._hear, committed=lambda *_: None, failed=_raise),
            attempt=attempt,
            clock=self._clock,
            pace=Pace(publish_seconds=publish_seconds),
        )
        found = self.driver.recover()
        start = StateStart(found.first_epoch, found.state, found.commit, found.chain)
        self._tasks = [self._open(task, start) for task in range(TASKS)]
        self.driver.start([(0, "0")], TASKS, background=False)
        for task in range(TASKS):
            self.driver.handle(RegisterTask(self.attempt, task, "tcp://t", b"", "h", 1), b"peer")
        for task in range(TASKS):
            self.driver.handle(TaskReady(self.attempt, task))

    def run(self, epochs: int) -> None:
        """Let this many epochs be cut, decided and committed."""
        for _ in range(epochs):
            assert self.started is not None
            epoch = self.started.epoch
            self._clock.advance(1)
            self.driver.handle(IncrementAndGetEpoch(self.attempt))
            for task in range(TASKS):
                self.driver.handle(self._report(task, epoch))
            while self.driver.perform_next() is not None:
                pass

    def publish(self) -> None:
        """Have the tasks publish, if the driver has ordered it."""
        order = self.started
        if order is None or order.publish < 0:
            return
        for task, stores in enumerate(self._tasks):
            stores.publish(order.publish, stores.rows_after(order.publish), order.floor)
            self.driver.handle(StatePublished(self.attempt, task, order.publish))

    def _report(self, task: int, epoch: int) -> CommitPartitionEpoch:
        prepared = self._tasks[task].prepare(epoch, self._changes(task, epoch))
        return CommitPartitionEpoch(
            self.attempt,
            task,
            epoch,
            b"",
            prepared.state,
            checksum=prepared.checksum,
            positions=end_of(task, epoch),
        )

    def _changes(self, task: int, epoch: int) -> list[tuple[int, StateChanges]]:
        return [
            (0, StateChanges("default", partition, puts_of(epoch), (), KEYS))
            for partition in partitions_of_task(self.stores, task, TASKS)
        ]

    def _open(self, task: int, start: StateStart) -> TaskStores:
        partitions = partitions_of_task(self.stores, task, TASKS)
        found = TaskStores(
            self._plan,
            partitions,
            self.files,
            StateStoreConf(),
            attempt=self.attempt,
            run_id="run",
            task=task,
            tasks=TASKS,
        )
        operator: Any = Total()
        found.load([operator], start)
        return found

    def _hear(self, peers: Sequence[bytes], message: object) -> None:
        del peers
        if isinstance(message, EpochStarted):
            self.started = message

    def _count(self, operation: str, path: str) -> None:
        del path
        self.requests[operation] += 1


class FilePerStore(Engine):
    """The protocol of earlier releases."""

    def _report(self, task: int, epoch: int) -> CommitPartitionEpoch:
        state = []
        for _, change in self._changes(task, epoch):
            store = self._tasks[task]._stores[StoreKey(0, change.partition)]
            assert store.rows is not None
            draft = store.rows.draft()
            codec = store.provider.codec
            for key, value in change.puts:
                draft.put(codec.encode_key(key), codec.encode_value(value))
            made = store.provider.prepare(epoch + 1, draft, f"a{self.attempt}")
            store.rows = store.provider.get_store(epoch + 1, from_prepared=made).loaded_rows
            store.provider.release(made)
            state.append(PreparedState(*store.key, epoch + 1, made.name, made.checksum))
        return CommitPartitionEpoch(
            self.attempt, task, epoch, b"", tuple(state), positions=end_of(task, epoch)
        )


PROTOCOLS: dict[str, Callable[[Files, int], Engine]] = {
    "a file per task": Engine,
    "a file per store": FilePerStore,
}


def puts_of(epoch: int) -> list[tuple[tuple[int], tuple[int]]]:
    """The changes of one store."""
    return [((key,), (epoch,)) for key in range(KEYS)]


def end_of(task: int, epoch: int) -> tuple[tuple[int, str], ...]:
    """Where the only reader, which the first task has, ended an epoch."""
    return () if task else ((0, str(epoch)),)


def _raise(error: Exception) -> None:
    raise error


if __name__ == "__main__":
    main()
