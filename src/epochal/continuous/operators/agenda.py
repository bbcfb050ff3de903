"""A priority queue of timers, window ends and expiries by the time at which they are due. Pure.

Entries are kept in one bucket per time, and the times in a heap. Timers that are reset with every
row mostly share their millisecond, so the heap stays small.

Note: a time stays in the heap when its bucket becomes empty. It is skipped when it reaches the
top. When most of the heap consists of such stale times, the heap is rebuilt.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

E = TypeVar("E")

_MAX_STALE_TIMES = 1024


class Agenda(Generic[E]):
    """Entries with their due times. The same entry may be due at several times."""

    __slots__ = ("_buckets", "_heap")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[E, None]] = {}
        self._heap: list[int] = []

    def add(self, at: int, entry: E) -> None:
        bucket = self._buckets.get(at)
        if bucket is not None:
            bucket[entry] = None
            return
        self._buckets[at] = {entry: None}
        heapq.heappush(self._heap, at)
        if len(self._heap) > 2 * len(self._buckets) + _MAX_STALE_TIMES:
            self._heap = sorted(self._buckets)

    def discard(self, at: int, entry: E) -> None:
        bucket = self._buckets.get(at)
        if bucket is not None and entry in bucket:
            del bucket[entry]
            if not bucket:
                del self._buckets[at]

    def first(self) -> int | None:
        """The earliest due time; None if there are no entries."""
        heap, buckets = self._heap, self._buckets
        while heap and heap[0] not in buckets:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def take(self, until: int) -> list[tuple[int, list[E]]]:
        """Remove all entries due at or before `until` and return them by time, ascending."""
        taken = []
        while (at := self.first()) is not None and at <= until:
            taken.append((at, list(self._buckets.pop(at))))
        return taken
