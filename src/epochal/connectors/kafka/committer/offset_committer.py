"""The listener that mirrors a query's position into Kafka consumer groups, and never harms it.

A callback puts what it heard into a bounded box and returns; it cannot raise. One thread of the
committer finds out which groups are meant, one thread per cluster writes them. Spark reports no
progress for its continuous mode: there the committer asks the query, once a second, how far it has
committed.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from epochal.clock import Clock, SystemClock
from epochal.connectors.kafka.cluster_worker import GroupClient, GroupStats, Lane
from epochal.connectors.kafka.commit_rules import Claims
from epochal.connectors.kafka.committer import spark_sources as kafka_sources
from epochal.connectors.kafka.committer.committer_metrics import committer_text
from epochal.connectors.kafka.committer.listener_inbox import (
    Ended,
    Heard,
    Inbox,
    Progressed,
    Started,
)
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.kafka_settings import connection_settings, kafka_options
from epochal.connectors.kafka.offsets import Cluster, Position, Target, wants_of
from epochal.errors import OptionError

logger = logging.getLogger(__name__)

GROUP_OPTION = "kafka.consumer.commit.groupid"
MAX_HEARD = 1024
CONTINUOUS_POLL_SECONDS = 1.0
CLOSE_SECONDS = 10.0
UNKNOWN_BATCH = -1


@dataclass(frozen=True, slots=True)
class KafkaGroup:
    """A group told explicitly, as Spark Connect needs it: its plans are on the server."""

    group: str
    bootstrap_servers: str
    query: str | None = None
    """The query's name or id; None is every query, which must then be one at a time."""
    source: int | None = None
    """The source's place in the query's progress report; None is every Kafka source."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """How to reach the cluster beyond its address: security, in Java's or librdkafka's names."""

    def __post_init__(self) -> None:
        if not self.group or not self.bootstrap_servers:
            raise OptionError(
                f"KafkaGroup needs a group and bootstrap_servers, not {self.group!r} and "
                f"{self.bootstrap_servers!r}."
            )
        if self.source is not None and self.source < 0:
            raise OptionError(f"KafkaGroup: source counts from 0; it is {self.source}.")

    def target(self, extra: Mapping[str, str]) -> Target:
        settings = {**connection_settings({**self.settings, **extra})}
        settings["bootstrap.servers"] = self.bootstrap_servers
        return Target(self.group, Cluster.of(settings), self.source)


@dataclass(slots=True)
class _Run:
    """What is known of one run of a query."""

    execution: Any | None = None
    targets: tuple[Target, ...] | None = None
    is_continuous: bool = False
    query_id: str = ""
    name: str | None = None


class OffsetCommitter(StreamingQueryListener):  # type: ignore[misc]  # pyspark is untyped here
    """Commits the end of each finished batch to the groups that the query's sources name.

    Add it with `spark.streams.addListener`. A source names its group with the option
    `kafka.consumer.commit.groupid`; where plans cannot be seen (Spark Connect), `groups` does.
    """

    def __init__(
        self,
        groups: Sequence[KafkaGroup] = (),
        *,
        settings: Mapping[str, str] | None = None,
        allow_backwards: bool = False,
        open_client: Callable[[Cluster], GroupClient] = KafkaClient,
        clock: Clock | None = None,
    ) -> None:
        """`settings` are added to those of the sources and win over them."""
        self._groups = tuple(groups)
        self._settings = dict(settings or {})
        for group in self._groups:
            group.target(self._settings)  # say now what is wrong with it
        self._allow_backwards = allow_backwards
        self._open_client, self._clock = open_client, clock or SystemClock()
        self._lanes: dict[Cluster, Lane] = {}
        self._claims = Claims()
        self._runs: dict[str, _Run] = {}
        self._refused: set[tuple[str, str]] = set()
        self._inbox = Inbox(MAX_HEARD)
        self._is_idle = True
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.errors = 0
        """Failures of the committer's own code; each is in the log."""

    def onQueryStarted(self, event: Any) -> None:
        self._hear(lambda: Started(str(event.id), str(event.runId), event.name))

    def onQueryProgress(self, event: Any) -> None:
        self._hear(lambda: _progressed(event.progress))

    def onQueryIdle(self, event: Any) -> None:
        """Idle is not progress: nothing was finished, so nothing is committed."""

    def onQueryTerminated(self, event: Any) -> None:
        self._hear(lambda: Ended(str(event.id), str(event.runId)))

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all that was heard is committed; False if that took longer than `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_idle and not self._inbox, seconds):
                return False
        return all(
            lane.flush(max(0.0, deadline - time.monotonic()))
            for lane in self._lanes.copy().values()
        )

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Flush, then end the threads; False if something was left uncommitted."""
        deadline = time.monotonic() + seconds
        done = self.flush(seconds)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))
        for lane in self._lanes.copy().values():
            lane.close(max(0.1, deadline - time.monotonic()))
        atexit.unregister(self.close)
        if not done:
            logger.warning("closed with offsets uncommitted: %s", self.problems() or "no answer")
        return done

    def stats(self) -> dict[tuple[str, str], GroupStats]:
        """What has happened so far, by bootstrap servers and group."""
        return {
            (cluster.bootstrap_servers, group): stats
            for cluster, lane in self._lanes.copy().items()
            for group, stats in lane.stats.copy().items()
        }

    def problems(self) -> dict[str, str]:
        """The groups that are not written at the moment, and why."""
        return {
            group: stats.last_error
            for (_, group), stats in self.stats().items()
            if stats.last_error
        }

    def metrics_text(self) -> str:
        """The committer's own metrics in Prometheus' text form."""
        lanes = self._lanes.copy().values()
        return committer_text(
            self.stats(),
            pending=sum(lane.pending() for lane in lanes),
            dropped=self._inbox.dropped + sum(lane.dropped for lane in lanes),
            errors=self.errors,
        )

    def _hear(self, tell: Callable[[], Heard]) -> None:
        # Spark calls this on the thread that starts queries, or on its listener bus: whatever
        # happens, be quick and raise nothing.
        try:
            heard = tell()
            with self._changed:
                if self._closing:
                    return
                self._inbox.put(heard)
                if self._thread is None:
                    self._start()
                self._changed.notify_all()
        except Exception:  # noqa: BLE001 - a bug of ours must not reach the query
            self._fail("hearing of a query")

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name="epochal-kafka-committer", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

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
                heard = self._inbox.take() if self._inbox else None
                self._is_idle = False
            try:
                if heard is None:
                    self._poll()
                else:
                    self._handle(heard)
            except Exception:  # noqa: BLE001 - nor end the thread that serves all queries
                self._fail("following a query")

    def _handle(self, heard: Heard) -> None:
        match heard:
            case Started(query_id, run_id, name):
                for lane in self._lanes.values():
                    lane.forget(query_id)
                self._runs[run_id] = _find_run(query_id, name)
            case Progressed(run_id, name, position):
                run = self._runs.get(run_id)
                if run is None:
                    run = self._runs[run_id] = _find_run(position.query_id, name)
                self._commit(run_id, run, position)
            case Ended(query_id, run_id):
                self._end(query_id, run_id)

    def _poll(self) -> None:
        for run_id, run in list(self._runs.items()):
            if run.is_continuous and run.execution is not None:
                ends = kafka_sources.committed_ends(run.execution)
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
            self._claims.release(query_id)
            for lane in self._lanes.values():
                lane.hurry()

    def _commit(self, run_id: str, run: _Run, position: Position) -> None:
        if run.targets is None:
            run.targets = self._targets(run)
            if run.targets is None:
                return
        for want in wants_of(position, run.targets):
            owner = self._claims.claim(want.cluster, want.group, want.query_id)
            if owner is None:
                self._lane(want.cluster).put(want)
            elif (run_id, want.group) not in self._refused:
                self._refused.add((run_id, want.group))
                logger.error(
                    "consumer group %s is claimed by two queries: %s holds it, so the position of "
                    "%s is not committed to it. Give each query a group of its own",
                    *(want.group, owner, want.query_id),
                )
                self._lane(want.cluster).stats.setdefault(want.group, GroupStats()).refusals += 1

    def _lane(self, cluster: Cluster) -> Lane:
        lane = self._lanes.get(cluster)
        if lane is None:
            lane = Lane(
                cluster,
                self._open_client,
                clock=self._clock,
                allow_backwards=self._allow_backwards,
            )
            self._lanes = {**self._lanes, cluster: lane}
        return lane

    def _targets(self, run: _Run) -> tuple[Target, ...] | None:
        """The groups of a run: those told for it, else those that its sources name."""
        told = [g for g in self._groups if g.query in (None, run.query_id, run.name)]
        if told:
            return tuple(group.target(self._settings) for group in told)
        if run.execution is None:
            logger.warning(
                "query %s: its sources cannot be seen from here (Spark Connect, or it had ended), "
                "so nothing of it is committed. Name its groups: OffsetCommitter(groups=[…])",
                run.name or run.query_id,
            )
            return ()
        options = kafka_sources.source_options(run.execution)
        if options is None:
            return None
        run.execution = run.execution if run.is_continuous else None
        return tuple(_targets_of(options, self._settings, run.name or run.query_id))

    def _fail(self, doing: str) -> None:
        self.errors += 1
        logger.exception("the offset committer failed in %s; the query is not affected", doing)


def _find_run(query_id: str, name: str | None) -> _Run:
    execution = kafka_sources.find_query(query_id) if kafka_sources.has_jvm() else None
    is_continuous = execution is not None and kafka_sources.is_continuous(execution)
    return _Run(execution, None, is_continuous, query_id, name)


def _targets_of(
    options: Sequence[Mapping[str, str]], extra: Mapping[str, str], query: str
) -> list[Target]:
    targets: list[Target] = []
    for place, given in enumerate(options):
        group = {key.lower(): value for key, value in given.items()}.get(GROUP_OPTION)
        if not group:
            continue
        try:
            settings = connection_settings({**kafka_options(given), **extra})
        except OptionError as error:
            logger.error("query %s, source %d is not committed: %s", query, place, error)
            continue
        targets.append(Target(group, Cluster.of(settings), place))
    return targets


def _progressed(progress: Any) -> Progressed:
    ends = tuple(source.endOffset for source in progress.sources)
    position = Position(str(progress.id), int(progress.batchId), ends)
    return Progressed(str(progress.runId), progress.name, position)
