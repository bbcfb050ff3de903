"""A world in which one query runs, and everything that can go wrong does, as the seed has it.

Whatever happens is one of a few acts of one process, and the seed says which is next. Messages of
one channel stay in order, and may be late, doubled or lost; processes die between two acts and
between two file operations of one; a driver may be paused in the middle of a step while another
run takes over, and goes on afterwards as if nothing had happened, and so do its tasks. When all
faults have been spent the world grows calm, and must then come to its end.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from tests.simulation.simulated_driver import DecidingSink, SimulatedDriver

from epochal.checkpoint.claim import Claim
from epochal.checkpoint.entries import OffsetLog
from epochal.continuous.plan.stages import QueryPlan
from epochal.epoch.contract import LoggedSource, Positions
from epochal.epoch.coordinator import Phase
from epochal.epoch.durable import Recovered
from epochal.epoch.effects import Acknowledge, Decide
from epochal.epoch.messages import EpochReply, EpochRequest, RegisterTask, TaskFailed
from epochal.errors import CheckpointLostError, ClaimExpiredError, EpochalError
from epochal.files import Files
from epochal.testing.clock import ManualClock
from epochal.testing.driver.processes import CHECKPOINT, EPOCH_SECONDS, TaskProcess
from epochal.testing.driver.staged_sink import StagedSink
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles

LEASE_SECONDS = 1_000_000.0
CHANGES = ("create", "replace", "delete")
MAX_CALM_ROUNDS = 120
NEVER_ENDS = "it never ends"


class World(ABC):
    """One run of everything, from one seed."""

    retained = 4
    """Log entries that are kept."""
    plans_epochs = False
    """Whether each epoch ends where it was planned to end: at `_next_ends`."""

    def __init__(self, chance: random.Random, *, tasks: int, faults: int, wild_acts: int) -> None:
        self.chance = chance
        self.task_count, self.faults, self.wild_acts = tasks, faults, wild_acts
        self.clock = ManualClock()
        self.truth = MemoryFiles(clock=self.clock)
        self.wrong: list[str] = []
        self.story: list[str] = []
        self.runs = 0
        self.driver: SimulatedDriver | None = None
        self.ghosts: list[SimulatedDriver] = []
        """Drivers that were taken over from and do not know."""
        self.tasks: dict[bytes, TaskProcess] = {}
        """Of all attempts."""
        self.depth = 0
        self.plan = self._plan()

    @property
    @abstractmethod
    def decides(self) -> bool:
        """Whether the sink's own commit decides an epoch."""

    @abstractmethod
    def _plan(self) -> QueryPlan:
        """Return the plan of the query. Called once."""

    @abstractmethod
    def _sources(self) -> list[LoggedSource]:
        """Return the driver's side of the sources, for a new run."""

    @abstractmethod
    def _all_committed(self) -> bool:
        """Whether everything that there is to read has been read and committed."""

    @abstractmethod
    def _check(self) -> None:
        """Add to `wrong` what is wrong with how it ended."""

    def _next_ends(self, positions: Sequence[Positions]) -> Sequence[Positions]:
        """Return where the next epoch ends that starts at these positions of the sources."""
        raise NotImplementedError

    def _note_durable(self) -> None:  # noqa: B027  most worlds look at the end only
        """Called whenever something has become durable."""

    def run(self) -> list[str]:
        """Everything that is wrong with how it ended; nothing, if all is well."""
        for _ in range(self.wild_acts):
            self._act_wildly()
            if self._all_committed() and not self.faults:
                break
        self.faults = 0
        self.story.append("calm")
        for _ in range(MAX_CALM_ROUNDS):
            if self._finished():
                try:
                    self._check()
                except (EpochalError, OSError) as error:
                    self.wrong.append(f"what is left cannot be read: {error}")
                return self.wrong
            self._calm_round()
        self.wrong.append(NEVER_ENDS)
        return self.wrong

    # What may happen next.

    def _act_wildly(self) -> None:
        driver = self.driver
        if driver is None or not driver.alive or driver.failure is not None:
            self._revive()
            return
        roll = self.chance.random()
        if self.faults and roll < 0.03:
            self._misfortune()
        elif roll < 0.40:
            self._turn(self._some_task())
        elif roll < 0.52:
            self._persist(self._some_task())
        elif roll < 0.74:
            self._deliver(self._some_task())
        elif roll < 0.86:
            self._perform(driver)
        elif roll < 0.93:
            self._pass_time(driver)
        elif roll < 0.95:
            self._ask(self._some_task())
        elif roll < 0.965:
            self._publish(self._some_task())
        elif roll < 0.975:
            self._stop(driver)
        elif self.ghosts:
            self._haunt()

    def _calm_round(self) -> None:
        driver = self.driver
        if driver is None or not driver.alive or driver.failure is not None:
            self._revive()
            return
        self._serve_tasks(driver)
        while driver.alive and self._perform(driver):
            pass
        self._pass_time(driver)
        if self._all_committed():
            self._stop(driver)

    def _serve_tasks(self, driver: SimulatedDriver) -> None:
        """Let each task of the attempt do all that it can, and be heard."""
        for task in [task for task in self.tasks.values() if task.attempt == self._attempt()]:
            for _ in range(3):
                self._turn(task)
            while task.alive and task.cuts:
                self._persist(task)
            for _ in range(len(task.orders)):  # storage may refuse
                self._publish(task)
            while task.data or task.durable:
                self._deliver(task)
            if not self.chance.randrange(4):
                self._ask(task)

    # Acts.

    def _revive(self) -> None:
        """A new attempt of the run, or a new run where there is none."""
        driver = self.driver
        if driver is not None and not driver.alive:
            self.driver = driver = None
        self._end_tasks()
        if driver is None:
            self._new_run()
            return
        self.story.append(f"restart after {driver.failure}")
        self._attempt_with(driver)

    def _new_run(self) -> None:
        self.clock.advance(LEASE_SECONDS + 1)
        self.runs += 1
        process: SimulatedDriver | None = None

        def before(operation: str, path: str) -> None:
            if process is not None:
                self._before(process, operation, path)

        files = FaultyFiles(self.truth, before)
        guard = Claim.acquire(
            self.truth.at(CHECKPOINT),
            f"run-{self.runs}",
            purpose="simulation",
            clock=self.clock,
            claim_seconds=LEASE_SECONDS,
            background=False,
        )
        sink = (DecidingSink if self.decides else StagedSink)(files, self.truth)
        process = SimulatedDriver(
            *(files, guard, self.plan, self._sources(), sink, self.clock, self._push),
            self.retained,
            next_ends=self._next_ends if self.plans_epochs else None,
        )
        self.driver = process
        self.story.append(f"run {self.runs}")
        self._attempt_with(process)

    def _attempt_with(self, driver: SimulatedDriver) -> None:
        try:
            recovered = driver.begin_attempt(self.task_count)
        except Crash:
            return
        except (EpochalError, OSError) as error:
            self.story.append(f"no attempt: {error}")
            driver.failure = error if isinstance(error, Exception) else None
            if isinstance(error, CheckpointLostError):
                driver.alive = False
            return
        assert driver.driver is not None
        attempt = driver.driver.attempt
        self.story.append(f"attempt {attempt} from {recovered.first_epoch} {recovered.positions}")
        if driver is not self.driver:
            return  # was taken over from meanwhile
        for task in range(self.task_count):
            self._spawn(attempt, task, recovered)

    def _spawn(self, attempt: int, task: int, recovered: Recovered) -> None:
        process: TaskProcess | None = None

        def before(operation: str, path: str) -> None:
            assert process is not None
            if not process.alive:
                raise Crash
            self._use(operation, path)
            if operation in CHANGES and self._unlucky(0.02):
                self._kill(process, f"task {attempt}/{task} before {operation} {path}")
                raise Crash

        files: Files = FaultyFiles(self.truth, before)
        process = TaskProcess(self.plan, attempt, task, self.task_count, recovered, files)
        self.tasks[process.peer] = process
        process.register()

    def _turn(self, task: TaskProcess | None) -> None:
        if task is None or not task.alive:
            return
        frames = []
        for sender in list(task.frames) if task.core is not None else ():
            channel = task.frames[sender]
            for _ in range(self.chance.randint(0, len(channel))):
                if self._unlucky(0.01):
                    self.story.append(f"lost {channel.popleft()}")
                    continue
                frames.append(channel[0] if self._unlucky(0.02) else channel.popleft())
        try:
            task.turn(self.clock.now_ms(), frames)
        except Crash:
            return
        except (EpochalError, OSError) as error:
            self.story.append(f"task {task.attempt}/{task.task} failed: {error}")
            task.fail(error)
        while task.outgoing:
            target, frame = task.outgoing.popleft()
            attempt = task.attempt
            if attempt != self._attempt() and not self.chance.randrange(4):
                attempt = self._attempt()  # what an old attempt sends may reach a new one
            peer = self.tasks.get(f"{attempt}/{target}".encode())
            if peer is not None:
                peer.frames.setdefault(task.task, deque()).append(frame)

    def _persist(self, task: TaskProcess | None) -> None:
        if task is None or not task.alive or not task.cuts:
            return
        try:
            task.make_durable()
        except Crash:
            return
        except (EpochalError, OSError) as error:
            self.story.append(f"task {task.attempt}/{task.task} failed: {error}")
            task.fail(error)

    def _deliver(self, task: TaskProcess | None) -> None:
        """Let the driver of the moment hear what a task said, whichever driver it was said to."""
        if task is None:
            return
        queues = [queue for queue in (task.data, task.durable) if queue]
        if not queues:
            return
        queue = self.chance.choice(queues)
        if self._unlucky(0.01):
            lost = queue.popleft()
            self.story.append(f"lost {lost}")
            if isinstance(lost, RegisterTask):
                queue.append(lost)  # it was an ask, and is asked again
            if isinstance(lost, TaskFailed):
                self._kill(task, f"task {task.attempt}/{task.task}")  # Spark notices nevertheless
            return
        message = queue[0] if self._unlucky(0.02) else queue.popleft()
        self._tell(task, message)

    def _tell(self, task: TaskProcess, message: EpochRequest) -> EpochReply | None:
        driver = self.driver
        if driver is None or not driver.alive or driver.paused or driver.driver is None:
            return None
        try:
            return driver.driver.handle(message, task.peer)
        except EpochalError as error:
            self.story.append(f"refused: {error}")
            return None

    def _perform(self, driver: SimulatedDriver) -> bool:
        if not driver.alive or driver.paused or driver.driver is None or driver.failure:
            return False
        try:
            step = driver.driver.perform_next()
        except Crash:
            return False
        except (EpochalError, OSError) as error:
            self.story.append(f"step failed: {error}")
            driver.failure = error
            if isinstance(error, CheckpointLostError):
                driver.alive = False
            return False
        if step is not None:
            self.story.append(f"{driver.guard.run_id}: {type(step).__name__} {step.epoch}")
        if isinstance(step, Decide | Acknowledge):
            self._note_durable()
        if driver.driver.coordinator.phase is Phase.LEFT and driver.stopping:
            self._conclude_run(driver)
        return step is not None

    def _conclude_run(self, driver: SimulatedDriver) -> None:
        """Called when a query has stopped gracefully."""
        driver.alive = False
        driver.stopped = True
        driver.guard.release()
        self.story.append("stopped")

    def _pass_time(self, driver: SimulatedDriver) -> None:
        if driver.driver is not None and not driver.paused and driver.alive:
            self.clock.advance(EPOCH_SECONDS)
            driver.driver.tick()
            driver.follow()

    def _ask(self, task: TaskProcess | None) -> None:
        if task is not None and task.alive:
            task.ask(lambda message: self._tell(task, message))

    def _publish(self, task: TaskProcess | None) -> None:
        if task is None or not task.alive:
            return
        try:
            task.publish()
        except Crash:
            return
        except (EpochalError, OSError) as error:
            self.story.append(f"task {task.attempt}/{task.task} did not publish: {error}")
        self._note_durable()

    def _stop(self, driver: SimulatedDriver) -> None:
        if driver.driver is None or driver.paused or not driver.alive or driver.stopping:
            return
        if driver.driver.coordinator.phase is Phase.RUNNING:
            self.story.append("stop")
            driver.stopping = driver.stop()

    def _haunt(self) -> None:
        """A driver that was taken over from goes on."""
        ghost = self.chance.choice(self.ghosts)
        self._perform(ghost)
        if ghost.alive and isinstance(ghost.failure, ClaimExpiredError):
            self._claim_again(ghost)
        if not ghost.alive or ghost.failure is not None:
            self.ghosts.remove(ghost)

    def _claim_again(self, ghost: SimulatedDriver) -> None:
        """A driver whose claim has expired tries to get it back, after another one has it."""
        try:
            ghost.guard.next_attempt()
        except CheckpointLostError:
            ghost.alive = False
        else:
            self.wrong.append(f"{ghost.guard.run_id} owns a checkpoint that was taken from it")

    # Misfortune.

    def _use(self, operation: str, path: str) -> None:  # noqa: B027  storage works in most worlds
        """Called before each file operation; raises if the storage does not work."""

    def _unlucky(self, probability: float) -> bool:
        if self.faults and self.chance.random() < probability:
            self.faults -= 1
            return True
        return False

    def _misfortune(self) -> None:
        self.faults -= 1
        roll = self.chance.random()
        driver = self.driver
        assert driver is not None
        if roll < 0.5:
            task = self._some_task()
            if task is not None and task.alive:
                self._kill(task, f"task {task.attempt}/{task.task}")
                driver.failure = driver.failure or EpochalError("a task is gone")
        elif roll < 0.75:
            self.story.append(f"{driver.guard.run_id} dies")
            driver.alive = False
        else:
            self._take_over(driver)

    def _kill(self, task: TaskProcess, what: str) -> None:
        self.story.append(f"killed {what}")
        task.alive = False
        driver = self.driver
        if driver is not None and task.attempt == self._attempt():
            # Spark notices, and fails the job.
            driver.failure = driver.failure or EpochalError("a task is gone")

    def _take_over(self, driver: SimulatedDriver) -> None:
        """Another run begins while this one still lives, or thinks it does."""
        self.story.append(f"{driver.guard.run_id} is taken over from")
        self.ghosts.append(driver)
        self.driver = None
        self._revive()

    def _before(self, driver: SimulatedDriver, operation: str, path: str) -> None:
        """Called before each file operation of a driver."""
        if not driver.alive:
            raise Crash
        self._use(operation, path)
        if not self._unlucky(0.08 if operation in CHANGES else 0.005):
            return
        roll = self.chance.random()
        self.story.append(f"{driver.guard.run_id} at {operation} {path}: {roll:.2f}")
        if roll < 0.4:
            driver.alive = False
            raise Crash
        if roll < 0.5:
            raise OSError(5, "Input/output error", path)
        if self.depth == 0 and driver is self.driver:
            self._pause(driver)

    def _pause(self, driver: SimulatedDriver) -> None:
        """Stop a driver in the middle of a step; let the others work; let it go on."""
        self.depth += 1
        driver.paused = True
        self._take_over(driver)
        for _ in range(self.chance.randint(0, 60)):
            self._act_wildly()
        driver.paused = False
        self.depth -= 1

    def _end_tasks(self) -> None:
        """What Spark does to the tasks of a job that failed, though some may not notice."""
        for task in self.tasks.values():
            if task.alive and (self.faults == 0 or self.chance.random() < 0.4):
                task.alive = False

    # Who and what is there.

    def _attempt(self) -> int:
        driver = self.driver
        return -1 if driver is None or driver.driver is None else driver.driver.attempt

    def _some_task(self) -> TaskProcess | None:
        there = [task for task in self.tasks.values() if task.alive or task.data or task.durable]
        return self.chance.choice(there) if there else None

    def _push(self, peer: bytes, message: EpochReply) -> None:
        task = self.tasks.get(peer)
        if task is not None and not self._unlucky(0.01):
            task.pushes.append(message)

    def _offsets(self) -> OffsetLog:
        return OffsetLog(self.truth.at(f"{CHECKPOINT}/offsets"), read_only=True)

    def _finished(self) -> bool:
        driver = self.driver
        return driver is not None and driver.stopped and self._all_committed()
