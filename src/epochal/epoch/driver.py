"""Performs what the coordinator asks for: logs, sink, state and sources, for one attempt.

Messages are taken in under a lock by whoever calls `handle`, and never wait for a disk: steps go
to a queue, and one committer performs them in order. Pushes and failures do not queue behind them.

What a reader would get wrong: nothing here needs threads. `start(background=False)` makes none;
then the caller performs steps with `perform_next` and lets time pass with `tick`, as a simulation
does. A step that raises ends the attempt, and leaves it to the next one's `recover` to find out
how far it got.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import assert_never

from epochal.checkpoint.entries import OffsetEntry
from epochal.clock import Clock
from epochal.epoch.acknowledging import acknowledged_in_tasks
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.coordinator import EpochCoordinator, Pace, Phase
from epochal.epoch.durable import (
    Ground,
    Positions,
    Recovered,
    acknowledge,
    confirm,
    decide,
    follow_up,
    purge,
    recover,
)
from epochal.epoch.effects import (
    Acknowledge,
    Broken,
    CommitSink,
    Decide,
    Effect,
    Event,
    Fail,
    Finish,
    Hold,
    Limit,
    LogCommit,
    Performed,
    PublishState,
    Push,
    ReadingHeld,
    Step,
    Tick,
)
from epochal.epoch.epoch_timings import Ledger
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    EpochReply,
    EpochRequest,
    EpochStarted,
    Leave,
    RegisterTask,
    ReportPartitionOffset,
    TaskActive,
    TaskFailed,
    TaskReady,
)
from epochal.errors import EpochBacklogError
from epochal.metrics.logs import log_context

logger = logging.getLogger(__name__)

MAX_STEPS = 1_000
"""Steps that may wait for the committer; the bound on epochs in flight keeps it far below."""

MAX_ACKNOWLEDGEMENTS = 16
"""Epochs that sources have not been told of; of more, the oldest are never told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Who is told. Called from any thread, and must not wait."""

    push: Callable[[Sequence[bytes], EpochReply], None]
    """Send to these peers."""
    committed: Callable[[CommittedEpoch, tuple[Positions, ...]], None]
    failed: Callable[[Exception], None]
    """Called once."""
    held: Callable[[ReadingHeld], None] = lambda _: None
    acknowledged: Callable[[int, float], None] = lambda _epoch, _seconds: None
    """The sources were told of an epoch, which took so many seconds."""


class EpochDriver:
    """One attempt: `recover`, then `start`, then `handle` whatever tasks say, then `close`."""

    def __init__(
        self, ground: Ground, listeners: Listeners, *, attempt: int, clock: Clock, pace: Pace
    ) -> None:
        self.attempt = attempt
        self._ground, self._listeners = ground, listeners
        self._clock, self._pace = clock, pace
        self._recovered: Recovered | None = None
        self._coordinator: EpochCoordinator | None = None
        self._template = OffsetEntry(1, ())
        self._readers: tuple[tuple[int, str], ...] = ()
        self._peers: dict[int, bytes] = {}
        self._steps: deque[Step] = deque()
        self._acknowledgements: deque[tuple[int, tuple[Positions, ...]]] = deque(
            maxlen=MAX_ACKNOWLEDGEMENTS
        )
        self._ledger = Ledger(clock, ground.sources, bool(ground.delays_ms))
        self._discarded = self._stopping = self._closed = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._timing = threading.Condition(self._lock)
        self._thanks = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []

    @property
    def coordinator(self) -> EpochCoordinator:
        """What has been decided so far; to look at, not to step."""
        assert self._coordinator is not None, "not started"
        return self._coordinator

    def recover(self) -> Recovered:
        """Shut earlier attempts out, finish or drop what they left open, say where to go on."""
        self._recovered = recover(self._ground, self.attempt)
        return self._recovered

    def start(
        self,
        readers: Sequence[tuple[int, str]],
        tasks: int,
        *,
        template: OffsetEntry | None = None,
        background: bool = True,
    ) -> None:
        """Await `tasks` tasks; `readers` are (source, partition id), by their number.

        Offset entries are made as `template` is: its version, its sources' names, its settings.
        """
        found = self._recovered
        assert found is not None, "recover comes first"
        self._readers = tuple(readers)
        self._template = template or found.base or self._template
        with self._lock:
            self._coordinator = EpochCoordinator(
                attempt=self.attempt,
                first_epoch=found.first_epoch,
                readers=len(self._readers),
                tasks=tasks,
                highs=found.highs,
                delays_ms=self._ground.delays_ms,
                watermark_ms=found.watermark_ms,
                pace=self._pace,
                tell_commits=any(acknowledged_in_tasks(self._ground.sources)),
            )
        self.tick()
        if background:
            self._threads = [
                # In a copy of the context, for a thread does not log as the one that started it.
                threading.Thread(
                    target=copy_context().run, args=(target,), name=f"epochal-{name}", daemon=True
                )
                for name, target in (
                    ("committer", self._commit_steps),
                    ("epochs", self._end_epochs),
                    ("acknowledger", self._acknowledge_commits),
                )
            ]
            for thread in self._threads:
                thread.start()

    def handle(self, message: EpochRequest, peer: bytes = b"") -> EpochReply | None:
        """Take in what a task says; the reply, if it asked. Refusals raise."""
        coordinator = self.coordinator
        with self._lock:
            was_idle = coordinator.is_idle
            reply: EpochReply | None = None
            match message:
                case (
                    CommitPartitionEpoch()
                    | ReportPartitionOffset()
                    | TaskReady()
                    | TaskActive()
                    | TaskFailed()
                ):
                    effects = coordinator.step(message)
                case _:
                    reply, effects = coordinator.ask(message)
            if isinstance(message, RegisterTask):
                self._peers[message.task] = peer
            failed = self._dispatch(effects)
            if was_idle and not coordinator.is_idle:
                failed = failed or self._dispatch(coordinator.step(Tick(self._clock.monotonic())))
                self._timing.notify()
        self._report(failed)
        return reply

    def tick(self) -> None:
        """Let the coordinator know the time; it may end an epoch, or give up waiting."""
        self._step(Tick(self._clock.monotonic()))

    def due(self) -> float | None:
        """When the next `tick` will matter, on the monotonic clock."""
        with self._lock:
            return self.coordinator.due()

    def hold(self) -> bool:
        """Cut the epoch and read no more; False if no task reads yet, then once they do.

        When all is committed `Listeners.held` is called: `limit`, or `finish`.
        """
        self._step(Hold())
        return self.coordinator.phase is Phase.RUNNING

    def limit(self, held: ReadingHeld) -> bool:
        """Read on to where sources' offsets say all; False if they do already."""
        limits = self._limits(held)
        if limits:
            self._step(Limit(limits))
        return bool(limits)

    def finish(self) -> None:
        """Let all tasks leave."""
        self._step(Finish())

    def dismiss(self) -> None:
        """Send all tasks away, whatever state the attempt is in: it is over.

        Those that can still hear end at once, without waiting for Spark to kill them.
        """
        with self._lock:
            peers = [peer for peer in self._peers.values() if peer]
        self._listeners.push(peers, Leave(self.attempt))

    def stop(self) -> bool:
        """Hold, limit and finish, one after the other, without being asked again."""
        self._stopping = True
        return self.hold()

    def perform_next(self) -> Step | None:
        """Take the next step, here and now; None if there is none."""
        with self._lock:
            step = self._steps.popleft() if self._steps else None
        if step is not None:
            with log_context(epoch=step.epoch):
                self._take(step)
            self._step(Performed(type(step), step.epoch))
            self.tick()
        return step

    def close(self) -> None:
        """End all threads; the step under way is still taken, no other. Does not touch tasks."""
        with self._lock:
            self._closed = True
            for condition in (self._work, self._timing, self._thanks):
                condition.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._ground.state.close()

    def _step(self, event: Event) -> None:
        with self._lock:
            failed = self._dispatch(self.coordinator.step(event))
            self._timing.notify()
        self._report(failed)

    def _dispatch(self, effects: Sequence[Effect]) -> Exception | None:
        failed: Exception | None = None
        for effect in effects:
            match effect:
                case Push(message, task):
                    if isinstance(message, EpochStarted):
                        self._ledger.started(message)
                    peers = self._peers.values() if task is None else [self._peers.get(task, b"")]
                    self._listeners.push([peer for peer in peers if peer], message)
                case Fail(error):
                    failed = error
                case _:
                    if isinstance(effect, Decide):
                        self._ledger.whole(effect.epoch)
                    self._steps.append(effect)
                    self._work.notify()
        if failed is None and len(self._steps) > MAX_STEPS:
            failed = EpochBacklogError("epoch", len(self._steps), MAX_STEPS)
            self.coordinator.step(Broken(failed))
        return failed

    def _report(self, failed: Exception | None) -> None:
        if failed is not None:
            logger.warning("attempt %d ends: %s", self.attempt, failed)
            self._listeners.failed(failed)

    def _take(self, step: Step) -> None:
        before = self._clock.monotonic()
        match step:
            case Decide():
                positions = self._by_source(step.positions)
                offsets = self._ledger.decided(step, positions)
                started_ms = self._ledger.started_ms(step.epoch)
                decide(
                    self._ground, self.attempt, step, self._template, positions, offsets, started_ms
                )
            case CommitSink():
                follow_up(self._ground, step)
                confirm(self._ground, self.attempt, step.epoch)
            case PublishState() | LogCommit():
                follow_up(self._ground, step)
            case Acknowledge():
                self._conclude(step)
            case ReadingHeld():
                self._listeners.held(step)
                if self._stopping and not self.limit(step):
                    self.finish()
            case _:
                assert_never(step)
        self._ledger.took(step, self._clock.monotonic() - before)

    def _conclude(self, step: Acknowledge) -> None:
        positions = self._by_source(step.positions)
        self._listeners.committed(self._ledger.concluded(step), positions)
        if self._threads:
            with self._lock:
                self._acknowledgements.append((step.epoch, positions))
                self._thanks.notify()
        else:
            acknowledge(self._ground, step.epoch, positions)
        if not self._discarded:
            self._discarded = True
            for path in self._ground.state.discard_before(self.attempt):
                logger.info("discarded %s of an earlier attempt", path)
        purge(self._ground, step.epoch)

    def _by_source(self, positions: Sequence[str]) -> tuple[dict[str, str], ...]:
        found: tuple[dict[str, str], ...] = tuple({} for _ in self._ground.sources)
        for (source, partition), position in zip(self._readers, positions, strict=True):
            found[source][partition] = position
        return found

    def _limits(self, held: ReadingHeld) -> tuple[tuple[int, str], ...]:
        positions = self._by_source(held.positions)
        ends = [
            source.boundary(places)
            for source, places in zip(self._ground.sources, positions, strict=True)
        ]
        return tuple(
            (reader, ends[source][partition])
            for reader, (source, partition) in enumerate(self._readers)
            if ends[source][partition] != positions[source][partition]
        )

    def _commit_steps(self) -> None:
        while True:
            with self._lock:
                self._work.wait_for(lambda: self._steps or self._closed)
                if self._closed:
                    return
            try:
                self.perform_next()
            except Exception as error:  # noqa: BLE001  whatever it is, it ends the attempt
                with self._lock:
                    self._steps.clear()
                self._step(Broken(error))
                return

    def _end_epochs(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                due = self.coordinator.due()
                left = None if due is None else due - self._clock.monotonic()
                if left is None or left > 0:
                    self._timing.wait(left)
            self.tick()

    def _acknowledge_commits(self) -> None:
        while True:
            with self._lock:
                self._thanks.wait_for(lambda: self._acknowledgements or self._closed)
                if not self._acknowledgements:
                    return
                epoch, positions = self._acknowledgements.popleft()
            before = self._clock.monotonic()
            with log_context(epoch=epoch):
                acknowledge(self._ground, epoch, positions)
            self._listeners.acknowledged(epoch, self._clock.monotonic() - before)
