"""Tasks as processes of their own, over real sockets, with a driver in this one."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from tests.fault.file_sink import FileWriters, staged_rows
from tests.simulation.pipeline import Account, RunningTotal, query

from epochal.clock import SystemClock
from epochal.continuous.operators.contract import Row
from epochal.continuous.plan import QueryPlan, readers_of, readers_of_task
from epochal.continuous.stores import StateStart, TaskStores
from epochal.continuous.worker import TaskAssignment, run_task
from epochal.epoch.coordinator import EpochCoordinator, Pace
from epochal.epoch.effects import (
    Decide,
    Effect,
    Fail,
    Finish,
    Held,
    Hold,
    LogCommit,
    Performed,
    PublishState,
    Push,
    Tick,
)
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    EpochReply,
    EpochRequest,
    GetCurrentEpoch,
    PreparedState,
    RegisterTask,
    ReportPartitionOffset,
)
from epochal.epoch.state_files import StateFiles
from epochal.files import open_files
from epochal.rpc.messages import EndpointType, PeerId, RpcAddress
from epochal.rpc.server import RpcServer
from epochal.state.conf import StateStoreConf

ENDPOINT = EndpointType("EpochCoordinator-run", EpochRequest, EpochReply)
PARTITIONS, ROWS, KEYS, STATE_PARTITIONS = 3, 400, 17, 4
SPAWN = multiprocessing.get_context("spawn")


class Driver:
    """A coordinator behind an RPC server; effects are performed where they arise."""

    def __init__(self, checkpoint: Path, tasks: int, attempt: int = 1) -> None:
        self.coordinator = EpochCoordinator(
            attempt=attempt,
            first_epoch=0,
            readers=PARTITIONS,
            tasks=tasks,
            pace=Pace(epoch_seconds=0.05, idle_epoch_seconds=0.05),
        )
        self.decided: list[Decide] = []
        self.failed: list[Fail] = []
        self.held, self.changed = threading.Event(), threading.Event()
        self.drop: set[type] = set()
        self._peers: dict[int, PeerId] = {}
        self._states = StateFiles(open_files(str(checkpoint)), publishers=1)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._server = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1")
        self._server.register(ENDPOINT, self._handle)
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    @property
    def address(self) -> RpcAddress:
        return self._server.address

    def __enter__(self) -> Driver:
        self._server.start()
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._ticker.join()
        self._server.stop()

    def happen(self, event: Any) -> None:
        with self._lock:
            self._perform(self.coordinator.step(event))

    def _tick(self) -> None:
        while not self._stop.wait(0.01):
            self.happen(Tick(SystemClock().monotonic()))

    def _handle(self, message: Any, peer: PeerId) -> Any:
        with self._lock:
            if type(message) in self.drop:
                self.drop.discard(type(message))
                return None
            if isinstance(message, RegisterTask):
                self._peers[message.task] = peer
            if isinstance(message, RegisterTask | GetCurrentEpoch):
                reply, effects = self.coordinator.ask(message)
                self._perform(effects)
                return reply
            self._perform(self.coordinator.step(message))
            return None

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Push(message, task):
                    peers = self._peers.values() if task is None else [self._peers[task]]
                    self._server.push(ENDPOINT, peers, message)
                case Decide():
                    self.decided.append(effect)
                case PublishState(_, state):
                    self._states.publish(state)
                case LogCommit(epoch):
                    self._perform(self.coordinator.step(Performed(LogCommit, epoch)))
                case Held():
                    self.held.set()
                case Fail():
                    self.failed.append(effect)
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
def tasks(driver: Driver, folder: Path, count: int, sink: str = "") -> Iterator[list[BaseProcess]]:
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
            state_conf=StateStoreConf(maintenance_interval_ms=50, min_deltas_for_snapshot=2),
        )
        processes.append(SPAWN.Process(target=run_task, args=(assignment,), daemon=True))
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
    end = tuple(str(ROWS) for _ in range(PARTITIONS))
    while not (driver.decided and driver.decided[-1].positions == end) and not driver.failed:
        assert driver.changed.wait(60), "nothing happens"
        driver.changed.clear()


def stop(driver: Driver) -> None:
    driver.happen(Hold())
    assert driver.held.wait(30)
    driver.happen(Finish())


def output(driver: Driver, folder: Path) -> list[Row]:
    return [row for each in driver.decided for row in staged_rows(folder, each.messages)]


def state(folder: Path, named: tuple[PreparedState, ...], version: int) -> dict[int, Any]:
    operator = RunningTotal(range(STATE_PARTITIONS))
    stores = TaskStores(
        plan(folder),
        range(STATE_PARTITIONS),
        open_files(str(folder / "state")),
        StateStoreConf(),
        attempt=99,
        run_id="check",
        writers=1,
    )
    stores.load([operator], StateStart(version, named))
    return {key: value for totals in operator.totals.values() for key, value in totals.items()}


def check(driver: Driver, folder: Path) -> None:
    account = Account(PARTITIONS, ROWS, KEYS)
    last = driver.decided[-1]
    account.check_totals(output(driver, folder), state(folder, last.state, last.epoch + 1))
    assert account.wrong == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_keyed_count_over_processes_is_exact_and_ends_when_told(
    tmp_path: Path, count: int
) -> None:
    with Driver(tmp_path, count) as driver, tasks(driver, tmp_path, count) as processes:
        wait_for_all_rows(driver)
        stop(driver)
        for each in processes:
            each.join(20)
        assert [each.exitcode for each in processes] == [0] * count
        assert driver.failed == []
    check(driver, tmp_path)


def test_reports_that_were_lost_are_said_again(tmp_path: Path) -> None:
    with Driver(tmp_path, 2) as driver, tasks(driver, tmp_path, 2):
        driver.drop = {ReportPartitionOffset, CommitPartitionEpoch}
        wait_for_all_rows(driver)
        assert driver.drop == set()
        stop(driver)
    check(driver, tmp_path)


def test_a_task_that_fails_tells_the_driver_why_before_it_ends(tmp_path: Path) -> None:
    with Driver(tmp_path, 1) as driver, tasks(driver, tmp_path, 1, sink="missing") as processes:
        while not driver.failed:
            assert driver.changed.wait(60)
            driver.changed.clear()
        processes[0].join(20)
        assert processes[0].exitcode == 1
    assert "FileNotFoundError" in str(driver.failed[0].error)
