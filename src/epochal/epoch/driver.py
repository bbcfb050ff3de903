"""Runs the coordinator of one attempt and performs the steps that it returns.

Any thread may call `handle`. It steps the coordinator under a lock and never waits for storage:
steps go to a queue, and one committer thread performs them in order. Pushes and failures are
performed at once and do not wait behind the queue.

A step that raises ends the attempt. The driver does not try to find out how far the step got; the
next attempt's `recover` does.

Note: threads are optional. With `start(background=False)` the caller performs the steps with
`perform_next` and advances time with `tick`. The simulations run the driver like this.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import assert_never

from epochal.checkpoint.entries import OffsetEntry
from epochal.clock import Clock
from epochal.epoch import durable, messages
from epochal.epoch.committed import CommittedEpoch, EpochTimings
from epochal.epoch.contract import Positions, acknowledged_in_tasks
from epochal.epoch.coordinator import EpochCoordinator, Phase
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
from epochal.epoch.epoch_files.retention import Retention
from epochal.epoch.epoch_files.state_chain import EpochRun, Publication, StateChain, extended
from epochal.epoch.event_time.unit_ends import Readers, SourcePlaces, first_unit, open_unit
from epochal.epoch.manifest import Manifest, OpenUnit
from epochal.epoch.open_epoch import Pace, clip
from epochal.errors import EpochBacklogError
from epochal.metrics.logs import log_context

logger = logging.getLogger(__name__)
trace = logging.getLogger("epochal.epoch.coordinator")
"""At DEBUG it has every message to the coordinator and what the coordinator decided to do."""

MAX_STEPS = 1_000
"""Maximum length of the step queue. The limit on epochs in flight keeps it far below this."""

MAX_ACKNOWLEDGEMENTS = 16
"""Maximum number of waiting acknowledgements. Beyond it the oldest are dropped: a later epoch's
acknowledgement includes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Callbacks of the driver. They are called from any thread and must not block."""

    push: Callable[[Sequence[bytes], messages.EpochReply], None]
    """Send a message to these peers."""
    committed: Callable[[CommittedEpoch, tuple[Positions, ...]], None]
    failed: Callable[[Exception], None]
    """Called once, with the error that ended the attempt."""
    held: Callable[[ReadingHeld], None] = lambda _: None
    acknowledged: Callable[[int, float], None] = lambda _epoch, _seconds: None
    """The sources have an epoch's acknowledgement; it took this many seconds."""


class EpochDriver:
    """One attempt: `recover`, `start`, then `handle` the tasks' messages, at the end `close`."""

    def __init__(
        self,
        resources: durable.EpochResources,
        listeners: Listeners,
        *,
        attempt: int,
        clock: Clock,
        pace: Pace,
    ) -> None:
        self.attempt = attempt
        self._resources, self._listeners = resources, listeners
        self._clock, self._pace = clock, pace
        self._recovered: durable.Recovered | None = None
        self._coordinator: EpochCoordinator | None = None
        self._template = OffsetEntry(1, ())
        self._readers = Readers(len(resources.sources))
        self._peers: dict[int, bytes] = {}
        self._steps: deque[Step] = deque()
        self._acknowledgements: deque[tuple[int, tuple[Positions, ...]]] = deque(
            maxlen=MAX_ACKNOWLEDGEMENTS
        )
        self._timings = EpochTimings(clock, resources.sources, bool(resources.delays_ms))
        self._retention: Retention | None = None
        self._stopping = self._closed = self._plans = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._timing = threading.Condition(self._lock)
        self._to_acknowledge = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []

    @property
    def coordinator(self) -> EpochCoordinator:
        """The coordinator, to inspect. Only the driver may step it."""
        assert self._coordinator is not None, "not started"
        return self._coordinator

    @property
    def _start_of_attempt(self) -> durable.Recovered:
        assert self._recovered is not None, "call recover() first"
        return self._recovered

    def recover(self) -> durable.Recovered:
        """Fence earlier attempts, finish or drop their open epoch, return where to continue."""
        self._recovered = durable.recover(self._resources, self.attempt)
        return self._recovered

    def start(
        self,
        readers: Sequence[tuple[int, str]],
        tasks: int,
        *,
        template: OffsetEntry | None = None,
        held_at: tuple[str, ...] | None = None,
        unit_ends: Sequence[Positions] = (),
        last: Sequence[Positions] | None = None,
        background: bool = True,
    ) -> None:
        """Wait for `tasks` tasks. `readers` are (source, partition id), in order of their number.

        New offset entries copy the version, source names and settings of `template`. With
        `held_at`, the positions of the readers, epochs are planned: call `plan` for each.
        `unit_ends` are where the rows end that wait now, per source, if the log has no open unit;
        `last` is where the query ends, if it has an end.
        """
        recovered, limits = self._start_of_attempt, None
        resources, query = self._resources, self._resources.query
        self._plans = held_at is not None
        self._readers = Readers(len(resources.sources), tuple(readers))
        self._template = template or recovered.base or recovered.planned or self._template
        if recovered.planned is not None:
            of_plan = recovered.planned, resources.sources, query, resources.url
            limits = self._readers.limits_of(*of_plan)
        self._retention = Retention(resources, self.attempt, recovered.first_epoch)
        units = first_unit(
            SourcePlaces(self._readers, resources.sources, last),
            recovered.unit or OpenUnit(recovered.highs, tuple(unit_ends)),
            recovered.highs,
            is_epoch=held_at is not None or limits is not None,
        )
        with self._lock:
            self._coordinator = EpochCoordinator(
                attempt=self.attempt,
                first_epoch=recovered.first_epoch,
                watermark=recovered.watermark(query, self._template, units),
                pace=self._pace,
                tell_commits=any(acknowledged_in_tasks(resources.sources)),
                sink_decides=resources.sink.decides,
                first_limits=limits,
                held_at=held_at,
                publication=Publication(
                    recovered.published,
                    floor=recovered.floor,
                    interval_seconds=self._pace.publish_seconds,
                    retained=resources.min_batches_to_retain,
                    is_stateful=resources.is_stateful,
                ),
            )
        self.handle(messages.SetReaderPartitions(self.attempt, len(readers)))
        self.handle(messages.SetWriterPartitions(self.attempt, tasks))
        self.tick()
        if background:
            self._threads = [
                # A new thread does not inherit context variables, and the log context is one.
                threading.Thread(
                    target=copy_context().run, args=(target,), name=f"epochal-{name}", daemon=True
                )
                for name, target in (
                    ("committer", self._commit_steps),
                    ("epochs", self._end_epochs),
                    ("acknowledger", self._acknowledge_commits),
                    ("retention", self._retention.run),
                )
            ]
            for thread in self._threads:
                thread.start()

    def handle(
        self, message: messages.EpochRequest, peer: bytes = b""
    ) -> messages.EpochReply | None:
        """Process a task's message; return the reply if it is a request. Refusals raise."""
        coordinator = self.coordinator
        with self._lock:
            coordinator.now = self._clock.monotonic()
            was_idle = coordinator.is_idle
            reply: messages.EpochReply | None = None
            if isinstance(message, messages.OneWay):
                effects = coordinator.step(message)
            else:
                reply, effects = coordinator.ask(message)
            if isinstance(message, messages.RegisterTask):
                self._peers[message.task] = peer
            # Under the same lock as the step: otherwise the thread that stepped first could queue
            # its effects last, and an epoch would be decided before the one that precedes it.
            failed = self._dispatch(effects, message)
            if was_idle and not coordinator.is_idle:
                # The epoch is now due earlier than the timer thread assumed when it went to sleep.
                tick = Tick(self._clock.monotonic())
                failed = failed or self._dispatch(coordinator.step(tick), tick)
                self._timing.notify()
        self._report(failed)  # not under the lock, so that the listener may call the driver
        return reply

    def tick(self) -> None:
        """Give the coordinator the time: it may end an epoch, or time out a missing task."""
        self._step(Tick(self._clock.monotonic()))

    def due(self) -> float | None:
        """Return when the next `tick` will have an effect, on the monotonic clock."""
        with self._lock:
            return self.coordinator.due()

    def hold(self) -> bool:
        """End the current epoch and read nothing more.

        Return False if no task reads yet; then the hold follows as soon as they do. When everything
        is committed, `Listeners.held` is called. Call `limit` or `finish` then.
        """
        self._step(Hold())
        return self.coordinator.phase is Phase.RUNNING

    def wake(self) -> None:
        """End the current epoch soon, even if it has no rows.

        A source may have advanced past data without rows, such as an empty file. Tasks do not
        report that, so it would be committed with the next idle epoch only.
        """
        if self._coordinator is not None and not self._plans:
            self._step(messages.TaskActive(self.attempt, 0, self._coordinator.current))

    def limit(self, held: ReadingHeld) -> bool:
        """Read on to the next positions that the sources' offsets express exactly.

        Return False if the positions are exact already, so that there is nothing to read.
        """
        at = self._readers.by_source(held.positions)
        pairs = zip(self._resources.sources, at, strict=True)
        limits = self._readers.limits([source.boundary(read) for source, read in pairs], at)
        if limits:
            self._step(Limit(limits))
        return bool(limits)

    def held_at(self, held: ReadingHeld) -> tuple[Positions, ...]:
        return self._readers.by_source(held.positions)

    def plan(self, held: ReadingHeld, ends: Sequence[Positions]) -> bool:
        """Read on, each source to its end, and end the epoch there.

        Return False if there is nothing to read and no timer or watermark wants an epoch.
        """
        limits = self._readers.limits(ends, self.held_at(held))
        if not limits and self.coordinator.is_idle:
            return False
        self._timings.planned(self.coordinator.current)
        self._step(Limit(limits))
        return True

    def finish(self) -> None:
        self._step(Finish())

    def dismiss(self) -> None:
        """Send `Leave` to all tasks, in any phase of the attempt.

        Tasks that receive it end at once instead of waiting for Spark to kill them.
        """
        with self._lock:
            peers = [peer for peer in self._peers.values() if peer]
        self._listeners.push(peers, messages.Leave(self.attempt))

    def stop(self) -> bool:
        """Hold, limit and finish, each as soon as the one before is done."""
        self._stopping = True
        return self.hold()

    def perform_next(self) -> Step | None:
        """Perform the next step in this thread and return it; None if there is none."""
        # Only one thread calls this, so steps are performed one at a time, in order. The lock is
        # free meanwhile: storage may take seconds, and reports of later epochs must not wait.
        with self._lock:
            step = self._steps.popleft() if self._steps else None
        if step is not None:
            with log_context(epoch=step.epoch):
                self._perform(step)
            # Only now: `committed` of the coordinator must never be ahead of the log, because tasks
            # acknowledge and publish what it says.
            self._step(Performed(type(step), step.epoch))
            self.tick()
        return step

    def close(self) -> None:
        """Ignore reports from now on, and end all threads after the step under way."""
        if self._coordinator is not None:
            self.handle(messages.StopContinuousExecutionWrites(self.attempt))
        # Steps that still wait are dropped. On disk their epochs are undecided, and cut again, or
        # decided, and then the next `recover` finishes them.
        with self._lock:
            self._closed = True
            for condition in (self._work, self._timing, self._to_acknowledge):
                condition.notify_all()
        if self._retention is not None:
            self._retention.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _step(self, event: Event | messages.TaskActive) -> None:
        with self._lock:
            self.coordinator.now = self._clock.monotonic()
            failed = self._dispatch(self.coordinator.step(event), event)
            self._timing.notify()
        self._report(failed)

    def _dispatch(
        self, effects: Sequence[Effect], cause: messages.EpochRequest | Event
    ) -> Exception | None:
        failed: Exception | None = None
        if trace.isEnabledFor(logging.DEBUG) and (effects or not isinstance(cause, Tick)):
            trace.debug("%s -> %s", clip(cause), ", ".join(map(clip, effects)) or "nothing to do")
        for effect in effects:
            match effect:
                case Push(message, task):
                    if isinstance(message, messages.EpochStarted):
                        self._timings.started(message)
                    peers = self._peers.values() if task is None else [self._peers.get(task, b"")]
                    self._listeners.push([peer for peer in peers if peer], message)
                case Fail(error):
                    failed = error
                case _:
                    if isinstance(effect, Decide):
                        self._timings.completed(effect.epoch)
                    self._steps.append(effect)
                    self._work.notify()
        if failed is None and len(self._steps) > MAX_STEPS:
            failed = EpochBacklogError("epoch", len(self._steps), MAX_STEPS)
            self.coordinator.step(Broken(failed))
        return failed

    def _report(self, failed: Exception | None) -> None:
        if failed is not None:
            logger.warning("attempt %d failed: %s", self.attempt, failed)
            self._listeners.failed(failed)

    def _perform(self, step: Step) -> None:
        before = self._clock.monotonic()
        step = self._without_known_output(step)
        match step:
            case Decide():
                positions = self._readers.by_source(step.positions)
                offsets = self._timings.decided(step, positions)
                manifest = Manifest(
                    step.epoch,
                    self.attempt,
                    self._resources.run_id,
                    positions,
                    step.messages,
                    step.state,
                    step.marks.highs,
                    chain=self._chain(step),
                    unit=open_unit(step.marks.unit, self._readers),
                )
                times_ms = step.marks.own_ms, self._started_ms(step.epoch)
                durable.decide(self._resources, manifest, self._template, offsets, *times_ms)
            case CommitSink():
                durable.follow_up(self._resources, step)
                # Before the state is published: the sink may hold another attempt's epoch.
                durable.confirm(self._resources, self.attempt, step.epoch)
            case PublishState() | LogCommit():
                durable.follow_up(self._resources, step)
            case Acknowledge():
                self._conclude(step)
            case ReadingHeld():
                self._listeners.held(step)
                if self._stopping and not self.limit(step):
                    self.finish()
            case _:
                assert_never(step)
        self._timings.took(step, self._clock.monotonic() - before)

    def _without_known_output(self, step: Step) -> Step:
        """Drop the output of an epoch that Spark has written to the sink already."""
        start = self._start_of_attempt
        if start.has_output and step.epoch == start.first_epoch:
            return replace(step, messages=()) if isinstance(step, Decide | CommitSink) else step
        return step

    def _conclude(self, step: Acknowledge) -> None:
        positions = self._readers.by_source(step.positions)
        # `commits/e` is written, or this step would not be here: the first moment at which a source
        # may forget the epoch's rows, and files that only older decisions name may go.
        self._listeners.committed(self._timings.concluded(step), positions)
        if self._threads:
            with self._lock:
                self._acknowledgements.append((step.epoch, positions))
                self._to_acknowledge.notify()
        else:
            durable.acknowledge(self._resources, step.epoch, positions)
        # Without the lock: only commits move the floor, and this thread has performed them.
        retention, floor = self._retention, self.coordinator.publication.floor
        assert retention is not None
        (retention.note if self._threads else retention.tidy)(step.epoch, floor)

    def _chain(self, step: Decide) -> StateChain | None:
        """Return the files with the state after an epoch; None if the query has no state."""
        start = self._start_of_attempt
        if not step.checksums:
            return None
        before = () if start.chain is None else start.chain.runs
        own = EpochRun(start.first_epoch, step.epoch, self.attempt, step.checksums)
        return extended(before, own, step.published)

    def _started_ms(self, epoch: int) -> int:
        """Return when an epoch began: a batch that runs again has the time of its first run."""
        start = self._start_of_attempt
        if start.planned is not None and epoch == start.first_epoch:
            return start.planned.timestamp_ms
        return self._timings.started_ms(epoch)

    def _commit_steps(self) -> None:
        while True:
            with self._lock:
                self._work.wait_for(lambda: self._steps or self._closed)
                if self._closed:
                    return
            try:
                self.perform_next()
            except Exception as error:  # noqa: BLE001  any error ends the attempt
                # The steps that wait must never be performed: they assume that this one succeeded.
                # One that is queued before `Broken` takes effect stays there, as this thread ends.
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
            self.tick()  # a tick too many does nothing: the coordinator looks again what is due

    def _acknowledge_commits(self) -> None:
        while True:
            with self._lock:
                self._to_acknowledge.wait_for(lambda: self._acknowledgements or self._closed)
                if not self._acknowledgements:
                    return  # closed, and all that waited was sent
                epoch, positions = self._acknowledgements.popleft()
            before = self._clock.monotonic()
            with log_context(epoch=epoch):
                durable.acknowledge(self._resources, epoch, positions)
            self._listeners.acknowledged(epoch, self._clock.monotonic() - before)
