"""Remembers where tasks ran, so that a restart can place them there again.

Their state files are in the page cache of that host.

Note: a preference for an executor that is gone is worse than none. Spark would wait for it
(`spark.locality.wait`), and a barrier job waits as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

import msgspec

from epochal.continuous.spark_job.placement import Executor, this_executor
from epochal.epoch.messages import Done
from epochal.rpc.client import RpcClient
from epochal.rpc.envelope import EndpointType, RpcAddress


class TaskPlaced(msgspec.Struct, frozen=True, array_like=True, tag="placed"):
    """A task runs on this executor. One-way."""

    task: int
    host: str
    executor: str


def endpoint_of(run_id: str) -> EndpointType:
    """Return the endpoint to which the tasks of a run report their executor."""
    return EndpointType(f"TaskPlaces-{run_id}", TaskPlaced, Done)


class TaskHosts:
    """The executors on which the tasks of a run were last seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[int, Executor] = {}

    def note(self, placed: TaskPlaced, peer: bytes = b"") -> None:
        """Record where a task runs."""
        del peer
        with self._lock:
            self._seen[placed.task] = Executor(placed.host, placed.executor)

    def wishes(self, tasks: int, alive: Collection[Executor]) -> list[list[str]]:
        """Return preferred locations by task: where it last ran, if that executor is alive."""
        with self._lock:
            seen = [self._seen.get(task) for task in range(tasks)]
        return [
            [f"executor_{each.host}_{each.executor_id}"] if each in alive and each else []
            for each in seen
        ]


def tell_place(address: RpcAddress, run_id: str, task: int) -> None:
    """Report to the driver where this task runs; called in the task."""
    here = this_executor()
    client = RpcClient(address)
    client.send(endpoint_of(run_id), TaskPlaced(task, here.host, here.executor_id))
    client.close()
