"""The rows of a processor's state variables, for all keys of one partition.

There are three kinds, each with its own store on disk: one value per key; a list per key, stored as
one numbered row per element; a map per key, stored as one row per entry. With a time to live, the
stored value includes its expiry time. Rows have the form of the store. Changes are recorded, and
`changes` returns them.

Note: the numbers of a list's elements need not start at 0. Elements expire at the front, and
renumbering the rest would rewrite all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, TypeAlias

from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.containers import DiskAgenda, DiskMap, touch
from epochal.continuous.operators.contract import Row, StateChanges
from epochal.state.disk.disk_rows import DiskRows

_QUEUED_AT_MOST = 16
"""How often an entry on disk is queued during its time to live, if it is written often."""


class Expiries:
    """When entries expire. Each entry is queued once, at or before its real expiry time.

    An entry that is written again is not moved. The caller of `take` compares with the real expiry
    and, if that is later, queues the entry again.
    """

    __slots__ = ("_heap", "_known", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Row]] = []
        self._known: set[Row] = set()
        self._number = 0

    def note(self, entry: Row, at: int) -> None:
        if entry not in self._known:
            self._known.add(entry)
            self._number += 1
            heapq.heappush(self._heap, (at, self._number, entry))

    def knows(self, entry: Row) -> bool:
        return entry in self._known

    def first(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def take(self, now: int) -> list[Row]:
        taken = []
        while self._heap and self._heap[0][0] <= now:
            taken.append(heapq.heappop(self._heap)[2])
        self._known.difference_update(taken)
        return taken

    def clear(self) -> None:
        self._heap.clear()
        self._known.clear()


class DiskExpiries(Expiries):
    """When entries expire, on local disk.

    It is not noted which entries are queued. Instead an entry is queued at every write, at its
    expiry time rounded down, so that an entry is queued only some times during its time to live.
    """

    __slots__ = ("_agenda", "_step_ms")

    def __init__(self, agenda: DiskAgenda[Row], ttl_ms: int) -> None:
        super().__init__()
        self._agenda = agenda
        self._step_ms = max(1, ttl_ms // _QUEUED_AT_MOST)

    def note(self, entry: Row, at: int) -> None:
        self._agenda.add(at - at % self._step_ms, entry)

    def knows(self, entry: Row) -> bool:
        return False

    def first(self) -> int | None:
        return self._agenda.first()

    def take(self, now: int) -> list[Row]:
        return list(dict.fromkeys(entry for _, due in self._agenda.take(now) for entry in due))

    def clear(self) -> None:
        """What remains queued is skipped when it is due."""


class ValueRows:
    """One value per key. With a time to live, the stored value is `(value, expires)`."""

    __slots__ = ("dirty", "expiries", "name", "ttl_ms", "values")

    def __init__(self, name: str, ttl_ms: int) -> None:
        self.name, self.ttl_ms = name, ttl_ms
        self.values: MutableMapping[Row, Row] = {}
        self.dirty: set[Row] = set()
        self.expiries = Expiries()

    def load(self, rows: Iterable[tuple[Row, Row]]) -> None:
        if isinstance(rows, DiskRows):
            self.values = DiskMap.of_values(rows)
            if self.ttl_ms:
                self.expiries = DiskExpiries(DiskAgenda(rows), self.ttl_ms)
                for stored, value in rows:
                    self.expiries.note(hashable(stored), value[1])
            return
        for stored, value in rows:
            key = hashable(stored)
            self.values[key] = value
            if self.ttl_ms:
                self.expiries.note(key, value[1])

    def put(self, key: Row, value: Row, now: int) -> None:
        if self.ttl_ms:
            expires = now + self.ttl_ms
            self.expiries.note(key, expires)
            value = (value, expires)
        self.values[key] = value
        self.dirty.add(key)

    def remove(self, key: Row) -> None:
        if self.values.pop(key, None) is not None:
            self.dirty.add(key)

    def purge(self, now: int) -> None:
        for key in self.expiries.take(now):
            value = self.values.get(key)
            if value is None:
                continue
            if value[1] <= now:
                self.remove(key)
            else:
                self.expiries.note(key, value[1])

    def drop_all(self) -> None:
        self.dirty.update(self.values)
        self.values.clear()
        self.expiries.clear()

    def changes(self, partition: int) -> StateChanges:
        # Only keys count, not what happened to them: the store gets what is there at the cut.
        rows, dirty, self.dirty = self.values, self.dirty, set()
        puts = [(key, rows[key]) for key in dirty if key in rows]
        removes = [key for key in dirty if key not in rows]
        return StateChanges(self.name, partition, puts, removes, len(rows))


class _ElementList:
    """The list of one key. `items[0]` is stored under the number `first`."""

    __slots__ = ("first", "items")

    def __init__(self) -> None:
        self.first = 0
        self.items: list[Row] = []

    @classmethod
    def of(cls, numbered: list[tuple[int, Row]]) -> _ElementList:
        """A list with these elements and their numbers, which have no gaps."""
        elements = cls()
        numbered.sort(key=lambda each: each[0])
        elements.first = numbered[0][0]
        elements.items = [value for _, value in numbered]
        return elements


class ListRows:
    """A list per key. With a time to live, a stored element is `(value, expires)`.

    If `whole`, the store has one row per list, whose value is all elements, as Spark's has.
    """

    __slots__ = ("_count", "_stale", "_whole", "expiries", "name", "ttl_ms", "values")

    def __init__(self, name: str, ttl_ms: int, *, whole: bool = False) -> None:
        self.name, self.ttl_ms, self._whole = name, ttl_ms, whole
        self.values: MutableMapping[Row, _ElementList] = {}
        self.expiries = Expiries()
        self._count = 0
        self._stale: dict[Row, tuple[int, int, int]] = {}
        """For each changed key, the number from which the store is out of date, and the range of
        element numbers that the store has: first, end."""

    def load(self, rows: Iterable[tuple[Row, Any]]) -> None:
        if isinstance(rows, DiskRows):
            self._load_from_disk(rows)
            return
        numbered_by_key: dict[Row, list[tuple[int, Row]]] = {}
        if self._whole:
            numbered_by_key = {hashable(stored): list(enumerate(values)) for stored, values in rows}
        else:
            for (stored, number), value in rows:
                numbered_by_key.setdefault(hashable(stored), []).append((number, value))
        for key, numbered in numbered_by_key.items():
            elements = self.values[key] = _ElementList.of(numbered)
            self._count += len(numbered)
            self._schedule(key, elements)

    def _load_from_disk(self, rows: DiskRows) -> None:
        def of_key(key: Row) -> list[tuple[int, Row]]:
            if self._whole:
                return list(enumerate(rows.get(key) or ()))
            return [(number, value) for (_, number), value in rows.having((key,))]

        def load(key: Row) -> _ElementList | None:
            numbered = of_key(key)
            return _ElementList.of(numbered) if numbered else None

        def scan() -> Iterator[tuple[Row, _ElementList]]:
            for stored in dict.fromkeys(hashable(self._owner(key)) for key in rows.all_keys()):
                yield stored, _ElementList.of(of_key(stored))

        if self._whole:
            self._count = sum(len(values) for _, values in rows)
        else:
            self._count = rows.stop_counting()
        self.values = DiskMap(rows, load, scan, self._count)
        if self.ttl_ms:
            agenda: DiskAgenda[Row] = DiskAgenda(rows)
            if not self._whole:
                agenda = DiskAgenda(rows, lambda key, _: (key, 0), lambda key: hashable(key[0]))
            self.expiries = DiskExpiries(agenda, self.ttl_ms)
            for stored, value in rows:
                for element in value if self._whole else (value,):
                    self.expiries.note(hashable(self._owner(stored)), element[1])

    def _owner(self, stored: Row) -> Row:
        """The grouping key in a key of the store."""
        owner: Row = stored if self._whole else stored[0]
        return owner

    def get(self, key: Row, now: int) -> list[Row]:
        elements = self.values.get(key)
        if elements is None:
            return []
        if not self.ttl_ms:
            return list(elements.items)
        return [value for value, expires in elements.items if expires > now]

    def append(self, key: Row, values: Iterable[Row], now: int) -> None:
        elements = self.values.get(key)
        if elements is None:
            elements = self.values[key] = _ElementList()
        size = len(elements.items)
        if self.ttl_ms:
            expires = now + self.ttl_ms
            values = [(value, expires) for value in values]
        elements.items.extend(values)
        self._count += len(elements.items) - size
        self._touch(key, elements.first + size, elements.first, size)
        self._schedule(key, elements)

    def put(self, key: Row, values: Iterable[Row], now: int) -> None:
        self.remove(key)
        self.append(key, values, now)

    def remove(self, key: Row) -> None:
        elements = self.values.pop(key, None)
        if elements is not None:
            self._count -= len(elements.items)
            self._touch(key, elements.first, elements.first, len(elements.items))

    def purge(self, now: int) -> None:
        for key in self.expiries.take(now):
            elements = self.values.get(key)
            if elements is None:
                continue
            rest = [element for element in elements.items if element[1] > now]
            gone = len(elements.items) - len(rest)
            if not rest:
                self.remove(key)
                continue
            if gone:
                first, size = elements.first, len(elements.items)
                self._count -= gone
                if rest[0] is not elements.items[gone]:
                    # Not only the first elements expired, so the numbers of others change too.
                    self._touch(key, first, first, size)
                elements.first += gone
                elements.items = rest
                self._touch(key, elements.first + len(rest), first, size)
            self._schedule(key, elements)

    def drop_all(self) -> None:
        for key in list(self.values):
            self.remove(key)
        self.expiries.clear()

    def changes(self, partition: int) -> StateChanges:
        if self._whole:
            stale, self._stale = self._stale, {}
            whole: list[tuple[Row, Any]] = [
                (key, list(self.values[key].items)) for key in stale if key in self.values
            ]
            gone = [key for key in stale if key not in self.values]
            return StateChanges(self.name, partition, whole, gone, self._count)
        puts: list[tuple[Row, Row]] = []
        removes: list[Row] = []
        for key, (since, low, high) in self._stale.items():
            elements = self.values.get(key)
            if elements is None:
                removes += [(key, number) for number in range(low, high)]
                continue
            first, end = elements.first, elements.first + len(elements.items)
            start = max(first, since)
            items = elements.items[start - first :]
            puts += [((key, start + index), item) for index, item in enumerate(items)]
            removes += [(key, number) for number in range(low, min(high, first))]
            removes += [(key, number) for number in range(max(low, end), high)]
        self._stale = {}
        return StateChanges(self.name, partition, puts, removes, self._count)

    def _touch(self, key: Row, number: int, first: int, size: int) -> None:
        """Note from which number on a list changed. It had `size` elements from `first` before."""
        touch(self.values, key)
        noted = self._stale.get(key)
        if noted is None:
            # At its first change in an epoch, a list is what the store has.
            self._stale[key] = (number, first, first + size)
        elif number < noted[0]:
            self._stale[key] = (number, *noted[1:])

    def _schedule(self, key: Row, elements: _ElementList) -> None:
        if self.ttl_ms and not self.expiries.knows(key):
            self.expiries.note(key, min(element[1] for element in elements.items))


class MapRows:
    """A map per key. With a time to live, the stored value of an entry is `(value, expires)`."""

    __slots__ = ("_count", "dirty", "expiries", "name", "ttl_ms", "values")

    def __init__(self, name: str, ttl_ms: int) -> None:
        self.name, self.ttl_ms = name, ttl_ms
        self.values: MutableMapping[Row, dict[Row, Row]] = {}
        self.dirty: set[Row] = set()
        self.expiries = Expiries()
        self._count = 0

    def load(self, rows: Iterable[tuple[Row, Row]]) -> None:
        if isinstance(rows, DiskRows):
            self._load_from_disk(rows)
            return
        for (stored, stored_entry), value in rows:
            key, entry = hashable(stored), hashable(stored_entry)
            self.values.setdefault(key, {})[entry] = value
            self._count += 1
            if self.ttl_ms:
                self.expiries.note((key, entry), value[1])

    def _load_from_disk(self, rows: DiskRows) -> None:
        def load(key: Row) -> dict[Row, Row] | None:
            entries = {hashable(entry): value for (_, entry), value in rows.having((key,))}
            return entries or None

        def scan() -> Iterator[tuple[Row, dict[Row, Row]]]:
            for stored in dict.fromkeys(hashable(key) for key, _ in rows.all_keys()):
                yield stored, load(stored) or {}

        self._count = rows.stop_counting()
        self.values = DiskMap(rows, load, scan, self._count)
        if self.ttl_ms:
            self.expiries = DiskExpiries(DiskAgenda(rows), self.ttl_ms)
            for stored, value in rows:
                self.expiries.note(hashable(stored), value[1])

    def find(self, key: Row, entry: Row, now: int) -> Row | None:
        entries = self.values.get(key)
        value = None if entries is None else entries.get(entry)
        if value is None or not self.ttl_ms:
            return value
        return value[0] if value[1] > now else None

    def items(self, key: Row, now: int) -> list[tuple[Row, Row]]:
        entries = self.values.get(key)
        if entries is None:
            return []
        if not self.ttl_ms:
            return list(entries.items())
        return [(entry, value) for entry, (value, expires) in entries.items() if expires > now]

    def put(self, key: Row, entry: Row, value: Row, now: int) -> None:
        pair = (key, entry)
        if self.ttl_ms:
            expires = now + self.ttl_ms
            self.expiries.note(pair, expires)
            value = (value, expires)
        entries = self.values.get(key)
        if entries is None:
            entries = self.values[key] = {}
        if entry not in entries:
            self._count += 1
        entries[entry] = value
        touch(self.values, key)
        self.dirty.add(pair)

    def remove(self, key: Row, entry: Row) -> None:
        entries = self.values.get(key)
        if entries is not None and entries.pop(entry, None) is not None:
            self._count -= 1
            touch(self.values, key)
            self.dirty.add((key, entry))
            if not entries:
                del self.values[key]

    def remove_key(self, key: Row) -> None:
        for entry in list(self.values.get(key, ())):
            self.remove(key, entry)

    def purge(self, now: int) -> None:
        for pair in self.expiries.take(now):
            key, entry = pair
            value: Any = self.values.get(key, {}).get(entry)
            if value is None:
                continue
            if value[1] <= now:
                self.remove(key, entry)
            else:
                self.expiries.note(pair, value[1])

    def drop_all(self) -> None:
        for key in list(self.values):
            self.remove_key(key)
        self.expiries.clear()

    def changes(self, partition: int) -> StateChanges:
        dirty, self.dirty = self.dirty, set()
        puts: list[tuple[Row, Row]] = []
        removes: list[Row] = []
        for pair in dirty:
            value = self.values.get(pair[0], {}).get(pair[1])
            if value is None:
                removes.append(pair)
            else:
                puts.append((pair, value))
        return StateChanges(self.name, partition, puts, removes, self._count)


VariableRows: TypeAlias = ValueRows | ListRows | MapRows
