"""Pub/Sub with the engine's driver and task processes, without Spark. Tasks are killed.

Each attempt has a driver in this process and tasks in separate processes. The output is what the
sink committed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from tests.fault.file_sink import FileWriters, staged_rows
from tests.integration.pubsub_world import World
from tests.simulation.engine_pubsub import IDS, KeepIds
from tests.waiting import eventually

from epochal.checkpoint.entries import CommitLog, OffsetEntry, OffsetLog
from epochal.clock import SystemClock
from epochal.connectors.contract import Positions
from epochal.connectors.pubsub.engine.engine_source import PubSubSource
from epochal.connectors.pubsub.pubsub_options import source_options
from epochal.connectors.pubsub.pull.received_rows import MESSAGE_SCHEMA
from epochal.continuous.operators.deduplication.repeats import DropRepeatsSpec
from epochal.continuous.plan.stages import (
    Branch,
    QueryPlan,
    SourcePlan,
    StagePlan,
    Target,
    readers_of,
    readers_of_task,
)
from epochal.continuous.tasks.task_stores import StateStart
from epochal.continuous.tasks.worker import TaskAssignment, run_task
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.contract import CommittedSink
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources
from epochal.epoch.effects import ReadingHeld
from epochal.epoch.messages import EpochReply, EpochRequest
from epochal.epoch.pace import Pace
from epochal.epoch.publish_state import StateFiles
from epochal.files import open_files
from epochal.rpc.envelope import EndpointType, PeerId
from epochal.rpc.server import RpcServer

ENDPOINT = EndpointType("EpochCoordinator-run", EpochRequest, EpochReply)
SPAWN = multiprocessing.get_context("spawn")
TASKS, STATE_PARTITIONS = 2, 3


@dataclass(slots=True)
class Sink(CommittedSink):
    """Remembers the commit messages of each epoch, over all attempts."""

    commits: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    decides: bool = False

    def fence(self, attempt: int) -> None: ...

    def decided(self, epoch: int) -> bool:
        return epoch in self.commits

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        self.commits.setdefault(epoch, tuple(messages))


class Query:
    """A query that drops duplicate ids, with a staging sink; it runs attempts one after another."""

    def __init__(self, world: World, subscription: str, folder: Path, **options: str) -> None:
        given = {**world.options, "subscriptionId": subscription, "numPartitions": "3", **options}
        self.source = PubSubSource(source_options(given), None)
        self.sink, self.folder, self.attempt = Sink(), folder, 0
        self.failed: list[Exception] = []
        self.held = threading.Event()
        once = options.get("delivery") == "exactly-once"
        repeats = DropRepeatsSpec(("message_id",), MESSAGE_SCHEMA, 600_000, "publish_time")
        self.plan = QueryPlan(
            sources=(
                SourcePlan(
                    self.source.readers,
                    MESSAGE_SCHEMA,
                    (Branch(() if once else (KeepIds(),), Target(0)),),
                    acknowledges_in_tasks=True,
                ),
            ),
            watermarks=(),
            stages=(StagePlan(0, repeats, (MESSAGE_SCHEMA,), (KeepIds(),), Target(1)),)
            if once
            else (),
            writers=FileWriters(str(folder)),
            output_schema=IDS,
            state_partitions=STATE_PARTITIONS,
        )

    @contextmanager
    def running(self) -> Iterator[tuple[EpochDriver, list[BaseProcess]]]:
        """Run one attempt; kill the tasks that are alive at its end."""
        self.attempt += 1
        self.failed.clear()
        files = open_files(str(self.folder))
        server = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1")
        resources = EpochResources(
            url=str(self.folder),
            offsets=OffsetLog(files.at("offsets")),
            commits=CommitLog(files.at("commits")),
            sources=(self.source,),
            sink=self.sink,
            state=StateFiles(files),
            owned=lambda: True,
            run_id="run",
        )

        def push(peers: Sequence[PeerId], message: EpochReply) -> None:
            server.push(ENDPOINT, peers, message)

        listeners = Listeners(
            push=push, committed=self._committed, failed=self.failed.append, held=self._held
        )
        pace = Pace(epoch_seconds=0.05, idle_epoch_seconds=600.0)
        driver = EpochDriver(
            resources, listeners, attempt=self.attempt, clock=SystemClock(), pace=pace
        )
        server.register(ENDPOINT, driver.handle)
        recovered = driver.recover()
        readers = readers_of(recovered.positions)
        driver.start(
            [(each.source, each.partition) for each in readers], TASKS, template=OffsetEntry(1, ())
        )
        server.start()
        base: dict[str, Any] = {
            "rpc": server.address,
            "endpoint": ENDPOINT.name,
            "run_id": "run",
            "attempt": self.attempt,
            "tasks": TASKS,
            "plan": self.plan,
            "first_epoch": recovered.first_epoch,
            "state": StateStart(
                recovered.first_epoch, recovered.state, recovered.commit, recovered.chain
            ),
            "checkpoint": str(self.folder),
        }
        processes = [
            SPAWN.Process(
                target=run_task,
                args=(
                    TaskAssignment(
                        task=task, readers=readers_of_task(readers, task, TASKS), **base
                    ),
                ),
                daemon=True,
            )
            for task in range(TASKS)
        ]
        for each in processes:
            each.start()
        try:
            yield driver, list(processes)
        finally:
            for each in processes:
                each.kill() if self.failed else each.join(30)
                each.kill()
            driver.close()
            server.stop()

    def stop(self, driver: EpochDriver) -> None:
        self.held.clear()
        driver.stop()
        assert self.held.wait(60)

    def ids(self) -> list[str]:
        found = [staged_rows(self.folder, each) for each in list(self.sink.commits.values())]
        return sorted(row[0] for rows in found for row in rows)

    def wait_for(self, ids: Sequence[str]) -> None:
        def are_there() -> bool:
            assert not self.failed, self.failed
            return set(self.ids()) >= set(ids)

        eventually(are_there, lambda: f"{len(set(ids) - set(self.ids()))} more ids", pause=0.05)

    def _committed(self, epoch: CommittedEpoch, positions: tuple[Positions, ...]) -> None: ...

    def _held(self, held: ReadingHeld) -> None:
        self.held.set()


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_what_is_committed_is_acknowledged_also_by_a_stream_that_falls_idle(
    world: World, tmp_path: Path, delivery: str
) -> None:
    topic = world.topic()
    subscription = world.subscription(topic, ack_deadline_seconds=10)
    query = Query(world, subscription, tmp_path, delivery=delivery, ackDeadline="10s")
    sent = world.publish(topic, [b"x"] * 500)
    with query.running() as (driver, tasks):
        query.wait_for(sent)
        # No idle epoch ends in time: only the news of the commit makes the tasks acknowledge.
        eventually(lambda: not world.unacknowledged(subscription), "all acknowledged", pause=0.1)
        for task in tasks:
            os.kill(task.pid or 0, signal.SIGKILL)
        query.failed.append(RuntimeError("killed"))
        driver.dismiss()
    assert query.ids() == sorted(sent)
    assert world.unacknowledged(subscription) == []


def test_killed_tasks_cost_nothing(world: World, tmp_path: Path) -> None:
    topic = world.topic()
    subscription = world.subscription(topic, ack_deadline_seconds=10)
    query = Query(world, subscription, tmp_path, delivery="exactly-once", ackDeadline="10s")
    sent = world.publish(topic, [b"x"] * 300)
    for turn in range(3):
        with query.running() as (driver, tasks):
            if turn:
                query.wait_for(sent)
            sent += world.publish(topic, [b"y"] * 200)
            time.sleep(0.3 * turn)  # each turn kills at another moment
            os.kill(tasks[turn % TASKS].pid or 0, signal.SIGKILL)
            query.failed.append(RuntimeError("killed"))
            driver.dismiss()
    with query.running() as (driver, _):
        query.wait_for(sent)
        query.stop(driver)
    twice = {each: count for each, count in Counter(query.ids()).items() if count > 1}
    assert (twice, query.ids()) == ({}, sorted(sent))
    assert world.unacknowledged(subscription) == []


def test_a_deleted_subscription_fails_the_attempt_with_the_cause(
    world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    subscription = world.subscription(topic)
    query = Query(world, subscription, tmp_path)
    sent = world.publish(topic, [b"x"])
    with query.running():
        query.wait_for(sent)
        world.delete_subscription(subscription)
        eventually(lambda: query.failed, "the attempt fails")
    assert "NOT_FOUND" in str(query.failed[0])
    assert subscription in str(query.failed[0])
