"""One run of a query, from its claim on the checkpoint to its end.

    claim → recover → positions → slots → job and epochs → { failure → wait → attempt + 1 }
                                                           { new partitions → hold → attempt + 1 }
                                                           { stop → hold → boundary → leave }

One thread owns the run and waits on one inbox. Other threads post their events there: the end of
the job, a failed epoch, a stop request. A second thread watches the run: it reports progress, looks
for new partitions, and notices when the driver's JVM is gone.

Note: `start()` prepares the first attempt before it returns, so errors in the query or the cluster
are raised by `start()`. Only later errors end up in `exception()`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, TypeAlias

from pyspark import SparkContext

from epochal.checkpoint.stop_request import is_stop_requested
from epochal.clock import Clock, Interval, SystemClock
from epochal.connectors.contract import Positions
from epochal.continuous.run.attempt import RunAttempt, prepare_attempt, start_server
from epochal.continuous.run.listeners import ListenerBus
from epochal.continuous.run.open_query import Opened, open_query
from epochal.continuous.run.planned_epochs import PlannedEpochs
from epochal.continuous.run.progress import Reporter
from epochal.continuous.run.query_spec import QueryDefinition
from epochal.continuous.run.restarts import (
    GiveUp,
    RestartAfter,
    Restarts,
    ending_error,
    error_text,
    waiting_text,
)
from epochal.continuous.run.run_events import (
    AllRead,
    AttemptFailed,
    EngineState,
    Event,
    Failed,
    JobEnded,
    NewPartitions,
    Outcome,
    Reconfigured,
    RefreshDue,
    StopAsked,
    Stopped,
)
from epochal.continuous.run.telemetry import Telemetry, open_telemetry
from epochal.continuous.spark_job.barrier_job import check_conf, failure_text, headline, why_lost
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.effects import ReadingHeld
from epochal.errors import EpochalError, OptionError, QueryError, QueryFailedError, TaskFailedError
from epochal.errors.base import FailureKind
from epochal.errors.failures import kind_of
from epochal.metrics.logs import set_log_context
from epochal.metrics.run_records import StatusChanged

logger = logging.getLogger(__name__)

MS = timedelta(milliseconds=1)
WATCH_SECONDS = 0.2
STOP_LOOK_SECONDS = 2.0
"""How often the run looks for a request to stop in its checkpoint: one request to the storage."""
JOB_END_SECONDS = 30.0
WAKE_SECONDS = 0.2
"""How long `wait_until_read` waits before it asks for an epoch, in case there are no rows."""
JOB_NEWS_SECONDS = 0.05
"""How long to wait, after Spark's report of a failed task, for the task's own, which says more."""

Prepare: TypeAlias = Callable[..., RunAttempt]
"""`prepare_attempt` with its constant arguments bound."""


class Engine:
    """Runs one query until it is stopped or given up."""

    def __init__(
        self,
        opened: Opened,
        prepare: Prepare,
        why_lost: Callable[[], QueryError | None],
        bus: ListenerBus,
        on_end: Callable[[Engine], None],
        clock: Clock,
        telemetry: Telemetry | None = None,
    ) -> None:
        options = opened.options
        self.query_id, self.run_id = opened.query_id, opened.run_id
        self.name = options.query_name
        self.error: QueryFailedError | None = None
        self.state = EngineState()
        self._opened, self._prepare_attempt, self._why_lost = opened, prepare, why_lost
        self._bus, self._on_end = bus, on_end
        self._clock, self._telemetry = clock, telemetry or Telemetry([], clock)
        progress_ms, idle_ms = options.progress_interval // MS, options.idle_interval // MS
        self._reporter = Reporter(
            opened.note, opened.sources, bus, clock, progress_ms=progress_ms, idle_ms=idle_ms
        )
        self._restarts = Restarts(options.restarts, Random(options.seed))
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._positions: tuple[Positions, ...] = ()
        self._settled = True
        """Whether only more rows can close windows."""
        self._attempt: RunAttempt | None = None
        self._first_epoch: int | None = None
        """Where this run began."""
        self._refresh = False
        """Whether the next attempt reads the query's tables again."""
        self._stop_asked, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"epochal-query-{self.run_id}", daemon=True
        )
        self._watcher = threading.Thread(
            target=self._watch, name=f"epochal-watch-{self.run_id}", daemon=True
        )

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set()

    def start(self) -> None:
        """Prepare the first attempt, call the listeners, and start the threads."""
        try:
            self._prepare()
            self._bus.started(self.query_id, self.run_id, self.name, self._clock.now_ms())
        except BaseException as error:
            self._opened.close()
            self._telemetry.close(str(error))
            self._ended.set()
            raise
        self._thread.start()
        self._watcher.start()

    def stop(self) -> None:
        """Ask for a graceful end and wait for it."""
        # The flag first: a run that is not listening, because it waits for a restart or an attempt
        # has just ended, looks at the flag.
        self._stop_asked.set()
        self._inbox.put(StopAsked())
        if threading.current_thread() not in (self._thread, self._watcher):
            self._ended.wait()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for the end; return whether the query has ended."""
        return self._ended.wait(timeout_seconds)

    def reports(self) -> list[dict[str, Any]]:
        """Return the newest progress reports, oldest first."""
        return self._reporter.reports()

    def explanation(self) -> str:
        return self._opened.explanation()

    def wait_until_read(self, timeout_seconds: float | None) -> None:
        """Wait until everything that the sources contain now is committed.

        Also for epochs without rows in which windows close, as in Spark's batches without data.
        """
        sources, names = self._opened.sources, self._opened.note.sources
        targets = [source.latest() for source in sources]
        for name, target in zip(names, targets, strict=True):
            if target is None:
                raise OptionError(
                    f"Source {name} cannot tell where it ends, so process_all_available does not "
                    f"know what to wait for. Wait for the query's output instead."
                )

        def is_read() -> bool:
            read = zip(sources, self._positions, targets, strict=True)
            lags = (source.lag(at, target or {}) for source, at, target in read)
            return self._ended.is_set() or (self._settled and all(lag <= 0 for lag in lags))

        deadline = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        while True:
            left = WAKE_SECONDS if deadline is None else deadline - self._clock.monotonic()
            with self._changed:
                done = self._changed.wait_for(is_read, min(left, WAKE_SECONDS))
            if self.error is not None:
                raise self.error
            if done:
                return
            if deadline is not None and self._clock.monotonic() >= deadline:
                raise TimeoutError(
                    f"not everything was processed within {timeout_seconds} s: {self.state}"
                )
            if self._attempt is not None:
                self._attempt.wake()

    def _prepare(self) -> None:
        self._attempt = None
        attempt = self._prepare_attempt(
            stopped=self._stop_asked.is_set,
            post=self._inbox.put,
            on_committed=self._note_commit,
            on_acknowledged=self._telemetry.acknowledged,
        )
        self._reporter.begin(self._opened.note, attempt.offsets)
        with self._changed:
            self._attempt, self._positions = attempt, attempt.positions
            self._settled = attempt.settled
        if self._first_epoch is None:
            self._first_epoch = attempt.first_epoch
        self._show(committed=attempt.first_epoch - 1, attempt=attempt.number)

    def _run(self) -> None:
        set_log_context(query_id=self.query_id, run_id=self.run_id)
        error: Exception | None = None
        try:
            outcome = self._run_attempt()
            while not isinstance(outcome, Stopped):
                if isinstance(outcome, Failed) and not self._stop_asked.is_set():
                    self._wait_for_restart(outcome.error)
                if isinstance(outcome, Failed) and self._stop_asked.is_set():
                    logger.warning("%s failed before it stopped: %s", self._who(), outcome.error)
                    break
                outcome = self._run_next()
        except Exception as raised:  # noqa: BLE001  it ends the query; exception() shows it
            error = raised
        self._finish(error)

    def _run_next(self) -> Outcome:
        if self._refresh:
            self._refresh = False
            try:
                self._opened.refresh()
            except Exception as error:  # noqa: BLE001  old rows are better than no query
                logger.warning("%s keeps the old rows of its tables: %s", self._who(), error)
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001  handled like any failure
            return Failed(error)
        return self._run_attempt()

    def _run_attempt(self) -> Outcome:
        attempt = self._attempt
        assert attempt is not None
        is_exact = attempt.settled and attempt.is_published and not attempt.is_planned
        if is_exact and self._opened.is_read(attempt.positions):
            return Stopped()  # `availableNow`, and there is nothing new
        self._show(message="Starting tasks")
        try:
            attempt.start()
            return self._follow(attempt)
        except Exception as error:  # noqa: BLE001  handled like any failure
            return Failed(error)
        finally:
            attempt.end(JOB_END_SECONDS)

    def _follow(self, attempt: RunAttempt) -> Outcome:
        stopping = leaving = False
        deadline: float | None = None
        epochs = PlannedEpochs(attempt, self._opened, self._clock, self._inbox.put, self._show)
        while True:
            try:
                until = epochs.due if deadline is None else deadline
                left = None if until is None else max(0.0, until - self._clock.monotonic())
                event = self._inbox.get(timeout=left)
            except queue.Empty:
                if deadline is None:
                    epochs.plan()
                    continue
                logger.warning("%s did not stop within stopTimeout: killing tasks", self._who())
                return Stopped()
            # Late events of earlier attempts are in the inbox too; their number tells.
            match event:
                case StopAsked() if not leaving:
                    seconds = self._opened.options.stop_timeout.total_seconds()
                    stopping, deadline = True, deadline or self._clock.monotonic() + seconds
                    self._show(message="Stopping")
                    is_exact = attempt.is_at_boundary and attempt.is_published
                    if not epochs.hold() and is_exact:
                        return Stopped()  # no task reads yet, and Spark could go on already
                case AllRead() if not stopping and not leaving:
                    stopping = True
                    self._show(message="Stopping")
                    epochs.hold()
                case RefreshDue() if not stopping and not leaving:
                    self._show(message="Reading tables again")
                    self._refresh = True
                    epochs.hold()
                case NewPartitions(names) if not stopping and not leaving:
                    logger.info("%s: new partitions %s", self._who(), ", ".join(names[:10]))
                    self._show(message="Reconfiguring")
                    epochs.hold()
                case ReadingHeld() if epochs.plans:
                    epochs.take(event)
                case ReadingHeld() if not leaving:
                    # A stop also reads on to positions that Spark's offsets express exactly.
                    if not (stopping and attempt.limit(event)):
                        leaving = True
                        attempt.finish()
                case AttemptFailed(number, error) if number == attempt.number:
                    return Failed(error)
                case JobEnded(number, ending) if number == attempt.number:
                    if not leaving or ending is not None:
                        return Failed(self._cause(attempt, ending))
                    if not stopping and self._stop_asked.is_set():
                        # Too late for the tasks. The next attempt reads on to exact offsets.
                        self._inbox.put(StopAsked())
                    return Stopped() if stopping else Reconfigured()

    def _cause(self, attempt: RunAttempt, ending: BaseException | None) -> Exception:
        """Return why the job ended: the failed task's own report if there is one, else Spark's."""
        text = "" if ending is None else failure_text(ending)
        # Without a traceback the worker or its executor is gone, and so is what it had to report.
        wait = ending is None or text.startswith("Traceback")
        deadline = self._clock.monotonic() + (JOB_NEWS_SECONDS if wait else 0.0)
        while True:
            try:
                event = self._inbox.get(timeout=max(0.0, deadline - self._clock.monotonic()))
            except queue.Empty:
                break
            # Other events are lost here, and not missed: a stop is in `_stop_asked` too, and the
            # watching thread finds new partitions again.
            match event:
                case AttemptFailed(number, error) if number == attempt.number:
                    return error
        if ending is None:
            return TaskFailedError(None, "the tasks ended although the query was not stopped", "")
        if isinstance(ending, EpochalError):
            return ending
        # A task that cannot import a module of the user's fails before it can report.
        missing = headline(text).startswith("ModuleNotFoundError")
        kind = FailureKind.REPEATS if missing else FailureKind.LOST
        return TaskFailedError(None, headline(text), text, kind)

    def _wait_for_restart(self, error: Exception) -> None:
        """Wait before the next attempt; raise the error if there is to be none."""
        kind = kind_of(error)
        if kind is not FailureKind.REPEATS and (lost := self._why_lost()) is not None:
            raise lost from error
        now = self._clock.monotonic()
        commits = self.state.committed + 1 - (self._first_epoch or 0)
        match self._restarts.after_failure(now, kind, commits):
            case GiveUp(reason):
                logger.error("%s is not restarted: %s", self._who(), reason)
                ending = ending_error(error)
                raise ending from (None if ending is error else error)
            case RestartAfter(seconds, since):
                at_ms, what = self._clock.now_ms(), f"restart in {seconds:.2f} s"
                waiting = "" if since is None else waiting_text(error, at_ms, now - since)
                if not waiting or waiting != self.state.outage:
                    told = self._who(), self._when(), waiting or what, error_text(error)
                    logger.warning("%s failed %s; %s. Cause: %s", *told)
                waiting = waiting or self.state.outage
                message = "Waiting" if waiting else "Restarting"
                self._show(message=message, outage=waiting, restarts=self._restarts.total)
                self._stop_asked.wait(seconds)

    def _when(self) -> str:
        epoch = self.state.committed
        return "before its first epoch" if epoch < 0 else f"after epoch {epoch}"

    def _finish(self, error: Exception | None) -> None:
        # The report first, because it asks the sources, which `close` closes. `_ended` last: who
        # waited for it finds the error, all records, and a checkpoint without a claim.
        report = self._reporter.report(final=True)
        self._opened.close()
        text = condition = None
        if error is not None:
            text, condition = error_text(error), getattr(error, "condition", "") or None
            self.error = QueryFailedError(self.query_id, self.run_id, self.name, text)
            self.error.__cause__ = error
            logger.error("%s ended %s: %s", self._who(), self._when(), text)
        else:
            logger.info("%s stopped %s", self._who(), self._when())
        self._show(message="Terminated with exception" if error else "Stopped")
        self._write_telemetry(report)
        self._telemetry.close(text)
        self._bus.terminated(self.query_id, self.run_id, text, condition)
        self._on_end(self)
        self._ended.set()
        with self._changed:
            self._changed.notify_all()

    def _note_commit(self, epoch: CommittedEpoch, positions: tuple[Positions, ...]) -> None:
        self._reporter.add(epoch, positions)
        if self.state.outage:
            logger.info("%s commits epoch %d: the outage is over", self._who(), epoch.epoch)
        self._telemetry.committed(epoch, self.state.attempt)
        if epoch.late_rows:
            self._opened.note_late_rows(epoch)
        # Both at once: `wait_until_read` must not see new positions with an old `settled`.
        with self._changed:
            self._positions, self._settled = positions, epoch.settled
            busy = "Processing" if self.state.message == "Starting tasks" else self.state.message
            self.state = replace(self.state, committed=epoch.epoch, message=busy, outage="")
            self._changed.notify_all()

    def _show(self, **changes: Any) -> None:
        with self._changed:
            self.state = replace(self.state, **changes)
            self._changed.notify_all()

    def _watch(self) -> None:
        """Report, look for a request to stop and for new partitions, and detect a lost JVM."""
        options = self._opened.options
        to_stop = Interval(STOP_LOOK_SECONDS, self._clock)
        partitions = Interval(options.discover_interval.total_seconds(), self._clock)
        every = options.static_refresh
        refresh = None if every is None else Interval(every.total_seconds(), self._clock)
        set_log_context(query_id=self.query_id, run_id=self.run_id)
        while not self._ended.wait(WATCH_SECONDS):
            self._write_telemetry(self._reporter.report())
            if not self._stop_asked.is_set() and to_stop.is_due():
                self._look_for_stop()
            attempt = self._attempt
            if attempt is None:
                continue
            if (lost := self._why_lost()) is not None:
                self._inbox.put(AttemptFailed(attempt.number, lost))
                return
            if (silent := attempt.find_silent()) is not None:
                self._inbox.put(AttemptFailed(attempt.number, silent))
            if self._opened.ends is None and partitions.is_due():
                self._look_for_partitions(attempt.number)
            if refresh is not None and refresh.is_due():
                self._inbox.put(RefreshDue())

    def _write_telemetry(self, report: dict[str, Any] | None) -> None:
        at, now_ms = self.state, self._clock.now_ms()
        status = StatusChanged(
            now_ms, at.message, at.committed, at.attempt, at.restarts, at.trouble
        )
        self._telemetry.tick(status, report)

    def _look_for_stop(self) -> None:
        try:
            asked = is_stop_requested(self._opened.files, self.run_id)
        except (EpochalError, OSError) as error:
            # The claim cannot be renewed then either, and that is logged as a warning.
            logger.debug("%s: looking for a request to stop failed: %s", self._who(), error)
            return
        if asked:
            logger.info("%s stops: a file in its checkpoint asks for it", self._who())
            self.stop()

    def _look_for_partitions(self, attempt: int) -> None:
        degraded = ""
        for source, positions in zip(self._opened.sources, self._positions, strict=False):
            try:
                new = source.discover(positions)
            except Exception as error:  # noqa: BLE001  a broken source fails in the tasks
                if kind_of(error) is FailureKind.REPEATS:
                    return self._inbox.put(AttemptFailed(attempt, error))
                logger.warning("%s: looking for new partitions failed: %s", self._who(), error)
                degraded = str(error)
                continue
            if new:
                self._inbox.put(NewPartitions(tuple(sorted(new))))
        self._show(degraded=degraded)

    def _who(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        attempt = self.state.attempt
        return f"query{name} {self.query_id} run {self.run_id} attempt {attempt}"


def open_engine(
    sc: SparkContext,
    definition: QueryDefinition,
    bus: ListenerBus,
    on_end: Callable[[Engine], None],
    clock: Clock | None = None,
) -> Engine:
    """Claim the checkpoint and open sources and sink; raise if any of them cannot be opened."""
    check_conf(sc)
    clock = clock or SystemClock()
    opened = open_query(definition, clock, lambda: start_server(sc))
    try:
        telemetry = open_telemetry(opened, clock)
    except BaseException:
        opened.close()
        raise
    prepare: Prepare = partial(prepare_attempt, sc, opened, clock=clock)
    return Engine(opened, prepare, lambda: why_lost(sc), bus, on_end, clock, telemetry)
