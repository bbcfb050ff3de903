"""The events of a query listener, the bounded queue that holds them, and whether more must come.

Pure: the caller holds the lock.

A full queue drops its oldest progress event, because later progress of the same query supersedes
it. Starts and ends of queries are dropped only if there is no progress event to drop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

from epochal.connectors.kafka.offsets import Position


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


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What Spark says of a run whose end the listener has not been told."""

    is_active: bool
    ends_by_itself: bool
    """Whether its trigger is availableNow or once."""


def must_await(status: RunStatus) -> bool:
    """Whether a flush waits for the end of a run.

    If the run is over, its last events are on their way. A query without end is not waited for: the
    wait would always be in vain.
    """
    return status.ends_by_itself or not status.is_active


ListenerEvent: TypeAlias = Started | FinishedBatch | Ended


class ListenerInbox:
    """At most `limit` events, oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[ListenerEvent] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: ListenerEvent) -> None:
        if len(self._events) >= self._limit:
            progress = (
                n for n, event in enumerate(self._events) if isinstance(event, FinishedBatch)
            )
            del self._events[next(progress, 0)]
            self.dropped += 1
        self._events.append(event)

    def take(self) -> ListenerEvent:
        return self._events.popleft()
