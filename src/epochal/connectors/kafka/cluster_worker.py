"""One thread per cluster that brings its groups to where they should be, and keeps trying.

Whoever has news calls `put` and goes on; the thread commits the newest. Whatever goes wrong is
logged when it begins, when its kind changes and when it ends, not on every try; it is counted, and
it never leaves this module as an exception.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from epochal.clock import Clock
from epochal.connectors.kafka.commit_rules import Held, newest, plan_commit, retry_seconds
from epochal.connectors.kafka.offsets import Cluster, Mark, Place, Want
from epochal.errors import GroupRefusedError

logger = logging.getLogger(__name__)

NAMED_PLACES = 5
MAX_PENDING = 100_000


class GroupClient(Protocol):
    """What a lane asks of a cluster."""

    def held(self, group: str, places: Iterable[Place] | None = None) -> dict[Place, Held]: ...

    def commit(self, group: str, offsets: Mapping[Place, int], metadata: str) -> list[Place]: ...


@dataclass(slots=True)
class GroupStats:
    """What has happened to one group so far."""

    commits: int = 0
    failures: int = 0
    refusals: int = 0
    skipped_backwards: int = 0
    last_error: str = ""
    """Empty while all is well."""
    last_commit_ms: int = 0
    committed: dict[Place, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Work:
    want: Want
    failures: int = 0
    not_before: float = 0.0


class Lane:
    """The commits to one cluster, over one client that is opened once."""

    def __init__(
        self,
        cluster: Cluster,
        open_client: Callable[[Cluster], GroupClient],
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
        self._client: GroupClient | None = None
        self._work: dict[str, _Work] = {}
        self._busy: str | None = None
        self._owned: set[tuple[str, str]] = set()
        self._lost: set[tuple[str, str]] = set()
        self._behind: dict[str, frozenset[Place]] = {}
        # Its own: a program that seeds the module's random numbers must get those it expects.
        self._chance = Random().random
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._run, name=f"epochal-kafka-{cluster.bootstrap_servers}", daemon=True
        )
        self._thread.start()

    def put(self, want: Want) -> None:
        """Take in what a group should hold; replaces what it was to hold before."""
        with self._changed:
            if (want.group, want.query_id) in self._lost:
                return
            work = self._work.get(want.group)
            merged = newest(work.want if work else None, want)
            others = sum(len(w.want.offsets) for g, w in self._work.items() if g != want.group)
            if others + len(merged.offsets) > self._max_pending:
                self.dropped += 1
                return
            if work is None:
                self._work[want.group] = _Work(merged)
            else:
                work.want = merged
            self._changed.notify_all()

    def forget(self, query_id: str) -> None:
        """A query starts anew: whatever it lost to another one before, it may ask for again."""
        with self._changed:
            self._lost = {pair for pair in self._lost if pair[1] != query_id}
            self._owned = {pair for pair in self._owned if pair[1] != query_id}

    def has_lost(self, group: str, query_id: str) -> bool:
        """Whether another query took the group, so that nothing is committed to it any more."""
        with self._changed:
            return (group, query_id) in self._lost

    def hurry(self) -> None:
        """Try everything pending now, however long it was to wait."""
        with self._changed:
            for work in self._work.values():
                work.not_before = 0.0
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Try everything now; whether nothing was left within `seconds`."""
        self.hurry()
        with self._changed:
            return self._changed.wait_for(lambda: not self._work and self._busy is None, seconds)

    def pending(self) -> int:
        """How many offsets wait to be committed."""
        with self._changed:
            return sum(len(work.want.offsets) for work in self._work.values())

    def close(self, seconds: float) -> None:
        """End the thread, after the try it is in."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            problem = self._attempt(work.want)
            with self._changed:
                self._busy = None
                if problem is not None:
                    self._put_back(work, problem)
                self._changed.notify_all()

    def _next(self) -> _Work | None:
        with self._changed:
            while not self._closing:
                now = self._clock.monotonic()
                soonest = min(self._work.values(), key=lambda w: w.not_before, default=None)
                if soonest is not None and soonest.not_before <= now:
                    self._busy = soonest.want.group
                    return self._work.pop(soonest.want.group)
                self._changed.wait(None if soonest is None else soonest.not_before - now)
            return None

    def _put_back(self, work: _Work, problem: Exception) -> None:
        want = work.want
        if isinstance(problem, _TakenError):
            self._lost.add((want.group, want.query_id))
            self._work.pop(want.group, None)
            return
        work.failures += 1
        later = self._work.get(want.group)
        if later is not None:
            work.want = newest(want, later.want)
        # Backoff spreads tries; nothing needs it to be unpredictable to an adversary.
        wait = retry_seconds(work.failures, self._chance())
        work.not_before = self._clock.monotonic() + wait
        self._work[want.group] = work

    def _attempt(self, want: Want) -> Exception | None:
        """Bring one group to where it should be; what went wrong, if anything did."""
        stats = self.stats.setdefault(want.group, GroupStats())
        try:
            self._commit(want, stats)
        except Exception as error:  # a bug of ours, too, must not end the thread
            self._say(stats, want, error)
            logger.debug("consumer group %s", want.group, exc_info=True)
            return error
        if stats.last_error:
            logger.info(
                "consumer group %s is written again, up to batch %d", want.group, want.batch_id
            )
        stats.last_error = ""
        return None

    def _commit(self, want: Want, stats: GroupStats) -> None:
        if self._client is None:
            self._client = self._open(self.cluster)
        owner = (want.group, want.query_id)
        plan = plan_commit(
            want,
            self._client.held(want.group, want.offsets),
            owned=owner in self._owned,
            allow_backwards=self._allow_backwards,
        )
        if plan.taken_by is not None:
            raise _TakenError(plan.taken_by)
        if plan.taken_from is not None:
            logger.warning(
                "consumer group %s held the position of query %s and holds that of query %s from "
                "now on",
                *(want.group, plan.taken_from, want.query_id),
            )
        self._say_behind(want, plan.behind, stats)
        if plan.commit:
            mark = Mark(want.query_id, want.batch_id).to_text()
            gone = self._client.commit(want.group, plan.commit, mark)
            if gone:
                logger.warning(
                    "consumer group %s: not committed for %s: no such partition any more",
                    *(want.group, _named(gone)),
                )
            written = {p: o for p, o in plan.commit.items() if p not in set(gone)}
            stats.commits += bool(written)
            stats.committed = {**stats.committed, **written}
            stats.last_commit_ms = self._clock.now_ms()
        self._owned.add(owner)

    def _say(self, stats: GroupStats, want: Want, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        refused = isinstance(error, GroupRefusedError | _TakenError)
        stats.failures += not refused
        stats.refusals += refused
        is_news = stats.last_error.partition(":")[0] != type(error).__name__
        stats.last_error = text
        if isinstance(error, _TakenError):
            logger.error(
                "consumer group %s is claimed by two queries: %s took it from %s, whose position "
                "it shows no longer. Give each query a group of its own; the one that lost it "
                "asks again when it is restarted",
                *(want.group, error.query_id, want.query_id),
            )
        elif is_news:
            level = logging.ERROR if refused else logging.WARNING
            logger.log(level, "consumer group %s is not written, will retry: %s", want.group, error)

    def _say_behind(
        self, want: Want, behind: Mapping[Place, tuple[int, int]], stats: GroupStats
    ) -> None:
        places = frozenset(behind)
        if places - self._behind.get(want.group, frozenset()):
            logger.warning(
                "consumer group %s is ahead of query %s and is not moved backwards: %s",
                want.group,
                want.query_id,
                ", ".join(
                    f"{topic}-{partition} holds {held}, the query is at {wanted}"
                    for (topic, partition), (held, wanted) in list(behind.items())[:NAMED_PLACES]
                ),
            )
        stats.skipped_backwards += bool(behind)
        self._behind[want.group] = places


class _TakenError(Exception):
    """Another query has written the group since we did."""

    def __init__(self, query_id: str) -> None:
        super().__init__(f"query {query_id} writes the group now")
        self.query_id = query_id


def _named(places: list[Place]) -> str:
    named = ", ".join(f"{topic}-{partition}" for topic, partition in places[:NAMED_PLACES])
    return named if len(places) <= NAMED_PLACES else f"{named}, …"
