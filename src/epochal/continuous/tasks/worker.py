"""Runs one task of a query inside a Spark task, for as long as the attempt lasts.

There are three threads:

- The data thread takes turns (see `task`): one per millisecond, or in four if there have been no
  rows for a second, or when its sources tell that rows have come. It never touches storage.
- The durable thread makes epochs durable, in order, and reports them to the driver.
- The publisher writes the state under Spark's names when the driver orders it.

Pushes and reports can be lost with a connection. So if the driver has been silent for a second, the
durable thread asks for the newest push and repeats its recent reports. The coordinator ignores
repeated reports.

An error in the data or durable thread ends the task. The task reports it to the driver before Spark
does, because its own traceback says more than Spark's.

Note: a task saves nothing when it ends. Epochs that were not decided are cut again by the next
attempt, so there is nothing to save.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from epochal.clock import Clock, SystemClock
from epochal.connectors.contract import WriterContext
from epochal.continuous.plan.stages import QueryPlan, ReaderPlan, partitions_of_task, schemas_of
from epochal.continuous.tasks.channels import Channels
from epochal.continuous.tasks.reports import TaskReports, failure_report
from epochal.continuous.tasks.task import EpochCut, TaskCore
from epochal.continuous.tasks.task_stores import StatePublisher, StateStart, TaskStores
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
from epochal.epoch.open_epoch import EPOCH_SECONDS, MAX_EPOCHS_IN_FLIGHT
from epochal.errors import EpochError, RpcError, RpcTimeoutError
from epochal.evaluator.evaluator_client import CLIENT
from epochal.evaluator.evaluator_process import start_early
from epochal.evaluator.executor_jvm import DEFAULT_MEMORY_MB
from epochal.files import open_files
from epochal.rpc.client import RpcClient
from epochal.rpc.curve import CurveKeys
from epochal.rpc.envelope import EndpointType, RpcAddress
from epochal.rpc.server import local_host
from epochal.state.store.conf import StateStoreConf

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.001
"""Average time between two reads that find rows. Shorter turns make frames small and costly."""

EARLY_TURNS = 4
"""How many reads may come early, after as many milliseconds without rows. So rows that come singly
do not wait for the end of a millisecond."""

IDLE_TURN_SECONDS = 0.004
"""The same for a task that has had no rows for a second. An idle query then costs a quarter. Unless
its sources wake it, it reads the first row after a pause later, by 1.5 ms on average."""

WOKEN_TURN_SECONDS = 0.02
"""The same for a task that sources wake and that has no timers. It still looks whether another
thread has failed, and whether the driver must hear of rows."""

WAIT_SECONDS = 0.005
"""How long a task waits in its source, where it does not notice messages from the driver."""

IDLE_SECONDS = 1.0
"""How long a task must be without rows to count as idle."""

SILENCE_SECONDS = 1.0
"""After this long without a message from the driver, the task asks it."""

SIGN_SECONDS = 1.0
"""How often the driver hears of rows in an epoch with limits, which may be long."""

_GC_THRESHOLD = (10_000, 20, 50)
"""The data thread makes many short-lived objects but hardly any reference cycles."""

_SWITCH_SECONDS = 0.0005
"""How long another thread may keep the interpreter lock while the data thread wants it. Python's
default of 5 ms would cost five turns, several times per epoch."""

_GUARD_TURNS = 256
"""Under full load the thread never calls `wait`, which also answers authentication requests. So it
answers them once in this many turns."""

_END_SECONDS = 2.0
"""How long to wait for the durable thread. After that it is abandoned: no decision will name the
files that it still writes, so they have no effect."""


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """Everything that a task needs to know; sent pickled."""

    rpc: RpcAddress
    endpoint: str
    """Name of the driver's endpoint for this run."""
    run_id: str
    attempt: int
    task: int
    tasks: int
    plan: QueryPlan
    readers: tuple[ReaderPlan, ...]
    """Those of this task."""
    first_epoch: int
    state: StateStart
    checkpoint: str
    state_conf: StateStoreConf = field(default_factory=StateStoreConf)
    host: str = ""
    """Where peers reach this task; if empty, its address on the route to the driver."""
    max_epochs_in_flight: int = MAX_EPOCHS_IN_FLIGHT
    epoch_seconds: float = EPOCH_SECONDS
    batch_time_ms: int | None = None
    """The time of all rows, if the attempt runs a batch that Spark planned; None for the clock."""
    evaluator_mb: int = DEFAULT_MEMORY_MB
    """The memory of Spark's own code beside the tasks."""
    needs_evaluator: bool = False
    """Whether Spark's own code evaluates a part of the query, so that it should start at once."""
    max_silence_seconds: float = 25.0
    """A task ends if its driver has been silent for this long."""


def run_task(assignment: TaskAssignment) -> None:
    """Run a task until the driver sends `Leave`; raise the error that ended it otherwise."""
    CLIENT.task, CLIENT.memory_mb = assignment.task, assignment.evaluator_mb
    if assignment.needs_evaluator:
        start_early(assignment.evaluator_mb)
    worker = _Worker(assignment)
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        worker.run()
    except BaseException as error:
        worker.report_failure(error)
        raise
    finally:
        worker.close()
        gc.unfreeze()  # Spark may reuse the process for other tasks
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def turn_seconds(idle_seconds: float) -> float:
    """Return the time between two reads of a task whose last rows came this long ago."""
    return IDLE_TURN_SECONDS if idle_seconds > IDLE_SECONDS else TURN_SECONDS


def next_woken_read(earliest: float, now: float) -> float:
    """Return when sources may next wake a task that has read rows now.

    `earliest` is what this function returned for the read before.
    """
    return min(max(earliest, now - EARLY_TURNS * TURN_SECONDS), now) + TURN_SECONDS


class _Left(Exception):
    """The driver has sent `Leave`: the attempt is over."""


class _Durable(threading.Thread):
    """Makes epochs durable, and asks the driver when it has been silent."""

    def __init__(self, assignment: TaskAssignment, endpoint: EndpointType, clock: Clock) -> None:
        super().__init__(name="epochal-durable", daemon=True)
        self._assignment, self._endpoint, self._clock = assignment, endpoint, clock
        self._rpc = RpcClient(assignment.rpc)
        self.cuts: queue.SimpleQueue[EpochCut | StatePublished | None] = queue.SimpleQueue()
        self.answers: deque[EpochReply] = deque()
        """Appended here, taken by the data thread: a deque needs no lock for that."""
        self.reports = TaskReports(
            attempt=assignment.attempt,
            task=assignment.task,
            first_epoch=assignment.first_epoch,
            max_epochs_in_flight=assignment.max_epochs_in_flight,
            epoch_seconds=assignment.epoch_seconds,
        )
        self.failure: BaseException | None = None
        self.stores: TaskStores | None = None
        # Both threads set it, to a time that is now: whichever wins, it is right.
        self.heard = clock.monotonic()
        self._asked = self.heard
        self._stopping = False

    def run(self) -> None:
        try:
            while not self._stopping:
                try:
                    cut = self.cuts.get(timeout=SILENCE_SECONDS / 4)
                except queue.Empty:
                    self._ask_if_silent()
                    continue
                if isinstance(cut, StatePublished):
                    self._rpc.send(self._endpoint, cut)
                elif cut is not None:
                    self._make_durable(cut)
        except BaseException as error:  # noqa: BLE001 - the data thread raises it
            self.failure = error
        finally:
            self._rpc.close()

    def stop(self) -> None:
        """End after the epoch that is being made durable now."""
        self._stopping = True
        self.cuts.put(None)

    def _make_durable(self, cut: EpochCut) -> None:
        assert self.stores is not None
        began = self._clock.monotonic()
        prepared = self.stores.prepare(cut.epoch, cut.changes)
        written = self._clock.monotonic()
        message = cut.prepare()
        staged = self._clock.monotonic()
        counts: dict[int, tuple[int, int, int]] = {}
        for operator, change in cut.changes:
            total, updated, removed = counts.get(operator, (0, 0, 0))
            puts, removes = len(change.puts), len(change.removes)
            counts[operator] = total + change.rows, updated + puts, removed + removes
        report = msgspec.structs.replace(
            cut.report,
            message=message,
            state=prepared.state,
            checksum=prepared.checksum,
            state_rows=tuple((operator, *figures) for operator, figures in sorted(counts.items())),
            state_seconds=written - began,
            stage_seconds=staged - written,
        )
        # Only now, when all is on storage, may the driver hear of the epoch: it may decide at once.
        report = self.reports.complete(report)
        if not self._stopping:
            self._rpc.send(self._endpoint, report)

    def _ask_if_silent(self) -> None:
        now = self._clock.monotonic()
        if now - max(self.heard, self._asked) < SILENCE_SECONDS:
            return
        self._asked = now
        try:
            answer = self._rpc.ask(
                self._endpoint, GetCurrentEpoch(self._assignment.attempt), timeout_seconds=2.0
            )
        except RpcTimeoutError:
            silence = self._clock.monotonic() - self.heard
            if silence > self._assignment.max_silence_seconds:
                raise EpochError(
                    f"The driver at {self._assignment.rpc.url} has not answered for {silence:g} s. "
                    f"Without it this task's work cannot be committed, so the task ends. Find out "
                    f"why the driver stopped."
                ) from None
            return
        self.heard = self._clock.monotonic()
        self.answers.append(answer)
        if isinstance(answer, EpochStarted):
            for report in self.reports.undecided(answer.epoch):
                self._rpc.send(self._endpoint, report)


class _Worker:
    """The data thread and everything it owns."""

    def __init__(self, assignment: TaskAssignment) -> None:
        self._assignment = assignment
        self._clock = SystemClock()
        self._endpoint = EndpointType(assignment.endpoint, EpochRequest, EpochReply)
        self._rpc = RpcClient(assignment.rpc)
        self._durable = _Durable(assignment, self._endpoint, self._clock)
        self._channels: Channels | None = None
        self._core: TaskCore | None = None
        self._stores: TaskStores | None = None
        self._publisher: StatePublisher | None = None
        self._quiet = False
        """Whether the newest message is an answer: the driver was silent and had to be asked."""

    def run(self) -> None:
        try:
            channels = self._register()
            core = self._prepare(channels)
            self._loop(core, channels)
        except _Left:
            logger.info("task %d leaves: the attempt is over", self._assignment.task)

    def report_failure(self, error: BaseException) -> None:
        """Report the error that ends the task to the driver, if it can be reached."""
        with suppress(RpcError):
            told = failure_report(self._assignment.attempt, self._assignment.task, error)
            self._rpc.send(self._endpoint, told)

    def close(self) -> None:
        # In this order: the publisher reports through the durable thread, and both use the stores,
        # the durable thread also the writer of the core.
        if self._publisher is not None:
            self._publisher.close()
        if self._durable.is_alive():
            self._durable.stop()
            self._durable.join(_END_SECONDS)
        with suppress(Exception):
            if self._core is not None:
                self._core.close()
        if self._stores is not None:
            self._stores.close()
        if self._channels is not None:
            self._channels.close()
        CLIENT.close()
        self._rpc.close()

    def _register(self) -> Channels:
        assignment = self._assignment
        clients = CurveKeys(assignment.rpc.client_public_key, assignment.rpc.client_secret_key)
        host = assignment.host or local_host(assignment.rpc.host)
        schemas = schemas_of(assignment.plan)
        self._channels = channels = Channels(host, clients, schemas)
        self._rpc.ask(
            self._endpoint,
            RegisterTask(
                assignment.attempt, assignment.task, channels.url, channels.key, host, os.getpid()
            ),
        )
        self._durable.heard = self._clock.monotonic()
        # It runs already, because it asks for the peers if their push is lost.
        self._durable.start()
        while True:
            for message in self._receive():
                if isinstance(message, Peers):
                    channels.connect(peer for peer in message.peers if peer.task != assignment.task)
                    return channels
            if self._durable.failure is not None:  # the driver is silent
                raise self._durable.failure
            channels.wait(0.05, self._rpc.fd)

    def _prepare(self, channels: Channels) -> TaskCore:
        assignment = self._assignment
        context = WriterContext(
            assignment.task,
            assignment.attempt,
            assignment.run_id,
            assignment.plan.output_schema,
            assignment.first_epoch,
        )
        self._core = core = TaskCore(
            assignment.plan,
            task=assignment.task,
            tasks=assignment.tasks,
            attempt=assignment.attempt,
            first_epoch=assignment.first_epoch,
            readers=assignment.readers,
            writer=assignment.plan.writers.open(context),
        )
        files = open_files(assignment.checkpoint, existing=True)
        partitions = partitions_of_task(
            assignment.plan.state_partitions, assignment.task, assignment.tasks
        )
        self._stores = stores = TaskStores(
            assignment.plan,
            partitions,
            files,
            assignment.state_conf,
            attempt=assignment.attempt,
            run_id=assignment.run_id,
            task=assignment.task,
            tasks=assignment.tasks,
            max_epochs_in_flight=assignment.max_epochs_in_flight,
        )
        stores.load(core.operators, assignment.state)
        self._durable.stores = stores
        if assignment.plan.stages:
            self._publisher = StatePublisher(
                stores, assignment.attempt, assignment.task, self._durable.cuts.put, self._clock
            )
            self._publisher.start()
        channels.guard()
        # A full collection over the state and libraries that are loaded by now would delay rows by
        # tens of milliseconds and free nothing.
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLD)
        self._rpc.send(self._endpoint, TaskReady(assignment.attempt, assignment.task))
        return core

    def _loop(self, core: TaskCore, channels: Channels) -> None:
        rpc_fd, clock, reports = self._rpc.fd, self._clock, self._durable.reports
        fixed_ms = self._assignment.batch_time_ms
        next_read = next_woken = busy_at = signed_at = 0.0
        wakes = core.descriptors or ()
        only_woken = wakes and not self._assignment.plan.stages
        turns = 0
        ready: Collection[int] = (rpc_fd, channels.fd)
        """The descriptors that may have something to read."""
        while True:
            messages: Sequence[EpochReply] = ()
            was_quiet = False
            if rpc_fd in ready or self._durable.answers:
                messages = self._receive()
                if was_quiet := self._quiet:
                    self._repeat(messages, core, channels)
            pushes = [push for push in messages if isinstance(push, EpochStarted)]
            if self._publisher is not None:
                for push in pushes:
                    self._publisher.hear(push)
            frames = channels.receive() if channels.fd in ready else ()
            now = time.monotonic()
            read = now >= next_read or any(fd in ready for fd in wakes)
            now_ms = clock.now_ms() if fixed_ms is None else fixed_ms
            out = core.turn(now_ms, frames, pushes, read=read)
            if out.had_rows:
                busy_at = now
            if read:
                if out.had_rows:
                    next_woken = next_woken_read(next_woken, now)
                pause = WOKEN_TURN_SECONDS if only_woken else turn_seconds(now - busy_at)
                next_read = now + pause
            for target, frame in out.frames:
                channels.send(target, frame)
            for message in out.messages:
                reports.note_active(message.epoch, now)
            is_limited = core.limited
            if is_limited and out.had_rows and now >= signed_at + SIGN_SECONDS:
                signed_at = now
                reports.note_active(core.reading, now)
            for cut in out.cuts:
                self._durable.cuts.put(cut)
            active = reports.due(now)
            if active is not None:
                self._rpc.send(self._endpoint, active)
            if self._durable.failure is not None:
                raise self._durable.failure
            turns += 1
            ready = (rpc_fd, channels.fd)
            if out.busy or (is_limited and (pushes or out.had_rows)):
                next_read = 0.0  # in an epoch with limits, the next turn may end it
                if turns % _GUARD_TURNS == 0:
                    channels.guard()
            elif active is None and not was_quiet:
                # Only if nothing was sent: sending on a ZeroMQ socket may consume the edge that
                # signals a received push, and the thread would not notice the push.
                ready = ()
                # Rows that must not be read now would wake it over and over.
                awaited = () if core.holds else wakes
                if awaited and (rest := next_woken - time.monotonic()) > 0:
                    ready = channels.wait(rest, rpc_fd)
                if not ready:
                    if core.wait(WAIT_SECONDS):
                        next_read = 0.0
                    ready = channels.wait(next_read - time.monotonic(), rpc_fd, *awaited)

    def _repeat(self, messages: Sequence[EpochReply], core: TaskCore, channels: Channels) -> None:
        """Repeat what may have been lost: that this task is ready, and how much it has sent."""
        if any(isinstance(message, Peers) for message in messages):
            ready = TaskReady(self._assignment.attempt, self._assignment.task)
            self._rpc.send(self._endpoint, ready)
        for target, frame in core.pulse():
            channels.send(target, frame)

    def _receive(self) -> list[EpochReply]:
        """Return the driver's new messages, in order; raise _Left if one of them is `Leave`."""
        messages: list[EpochReply] = []
        # Pushes and answers come on two sockets, so a push may be older than an answer before it.
        # The core drops what is older than what it knows.
        while (push := self._rpc.poll_push(self._endpoint)) is not None:
            messages.append(push)
        if messages:
            self._durable.heard = self._clock.monotonic()
        self._quiet = bool(self._durable.answers)
        while self._durable.answers:
            messages.append(self._durable.answers.popleft())
        leave = next((message for message in messages if isinstance(message, Leave)), None)
        if leave is not None and leave.attempt == self._assignment.attempt:
            if self._core is not None:
                self._core.note_commit(leave.committed)
            raise _Left
        return messages
