"""Remembers where tasks run and when each was last heard, from the pulses that tasks send.

A restart places tasks where they ran before: their state files are in the page cache of that host.

A host that is cut off sends nothing, not even the end of its connections. Spark notices it after
`spark.network.timeout`, two minutes. Pulses show it in seconds. Executors whose tasks are all
silent are then excluded, so that the next attempt does not wait for them.

Note: a preference for an executor that is gone is worse than none. Spark would wait for it
(`spark.locality.wait`), and a barrier job waits as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

import msgspec

from epochal.clock import Clock, SystemClock
from epochal.continuous.spark_job.placement import Executor, this_executor
from epochal.epoch.messages import Done
from epochal.errors import RpcError
from epochal.rpc.client import RpcClient
from epochal.rpc.envelope import EndpointType, RpcAddress

PULSES_PER_SILENCE = 5
"""So that a few lost or late pulses do not count as silence."""


END_SECONDS = 2.0


class TaskPlaced(msgspec.Struct, frozen=True, array_like=True, tag="placed"):
    """A task runs on this executor, and is alive. One-way, repeated."""

    task: int
    host: str
    executor: str
    attempt: int = 0
    left: bool = False
    """The last pulse: the task has ended."""


def endpoint_of(run_id: str) -> EndpointType:
    return EndpointType(f"TaskPlaces-{run_id}", TaskPlaced, Done)


class Pulses:
    """When each task of an attempt was last heard. Pure."""

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._heard: dict[int, float] = {}
        self._looked: float | None = None

    def heard(self, task: int, now: float) -> None:
        self._heard[task] = now

    def left(self, task: int) -> None:
        self._heard.pop(task, None)

    def take_silent(self, now: float) -> dict[int, float]:
        """Return the tasks that have just become silent, with the seconds since their last pulse.

        Once one is, those count that are a little less silent.

        Must be called often. If it was not, this process itself was suspended, and pulses may be
        waiting to be received: then the silence of all tasks counts from now.
        """
        looked, self._looked = self._looked, now
        if looked is not None and now - looked > self._silence_seconds / 2:
            self._heard = dict.fromkeys(self._heard, now)
        ages = {task: now - at for task, at in self._heard.items()}
        if max(ages.values(), default=0.0) <= self._silence_seconds:
            return {}
        # Tasks of one host fall silent together, but their last pulses are up to a pulse apart.
        together = self._silence_seconds * (1 - 1.5 / PULSES_PER_SILENCE)
        silent = {task: age for task, age in ages.items() if age > together}
        for task in silent:
            del self._heard[task]
        return silent


def lost_executors(
    silent: Collection[int], placed: Mapping[int, Executor], alive: Collection[Executor]
) -> set[Executor]:
    """Return the executors on which no task can run any more. Pure.

    One task that is silent beside others that are not has a problem of its own. If all tasks on a
    host are silent, and those on another are not, no executor on that host is worth a try.
    """
    quiet = {placed[task] for task in silent if task in placed}
    heard = {executor for task, executor in placed.items() if task not in silent}
    lost = quiet - heard
    heard_hosts = {executor.host for executor in heard}
    if heard:
        lost_hosts = {executor.host for executor in lost} - heard_hosts
        lost |= {executor for executor in alive if executor.host in lost_hosts}
    lost &= set(alive)
    # With no other executor a restart can only try the same ones again.
    return lost if set(alive) - lost else set()


class TaskHosts:
    """The executors on which the tasks of a run were last seen."""

    def __init__(self, silence_seconds: float = 10.0, clock: Clock | None = None) -> None:
        self._silence_seconds, self._clock = silence_seconds, clock or SystemClock()
        self._lock = threading.Lock()
        self._seen: dict[int, Executor] = {}
        self._attempt, self._pulses = 0, Pulses(silence_seconds)
        self.has_lost = False
        """Whether executors were excluded in this run."""

    def begin(self, attempt: int) -> None:
        """Expect pulses of this attempt, and forget those of earlier ones."""
        with self._lock:
            self._attempt, self._pulses = attempt, Pulses(self._silence_seconds)

    def end(self) -> None:
        self.begin(-1)

    def note(self, placed: TaskPlaced, peer: bytes = b"") -> None:
        """Record where a task runs, and that it is alive."""
        del peer
        with self._lock:
            if placed.attempt != self._attempt:
                return
            self._seen[placed.task] = Executor(placed.host, placed.executor)
            if placed.left:
                self._pulses.left(placed.task)
            else:
                self._pulses.heard(placed.task, self._clock.monotonic())

    def take_silent(self) -> dict[int, float]:
        """Return the tasks that have just become silent, with the length of their silence."""
        with self._lock:
            return self._pulses.take_silent(self._clock.monotonic())

    def lose(self, silent: Collection[int], tasks: int, alive: Collection[Executor]) -> set[str]:
        """Return the ids of the executors that were lost with these tasks."""
        with self._lock:
            placed = {task: seen for task, seen in self._seen.items() if task < tasks}
        lost = lost_executors(silent, placed, alive)
        self.has_lost = self.has_lost or bool(lost)
        return {executor.executor_id for executor in lost}

    def wishes(self, tasks: int, alive: Collection[Executor]) -> list[list[str]]:
        """Return preferred locations by task: where it last ran, if that executor is alive."""
        with self._lock:
            seen = [self._seen.get(task) for task in range(tasks)]
        return [[executor.location] if executor and executor in alive else [] for executor in seen]


@contextmanager
def pulsing(
    address: RpcAddress, run_id: str, attempt: int, task: int, silence_seconds: float
) -> Iterator[None]:
    """Report to the driver where this task runs, again and again until the block ends."""
    ended = threading.Event()

    def pulse() -> None:
        here, endpoint, client = this_executor(), endpoint_of(run_id), RpcClient(address)
        placed, left = TaskPlaced(task, here.host, here.executor_id, attempt), False
        try:
            # `left` is read before the message: the last one, sent after the end, says so.
            while not left:
                left = ended.wait(0.0)
                # A driver that cannot be reached is another thread's concern.
                with suppress(RpcError):
                    client.send(endpoint, msgspec.structs.replace(placed, left=left))
                ended.wait(silence_seconds / PULSES_PER_SILENCE)
        finally:
            client.close()

    thread = threading.Thread(target=pulse, name="epochal-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_SECONDS)
