"""A priority queue of timers, window ends and expiries by the time at which they are due.

Entries are kept in one bucket per time, and the times in a heap. Timers that are reset with every
row mostly share their millisecond, so the heap stays small. `DiskAgenda` has its entries on local
disk, except those that were added lately. It is not part of the state: an operator builds it from
the rows of its store when it starts, and the database is removed when the task ends.

Note: a time stays in the heap when its bucket becomes empty. It is skipped when it reaches the
top. When most of the heap consists of such stale times, the heap is rebuilt.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.contract import Row
from epochal.state.disk.disk_rows import DiskRows

E = TypeVar("E")

_MAX_STALE_TIMES = 1024
_TIME = struct.Struct(">Q")
_SIGN = 1 << 63
_MAX_RECENT = 8192


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


class DiskAgenda(Agenda[E], Generic[E]):
    """Entries with their due times, as `Agenda` keeps them.

    `to_key` makes a key of the store from an entry and its time, `to_entry` the entry again.
    """

    __slots__ = ("_first_on_disk", "_recent", "_rows", "_table", "_to_entry", "_to_key")

    def __init__(
        self,
        rows: DiskRows,
        to_key: Callable[[E, int], Row] | None = None,
        to_entry: Callable[[Row], E] | None = None,
    ) -> None:
        super().__init__()
        self._rows, self._table = rows, rows.database.table()
        self._to_key: Callable[[Any, int], Row] = to_key or (lambda entry, at: entry)
        self._to_entry: Callable[[Row], Any] = to_entry or hashable
        self._recent = 0
        self._first_on_disk: int | None = None
        """The earliest time on disk, or an earlier one if that was discarded."""

    def add(self, at: int, entry: E) -> None:
        super().add(at, entry)
        self._recent += 1
        if self._recent >= _MAX_RECENT:
            self._spill()

    def discard(self, at: int, entry: E) -> None:
        super().discard(at, entry)
        if self._first_on_disk is not None:
            self._table.database.write([(self._start(at) + self._encoded(at, entry), None)])

    def first(self) -> int | None:
        """The earliest due time, or an earlier one; None if there are no entries."""
        known = [each for each in (super().first(), self._first_on_disk) if each is not None]
        return min(known, default=None)

    def take(self, until: int) -> list[tuple[int, list[E]]]:
        """Remove all entries due at or before `until` and return them by time, ascending."""
        if self._first_on_disk is None or self._first_on_disk > until:
            return super().take(until)
        self._spill()
        database = self._table.database
        start, end = self._start(self._first_on_disk), self._start(until + 1)
        skipped, decode = len(start), self._rows.form.decode_key
        taken: dict[int, list[E]] = {}
        for place, _ in database.entries(start, end):
            entry = self._to_entry(decode(place[skipped:]))
            taken.setdefault(self._time(place), []).append(entry)
        database.drop(start, end)
        after = next(iter(database.entries(end, self._table.end)), None)
        self._first_on_disk = None if after is None else self._time(after[0])
        return list(taken.items())

    def _spill(self) -> None:
        """Write what was added lately to disk."""
        first = super().first()
        if first is not None:
            self._table.database.write(self._places())
            known = self._first_on_disk
            self._first_on_disk = first if known is None else min(known, first)
        self._buckets.clear()
        self._heap.clear()
        self._recent = 0

    def _places(self) -> Iterator[tuple[bytes, bytes]]:
        for at, entries in self._buckets.items():
            start = self._start(at)
            for entry in entries:
                yield start + self._encoded(at, entry), b""

    def _encoded(self, at: int, entry: E) -> bytes:
        return self._rows.form.key(self._to_key(entry, at))

    def _start(self, at: int) -> bytes:
        return self._table.head + _TIME.pack(max(0, min(at + _SIGN, 2 * _SIGN - 1)))

    def _time(self, place: bytes) -> int:
        return int(_TIME.unpack_from(place, len(self._table.head))[0]) - _SIGN
