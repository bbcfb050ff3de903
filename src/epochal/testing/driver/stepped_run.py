"""One run of a query under test: a driver and its tasks, which work until they have nothing to do.

Nothing happens by itself. `settle` lets all of them work, `end_epoch` ends an epoch. A run can be
told to die just before a step of an epoch, and to lose, delay or double messages.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epochal.checkpoint.claim import Claim
from epochal.checkpoint.entries import OffsetLog
from epochal.checkpoint.layout import OFFSETS
from epochal.connectors.foreach import ForeachWriters
from epochal.continuous.plan.pinned_plan import settle_id, settle_shape
from epochal.continuous.plan.stages import QueryPlan
from epochal.epoch.contract import CommittedSink
from epochal.epoch.driver import EpochDriver
from epochal.epoch.messages import EpochReply, EpochRequest, IncrementAndGetEpoch, TaskFailed
from epochal.epoch.open_epoch import Pace
from epochal.errors import EpochError
from epochal.state.store.conf import StateStoreConf
from epochal.testing.clock import ManualClock
from epochal.testing.driver.fed_sources import FedSource
from epochal.testing.driver.histories import CrashStep, Disturbance
from epochal.testing.driver.processes import CHECKPOINT, DriverProcess, TaskProcess
from epochal.testing.driver.staged_sink import OUTPUT, STAGED, StagedSink
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles

NEVER_SECONDS = 1e9
"""Longer than any test moves the clock: nothing ends by itself."""

PACE = Pace(
    epoch_seconds=NEVER_SECONDS,
    idle_epoch_seconds=NEVER_SECONDS,
    register_seconds=NEVER_SECONDS,
    ready_seconds=NEVER_SECONDS,
    stall_seconds=NEVER_SECONDS,
)
RETAINED = 100
MAX_ROUNDS = 10_000
MAX_ASKS = 20
DISTURBED = 0.3
"""The probability that a message is disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What all runs of one query have in common."""

    plan: QueryPlan
    sources: Sequence[FedSource]
    tasks: int
    settings: Mapping[str, str]
    """Those that the checkpoint pins, or will pin."""
    conf: StateStoreConf
    code: ForeachWriters | None = None
    """The user's code that tasks call with the rows."""
    wrap: Callable[[StagedSink], CommittedSink] = lambda sink: sink
    """Puts the user's code in front of the sink."""


class SteppedRun:
    """A run, from its start until it is killed."""

    def __init__(
        self,
        spec: RunSpec,
        files: MemoryFiles,
        clock: ManualClock,
        name: str,
        chance: random.Random | None,
    ) -> None:
        """`chance` draws the order in which tasks work; without it, that of their numbers."""
        self._clock, self._order = clock, chance
        self._luck = chance or random.Random(0)
        self._tasks: dict[bytes, TaskProcess] = {}
        self._held: deque[tuple[TaskProcess, EpochRequest]] = deque()
        """Messages that are late."""
        self._disturbance: Disturbance | None = None
        self._dies_before: CrashStep | None = None
        faulty = FaultyFiles(files, self._before)
        checkpoint = files.at(CHECKPOINT)
        self._guard = Claim.acquire(
            checkpoint,
            name,
            purpose="test",
            clock=clock,
            claim_seconds=NEVER_SECONDS,
            background=False,
        )
        try:
            offsets = OffsetLog(checkpoint.at(OFFSETS), read_only=True)
            settle_id(checkpoint, has_history=offsets.latest_batch_id() is not None)
            settle_shape(checkpoint, spec.plan)
            self._process = DriverProcess(
                faulty,
                self._guard,
                spec.plan,
                spec.sources,
                spec.wrap(StagedSink(faulty, files)),
                clock,
                self._push,
                RETAINED,
                PACE,
                spec.conf.checkpoint_format_version,
                spec.settings,
            )
            self.recovered = self._process.begin_attempt(spec.tasks)
            self._spawn(spec, faulty)
            self.settle()
        except BaseException:
            self.kill()
            raise

    @property
    def _driver(self) -> EpochDriver:
        assert self._process.driver is not None
        return self._process.driver

    def disturb(self, how: Disturbance) -> None:
        """Lose, delay or double messages between the processes until the next epoch ends."""
        self._disturbance = how

    def die_before(self, step: CrashStep) -> None:
        """Raise Crash at this step of an epoch, from `end_epoch`."""
        self._dies_before = step

    def end_epoch(self) -> int:
        """Read all that was fed, end the epoch and commit it; return its number."""
        current = self._driver.coordinator.current
        self.settle()
        self.reach("cut")
        self._driver.handle(IncrementAndGetEpoch(self._driver.attempt))
        self.settle()
        for _ in range(MAX_ASKS):
            if self._driver.coordinator.committed >= current:
                self._disturbance = None
                return current
            # A message was lost. Tasks that hear nothing for a second ask, and report again.
            for task in self._tasks.values():
                task.ask(lambda message, task=task: self._driver.handle(message, task.peer))  # type: ignore[misc]
            self.settle()
        raise EpochError(f"Epoch {current} was not committed. This is a bug.")

    def settle(self) -> None:
        """Let tasks and driver work until none of them has anything to do."""
        for _ in range(MAX_ROUNDS):
            tasks = list(self._tasks.values())
            if self._order is not None:
                self._order.shuffle(tasks)
            moved = [self._serve(task) for task in tasks]
            for _ in range(len(self._held)):
                task, message = self._held.popleft()
                self._driver.handle(message, task.peer)
                moved.append(True)
            while self._driver.perform_next() is not None:
                moved.append(True)
            if self._process.failure is not None:
                raise self._process.failure
            if not any(moved):
                return
        raise EpochError("The query does not come to rest. This is a bug.")

    def kill(self) -> None:
        self._guard.release()  # nobody waits here until its lease runs out
        self._tasks.clear()

    def reach(self, step: CrashStep) -> None:
        """Raise Crash if the run is to die before this step."""
        if self._dies_before == step:
            raise Crash

    def _spawn(self, spec: RunSpec, files: FaultyFiles) -> None:
        for number in range(spec.tasks):
            task = TaskProcess(
                spec.plan,
                self._driver.attempt,
                number,
                spec.tasks,
                self.recovered,
                files,
                spec.conf,
                spec.code,
            )
            self._tasks[task.peer] = task
            task.register()

    def _push(self, peer: bytes, message: EpochReply) -> None:
        if peer in self._tasks and not self._strikes("lost"):
            self._tasks[peer].pushes.append(message)

    def _serve(self, task: TaskProcess) -> bool:
        """Let a task work once; return whether it had anything to do."""
        frames = [frame for channel in task.frames.values() for frame in channel]
        had = bool(frames or task.pushes)
        task.frames.clear()
        task.turn(self._clock.now_ms(), frames)
        while task.outgoing:
            target, frame = task.outgoing.popleft()
            peer = self._tasks[f"{task.attempt}/{target}".encode()]
            copies = 2 if self._strikes("doubled") else 1
            peer.frames.setdefault(task.task, deque()).extend([frame] * copies)
            had = True
        while task.cuts:
            task.make_durable()
        while task.orders:
            task.publish()
        for queue in (task.data, task.durable):
            while queue:
                self._deliver(task, queue.popleft())
                had = True
        return had or task.worked

    def _deliver(self, task: TaskProcess, message: EpochRequest) -> None:
        """Let the driver hear what a task says."""
        if isinstance(message, TaskFailed) or not self._strikes(self._disturbance):
            self._driver.handle(message, task.peer)
        elif self._disturbance == "doubled":
            self._driver.handle(message, task.peer)
            self._driver.handle(message, task.peer)
        elif self._disturbance == "late":
            self._held.append((task, message))

    def _strikes(self, how: Disturbance | None) -> bool:
        if how is None or how != self._disturbance:
            return False
        return self._luck.random() < DISTURBED

    def _before(self, operation: str, path: str) -> None:
        if operation not in ("create", "replace"):
            return
        if path.startswith(f"{STAGED}/"):
            self.reach("prepare")
        elif path.startswith(f"{OUTPUT}/"):
            self.reach("commit")
        elif path.startswith(f"{CHECKPOINT}/offsets/"):
            self.reach("log")
        elif not path.startswith(f"{CHECKPOINT}/commits/"):
            self.reach("state")
