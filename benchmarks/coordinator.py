"""The epoch coordinator: cost of one report, and a driver with thousands of tasks on real sockets.

A few client processes simulate the tasks. Each task sends one report per epoch, as a real one does
under steady load. The measure is the CPU time of the driver process, which has no JVM here; the
clients are not counted. So it does not matter that they are slower than tasks with cores of their
own, except that they limit how many epochs are possible. Storage is in memory: fsync has its own
benchmark (`log`).
"""

from __future__ import annotations

import heapq
import multiprocessing
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import zmq
from benchmarks.harness import Report, arguments

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.clock import SystemClock
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.contract import CommittedSink, LoggedSource
from epochal.epoch.coordinator import EpochCoordinator
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.event_time.query_watermark import QueryWatermark
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    EpochReply,
    EpochRequest,
    EpochStarted,
    IncrementAndGetEpoch,
    Leave,
    Peers,
    RegisterTask,
    TaskActive,
    TaskReady,
)
from epochal.epoch.open_epoch import Pace
from epochal.rpc.curve import CurveKeys, introduce
from epochal.rpc.envelope import (
    ONE_WAY,
    EndpointType,
    RpcAddress,
    decode_body,
    decode_push,
    decode_reply,
    encode_request,
)
from epochal.rpc.server import RpcServer
from epochal.testing.files import MemoryFiles

ENDPOINT = EndpointType("EpochCoordinator-bench", EpochRequest, EpochReply)
ATTEMPT = 1
SIZES = (10, 100, 1_000, 10_000)
EPOCH_SECONDS = 0.08
"""Shorter than the 100 ms of the target, so that a driver that keeps up shows that it could."""
MEASURED_SECONDS = 8.0
CLIENTS = 4
MAX_SOCKETS = 1_000
PREPARE_SECONDS = 0.04
"""Tasks take up to this long to make an epoch durable, so that reports do not come all at once."""
PACE = Pace(epoch_seconds=EPOCH_SECONDS, max_backlog=1_000_000, register_seconds=300)


def main() -> None:
    parser = arguments("coordinator")
    parser.add_argument("sizes", nargs="*", type=int, help="numbers of tasks")
    asked = parser.parse_args()
    report = Report("coordinator", busy=asked.busy, quick=asked.quick)
    sizes = asked.sizes or SIZES[: 2 if asked.quick else None]
    for tasks in sizes:
        pure_step(report, tasks)
    for tasks in sizes:
        over_sockets(report, tasks)


def commit_of(task: int, epoch: int, active: int) -> CommitPartitionEpoch:
    message = b'{"files":["part-00000.parquet"]}'
    return CommitPartitionEpoch(
        ATTEMPT,
        task,
        epoch,
        message,
        (),
        (epoch,),
        (100,),
        100,
        checksum=epoch,
        positions=((task, f'{{"offset":{epoch}}}'),),
        active=active,
    )


def pure_step(report: Report, tasks: int) -> None:
    """The cost of a report without any transport."""
    coordinator = EpochCoordinator(
        attempt=ATTEMPT,
        first_epoch=0,
        readers=tasks,
        tasks=tasks,
        watermark=QueryWatermark(highs=(-1,), delays_ms=(0,)),
        pace=PACE,
    )
    for task in range(tasks):
        coordinator.ask(RegisterTask(ATTEMPT, task, "tcp://t", b"", "h", 1))
    for task in range(tasks):
        coordinator.step(TaskReady(ATTEMPT, task))
    epochs = max(3, 100_000 // tasks)
    messages = [
        [commit_of(task, epoch, epoch + 1) for task in range(tasks)] for epoch in range(epochs)
    ]
    start = time.process_time()
    for epoch in messages:
        coordinator.ask(IncrementAndGetEpoch(ATTEMPT))
        for message in epoch:
            coordinator.step(message)
    seconds = time.process_time() - start
    assert coordinator.decided == epochs - 1
    micros = 1e6 * seconds / (tasks * epochs)
    report.row("pure step", tasks=tasks, microseconds_per_report=micros)


class Nowhere(LoggedSource, CommittedSink):
    """A source and a sink that accept everything and do nothing."""

    decides = False
    acknowledges_in_tasks = False

    def initial(self) -> Mapping[str, str]:
        return {}

    def resume(self, offset: str) -> Mapping[str, str]:
        return {"": offset}

    def offset(self, positions: Mapping[str, str]) -> str:
        return str(len(positions))

    def boundary(self, positions: Mapping[str, str]) -> Mapping[str, str]:
        return positions

    def acknowledge(self, epoch: int, positions: Mapping[str, str]) -> None:
        pass

    def fence(self, attempt: int) -> None:
        pass

    def decided(self, epoch: int) -> bool:
        return False

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        pass


@dataclass
class Watched:
    """Records what the driver reports."""

    epochs: int = 0
    latency_ms: float = 0.0
    failure: Exception | None = None

    def committed(self, epoch: CommittedEpoch, _: object) -> None:
        self.epochs += 1
        self.latency_ms += epoch.committed_ms - epoch.cut_ms

    def failed(self, error: Exception) -> None:
        self.failure = error


def over_sockets(report: Report, tasks: int) -> None:
    """Run a driver with this many tasks, and measure its share of a core."""
    files, nowhere, watched = MemoryFiles(), Nowhere(), Watched()
    with RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1") as server:
        resources = EpochResources(
            url="memory:",
            offsets=OffsetLog(files.at("offsets")),
            commits=CommitLog(files.at("commits")),
            sources=[nowhere],
            sink=nowhere,
            state=StateFiles(files),
            owned=lambda: True,
            run_id="bench",
            delays_ms=(0,),
        )
        listeners = Listeners(
            push=lambda peers, message: server.push(ENDPOINT, peers, message),
            committed=watched.committed,
            failed=watched.failed,
        )
        driver = EpochDriver(resources, listeners, attempt=ATTEMPT, clock=SystemClock(), pace=PACE)
        driver.recover()
        driver.start([(0, str(reader)) for reader in range(tasks)], tasks)
        server.register(ENDPOINT, driver.handle)
        sockets = min(tasks, MAX_SOCKETS)
        spawn = multiprocessing.get_context("spawn")
        clients = [
            spawn.Process(target=pretend, args=(server.address, tasks, sockets, number))
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        measure(report, driver, server, watched, tasks, sockets)
        driver.finish()
        for client in clients:
            client.join()
        driver.close()


def measure(
    report: Report,
    driver: EpochDriver,
    server: RpcServer,
    watched: Watched,
    tasks: int,
    sockets: int,
) -> None:
    pause = threading.Event()
    while watched.epochs < 5 and watched.failure is None:
        pause.wait(0.05)
    if watched.failure is not None:
        raise SystemExit(str(watched.failure))
    epochs, received, waited_ms = watched.epochs, server.counters.received, watched.latency_ms
    wall, cpu = time.perf_counter(), time.process_time()
    pause.wait(MEASURED_SECONDS)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    epochs, received = watched.epochs - epochs, server.counters.received - received
    report.row(
        "driver over sockets",
        tasks=tasks,
        sockets=sockets,
        wanted_epochs_per_second=1 / EPOCH_SECONDS,
        epochs_per_second=epochs / wall,
        messages_per_second=received / wall,
        cores_used=cpu / wall,
        microseconds_per_task_and_epoch=1e6 * cpu / max(1, epochs * tasks),
        cut_to_commit_ms=(watched.latency_ms - waited_ms) / max(1, epochs),
        undelivered=server.counters.undelivered,
    )


def pretend(address: RpcAddress, tasks: int, sockets: int, number: int) -> None:
    """Simulate every `CLIENTS`th socket and all tasks that use it, until they are told to leave."""
    keys = CurveKeys(address.client_public_key, address.client_secret_key)
    with zmq.Context() as context:
        clients: dict[zmq.Socket[bytes], Client] = {}
        poller = zmq.Poller()
        for place in range(number, sockets, CLIENTS):
            socket = context.socket(zmq.DEALER)
            introduce(socket, address.server_public_key, keys)
            socket.linger = 0
            socket.connect(address.url)
            poller.register(socket, zmq.POLLIN)
            mine = range(place, tasks, sockets)
            clients[socket] = Client(socket, mine, PREPARE_SECONDS * place / sockets)
            for call, task in enumerate(mine, 1):
                hello = RegisterTask(ATTEMPT, task, "tcp://t", b"", "h", number)
                socket.send(encode_request(ENDPOINT.name, call, hello))
        due: list[tuple[float, int, Client]] = []
        while not any(client.left for client in clients.values()):
            wait_ms = None if not due else max(0, int(1000 * (due[0][0] - time.monotonic())))
            for socket, _ in poller.poll(wait_ms):
                if clients[socket].follow():
                    at = time.monotonic() + clients[socket].prepare_seconds
                    heapq.heappush(due, (at, clients[socket].tasks[0], clients[socket]))
            while due and due[0][0] <= time.monotonic():
                heapq.heappop(due)[2].report()
        for socket in clients:
            socket.close()


@dataclass
class Client:
    """One socket and the tasks that use it."""

    socket: zmq.Socket[bytes]
    tasks: range
    prepare_seconds: float
    """How long these tasks take to make an epoch durable."""
    reading: int = -1
    reported: int = -1
    left: bool = False

    def follow(self) -> bool:
        """Obey one pushed message; return whether an epoch has ended."""
        reply = decode_reply(self.socket.recv())
        if reply.call != ONE_WAY:
            return False
        match decode_body(EpochReply, decode_push(reply).body):
            case Peers():
                self._say([TaskReady(ATTEMPT, task) for task in self.tasks])
            case EpochStarted(epoch=epoch) if epoch > self.reading:
                if epoch == 0:
                    self._say([TaskActive(ATTEMPT, task, epoch) for task in self.tasks])
                self.reading = epoch
                return epoch > 0
            case Leave():
                self.left = True
        return False

    def report(self) -> None:
        """Report all epochs that have ended."""
        while self.reported < self.reading - 1:
            self.reported += 1
            self._say([commit_of(task, self.reported, self.reading) for task in self.tasks])

    def _say(self, messages: Sequence[object]) -> None:
        for message in messages:
            self.socket.send(encode_request(ENDPOINT.name, ONE_WAY, message))


if __name__ == "__main__":
    main()
