"""Commits offsets to the consumer groups of one cluster, in a background thread that retries.

A caller hands over the latest position with `put` and returns at once; the thread commits the
newest position of each group. A failure never leaves this module as an exception. It is counted,
and it is logged when it starts, when its type changes and when it ends, not on every retry.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from epochal.clock import Clock
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.offsets import (
    Cluster,
    CommitRequest,
    KafkaPartition,
    Mark,
    merge_requests,
    plan_commit,
    retry_seconds,
)
from epochal.errors import GroupRefusedError

logger = logging.getLogger(__name__)

MAX_NAMED_PARTITIONS = 5
MAX_PENDING = 100_000


@dataclass(slots=True)
class GroupStats:
    """Counters and the last outcome of one group."""

    commits: int = 0
    failures: int = 0
    refusals: int = 0
    skipped_backwards: int = 0
    last_error: str = ""
    """Empty while commits succeed."""
    last_commit_ms: int = 0
    committed: dict[KafkaPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class _PendingCommit:
    request: CommitRequest
    failures: int = 0
    not_before: float = 0.0


class ClusterWorker:
    """Commits to the groups of one cluster, through one client that is opened once."""

    def __init__(
        self,
        cluster: Cluster,
        open_client: Callable[[Cluster], KafkaClient],
        *,
        clock: Clock,
        allow_backwards: bool = False,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self.cluster = cluster
        self.stats: dict[str, GroupStats] = {}
        self.dropped = 0
        self._open, self._clock = open_client, clock
        self._allow_backwards, self._max_pending = allow_backwards, max_pending
        self._client: KafkaClient | None = None
        self._pending: dict[str, _PendingCommit] = {}
        self._busy: str | None = None
        """The group of the attempt in progress."""
        self._owned: set[tuple[str, str]] = set()
        """Groups and queries for which this worker has committed."""
        self._lost: set[tuple[str, str]] = set()
        """Groups and queries for which another query took the group."""
        self._behind: dict[str, frozenset[KafkaPartition]] = {}
        """Partitions whose group is ahead of the query, as last logged."""
        # A private generator: a program that seeds the `random` module must get the numbers it
        # expects.
        self._jitter = Random().random
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._run, name=f"epochal-kafka-{cluster.bootstrap_servers}", daemon=True
        )
        self._thread.start()

    def put(self, request: CommitRequest) -> None:
        """Schedule a commit; it replaces a pending commit to the same group."""
        with self._changed:
            if (request.group, request.query_id) in self._lost:
                return
            pending = self._pending.get(request.group)
            merged = merge_requests(pending.request if pending else None, request)
            others = sum(
                len(pending.request.offsets)
                for group, pending in self._pending.items()
                if group != request.group
            )
            if others + len(merged.offsets) > self._max_pending:
                self.dropped += 1
                return
            if pending is None:
                self._pending[request.group] = _PendingCommit(merged)
            else:
                pending.request = merged
            self._changed.notify_all()

    def forget(self, query_id: str) -> None:
        """Forget which groups a query lost: a restarted query may claim them again."""
        with self._changed:
            self._lost = {pair for pair in self._lost if pair[1] != query_id}
            self._owned = {pair for pair in self._owned if pair[1] != query_id}

    def has_lost(self, group: str, query_id: str) -> bool:
        """Whether another query took the group. If so, this query no longer commits to it."""
        with self._changed:
            return (group, query_id) in self._lost

    def retry_now(self) -> None:
        """Try all pending commits now instead of waiting for their backoff to end."""
        with self._changed:
            for pending in self._pending.values():
                pending.not_before = 0.0
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Try all pending commits now; False if some are still pending after `seconds`."""
        self.retry_now()
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and self._busy is None, seconds)

    def pending(self) -> int:
        """The number of offsets that are not committed yet."""
        with self._changed:
            return sum(len(pending.request.offsets) for pending in self._pending.values())

    def close(self, seconds: float) -> None:
        """Stop the thread after its current attempt."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        while (pending := self._next()) is not None:
            # The broker is asked without the lock: `put` must never wait for it.
            problem = self._attempt(pending.request)
            with self._changed:
                self._busy = None
                if problem is not None:
                    self._schedule_retry(pending, problem)
                self._changed.notify_all()

    def _next(self) -> _PendingCommit | None:
        with self._changed:
            while not self._closing:
                now = self._clock.monotonic()
                soonest = min(
                    self._pending.values(), key=lambda pending: pending.not_before, default=None
                )
                if soonest is not None and soonest.not_before <= now:
                    # Set together with the pop: `flush` waits until there is neither a pending
                    # nor a running attempt.
                    self._busy = soonest.request.group
                    return self._pending.pop(soonest.request.group)
                self._changed.wait(None if soonest is None else soonest.not_before - now)
            return None

    def _schedule_retry(self, failed: _PendingCommit, problem: Exception) -> None:
        request = failed.request
        if isinstance(problem, _GroupTakenError):
            self._lost.add((request.group, request.query_id))
            self._pending.pop(request.group, None)
            return
        failed.failures += 1
        # A request that arrived during the attempt is newer than the one that failed.
        later = self._pending.get(request.group)
        if later is not None:
            failed.request = merge_requests(request, later.request)
        wait = retry_seconds(failed.failures, self._jitter())
        failed.not_before = self._clock.monotonic() + wait
        self._pending[request.group] = failed

    def _attempt(self, request: CommitRequest) -> Exception | None:
        """Commit one request; return the error if that failed."""
        stats = self.stats.setdefault(request.group, GroupStats())
        try:
            self._commit(request, stats)
        except Exception as error:  # not even a bug may end the thread
            self._record_failure(stats, request, error)
            logger.debug("consumer group %s", request.group, exc_info=True)
            return error
        if stats.last_error:
            logger.info(
                "commits to consumer group %s work again, up to batch %d",
                request.group,
                request.batch_id,
            )
        stats.last_error = ""
        return None

    def _commit(self, request: CommitRequest, stats: GroupStats) -> None:
        if self._client is None:
            self._client = self._open(self.cluster)
        owner = (request.group, request.query_id)
        # Read and commit are not atomic: a group without members has no fence. Another process may
        # commit in between, and the mark in the next answer then tells which of the two goes on.
        plan = plan_commit(
            request,
            self._client.committed_offsets(request.group, request.offsets),
            owned=owner in self._owned,
            allow_backwards=self._allow_backwards,
        )
        if plan.taken_by is not None:
            raise _GroupTakenError(plan.taken_by)
        if plan.taken_from is not None:
            logger.warning(
                "consumer group %s held the position of query %s; from now on it holds that of "
                "query %s",
                *(request.group, plan.taken_from, request.query_id),
            )
        self._report_behind(request, plan.behind, stats)
        if plan.commit:
            mark = Mark(request.query_id, request.batch_id).to_text()
            missing = self._client.commit(request.group, plan.commit, mark)
            if missing:
                logger.warning(
                    "consumer group %s: offsets of %s were not committed, because these partitions "
                    "do not exist any more",
                    *(request.group, _names(missing)),
                )
            written = {tp: at for tp, at in plan.commit.items() if tp not in set(missing)}
            stats.commits += bool(written)
            stats.committed = {**stats.committed, **written}
            stats.last_commit_ms = self._clock.now_ms()
        self._owned.add(owner)

    def _record_failure(self, stats: GroupStats, request: CommitRequest, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        refused = isinstance(error, GroupRefusedError | _GroupTakenError)
        stats.failures += not refused
        stats.refusals += refused
        is_new = stats.last_error.partition(":")[0] != type(error).__name__
        stats.last_error = text
        if isinstance(error, _GroupTakenError):
            logger.error(
                "consumer group %s is claimed by two queries: %s took it from %s. The group no "
                "longer shows the position of the second query. Give each query its own group; the "
                "query that lost the group claims it again when it restarts",
                *(request.group, error.query_id, request.query_id),
            )
        elif is_new:
            level = logging.ERROR if refused else logging.WARNING
            logger.log(
                level, "commit to consumer group %s failed, will retry: %s", request.group, error
            )

    def _report_behind(
        self,
        request: CommitRequest,
        behind: Mapping[KafkaPartition, tuple[int, int]],
        stats: GroupStats,
    ) -> None:
        partitions = frozenset(behind)
        if partitions - self._behind.get(request.group, frozenset()):
            logger.warning(
                "consumer group %s is ahead of query %s and is not moved backwards: %s",
                request.group,
                request.query_id,
                ", ".join(
                    f"{topic}-{number} holds {ahead}, the query is at {wanted}"
                    for (topic, number), (ahead, wanted) in list(behind.items())[
                        :MAX_NAMED_PARTITIONS
                    ]
                ),
            )
        stats.skipped_backwards += bool(behind)
        self._behind[request.group] = partitions


class _GroupTakenError(Exception):
    """Another query has committed to the group since this one did."""

    def __init__(self, query_id: str) -> None:
        super().__init__(f"query {query_id} now commits to the group")
        self.query_id = query_id


def _names(partitions: list[KafkaPartition]) -> str:
    shown = ", ".join(f"{topic}-{number}" for topic, number in partitions[:MAX_NAMED_PARTITIONS])
    return shown if len(partitions) <= MAX_NAMED_PARTITIONS else f"{shown}, …"
