"""The events of a query listener, and the bounded queue that holds them.

Pure: the caller holds the lock.

A full queue drops its oldest progress event, because later progress of the same query supersedes
it. Starts and ends of queries are dropped only if there is no progress event to drop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from epochal.connectors.kafka.offsets import Position


@dataclass(frozen=True, slots=True)
class Started:
    """A query was started."""

    query_id: str
    run_id: str
    name: str | None


@dataclass(frozen=True, slots=True)
class Progressed:
    """A query has finished a batch."""

    run_id: str
    name: str | None
    position: Position


@dataclass(frozen=True, slots=True)
class Ended:
    """A query was stopped, or it failed."""

    query_id: str
    run_id: str


ListenerEvent: TypeAlias = Started | Progressed | Ended


class Inbox:
    """At most `limit` events, oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[ListenerEvent] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: ListenerEvent) -> None:
        if len(self._events) >= self._limit:
            progress = (n for n, each in enumerate(self._events) if isinstance(each, Progressed))
            del self._events[next(progress, 0)]
            self.dropped += 1
        self._events.append(event)

    def take(self) -> ListenerEvent:
        return self._events.popleft()
