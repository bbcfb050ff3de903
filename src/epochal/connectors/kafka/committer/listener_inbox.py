"""What a listener hears, and the bounded box it puts it in. Pure: the caller brings the lock.

A full box gives up its oldest progress: later progress of the same query says the same and more.
Starts and ends of queries are kept as long as there is any progress to give up instead.
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
    """A batch of a query is finished."""

    run_id: str
    name: str | None
    position: Position


@dataclass(frozen=True, slots=True)
class Ended:
    """A query was stopped, or failed."""

    query_id: str
    run_id: str


Heard: TypeAlias = Started | Progressed | Ended


class Inbox:
    """At most `limit` events, oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heard: deque[Heard] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._heard)

    def put(self, heard: Heard) -> None:
        if len(self._heard) >= self._limit:
            places = (n for n, each in enumerate(self._heard) if isinstance(each, Progressed))
            del self._heard[next(places, 0)]
            self.dropped += 1
        self._heard.append(heard)

    def take(self) -> Heard:
        return self._heard.popleft()
