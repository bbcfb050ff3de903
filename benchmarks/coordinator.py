"""The epoch coordinator: cost of one report, and a driver with thousands of tasks on real sockets.

A few client processes simulate the tasks. Each task reports an active epoch, an end and a commit
per epoch, as a real one does. The measure is the CPU time of the driver process relative to one
core, so it does not matter that clients are slower than tasks with cores of their own. Storage is
in memory: fsync has its own benchmark (`log`).
"""

from __future__ import annotations

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
from epochal.epoch.coordinator import EpochCoordinator
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    EpochReply,
    EpochRequest,
    EpochStarted,
    IncrementAndGetEpoch,
    Leave,
    Peers,
    PreparedState,
    RegisterTask,
    ReportPartitionOffset,
    TaskActive,
    TaskReady,
)
from epochal.epoch.pace import Pace
from epochal.epoch.publish_state import StateFiles
from epochal.epoch.query_watermark import QueryWatermark
from epochal.rpc.curve import CurveKeys, introduce
from epochal.rpc.envelope import ONE_WAY, EndpointType, RpcAddress
from epochal.rpc.framing import decode_body, decode_push, decode_reply, encode_request
from epochal.rpc.server import RpcServer
from epochal.testing.files import MemoryFiles

ENDPOINT = EndpointType("EpochCoordinator-bench", EpochRequest, EpochReply)
ATTEMPT = 1
SIZES = (10, 100, 1_000, 10_000)
EPOCH_SECONDS = 0.1
MEASURED_SECONDS = 8.0
CLIENTS = 4
MAX_SOCKETS = 1_000
MESSAGES_PER_TASK = 3
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


def commit_of(task: int, epoch: int) -> CommitPartitionEpoch:
    name = f"{epoch + 1}.delta.prepared-a{ATTEMPT}"
    state = PreparedState(0, task, "default", epoch + 1, name, 1)
    message = b'{"files":["part-00000.parquet"]}'
    return CommitPartitionEpoch(ATTEMPT, task, epoch, message, (state,), (epoch,), (100,), 100)


def offset_of(reader: int, epoch: int) -> ReportPartitionOffset:
    return ReportPartitionOffset(ATTEMPT, reader, epoch, f'{{"offset":{epoch}}}')


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
        [each for task in range(tasks) for each in (offset_of(task, epoch), commit_of(task, epoch))]
        for epoch in range(epochs)
    ]
    start = time.process_time()
    for epoch in messages:
        coordinator.ask(IncrementAndGetEpoch(ATTEMPT))
        for message in epoch:
            coordinator.step(message)
    seconds = time.process_time() - start
    assert coordinator.decided == epochs - 1
    micros = 1e6 * seconds / (2 * tasks * epochs)
    report.row("pure step", tasks=tasks, microseconds_per_report=micros)


class Nowhere:
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


class Unpublished(StateFiles):
    """State files that do not exist, so publishing does nothing."""

    def publish(self, states: Sequence[PreparedState]) -> None:
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
            state=Unpublished(files),
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
        wanted_epochs_per_second=round(1 / EPOCH_SECONDS),
        epochs_per_second=epochs / wall,
        messages_per_second=received / wall,
        cores_used=cpu / wall,
        microseconds_per_message=1e6 * cpu / max(1, received),
        cut_to_commit_ms=(watched.latency_ms - waited_ms) / max(1, epochs),
        undelivered=server.counters.undelivered,
    )


def pretend(address: RpcAddress, tasks: int, sockets: int, number: int) -> None:
    """Simulate every `CLIENTS`th socket and all tasks that use it."""
    keys = CurveKeys(address.client_public_key, address.client_secret_key)
    with zmq.Context() as context:
        poller = zmq.Poller()
        held: dict[zmq.Socket[bytes], list[int]] = {}
        for place in range(number, sockets, CLIENTS):
            socket = context.socket(zmq.DEALER)
            introduce(socket, address.server_public_key, keys)
            socket.linger = 0
            socket.connect(address.url)
            poller.register(socket, zmq.POLLIN)
            held[socket] = list(range(place, tasks, sockets))
            for call, task in enumerate(held[socket], 1):
                hello = RegisterTask(ATTEMPT, task, "tcp://t", b"", "h", number)
                socket.send(encode_request(ENDPOINT.name, call, hello))
        done = dict.fromkeys(held, -1)
        while True:
            for socket, _ in poller.poll():
                if follow(socket, held[socket], done):
                    for each in held:
                        each.close()
                    return


def follow(socket: zmq.Socket[bytes], tasks: list[int], done: dict[zmq.Socket[bytes], int]) -> bool:
    """Obey one pushed message; return whether it told the task to leave."""
    reply = decode_reply(socket.recv())
    if reply.call != ONE_WAY:
        return False
    match decode_body(EpochReply, decode_push(reply).body):
        case Peers():
            say(socket, [TaskReady(ATTEMPT, task) for task in tasks])
        case EpochStarted(epoch=epoch) if epoch > done[socket]:
            for ended in range(max(0, done[socket]), epoch):
                say(socket, [offset_of(task, ended) for task in tasks])
                say(socket, [commit_of(task, ended) for task in tasks])
            say(socket, [TaskActive(ATTEMPT, task, epoch) for task in tasks])
            done[socket] = epoch
        case Leave():
            return True
    return False


def say(socket: zmq.Socket[bytes], messages: Sequence[object]) -> None:
    for message in messages:
        socket.send(encode_request(ENDPOINT.name, ONE_WAY, message))


if __name__ == "__main__":
    main()
