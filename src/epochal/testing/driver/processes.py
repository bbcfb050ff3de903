"""A driver and its tasks as processes that can be stopped between any two of their acts.

They are the engine's own parts; only threads, sockets and clocks are the world's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from epochal.checkpoint.claim import Claim
from epochal.checkpoint.entries import CommitLog, OffsetEntry, OffsetLog
from epochal.connectors.contract import Positions, SinkWriter, WriterContext
from epochal.connectors.foreach import ForeachWriters
from epochal.continuous.plan.stages import (
    QueryPlan,
    ReaderPlan,
    partitions_of_task,
    readers_of,
    readers_of_task,
)
from epochal.continuous.tasks.frames import Frame
from epochal.continuous.tasks.reports import TaskReports, failure_report
from epochal.continuous.tasks.task import EpochCut, TaskCore
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.contract import CommittedSink, LoggedSource
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources, Recovered, newest_attempt
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.event_time.unit_ends import ends_of_waiting
from epochal.epoch.messages import (
    EpochReply,
    EpochRequest,
    EpochStarted,
    GetCurrentEpoch,
    Leave,
    Peers,
    RegisterTask,
    StatePublished,
    TaskReady,
)
from epochal.epoch.open_epoch import Pace
from epochal.files import Files
from epochal.state.store.conf import StateStoreConf
from epochal.testing.clock import ManualClock
from epochal.testing.driver.staged_sink import StagingWriter
from epochal.testing.driver.under_test import CallingWriter

CHECKPOINT = "checkpoint"
EPOCH_SECONDS = 1.0
PACE = Pace(epoch_seconds=EPOCH_SECONDS, idle_epoch_seconds=3.0, publish_seconds=2.0)
CONF = StateStoreConf(min_deltas_for_snapshot=2, min_versions_to_retain=3)


@dataclass(slots=True)
class TaskProcess:
    """One task of one attempt; what it is told and what it says waits in queues."""

    plan: QueryPlan
    attempt: int
    task: int
    tasks: int
    recovered: Recovered
    files: Files
    conf: StateStoreConf = CONF
    code: ForeachWriters | None = None
    """The user's code that gets the rows, besides the sink."""
    frames: dict[int, deque[Frame]] = field(default_factory=dict)
    """By sender."""
    pushes: deque[EpochReply] = field(default_factory=deque)
    data: deque[EpochRequest] = field(default_factory=deque)
    durable: deque[EpochRequest] = field(default_factory=deque)
    cuts: deque[EpochCut] = field(default_factory=deque)
    outgoing: deque[tuple[int, Frame]] = field(default_factory=deque)
    orders: deque[tuple[int, Any, int]] = field(default_factory=deque)
    heard: int = -1
    published: int = -1
    alive: bool = True
    worked: bool = False
    """Whether the last turn had rows, or left work for the next one."""
    core: TaskCore | None = None
    stores: TaskStores | None = None
    reports: TaskReports = field(init=False)

    def __post_init__(self) -> None:
        self.reports = TaskReports(
            attempt=self.attempt,
            task=self.task,
            first_epoch=self.recovered.first_epoch,
            epoch_seconds=EPOCH_SECONDS,
        )

    @property
    def peer(self) -> bytes:
        return f"{self.attempt}/{self.task}".encode()

    def register(self) -> None:
        self.data.append(RegisterTask(self.attempt, self.task, f"at {self.task}", b"", "host", 1))

    def turn(self, now_ms: int, frames: list[Frame]) -> None:
        """Take what has come from the driver and from peers, and work."""
        pushes, self.pushes = list(self.pushes), deque()
        for push in pushes:
            if isinstance(push, Leave) and push.attempt == self.attempt:
                if self.core is not None:
                    self.core.note_commit(push.committed)
                self.alive = False
                return
            if isinstance(push, Peers):
                self._prepare()
        if self.core is None:
            assert not frames
            return
        started = [push for push in pushes if isinstance(push, EpochStarted)]
        for push in started:
            self._hear(push)
        out = self.core.turn(now_ms, frames, started)
        self.worked = out.busy or out.had_rows
        self.outgoing.extend(out.frames)
        for message in out.messages:
            self.reports.note_active(message.epoch, now_ms / 1000)
        self.cuts.extend(out.cuts)
        active = self.reports.due(now_ms / 1000)
        if active is not None:
            self.data.append(active)

    def make_durable(self) -> None:
        cut = self.cuts.popleft()
        assert self.stores is not None
        prepared = self.stores.prepare(cut.epoch, cut.changes)
        report = msgspec.structs.replace(
            cut.report, message=cut.prepare(), state=prepared.state, checksum=prepared.checksum
        )
        self.durable.append(self.reports.complete(report))

    def _hear(self, started: EpochStarted) -> None:
        assert self.stores is not None
        if started.publish > self.heard:
            self.heard = started.publish
            rows = self.stores.rows_after(started.publish)
            self.orders.append((started.publish, rows, started.floor))
        elif 0 <= started.publish == self.published:
            self.durable.append(StatePublished(self.attempt, self.task, self.published))

    def publish(self) -> None:
        """Write the state under Spark's names, if that was ordered."""
        if self.orders and self.stores is not None:
            epoch, rows, floor = self.orders[0]
            self.stores.publish(epoch, rows, floor)
            self.orders.popleft()
            self.published = epoch
            self.durable.append(StatePublished(self.attempt, self.task, epoch))

    def ask(self, ask: Callable[[EpochRequest], EpochReply | None]) -> None:
        """What a task does after a second of silence."""
        answer = ask(GetCurrentEpoch(self.attempt))
        if isinstance(answer, EpochStarted):
            self.durable.extend(self.reports.undecided(answer.epoch))
        if answer is not None:
            self.pushes.append(answer)
            self.outgoing.extend([] if self.core is None else self.core.pulse())

    def fail(self, error: Exception) -> None:
        self.alive = False
        self.data.append(failure_report(self.attempt, self.task, error))

    def _prepare(self) -> None:
        if self.core is None:
            recovered = self.recovered
            schema = self.plan.output_schema
            context = WriterContext(self.task, self.attempt, "run", schema, recovered.first_epoch)
            writer: SinkWriter = StagingWriter(self.files, context)
            if self.code is not None:
                writer = CallingWriter(writer, self.code, context)
            readers = readers_of_task(readers_of(recovered.positions), self.task, self.tasks)
            core = TaskCore(
                self.plan,
                task=self.task,
                tasks=self.tasks,
                attempt=self.attempt,
                first_epoch=recovered.first_epoch,
                readers=readers,
                writer=writer,
            )
            partitions = partitions_of_task(self.plan.state_partitions, self.task, self.tasks)
            self.stores = TaskStores(
                self.plan,
                partitions,
                self.files.at(CHECKPOINT),
                self.conf,
                attempt=self.attempt,
                run_id="run",
                task=self.task,
                tasks=self.tasks,
                writers=1,
            )
            start = StateStart(
                recovered.first_epoch, recovered.state, recovered.commit, recovered.chain
            )
            self.stores.load(core.operators, start)
            self.core = core
        self.data.append(TaskReady(self.attempt, self.task))


class DriverProcess:
    """One run: a guard, and one attempt after the other."""

    def __init__(
        self,
        files: Files,
        guard: Claim,
        plan: QueryPlan,
        sources: Sequence[LoggedSource],
        sink: CommittedSink,
        clock: ManualClock,
        send: Callable[[bytes, EpochReply], None],
        retained: int = 4,
        pace: Pace = PACE,
        commit_version: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.alive = True
        self.paused = self.stopping = self.stopped = False
        self.failure: Exception | None = None
        self.driver: EpochDriver | None = None
        self.guard = guard
        self._clock, self._send, self._pace = clock, send, pace
        checkpoint = files.at(CHECKPOINT)
        self.resources = EpochResources(
            url="checkpoint",
            offsets=OffsetLog(checkpoint.at("offsets")),
            commits=CommitLog(checkpoint.at("commits")),
            sources=tuple(sources),
            sink=sink,
            state=StateFiles(checkpoint, publishers=1),
            owned=guard.still_mine,
            run_id=guard.run_id,
            delays_ms=tuple(mark.delay_ms for mark in plan.watermarks),
            watermarks_move=plan.watermarks_move,
            offset_lines=plan.offset_lines,
            min_batches_to_retain=retained,
            commit_version=commit_version,
            is_stateful=bool(plan.stages),
        )
        self._settings = settings or {}

    def begin_attempt(self, tasks: int) -> Recovered:
        """Number the attempt, recover, and await tasks."""
        self.failure = None
        self.driver = None
        self.stopping = False
        attempt = self.guard.next_attempt(above=newest_attempt(self.resources.offsets))
        driver = EpochDriver(
            self.resources, self._listeners(), attempt=attempt, clock=self._clock, pace=self._pace
        )
        recovered = driver.recover()
        readers = readers_of(recovered.positions)
        held_at = self._held_at(readers)
        template = None if recovered.base else OffsetEntry(1, (), conf=self._settings)
        ends: tuple[Positions, ...] = ()
        if self.resources.delays_ms and recovered.unit is None and held_at is None:
            ends = ends_of_waiting(self.resources.sources, recovered.positions)
        numbered = [(reader.source, reader.partition) for reader in readers]
        driver.start(
            numbered, tasks, template=template, held_at=held_at, unit_ends=ends, background=False
        )
        self.driver = driver
        return recovered

    def _listeners(self) -> Listeners:
        return Listeners(push=self._push, committed=lambda *_: None, failed=self._fail)

    def _held_at(self, readers: Sequence[ReaderPlan]) -> tuple[str, ...] | None:
        """Where readers wait until an epoch is planned; None if they read at once."""
        del readers
        return None

    def _push(self, peers: object, message: EpochReply) -> None:
        for peer in peers:  # type: ignore[attr-defined]
            self._send(peer, message)

    def _fail(self, error: Exception) -> None:
        self.failure = error
