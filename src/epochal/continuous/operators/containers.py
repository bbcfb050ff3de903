"""What operators hold their state in: an agenda of what is due when, and values on local disk.

An agenda is a priority queue of timers, window ends and expiries. Its entries are kept in one
bucket per time, and the times in a heap. Timers that are reset with every row mostly share their
millisecond, so the heap stays small. A time stays in the heap when its bucket becomes empty. It is
skipped when it reaches the top. When most of the heap consists of such stale times, the heap is
rebuilt. A `DiskAgenda` has its entries on disk, except those that were added lately. It is not part
of the state: an operator builds it from the rows of its store when it starts, and the database is
removed when the task ends.

A `DiskMap` is a dictionary whose values are on disk, except those that were used lately or changed.
What was used since the last `trim` is young. When there is too much of it, `trim` makes the young
values old and forgets the values that were old before. So values that are used often stay, and
nothing has to be noted at each use. A value that changed stays until its epoch is on disk. An
operator that changes a value in place calls `touch`. The operator itself hands the changes to the
task that writes them, as it does for a plain dictionary.

Note: call `trim` only while nothing refers to a value that is about to be changed in place. If the
value was forgotten and loaded again meanwhile, the change would be lost.
"""

from __future__ import annotations

import heapq
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from itertools import islice
from typing import Any, Generic, TypeVar

from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.contract import Row
from epochal.state.disk.disk_rows import DiskRows

E = TypeVar("E")
V = TypeVar("V")

_MAX_STALE_TIMES = 1024
_TIME = struct.Struct(">Q")
_SIGN = 1 << 63
_MAX_RECENT = 8192
_MIN_VALUES = 256
_SAMPLE = 32
_SLOT_BYTES = 120
"""Of a dictionary, for a key and a value."""

_UNKNOWN: Any = object()


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
        super().discard(at, entry)  # it is here or on disk, and where it is not nothing happens
        if self._first_on_disk is not None:
            self._table.database.write([(self._start(at) + self._encoded(at, entry), None)])

    def first(self) -> int | None:
        """The earliest due time, or an earlier one; None if there are no entries."""
        times = [time for time in (super().first(), self._first_on_disk) if time is not None]
        return min(times, default=None)

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
            before = self._first_on_disk
            self._first_on_disk = first if before is None else min(before, first)
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
        # Big-endian and without a sign, so that bytes sort as times do, also those before 1970.
        return self._table.head + _TIME.pack(max(0, min(at + _SIGN, 2 * _SIGN - 1)))

    def _time(self, place: bytes) -> int:
        return int(_TIME.unpack_from(place, len(self._table.head))[0]) - _SIGN


class DiskMap(MutableMapping[Row, V], Generic[V]):
    """Values by key. `load` reads one from disk, `scan` all of them; `count` is their number."""

    __slots__ = (
        "_changed", "_count", "_cut", "_kept", "_limit", "_load", "_old", "_rows", "_scan",
        "_young",
    )  # fmt: skip

    def __init__(
        self,
        rows: DiskRows,
        load: Callable[[Row], V | None],
        scan: Callable[[], Iterator[tuple[Row, V]]],
        count: int,
    ) -> None:
        self._rows, self._load, self._scan, self._count = rows, load, scan, count
        self._young: dict[Row, V | None] = {}
        self._old: dict[Row, V | None] = {}
        self._changed: set[Row] = set()
        """The keys that changed in this epoch."""
        self._cut: dict[int, set[Row]] = {}
        """The keys that changed in epochs that may not be on disk yet."""
        self._limit, self._kept = _MIN_VALUES, 0

    @classmethod
    def of_values(cls, rows: DiskRows, decode: Callable[[Any], V] | None = None) -> DiskMap[V]:
        """A map from the keys of a store to its values."""

        def load(key: Row) -> V | None:
            row = rows.get(key)
            return row if row is None or decode is None else decode(row)

        def scan() -> Iterator[tuple[Row, V]]:
            for key, value in rows:
                yield hashable(key), value if decode is None else decode(value)

        return cls(rows, load, scan, rows.stop_counting())

    def get(self, key: Row, default: Any = None) -> Any:
        value = self._young.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._old.get(key, _UNKNOWN)
            if value is _UNKNOWN:
                value = self._load(key)
            self._young[key] = value
        return default if value is None else value

    def __getitem__(self, key: Row) -> V:
        value: V | None = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None  # type: ignore[arg-type]

    def __setitem__(self, key: Row, value: V) -> None:
        self._count += self.get(key) is None
        self._young[key] = value
        self._changed.add(key)

    def __delitem__(self, key: Row) -> None:
        if self.get(key) is None:
            raise KeyError(key)
        self._count -= 1
        self._young[key] = None
        self._changed.add(key)

    def __iter__(self) -> Iterator[Row]:
        return (key for key, _ in self.pairs())

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def pairs(self) -> Iterator[tuple[Row, V]]:
        """Every key and value, without keeping them in memory."""
        unsaved = self._changed.union(*self._cut.values())
        changed = {key: self._known(key) for key in unsaved}
        for key, value in self._scan():
            if key not in changed:
                yield key, value
        for key, changed_value in changed.items():
            if changed_value is not None:
                yield key, changed_value

    def touch(self, key: Row) -> None:
        """Note that the value of a key was changed in place."""
        self._changed.add(key)

    def cut(self, epoch: int) -> None:
        saved = self._rows.saved_epoch()
        self._cut = {number: keys for number, keys in self._cut.items() if number > saved}
        self._cut[epoch] = self._changed
        self._changed = set()
        self.trim()

    def trim(self) -> None:
        """Forget values that were not used lately, if there are too many."""
        if len(self._young) <= self._limit + self._kept:
            return
        forgotten, self._old, self._young = self._old, self._young, {}
        # A value whose change may not be on disk yet is always young or old. It stays so: if it is
        # not among those that just became old, it is among those to be forgotten.
        for keys in (self._changed, *self._cut.values()):
            for key in keys:
                if key not in self._old:
                    self._young[key] = forgotten[key]
        self._kept = len(self._young)
        sample = list(islice(self._old.items(), _SAMPLE))
        value_bytes = _SLOT_BYTES + sum(map(_size, sample)) // len(sample)
        self._limit = max(_MIN_VALUES, self._rows.cache_bytes // 2 // value_bytes)

    def _known(self, key: Row) -> V | None:
        # Of a changed value, which `trim` never forgets: the disk may still have the one before.
        value = self._young.get(key, _UNKNOWN)
        return self._old[key] if value is _UNKNOWN else value


def trim(values: MutableMapping[Row, Any]) -> None:
    """Forget values that were not used lately, if they are on disk."""
    if type(values) is DiskMap:
        values.trim()


def cut(values: MutableMapping[Row, Any], epoch: int) -> None:
    """End an epoch for values that may be on disk."""
    if type(values) is DiskMap:
        values.cut(epoch)


def pairs(values: MutableMapping[Row, V]) -> Iterable[tuple[Row, V]]:
    """Every key and value, of which at most one is loaded if they are on disk."""
    return values.pairs() if isinstance(values, DiskMap) else values.items()


def touch(values: MutableMapping[Row, Any], key: Row) -> None:
    """Note that a value that may be on disk was changed in place."""
    if type(values) is DiskMap:
        values.touch(key)


def _size(value: Any) -> int:
    """About how much memory a value takes, with everything in it."""
    total = sys.getsizeof(value)
    if isinstance(value, tuple | list | set | frozenset):
        return total + sum(map(_size, value))
    if isinstance(value, dict):
        return total + sum(map(_size, value)) + sum(map(_size, value.values()))
    slots = getattr(type(value), "__slots__", ())
    return total + sum(_size(getattr(value, name)) for name in slots if name != "__weakref__")
