"""A query listener that commits a query's position to Kafka consumer groups.

The committer never disturbs the query. A callback puts its event into a bounded queue and returns;
it cannot raise. One thread finds out which groups an event concerns, and one thread per cluster
commits to them. Spark reports no progress in its continuous mode, so the committer asks such a
query once a second how far it has committed.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql.streaming import StreamingQueryListener

from epochal.clock import Clock, SystemClock
from epochal.connectors.kafka.cluster_worker import ClusterWorker, GroupStats
from epochal.connectors.kafka.committer import spark_queries
from epochal.connectors.kafka.committer.committer_metrics import committer_text
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.kafka_settings import COMMIT_GROUP, connection_settings, kafka_options
from epochal.connectors.kafka.offsets import (
    Cluster,
    CommitTarget,
    Position,
    commit_requests,
    servers_key,
)
from epochal.errors import OptionError

logger = logging.getLogger(__name__)

MAX_EVENTS = 1024
CONTINUOUS_POLL_SECONDS = 1.0
CLOSE_SECONDS = 10.0
DRAIN_SECONDS = 0.2
"""How long to wait for Spark's listener bus before looking again whether that is needed."""
UNKNOWN_BATCH = -1


@dataclass(frozen=True, slots=True)
class KafkaGroup:
    """Names a group explicitly. Spark Connect needs this: its plans are on the server."""

    group: str
    bootstrap_servers: str
    query: str | None = None
    """The query's name or id. None means every query; then only one may run at a time."""
    source: int | None = None
    """The source's index in the query's progress report; None means every Kafka source."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further connection settings, such as security, in Java's or librdkafka's names."""

    def __post_init__(self) -> None:
        if not self.group or not self.bootstrap_servers:
            raise OptionError(
                f"KafkaGroup needs a group and bootstrap_servers, but they are {self.group!r} and "
                f"{self.bootstrap_servers!r}. Set both."
            )
        if self.source is not None and self.source < 0:
            raise OptionError(
                f"KafkaGroup: source is {self.source}, but sources are numbered from 0. Set it to "
                f"the index of a source, or leave it out for all Kafka sources."
            )

    def target(self, extra: Mapping[str, str]) -> CommitTarget:
        settings = connection_settings({**self.settings, **extra})
        settings["bootstrap.servers"] = self.bootstrap_servers
        return CommitTarget(self.group, Cluster.of(settings), self.source)


@dataclass(frozen=True, slots=True)
class Started:
    """A query was started."""

    query_id: str
    run_id: str
    name: str | None
    execution: Any | None = None
    """The run in the driver's JVM, if there is one."""


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A query has finished a batch."""

    run_id: str
    name: str | None
    position: Position


@dataclass(frozen=True, slots=True)
class Ended:
    """A query was stopped, or it failed."""

    query_id: str
    run_id: str


ListenerEvent: TypeAlias = Started | FinishedBatch | Ended


class ListenerInbox:
    """At most `limit` events, oldest first. The caller holds the lock.

    A full inbox drops its oldest progress event, because later progress of the same query
    supersedes it. Starts and ends of queries are dropped only if there is no progress to drop.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[ListenerEvent] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: ListenerEvent) -> None:
        if len(self._events) >= self._limit:
            progress = (n for n, old in enumerate(self._events) if isinstance(old, FinishedBatch))
            del self._events[next(progress, 0)]
            self.dropped += 1
        self._events.append(event)

    def take(self) -> ListenerEvent:
        return self._events.popleft()


@dataclass(slots=True)
class _Run:
    """What the committer knows about one run of a query."""

    execution: Any | None
    query_id: str
    name: str | None
    targets: tuple[CommitTarget, ...] | None = None
    is_continuous: bool = field(init=False)

    def __post_init__(self) -> None:
        execution = self.execution
        self.is_continuous = execution is not None and spark_queries.is_continuous(execution)


class OffsetCommitter(StreamingQueryListener):  # type: ignore[misc]  # pyspark is untyped here
    """Commits the end of each finished batch to the groups that the query's sources name.

    Add it with `spark.streams.addListener`. A source names its group with the option
    `kafka.consumer.commit.groupid`. With Spark Connect, which hides query plans, use `groups`.
    """

    def __init__(
        self,
        groups: Sequence[KafkaGroup] = (),
        *,
        settings: Mapping[str, str] | None = None,
        allow_backwards: bool = False,
        open_client: Callable[[Cluster], KafkaClient] = KafkaClient,
        clock: Clock | None = None,
    ) -> None:
        """`settings` are added to the settings of the sources and override them."""
        self._groups = tuple(groups)
        self._settings = dict(settings or {})
        for group in self._groups:
            group.target(self._settings)  # raises now if its settings are wrong
        self._allow_backwards = allow_backwards
        self._open_client, self._clock = open_client, clock or SystemClock()
        self._workers: dict[Cluster, ClusterWorker] = {}
        self._owners: dict[tuple[str, str], str] = {}
        """The query that may commit to a group, by brokers and group: the first that asked."""
        self._runs: dict[str, _Run] = {}
        self._refused: set[tuple[str, str]] = set()
        self._inbox = ListenerInbox(MAX_EVENTS)
        self._is_idle = True
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.errors = 0
        """Internal errors of the committer; each one is logged."""

    def onQueryStarted(self, event: Any) -> None:
        self._enqueue(lambda: self._started(event))

    def onQueryProgress(self, event: Any) -> None:
        self._enqueue(lambda: _progressed(event.progress))

    def onQueryIdle(self, event: Any) -> None:
        """Ignored: an idle query has not finished a batch, so there is nothing to commit."""

    def onQueryTerminated(self, event: Any) -> None:
        self._enqueue(lambda: Ended(str(event.id), str(event.runId)))

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all finished batches are committed; False, with a warning, if they are not.

        It also waits for queries that end by themselves (availableNow, once), but not for the end
        of others. Do not call it in a listener's callback: Spark cannot deliver events meanwhile.
        """
        reason = self._settle(time.monotonic() + seconds)
        if reason:
            logger.warning("not all offsets were committed within %g s: %s", seconds, reason)
        return not reason

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Flush, then stop the threads; False if some offsets were not committed."""
        deadline = time.monotonic() + seconds
        reason = self._settle(deadline)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))
        for worker in self._workers.copy().values():
            worker.close(max(0.1, deadline - time.monotonic()))
        atexit.unregister(self.close)
        if reason:
            logger.warning("closed with offsets uncommitted: %s", reason)
        return not reason

    def stats(self) -> dict[tuple[str, str], GroupStats]:
        """The statistics of each group, by bootstrap servers and group."""
        return {
            (cluster.bootstrap_servers, group): stats
            for cluster, worker in self._workers.copy().items()
            for group, stats in worker.stats.copy().items()
        }

    def problems(self) -> dict[str, str]:
        """The groups whose last commit failed, with the reason."""
        return {
            group: stats.last_error
            for (_, group), stats in self.stats().items()
            if stats.last_error
        }

    def metrics_text(self) -> str:
        """The committer's own metrics in Prometheus' text form."""
        workers = self._workers.copy().values()
        return committer_text(
            self.stats(),
            pending=sum(worker.pending() for worker in workers),
            dropped=self._inbox.dropped + sum(worker.dropped for worker in workers),
            errors=self.errors,
        )

    def _enqueue(self, make_event: Callable[[], ListenerEvent]) -> None:
        # Spark calls this on the thread that starts queries, or on its listener bus. It must return
        # quickly and never raise; reading the event's fields is inside the `try` for that reason.
        try:
            event = make_event()
            with self._changed:
                if self._closing:
                    return
                self._inbox.put(event)
                if self._thread is None:
                    name = "epochal-kafka-committer"
                    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                    self._thread.start()
                    atexit.register(self.close)
                self._changed.notify_all()
        except Exception:  # noqa: BLE001 - a bug must not reach the query
            self._log_failure("receiving an event")

    def _started(self, event: Any) -> Started:
        # Look now: Spark waits for this callback, so the query cannot have ended yet.
        query_id = str(event.id)
        try:
            execution = spark_queries.find_query(query_id)
        except Exception:  # noqa: BLE001 - the start itself must still be noted
            self._log_failure("looking for a query")
            execution = None
        return Started(query_id, str(event.runId), event.name, execution)

    def _settle(self, deadline: float) -> str:
        """Wait until all finished batches are committed; the reason if they are not."""
        try:
            reason = self._await_spark(deadline)
        except Exception as error:  # noqa: BLE001 - also called when the process ends
            reason = f"Spark could not be asked for its last events: {error}"
        flushed = [worker.flush(_left(deadline)) for worker in self._workers.copy().values()]
        if all(flushed):
            return reason
        return reason or str(self.problems() or "no answer")

    def _await_spark(self, deadline: float) -> str:
        """Wait until Spark has told everything it will tell; the reason if that takes too long."""
        if not self._await_idle(deadline):
            return "events of queries are still being handled"
        for run_id, run in self._runs.copy().items():
            reason = self._await_run(run_id, run, deadline)
            if reason:
                return reason
        while self._runs and not spark_queries.drain_bus(min(DRAIN_SECONDS, _left(deadline))):
            if not _left(deadline):
                return "Spark has not delivered all events of queries yet"
        return "" if self._await_idle(deadline) else "events of queries are still being handled"

    def _await_run(self, run_id: str, run: _Run, deadline: float) -> str:
        if not self._is_awaited(run_id, run):
            return ""
        who = f"query {run.name or run.query_id}"
        if run.execution is not None:
            ended = spark_queries.await_end(run.execution, _left(deadline))
            return "" if ended else f"{who} is still running"
        with self._changed:
            has_ended = self._changed.wait_for(lambda: run_id not in self._runs, _left(deadline))
        return (
            "" if has_ended else f"{who} has ended, but Spark has not delivered its last events yet"
        )

    def _is_awaited(self, run_id: str, run: _Run) -> bool:
        has_jvm = spark_queries.has_jvm()
        if run.execution is not None:
            return has_jvm and spark_queries.is_awaited(run.execution)
        session = None if has_jvm else getattr(self, "spark", None)
        return session is not None and spark_queries.is_remotely_awaited(
            session, run.query_id, run_id
        )

    def _await_idle(self, deadline: float) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_idle and not self._inbox, _left(deadline)
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._inbox and not self._closing:
                    self._is_idle = True
                    self._changed.notify_all()
                    continuous = any(run.is_continuous for run in self._runs.values())
                    self._changed.wait(CONTINUOUS_POLL_SECONDS if continuous else None)
                    if continuous:
                        break
                if self._closing:
                    return
                event = self._inbox.take() if self._inbox else None
                self._is_idle = False
            try:
                if event is None:
                    self._poll()
                else:
                    self._handle(event)
            except Exception:  # noqa: BLE001 - a bug must not end the thread of all queries
                self._log_failure("following a query")

    def _handle(self, event: ListenerEvent) -> None:
        match event:
            case Started(query_id, run_id, name, execution):
                for worker in self._workers.values():
                    worker.forget(query_id)
                self._runs[run_id] = _Run(execution, query_id, name)
            case FinishedBatch(run_id, name, position):
                run = self._runs.get(run_id)
                if run is None:
                    execution = spark_queries.find_query(position.query_id)
                    run = self._runs[run_id] = _Run(execution, position.query_id, name)
                self._commit(run_id, run, position)
            case Ended(query_id, run_id):
                self._end(query_id, run_id)

    def _poll(self) -> None:
        for run_id, run in list(self._runs.items()):
            if run.is_continuous and run.execution is not None:
                ends = spark_queries.committed_ends(run.execution)
                if any(ends):
                    self._commit(run_id, run, Position(run.query_id, UNKNOWN_BATCH, ends))

    def _end(self, query_id: str, run_id: str) -> None:
        run = self._runs.get(run_id)
        try:
            if run is not None and run.is_continuous:
                self._poll()
        finally:
            self._runs.pop(run_id, None)
            self._refused = {pair for pair in self._refused if pair[0] != run_id}
            self._owners = {key: owner for key, owner in self._owners.items() if owner != query_id}
            for worker in self._workers.values():
                worker.retry_now()

    def _commit(self, run_id: str, run: _Run, position: Position) -> None:
        if run.targets is None:
            run.targets = self._targets(run)
            if run.targets is None:
                return
        for request in commit_requests(position, run.targets):
            key = servers_key(request.cluster), request.group
            owner = self._owners.setdefault(key, request.query_id)
            if owner == request.query_id:
                self._worker(request.cluster).put(request)
            elif (run_id, request.group) not in self._refused:
                self._refused.add((run_id, request.group))
                logger.error(
                    "consumer group %s is claimed by two queries: %s holds it, so the position of "
                    "%s is not committed to it. Give each query its own group",
                    *(request.group, owner, request.query_id),
                )
                self._worker(request.cluster).stats.setdefault(
                    request.group, GroupStats()
                ).refusals += 1

    def _worker(self, cluster: Cluster) -> ClusterWorker:
        worker = self._workers.get(cluster)
        if worker is None:
            worker = ClusterWorker(
                cluster, self._open_client, clock=self._clock, allow_backwards=self._allow_backwards
            )
            # A new dict instead of an insertion: other threads iterate over copies without a lock.
            self._workers = {**self._workers, cluster: worker}
        return worker

    def _targets(self, run: _Run) -> tuple[CommitTarget, ...] | None:
        """The groups of a run: those given explicitly, otherwise those that its sources name.

        None means that Spark has not planned the first batch yet: ask again later.
        """
        groups = [g for g in self._groups if g.query in (None, run.query_id, run.name)]
        if groups:
            return tuple(group.target(self._settings) for group in groups)
        if run.execution is None:
            logger.warning(
                "query %s: its sources are not visible from here (Spark Connect, or the query has "
                "ended), so its offsets are not committed. Name its groups with "
                "OffsetCommitter(groups=[…])",
                run.name or run.query_id,
            )
            return ()
        options = spark_queries.source_options(run.execution)
        if options is None:
            return None
        return tuple(_targets_of(options, self._settings, run.name or run.query_id))

    def _log_failure(self, doing: str) -> None:
        self.errors += 1
        logger.exception("the offset committer failed while %s; the query is not affected", doing)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _targets_of(
    options: Sequence[Mapping[str, str]], extra: Mapping[str, str], query: str
) -> list[CommitTarget]:
    targets: list[CommitTarget] = []
    for index, java in enumerate(map(kafka_options, options)):
        group = java.get(COMMIT_GROUP)
        if not group:
            continue
        try:
            settings = connection_settings({**java, **extra})
        except OptionError as error:
            logger.error(
                "query %s: the offsets of source %d are not committed: %s", query, index, error
            )
            continue
        targets.append(CommitTarget(group, Cluster.of(settings), index))
    return targets


def _progressed(progress: Any) -> FinishedBatch:
    ends = tuple(source.endOffset for source in progress.sources)
    position = Position(str(progress.id), int(progress.batchId), ends)
    return FinishedBatch(str(progress.runId), progress.name, position)
