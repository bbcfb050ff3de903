"""Tasks in separate processes, over real sockets, with the driver in this process."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from tests.fault.file_sink import FileWriters, staged_rows
from tests.simulation.pipeline import Account, RunningTotal, query
from tests.waiting import eventually

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.clock import SystemClock
from epochal.connectors.contract import Positions
from epochal.continuous.operators.contract import Row
from epochal.continuous.plan.stages import QueryPlan, readers_of, readers_of_task
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.continuous.tasks.worker import TaskAssignment, run_task
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.contract import CommittedSink, LoggedSource
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.manifest import manifest_of
from epochal.epoch.messages import CommitPartitionEpoch, EpochReply, EpochRequest, TaskActive
from epochal.epoch.open_epoch import Pace
from epochal.files import open_files
from epochal.rpc.envelope import EndpointType, PeerId, RpcAddress
from epochal.rpc.server import RpcServer
from epochal.state.store.conf import StateStoreConf

ENDPOINT = EndpointType("EpochCoordinator-run", EpochRequest, EpochReply)
PARTITIONS, ROWS, KEYS, STATE_PARTITIONS = 3, 400, 17, 4
SPAWN = multiprocessing.get_context("spawn")


@dataclass(slots=True)
class Source(LoggedSource):
    """A source whose positions are its offsets."""

    acknowledges_in_tasks = False

    def initial(self) -> Positions:
        return {str(partition): "0" for partition in range(PARTITIONS)}

    def resume(self, offset: str) -> Positions:
        found: dict[str, str] = json.loads(offset)
        return found

    def offset(self, positions: Positions) -> str:
        return json.dumps(positions)

    def boundary(self, positions: Positions) -> Positions:
        return positions

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        pass


@dataclass(slots=True)
class Sink(CommittedSink):
    """Remembers the commit messages of each epoch."""

    commits: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    decides: bool = False

    def fence(self, attempt: int) -> None:
        pass

    def decided(self, epoch: int) -> bool:
        return epoch in self.commits

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        self.commits.setdefault(epoch, tuple(messages))


class Driver:
    """The engine's driver behind an RPC server, which can be told to lose messages."""

    def __init__(self, checkpoint: Path, tasks: int) -> None:
        self.sink = Sink()
        self.ended: list[Positions] = []
        self.failed: list[Exception] = []
        self.changed = threading.Event()
        self.drop: set[type] = set()
        self.files = open_files(str(checkpoint))
        self._tasks = tasks
        resources = EpochResources(
            url=str(checkpoint),
            offsets=OffsetLog(self.files.at("offsets")),
            commits=CommitLog(self.files.at("commits")),
            sources=(Source(),),
            sink=self.sink,
            state=StateFiles(self.files),
            owned=lambda: True,
            run_id="run",
        )
        self._server = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1")
        listeners = Listeners(push=self._push, committed=self._committed, failed=self._failed)
        pace = Pace(epoch_seconds=0.05, idle_epoch_seconds=0.05)
        self.driver = EpochDriver(resources, listeners, attempt=1, clock=SystemClock(), pace=pace)
        self._server.register(ENDPOINT, self._handle)

    @property
    def address(self) -> RpcAddress:
        return self._server.address

    def __enter__(self) -> Driver:
        readers = readers_of(self.driver.recover().positions)
        self.driver.start([(each.source, each.partition) for each in readers], self._tasks)
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close()
        self._server.stop()

    def _handle(self, message: Any, peer: PeerId) -> Any:
        if type(message) in self.drop:
            self.drop.discard(type(message))
            return None
        return self.driver.handle(message, peer)

    def _push(self, peers: Sequence[PeerId], message: EpochReply) -> None:
        self._server.push(ENDPOINT, peers, message)

    def _committed(self, epoch: CommittedEpoch, positions: tuple[Positions, ...]) -> None:
        self.ended.append(positions[0])
        self.changed.set()

    def _failed(self, error: Exception) -> None:
        self.failed.append(error)
        self.changed.set()


def plan(folder: Path, per_read: int = 3) -> QueryPlan:
    return query(
        FileWriters(str(folder)),
        rows=ROWS,
        keys=KEYS,
        state_partitions=STATE_PARTITIONS,
        per_read=per_read,
    )


@contextmanager
def tasks(
    driver: Driver, folder: Path, count: int, sink: str = "", *, started: int | None = None
) -> Iterator[list[BaseProcess]]:
    readers = readers_of([{str(p): "0" for p in range(PARTITIONS)}])
    processes: list[BaseProcess] = []
    for task in range(count):
        assignment = TaskAssignment(
            rpc=driver.address,
            endpoint=ENDPOINT.name,
            run_id="run",
            attempt=1,
            task=task,
            tasks=count,
            plan=plan(folder / sink),
            readers=readers_of_task(readers, task, count),
            first_epoch=0,
            state=StateStart(0, None),
            checkpoint=str(folder),
            state_conf=StateStoreConf(),
            max_silence_seconds=25.0 if started is None else 2.0,
        )
        processes.append(SPAWN.Process(target=run_task, args=(assignment,), daemon=True))
    processes = processes[:started]
    for each in processes:
        each.start()
    try:
        yield processes
    finally:
        for each in processes:
            each.join(10)
            if each.is_alive():
                each.kill()


def wait_for_all_rows(driver: Driver) -> None:
    end = {str(partition): str(ROWS) for partition in range(PARTITIONS)}
    while not (driver.ended and driver.ended[-1] == end) and not driver.failed:
        assert driver.changed.wait(60), "nothing happens"
        driver.changed.clear()


def output(driver: Driver, folder: Path) -> list[Row]:
    return [row for each in driver.sink.commits.values() for row in staged_rows(folder, each)]


def state(folder: Path) -> dict[int, Any]:
    """Return the state that the last decision names."""
    latest = OffsetLog(str(folder / "offsets"), read_only=True).get_latest()
    assert latest is not None
    manifest = manifest_of(latest[1], "offsets")
    assert manifest is not None
    operator = RunningTotal(range(STATE_PARTITIONS))
    files = open_files(str(folder))
    stores = TaskStores(
        plan(folder), range(STATE_PARTITIONS), files, StateStoreConf(), attempt=99, run_id="check"
    )
    stores.load([operator], StateStart(latest[0] + 1, None, chain=manifest.chain))
    return {key: value for totals in operator.totals.values() for key, value in totals.items()}


def check(driver: Driver, folder: Path) -> None:
    account = Account(PARTITIONS, ROWS, KEYS)
    account.check_totals(output(driver, folder), state(folder))
    assert account.wrong == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_keyed_count_over_processes_is_exact_and_ends_when_told(
    tmp_path: Path, count: int
) -> None:
    with Driver(tmp_path, count) as driver, tasks(driver, tmp_path, count) as processes:
        wait_for_all_rows(driver)
        driver.driver.stop()
        for each in processes:
            each.join(20)
        assert [each.exitcode for each in processes] == [0] * count
        assert driver.failed == []
    check(driver, tmp_path)


def test_reports_that_were_lost_are_said_again(tmp_path: Path) -> None:
    with Driver(tmp_path, 2) as driver, tasks(driver, tmp_path, 2):
        driver.drop = {TaskActive, CommitPartitionEpoch}
        wait_for_all_rows(driver)
        assert driver.drop == set()
        driver.driver.stop()
    check(driver, tmp_path)


def test_a_task_that_fails_tells_the_driver_why_before_it_ends(tmp_path: Path) -> None:
    with Driver(tmp_path, 1) as driver, tasks(driver, tmp_path, 1, sink="missing") as processes:
        while not driver.failed:
            assert driver.changed.wait(60)
            driver.changed.clear()
        processes[0].join(20)
        assert processes[0].exitcode == 1
    assert "FileNotFoundError" in str(driver.failed[0])


def test_a_task_that_waits_for_its_peers_ends_when_its_driver_is_gone(tmp_path: Path) -> None:
    driver = Driver(tmp_path, 2)
    with driver, tasks(driver, tmp_path, 2, started=1) as processes:
        eventually(lambda: driver.driver.coordinator._registered)
        driver._server.stop()
        began = time.monotonic()
        processes[0].join(30)
        assert processes[0].exitcode == 1
        assert time.monotonic() - began < 15
