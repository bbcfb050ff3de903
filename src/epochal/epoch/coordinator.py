"""Decides when an epoch is complete and what must be done then. Pure: no clock, thread or file.

An epoch is complete when every reader has reported where it ends and every task has reported that
its part is durable. Reports arrive in any order, and a later epoch may be complete first. Epochs
are nevertheless decided strictly one after the other: epoch `e` is decided only after `e-1`. The
decision returns all steps of the epoch at once (see `effects`). The caller performs them in this
order, and those of one epoch before those of the next.

Why nothing is lost or committed twice:

- `decided` only grows, by one at a time, so no epoch is decided twice or skipped.
- A report of a decided epoch is ignored. It can only be a repetition: the decision needed it.
- A report that contradicts an earlier one ends the attempt. One of the two must be wrong, and the
  next attempt cuts the epoch again.
- After `Fail` nothing is ever decided, so later reports of a broken attempt have no effect.

A query stalls when an epoch has ended and is not committed for `stall_seconds`. The time counts
from the end of that epoch or, if it is later, from the last commit. So neither a slow start nor a
long idle epoch is a stall. Tasks end an epoch with limits, so there it counts from their last sign.

Epochs end by time; with `held_at` each is planned: a `Limit` says where the next one ends, and
`ReadingHeld` asks for it.

Note: `step` speaks for the whole query, so it does not raise on a bad report; it returns `Fail`. An
exception refuses one sender only: a message of another attempt, or a request that makes no sense.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from enum import StrEnum
from typing import TypeAlias

import msgspec

from epochal.epoch import messages
from epochal.epoch.effects import (
    Broken,
    Effect,
    Event,
    Fail,
    Finish,
    Hold,
    Limit,
    LogCommit,
    Performed,
    Push,
    ReadingHeld,
    Tick,
)
from epochal.epoch.epoch_files.state_chain import Publication
from epochal.epoch.event_time.query_watermark import QueryWatermark
from epochal.epoch.messages import EpochStarted, Limits
from epochal.epoch.open_epoch import OpenEpoch, Pace, backlog_error, clip, record
from epochal.errors import (
    EpochError,
    EpochProtocolError,
    EpochStalledError,
    StaleAttemptError,
    TaskFailedError,
)

Answer: TypeAlias = tuple[messages.EpochReply, list[Effect]]


class Phase(StrEnum):
    """The phase of an attempt. It only moves forward."""

    REGISTERING = "registering"
    PREPARING = "preparing"
    """All tasks are registered. They connect to each other and load their state."""
    RUNNING = "running"
    LEFT = "left"
    FAILED = "failed"


class EpochCoordinator:
    """One attempt of a query, from the first registration to the last decision."""

    def __init__(
        self,
        *,
        attempt: int,
        first_epoch: int,
        readers: int = 0,
        tasks: int = 0,
        watermark: QueryWatermark | None = None,
        pace: Pace | None = None,
        tell_commits: bool = False,
        sink_decides: bool = False,
        first_limits: Limits | None = None,
        held_at: tuple[str, ...] | None = None,
        publication: Publication | None = None,
    ) -> None:
        self.attempt = attempt
        self.phase = Phase.REGISTERING
        self.current = first_epoch
        """The epoch that the sources are reading."""
        self.decided = self.committed = first_epoch - 1
        self.stale = 0
        """Number of messages of other attempts."""
        self.late = 0
        """Number of reports of decided epochs."""
        self.pace = pace or Pace()
        self._readers, self._tasks = readers, tasks
        self._watermark = watermark or QueryWatermark(first_epoch=first_epoch)
        self._registered: dict[int, messages.RegisterTask] = {}
        self._ready: set[int] = set()
        self._announced: messages.EpochReply = messages.Done()
        self._open: defaultdict[int, OpenEpoch] = defaultdict(OpenEpoch)
        self._complete: set[int] = set()
        self.query_writes_stopped = False
        self._hold_asked = False
        self._last_epoch: int | None = None
        """The last epoch with rows before a hold; None while epochs follow each other freely."""
        self._limited = False
        self._first_limits, self._held_at = first_limits, held_at
        """Where the first epoch must end; where the readers start if every epoch is planned."""
        self.publication = publication or Publication(first_epoch, is_stateful=False)
        self._finishing = False
        self._newest_active = first_epoch - 1
        """The newest epoch with rows or timers. Tasks may be ahead of `current` by one."""
        self._tell_commits, self._sink_decides = tell_commits, sink_decides
        self.now = self._since = 0.0
        """The time. The caller sets it before a message or an event; a `Tick` brings it along."""
        self._began: float | None = None
        self._uncommitted_since: float | None = None
        """When the wait for a commit began; None while every epoch that ended is committed."""

    def step(self, event: messages.OneWay | Event) -> list[Effect]:
        """Process one message or event; return what must be done now, in this order."""
        match event:
            case Performed() | Tick() | Hold() | Limit() | Finish() | Broken():
                return self._process(event)
        self._check_attempt(event.attempt)
        if self.query_writes_stopped or self.phase in (Phase.FAILED, Phase.LEFT):
            # Tasks run on for a moment. A decision would wait for a committer that has ended.
            return []
        match event:
            case messages.CommitPartitionEpoch(active=active):
                # Also in a repeated report: what it says of the epoch that is being read is true.
                self._note_sign(active)
                return self._report(event)
            case messages.ReportPartitionOffset():
                return self._report(event)
            case messages.TaskActive(epoch=epoch):
                self._note_sign(epoch)
                return []
            case messages.TaskReady(task=task):
                return self._make_ready(task)
            case messages.TaskFailed(task=task, error=error, traceback=text, kind=kind):
                return self._fail(TaskFailedError(task, error, text, kind))
            case messages.StatePublished(task=task, epoch=epoch):
                complete = self.publication.report(task, epoch, self._tasks, self.now)
                return self._finish() if complete and self._finishing else []

    def ask(self, message: messages.TwoWay) -> Answer:
        """Answer a request; return the answer and what else must be done now."""
        self._check_attempt(message.attempt)
        match message:
            case messages.GetCurrentEpoch():
                return self._announced, []
            case messages.IncrementAndGetEpoch():
                if self.phase is not Phase.RUNNING or self._last_epoch is not None:
                    raise EpochProtocolError("IncrementAndGetEpoch", "no epoch is being read")
                pushes = self._next_epoch()
                return self._announced, pushes
            case messages.SetReaderPartitions(count=count):
                self._refuse_change("reader", self._readers, count)
                self._readers = count
            case messages.SetWriterPartitions(count=count):
                self._refuse_change("writer", self._tasks, count)
                self._tasks = count
                return messages.Done(), self._announce_peers()
            case messages.StopContinuousExecutionWrites():
                self.query_writes_stopped = True
            case messages.RegisterTask():
                return messages.Done(), self._register(message)
        return messages.Done(), []

    @property
    def is_idle(self) -> bool:
        """Whether the epoch that is being read has no rows or timers yet."""
        return self._newest_active < self.current

    def due(self) -> float | None:
        """Return when a `Tick` will next have an effect; None if only a message can change that."""
        match self.phase:
            case Phase.REGISTERING:
                return None if self._began is None else self._began + self.pace.register_seconds
            case Phase.PREPARING:
                return self._since + self.pace.ready_seconds
            case Phase.RUNNING:
                times = (self._epoch_due(), self._stall_due(), self._publish_due())
                return min((time for time in times if time is not None), default=None)
        return None

    def _epoch_due(self) -> float | None:
        if not self._may_end_epoch():
            return None
        pace = self.pace
        return self._since + (pace.idle_epoch_seconds if self.is_idle else pace.epoch_seconds)

    def _stall_due(self) -> float | None:
        since = None if self.query_writes_stopped else self._uncommitted_since
        return None if since is None else since + self.pace.stall_seconds

    def _publish_due(self) -> float | None:
        """When state must be published although no epoch starts, because none is planned."""
        if self._held_at is None or self._limited or self.decided > self.committed:
            return None
        return self.publication.due(self.committed)

    def _note_sign(self, active: int) -> None:
        """Note that a task works, and the newest epoch in which it has rows or timers."""
        self._newest_active = max(self._newest_active, active)
        if self._limited and self._uncommitted_since is not None:
            self._uncommitted_since = self.now

    def _check_attempt(self, attempt: int) -> None:
        if attempt != self.attempt:
            self.stale += 1
            raise StaleAttemptError(attempt, self.attempt)

    def _process(self, event: Event) -> list[Effect]:
        if self.phase in (Phase.FAILED, Phase.LEFT):
            return []
        match event:
            case Performed(kind, epoch):
                return self._note_commit(epoch) if kind is LogCommit else []
            case Tick(now):
                return self._tick(now)
            case Hold():
                return self._hold()
            case Limit(limits):
                return self._limit(limits)
            case Broken(error):
                return self._fail(error)
            case Finish():
                return self._finish()

    def _finish(self) -> list[Effect]:
        """Let the tasks leave, after they have written the last state under Spark's names."""
        self._finishing = True
        # An older epoch may be on its way already. When all tasks have reported that one, this is
        # called again, and orders the newest.
        is_running = isinstance(self._announced, EpochStarted)
        if is_running and self.publication.is_behind(self.committed):
            return self._publish()
        self.phase = Phase.LEFT
        self._announced = messages.Leave(self.attempt, self._committed_for_tasks())
        return [Push(self._announced)]

    def _publish(self) -> list[Effect]:
        assert isinstance(self._announced, EpochStarted)
        ordered = self.publication.order(self.committed, self.now, at_once=True)
        # A push may be lost. A task that asks then gets what is announced, so both say the same.
        self._announced = msgspec.structs.replace(
            self._announced, publish=ordered, floor=self.publication.floor
        )
        return [Push(self._announced)]

    def _note_commit(self, epoch: int) -> list[Effect]:
        self.committed = max(self.committed, epoch)
        self.publication.committed(self.committed)
        self._uncommitted_since = None if self.committed >= self._newest_ended() else self.now
        if not self._tell_commits or not isinstance(self._announced, EpochStarted):
            return []
        self._announced = msgspec.structs.replace(self._announced, committed=self.committed)
        return [Push(self._announced)]

    def _committed_for_tasks(self) -> int:
        """The newest committed epoch, if a source acknowledges in its tasks; else -1."""
        return self.committed if self._tell_commits else -1

    def _register(self, message: messages.RegisterTask) -> list[Effect]:
        task = message.task
        before = self._registered.get(task)
        if not 0 <= task < self._tasks:
            raise EpochProtocolError(f"Task {task}", f"there are {self._tasks}, numbered from 0")
        if self.phase is Phase.REGISTERING:
            self._registered[task] = message
            return self._announce_peers()
        if self.phase in (Phase.FAILED, Phase.LEFT):
            return [Push(self._announced, task)]
        if before != message:
            # The peers have connected to the first address already, so rows would be sent there
            # and lost. A repeated registration of the same process is harmless: its reply was lost.
            reason = f"a second process came for it, {clip(message)} after {clip(before)}"
            return self._fail(EpochProtocolError(f"Task {task}", reason))
        return [Push(self._announced, task)]

    def _announce_peers(self) -> list[Effect]:
        if self.phase is not Phase.REGISTERING or not 0 < self._tasks == len(self._registered):
            return []
        self.phase = Phase.PREPARING
        self._since = self.now
        registered = sorted(self._registered.items())
        peers = tuple(messages.Peer(task, message.url, message.key) for task, message in registered)
        self._announced = messages.Peers(self.attempt, peers)
        return [Push(self._announced)]

    def _make_ready(self, task: int) -> list[Effect]:
        if self.phase is Phase.REGISTERING or not 0 <= task < self._tasks:
            return self._fail(EpochProtocolError(f"Task {task}", "ready before it had its peers"))
        self._ready.add(task)  # a set: a task repeats this if the driver seems to be silent
        if self.phase is not Phase.PREPARING or len(self._ready) < self._tasks:
            return []
        self.phase = Phase.RUNNING
        if self._first_limits is not None:
            self._limited, self._last_epoch = True, self.current
        elif self._held_at is not None:
            self._last_epoch = self.decided
            return [*self._announce(hold=True), ReadingHeld(self.decided, self._held_at)]
        effects = self._announce(limits=self._first_limits)
        return effects + (self._hold() if self._hold_asked else [])

    def _report(
        self, report: messages.CommitPartitionEpoch | messages.ReportPartitionOffset
    ) -> list[Effect]:
        epoch = report.epoch
        if self.phase is not Phase.RUNNING or epoch > self._newest_ended():
            reason = f"it has not ended: {self.current} is being read, the query is {self.phase}"
            return self._fail(EpochProtocolError(f"Report of epoch {epoch}", reason))
        if epoch <= self.decided:
            # Tasks repeat reports when the driver was silent. The decision had this report already.
            self.late += 1
            return []
        opened = self._open[epoch]
        match report:
            case messages.ReportPartitionOffset(reader=reader, position=position):
                error = record(opened.ends, reader, position, self._readers, "Reader", epoch)
            case messages.CommitPartitionEpoch(task=task, positions=positions):
                error = record(opened.commits, task, report, self._tasks, "Task", epoch)
                for reader, position in positions:
                    error = error or record(
                        opened.ends, reader, position, self._readers, "Reader", epoch
                    )
                error = error or self._watermark.error_in(report, self._readers)
        if error:
            return self._fail(error)
        if len(opened.ends) == self._readers and len(opened.commits) == self._tasks:
            self._complete.add(epoch)
        if effects := self._decide_complete():
            return effects
        most, limit = max(self._readers, self._tasks), self.pace.max_backlog
        error = backlog_error(self._open, self._complete, most, limit)
        return self._fail(error) if error else []

    def _decide_complete(self) -> list[Effect]:
        effects: list[Effect] = []
        # One report may complete an epoch for which several later, complete ones have waited.
        # `decided` is ahead of the log until the steps are performed. That is in this order, so a
        # crash leaves at most one entry without a commit: the entry of an epoch is created only
        # after the commit of the one before. Recovery relies on it.
        while self.decided + 1 in self._complete:
            self.decided += 1
            self._complete.discard(self.decided)
            effects += self._decide(self.decided, self._open.pop(self.decided))
        return effects

    def _decide(self, epoch: int, complete: OpenEpoch) -> list[Effect]:
        marks = self._watermark.decide(epoch, *complete.event_times)
        published = self.publication.decided(epoch)
        effects: list[Effect] = [
            *complete.steps(epoch, marks, published, sink_decides=self._sink_decides)
        ]
        if epoch == self._last_epoch:
            effects.append(ReadingHeld(epoch, complete.positions))
            if self._limited:
                # The tasks hold the next epoch without being told. A task that asks hears the same.
                self._limited = False
                self.current += 1
                self._announced = self._started(hold=True)
        self._want_epoch()
        return effects

    def _want_epoch(self) -> None:
        # A new watermark may close windows, whose rows should not wait for more input.
        if self._watermark.wants_epoch(self.current):
            self._newest_active = max(self._newest_active, self.current)

    def _newest_ended(self) -> int:
        # A limited epoch is cut by the tasks, so it may be reported while it is still current.
        return self.current if self._limited else self.current - 1

    def _may_end_epoch(self) -> bool:
        # This also bounds what tasks must keep: reports to repeat and versions to publish.
        in_flight = self.current - 1 - self.committed
        # With very many tasks, end epochs more slowly rather than overflow the backlog.
        within_backlog = max(1, self.pace.max_backlog // max(1, self._readers, self._tasks))
        return (
            self.phase is Phase.RUNNING
            and self._last_epoch is None
            and not self.query_writes_stopped
            and in_flight < min(self.pace.max_epochs_in_flight, within_backlog)
        )

    def _tick(self, now: float) -> list[Effect]:
        self.now = now
        if self._began is None:
            self._began = now
        due = self.due()
        if due is None or now < due:
            return []
        match self.phase:
            case Phase.REGISTERING:
                return self._time_out("registered", self._registered, self.pace.register_seconds)
            case Phase.PREPARING:
                return self._time_out("become ready", self._ready, self.pace.ready_seconds)
            case _ if (stall := self._stall_due()) is not None and stall <= now:
                epoch, tasks = self.committed + 1, self._tasks
                opened = self._open.get(epoch, OpenEpoch())
                reported: Collection[int] = opened.commits if epoch > self.decided else range(tasks)
                missing = tuple(task for task in range(tasks) if task not in reported)
                seconds = self.pace.stall_seconds
                return self._fail(EpochStalledError(epoch, missing, tasks, seconds))
            case _ if self._publish_due() is not None:
                return self._publish()
            case _:
                effects = self._next_epoch()
                if now - due < self.pace.epoch_seconds / 4:
                    # The tick was slightly late. That must not add up from epoch to epoch.
                    self._since = due
                return effects

    def _time_out(self, step: str, arrived: Collection[int], seconds: float) -> list[Effect]:
        missing = [task for task in range(self._tasks) if task not in arrived]
        named = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        return self._fail(
            EpochError(
                f"{len(missing)} of {self._tasks} tasks ({named}) had not {step} after "
                f"{seconds:g} s. All tasks must run at the same time: the query needs "
                f"{self._tasks} free slots, and every executor must be able to reach the driver."
            )
        )

    def _next_epoch(self, *, hold: bool = False) -> list[Effect]:
        self.current += 1
        return self._announce(hold=hold)

    def _announce(self, *, hold: bool = False, limits: Limits | None = None) -> list[Effect]:
        self._announced = started = self._started(hold, limits)
        self._want_epoch()
        self._since = self.now
        if self._uncommitted_since is None and self.committed < self._newest_ended():
            self._uncommitted_since = self.now
        return [Push(started)]

    def _started(self, hold: bool = False, limits: Limits | None = None) -> EpochStarted:
        self._watermark.start(self.current)
        ordered = self.publication.order(self.committed, self.now)
        return EpochStarted(
            self.attempt,
            self.current,
            self._watermark.floor(),
            hold,
            limits,
            self._committed_for_tasks(),
            self._watermark.in_flight(),
            ordered,
            self.publication.floor if ordered >= 0 else 0,
            self._watermark.units.is_held,
        )

    def _hold(self) -> list[Effect]:
        self._hold_asked = True
        if self.phase is not Phase.RUNNING or self._last_epoch is not None:
            return []  # `_make_ready` holds as soon as the tasks run; or a hold is under way
        self._last_epoch = self.current
        return self._next_epoch(hold=True)

    def _limit(self, limits: Limits) -> list[Effect]:
        if self._last_epoch is None or self.decided < self._last_epoch or self._limited:
            return self._fail(EpochProtocolError("Limits", "they must follow a hold"))
        # The epoch keeps its number: it was announced with a hold, so no task has read in it.
        self._limited = True
        self._last_epoch = self.current
        return self._announce(limits=limits)

    def _fail(self, error: Exception) -> list[Effect]:
        self.phase = Phase.FAILED
        # Announced and not only pushed: a task that registers or asks later must leave as well.
        self._announced = messages.Leave(self.attempt, self._committed_for_tasks())
        return [Fail(error), Push(self._announced)]

    def _refuse_change(self, what: str, before: int, count: int) -> None:
        if self.phase is not Phase.REGISTERING and count != before:
            reason = f"expected {before} {what} partitions, but {count} were announced"
            raise EpochProtocolError("The driver", reason)
