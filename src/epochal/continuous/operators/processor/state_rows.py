"""The rows of a processor's state variables, for all keys of one partition.

Three kinds, each one store on disk: a value per key; a list per key, one row for each element,
numbered; a map per key, one row for each entry. With a time to live, what is stored is the value
and when it expires. Rows are held as stores hold them, what changed is remembered, and `changes`
hands that over.

What a reader would get wrong: the numbers of a list's elements need not begin at 0. Elements
expire at the front, and to number the rest anew would mean to write all of them again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, TypeAlias

from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.contract import Row, StateChanges


class Expiries:
    """When entries expire. Each is kept once, at a time not later than its real one.

    An entry written again and again is not moved each time: whoever takes it as due looks at its
    real expiry, and notes it again if that has moved on.
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


class ValueRows:
    """One value per key. With a time to live a value is `(values, expires)`."""

    __slots__ = ("dirty", "expiries", "name", "rows", "ttl_ms")

    def __init__(self, name: str, ttl_ms: int) -> None:
        self.name, self.ttl_ms = name, ttl_ms
        self.rows: dict[Row, Row] = {}
        self.dirty: set[Row] = set()
        self.expiries = Expiries()

    def load(self, rows: Iterable[tuple[Row, Row]]) -> None:
        for stored, value in rows:
            key = hashable(stored)
            self.rows[key] = value
            if self.ttl_ms:
                self.expiries.note(key, value[1])

    def put(self, key: Row, value: Row, now: int) -> None:
        if self.ttl_ms:
            expires = now + self.ttl_ms
            self.expiries.note(key, expires)
            value = (value, expires)
        self.rows[key] = value
        self.dirty.add(key)

    def remove(self, key: Row) -> None:
        if self.rows.pop(key, None) is not None:
            self.dirty.add(key)

    def purge(self, now: int) -> None:
        for key in self.expiries.take(now):
            value = self.rows.get(key)
            if value is None:
                continue
            if value[1] <= now:
                self.remove(key)
            else:
                self.expiries.note(key, value[1])

    def drop_all(self) -> None:
        self.dirty.update(self.rows)
        self.rows.clear()
        self.expiries.clear()

    def changes(self, partition: int) -> StateChanges:
        rows, dirty, self.dirty = self.rows, self.dirty, set()
        puts = [(key, rows[key]) for key in dirty if key in rows]
        removes = [key for key in dirty if key not in rows]
        return StateChanges(self.name, partition, puts, removes, len(rows))


class _Elements:
    """A key's list. `items[0]` is stored under the number `first`."""

    __slots__ = ("first", "items")

    def __init__(self) -> None:
        self.first = 0
        self.items: list[Row] = []


class ListRows:
    """A list per key. With a time to live an element is `(values, expires)`."""

    __slots__ = ("_count", "_stale", "_stored", "expiries", "lists", "name", "ttl_ms")

    def __init__(self, name: str, ttl_ms: int) -> None:
        self.name, self.ttl_ms = name, ttl_ms
        self.lists: dict[Row, _Elements] = {}
        self.expiries = Expiries()
        self._count = 0
        self._stored: dict[Row, tuple[int, int]] = {}
        """The numbers that each key's elements have in the store: from, to."""
        self._stale: dict[Row, int] = {}
        """By changed key, the number from which on the store is out of date."""

    def load(self, rows: Iterable[tuple[Row, Row]]) -> None:
        found: dict[Row, list[tuple[int, Row]]] = {}
        for (stored, number), value in rows:
            found.setdefault(hashable(stored), []).append((number, value))
        for key, elements in found.items():
            elements.sort(key=lambda each: each[0])
            held = self.lists[key] = _Elements()
            held.first = elements[0][0]
            held.items = [value for _, value in elements]
            self._stored[key] = (held.first, held.first + len(elements))
            self._count += len(elements)
            self._schedule(key, held)

    def get(self, key: Row, now: int) -> list[Row]:
        held = self.lists.get(key)
        if held is None:
            return []
        if not self.ttl_ms:
            return list(held.items)
        return [value for value, expires in held.items if expires > now]

    def append(self, key: Row, values: Iterable[Row], now: int) -> None:
        held = self.lists.get(key)
        if held is None:
            held = self.lists[key] = _Elements()
        size = len(held.items)
        if self.ttl_ms:
            expires = now + self.ttl_ms
            values = [(value, expires) for value in values]
        held.items.extend(values)
        self._count += len(held.items) - size
        self._touch(key, held.first + size)
        self._schedule(key, held)

    def put(self, key: Row, values: Iterable[Row], now: int) -> None:
        self.remove(key)
        self.append(key, values, now)

    def remove(self, key: Row) -> None:
        held = self.lists.pop(key, None)
        if held is not None:
            self._count -= len(held.items)
            self._touch(key, held.first)

    def purge(self, now: int) -> None:
        for key in self.expiries.take(now):
            held = self.lists.get(key)
            if held is None:
                continue
            kept = [each for each in held.items if each[1] > now]
            gone = len(held.items) - len(kept)
            if not kept:
                self.remove(key)
                continue
            if gone:
                self._count -= gone
                if kept[0] is not held.items[gone]:  # not only the oldest: number them anew
                    self._touch(key, held.first)
                held.first += gone
                held.items = kept
                self._touch(key, held.first + len(kept))
            self._schedule(key, held)

    def drop_all(self) -> None:
        for key in list(self.lists):
            self.remove(key)
        self.expiries.clear()

    def changes(self, partition: int) -> StateChanges:
        puts: list[tuple[Row, Row]] = []
        removes: list[Row] = []
        for key, since in self._stale.items():
            low, high = self._stored.pop(key, (0, 0))
            held = self.lists.get(key)
            if held is None:
                removes += [(key, number) for number in range(low, high)]
                continue
            first, end = held.first, held.first + len(held.items)
            start = max(first, since)
            items = held.items[start - first :]
            puts += [((key, start + place), item) for place, item in enumerate(items)]
            removes += [(key, number) for number in range(low, min(high, first))]
            removes += [(key, number) for number in range(max(low, end), high)]
            self._stored[key] = (first, end)
        self._stale = {}
        return StateChanges(self.name, partition, puts, removes, self._count)

    def _touch(self, key: Row, number: int) -> None:
        since = self._stale.get(key)
        if since is None or number < since:
            self._stale[key] = number

    def _schedule(self, key: Row, held: _Elements) -> None:
        if self.ttl_ms and not self.expiries.knows(key):
            self.expiries.note(key, min(map(_expiry, held.items)))


class MapRows:
    """A map per key. With a time to live an entry's value is `(values, expires)`."""

    __slots__ = ("_count", "dirty", "expiries", "maps", "name", "ttl_ms")

    def __init__(self, name: str, ttl_ms: int) -> None:
        self.name, self.ttl_ms = name, ttl_ms
        self.maps: dict[Row, dict[Row, Row]] = {}
        self.dirty: set[Row] = set()
        self.expiries = Expiries()
        self._count = 0

    def load(self, rows: Iterable[tuple[Row, Row]]) -> None:
        for (stored, stored_entry), value in rows:
            key, entry = hashable(stored), hashable(stored_entry)
            self.maps.setdefault(key, {})[entry] = value
            self._count += 1
            if self.ttl_ms:
                self.expiries.note((key, entry), value[1])

    def find(self, key: Row, entry: Row, now: int) -> Row | None:
        entries = self.maps.get(key)
        value = None if entries is None else entries.get(entry)
        if value is None or not self.ttl_ms:
            return value
        return value[0] if value[1] > now else None

    def items(self, key: Row, now: int) -> list[tuple[Row, Row]]:
        entries = self.maps.get(key)
        if entries is None:
            return []
        if not self.ttl_ms:
            return list(entries.items())
        return [(entry, value) for entry, (value, expires) in entries.items() if expires > now]

    def put(self, key: Row, entry: Row, value: Row, now: int) -> None:
        place = (key, entry)
        if self.ttl_ms:
            expires = now + self.ttl_ms
            self.expiries.note(place, expires)
            value = (value, expires)
        entries = self.maps.get(key)
        if entries is None:
            entries = self.maps[key] = {}
        if entry not in entries:
            self._count += 1
        entries[entry] = value
        self.dirty.add(place)

    def remove(self, key: Row, entry: Row) -> None:
        entries = self.maps.get(key)
        if entries is not None and entries.pop(entry, None) is not None:
            self._count -= 1
            self.dirty.add((key, entry))
            if not entries:
                del self.maps[key]

    def remove_key(self, key: Row) -> None:
        for entry in list(self.maps.get(key, ())):
            self.remove(key, entry)

    def purge(self, now: int) -> None:
        for place in self.expiries.take(now):
            key, entry = place
            value: Any = self.maps.get(key, {}).get(entry)
            if value is None:
                continue
            if value[1] <= now:
                self.remove(key, entry)
            else:
                self.expiries.note(place, value[1])

    def drop_all(self) -> None:
        for key in list(self.maps):
            self.remove_key(key)
        self.expiries.clear()

    def changes(self, partition: int) -> StateChanges:
        dirty, self.dirty = self.dirty, set()
        puts: list[tuple[Row, Row]] = []
        removes: list[Row] = []
        for place in dirty:
            value = self.maps.get(place[0], {}).get(place[1])
            if value is None:
                removes.append(place)
            else:
                puts.append((place, value))
        return StateChanges(self.name, partition, puts, removes, self._count)


VariableRows: TypeAlias = ValueRows | ListRows | MapRows


def _expiry(element: Row) -> int:
    at: int = element[1]
    return at
