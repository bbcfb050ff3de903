"""What is due, and when: timers, ends of windows, expiries. Pure.

Entries are kept in one bucket per time, and the times in a heap. Timers that are set anew with
every row mostly share their millisecond, so the heap stays small.

What a reader would get wrong: a time stays in the heap when its bucket is emptied. It is skipped
when it comes to the top; when most of the heap is such leftovers it is built anew.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

E = TypeVar("E")

_LEFTOVERS = 1024


class Agenda(Generic[E]):
    """Entries, each at a time; the same entry may be there at several times."""

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
        if len(self._heap) > 2 * len(self._buckets) + _LEFTOVERS:
            self._heap = sorted(self._buckets)

    def discard(self, at: int, entry: E) -> None:
        bucket = self._buckets.get(at)
        if bucket is not None and entry in bucket:
            del bucket[entry]
            if not bucket:
                del self._buckets[at]

    def first(self) -> int | None:
        """The earliest time at which there is an entry."""
        heap, buckets = self._heap, self._buckets
        while heap and heap[0] not in buckets:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def take(self, until: int) -> list[tuple[int, list[E]]]:
        """Remove what is due by then, and return it by time, ascending."""
        taken = []
        while (at := self.first()) is not None and at <= until:
            taken.append((at, list(self._buckets.pop(at))))
        return taken
