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
from collections.abc import Iterable
from typing import Any, TypeAlias

from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.contract import Row, StateChanges


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


class ValueRows:
    """One value per key. With a time to live, the stored value is `(value, expires)`."""

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


class _ElementList:
    """The list of one key. `items[0]` is stored under the number `first`."""

    __slots__ = ("first", "items")

    def __init__(self) -> None:
        self.first = 0
        self.items: list[Row] = []


class ListRows:
    """A list per key. With a time to live, a stored element is `(value, expires)`.

    If `whole`, the store has one row per list, whose value is all elements, as Spark's has.
    """

    __slots__ = ("_count", "_stale", "_stored", "_whole", "expiries", "lists", "name", "ttl_ms")

    def __init__(self, name: str, ttl_ms: int, *, whole: bool = False) -> None:
        self.name, self.ttl_ms, self._whole = name, ttl_ms, whole
        self.lists: dict[Row, _ElementList] = {}
        self.expiries = Expiries()
        self._count = 0
        self._stored: dict[Row, tuple[int, int]] = {}
        """For each key, the range of its element numbers in the store: first, end."""
        self._stale: dict[Row, int] = {}
        """For each changed key, the number from which the store is out of date."""

    def load(self, rows: Iterable[tuple[Row, Any]]) -> None:
        found: dict[Row, list[tuple[int, Row]]] = {}
        if self._whole:
            found = {hashable(stored): list(enumerate(values)) for stored, values in rows}
        else:
            for (stored, number), value in rows:
                found.setdefault(hashable(stored), []).append((number, value))
        for key, numbered in found.items():
            numbered.sort(key=lambda each: each[0])
            elements = self.lists[key] = _ElementList()
            elements.first = numbered[0][0]
            elements.items = [value for _, value in numbered]
            self._stored[key] = (elements.first, elements.first + len(numbered))
            self._count += len(numbered)
            self._schedule(key, elements)

    def get(self, key: Row, now: int) -> list[Row]:
        elements = self.lists.get(key)
        if elements is None:
            return []
        if not self.ttl_ms:
            return list(elements.items)
        return [value for value, expires in elements.items if expires > now]

    def append(self, key: Row, values: Iterable[Row], now: int) -> None:
        elements = self.lists.get(key)
        if elements is None:
            elements = self.lists[key] = _ElementList()
        size = len(elements.items)
        if self.ttl_ms:
            expires = now + self.ttl_ms
            values = [(value, expires) for value in values]
        elements.items.extend(values)
        self._count += len(elements.items) - size
        self._touch(key, elements.first + size)
        self._schedule(key, elements)

    def put(self, key: Row, values: Iterable[Row], now: int) -> None:
        self.remove(key)
        self.append(key, values, now)

    def remove(self, key: Row) -> None:
        elements = self.lists.pop(key, None)
        if elements is not None:
            self._count -= len(elements.items)
            self._touch(key, elements.first)

    def purge(self, now: int) -> None:
        for key in self.expiries.take(now):
            elements = self.lists.get(key)
            if elements is None:
                continue
            kept = [each for each in elements.items if each[1] > now]
            gone = len(elements.items) - len(kept)
            if not kept:
                self.remove(key)
                continue
            if gone:
                self._count -= gone
                if kept[0] is not elements.items[gone]:
                    # Not only the first elements expired, so the numbers of others change too.
                    self._touch(key, elements.first)
                elements.first += gone
                elements.items = kept
                self._touch(key, elements.first + len(kept))
            self._schedule(key, elements)

    def drop_all(self) -> None:
        for key in list(self.lists):
            self.remove(key)
        self.expiries.clear()

    def changes(self, partition: int) -> StateChanges:
        if self._whole:
            return self._changed_lists(partition)
        puts: list[tuple[Row, Row]] = []
        removes: list[Row] = []
        for key, since in self._stale.items():
            low, high = self._stored.pop(key, (0, 0))
            elements = self.lists.get(key)
            if elements is None:
                removes += [(key, number) for number in range(low, high)]
                continue
            first, end = elements.first, elements.first + len(elements.items)
            start = max(first, since)
            items = elements.items[start - first :]
            puts += [((key, start + index), item) for index, item in enumerate(items)]
            removes += [(key, number) for number in range(low, min(high, first))]
            removes += [(key, number) for number in range(max(low, end), high)]
            self._stored[key] = (first, end)
        self._stale = {}
        return StateChanges(self.name, partition, puts, removes, self._count)

    def _changed_lists(self, partition: int) -> StateChanges:
        stale, self._stale = self._stale, {}
        puts: list[tuple[Row, Any]] = [
            (key, list(self.lists[key].items)) for key in stale if key in self.lists
        ]
        removes = [key for key in stale if key not in self.lists]
        return StateChanges(self.name, partition, puts, removes, self._count)

    def _touch(self, key: Row, number: int) -> None:
        since = self._stale.get(key)
        if since is None or number < since:
            self._stale[key] = number

    def _schedule(self, key: Row, elements: _ElementList) -> None:
        if self.ttl_ms and not self.expiries.knows(key):
            self.expiries.note(key, min(map(_expiry, elements.items)))


class MapRows:
    """A map per key. With a time to live, the stored value of an entry is `(value, expires)`."""

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
        pair = (key, entry)
        if self.ttl_ms:
            expires = now + self.ttl_ms
            self.expiries.note(pair, expires)
            value = (value, expires)
        entries = self.maps.get(key)
        if entries is None:
            entries = self.maps[key] = {}
        if entry not in entries:
            self._count += 1
        entries[entry] = value
        self.dirty.add(pair)

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
        for pair in self.expiries.take(now):
            key, entry = pair
            value: Any = self.maps.get(key, {}).get(entry)
            if value is None:
                continue
            if value[1] <= now:
                self.remove(key, entry)
            else:
                self.expiries.note(pair, value[1])

    def drop_all(self) -> None:
        for key in list(self.maps):
            self.remove_key(key)
        self.expiries.clear()

    def changes(self, partition: int) -> StateChanges:
        dirty, self.dirty = self.dirty, set()
        puts: list[tuple[Row, Row]] = []
        removes: list[Row] = []
        for pair in dirty:
            value = self.maps.get(pair[0], {}).get(pair[1])
            if value is None:
                removes.append(pair)
            else:
                puts.append((pair, value))
        return StateChanges(self.name, partition, puts, removes, self._count)


VariableRows: TypeAlias = ValueRows | ListRows | MapRows


def _expiry(element: Row) -> int:
    at: int = element[1]
    return at
