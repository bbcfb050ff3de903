"""Versions of a store whose rows are on local disk, and how an operator sees their rows.

Versions of one store share a table. A new version writes its changes to the table and takes a
snapshot. What it keeps in memory are the entries that it changed, for as long as there are older
versions. An older version is then: everything that no later version changed, as the table has it
now; and of what they changed, the values in its own snapshot.

An operator that gets such rows (`DiskRows`) loads them one by one when it needs them, instead of
all at once.

Note: `rocksdict` can read a single entry of a snapshot, but its iterators over a snapshot return
the newest values. This is why changed entries are remembered.

Note: a table only goes forward. A second version that is built on the same parent, because a batch
runs again, cannot share its table. It gets a copy.

Note: an operator sees the rows of the last version that was prepared. Changes of later epochs are
still on their way from the operator to disk, so it must hold them until `saved_epoch` has reached
theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from weakref import WeakSet

from epochal.state.disk.local_database import DiskTable, LocalDatabase
from epochal.state.rows.unsafe_row import Row
from epochal.state.store.contract import RowForm
from epochal.state.store.versions import FrozenVersion, Layer, PrefixesOf

_NOTHING = Layer({})
_COPIED_AT_ONCE = 8192


class VersionedTable:
    """A table, and which entries each of its recent versions changed."""

    def __init__(self, table: DiskTable) -> None:
        self.table, self.version = table, 0
        self.size: int | None = 0
        """The number of rows of the newest version, while it is counted."""
        self._changed: dict[int, Collection[bytes]] = {}
        self._alive: WeakSet[DiskVersion] = WeakSet()
        self._lock = threading.Lock()

    def add(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write new rows that belong to the next version."""
        for part in _parts(rows):
            keys = self.table.entries([key for key, _ in part])
            values = [value for _, value in part]
            self.table.database.write(zip(keys, values, strict=True))
            if self.size is not None:
                self.size += len(part)

    def stop_counting(self) -> int:
        """The number of rows of the newest version. From now on it is the caller's to count.

        An operator counts its rows anyway. Here, a lookup would be needed for each change.
        """
        size, self.size = self.size, None
        if size is None:
            entries = self.table.database.entries(self.table.head, self.table.end, once=True)
            return sum(1 for _ in entries)
        return size

    def commit(self, changes: dict[bytes, bytes | None]) -> DiskVersion:
        entries = self.table.entries(list(changes))
        with self._lock:
            oldest = min((version.number for version in self._alive), default=self.version)
            self._changed = {n: keys for n, keys in self._changed.items() if n > oldest}
            self._changed[self.version + 1] = entries
            if self.size is not None:
                get = self.table.database.get
                for entry, value in zip(entries, changes.values(), strict=True):
                    self.size += (value is not None) - (get(entry) is not None)
            self.table.database.write(zip(entries, changes.values(), strict=True))
            self.version += 1
            committed = DiskVersion(
                _NOTHING, _NOTHING, 0, 0, home=self, number=self.version,
                snapshot=self.table.database.snapshot(),
            )  # fmt: skip
            self._alive.add(committed)
            return committed

    def get_at(self, version: DiskVersion, key: bytes) -> bytes | None:
        return self.table.database.get_at(version.snapshot, self.table.entry(key))

    def items_at(
        self, version: DiskVersion, start: bytes, end: bytes, *, once: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a version whose entries are from `start` to before `end`, as of this call."""
        database = self.table.database
        with self._lock:
            later = [keys for n, keys in self._changed.items() if n > version.number]
            changed = frozenset().union(*later)
            entries = database.entries(start, end, once=once)
        return self._items(version, entries, changed, (start, end))

    def _items(
        self,
        version: DiskVersion,
        entries: Iterator[tuple[bytes, bytes]],
        changed: frozenset[bytes],
        within: tuple[bytes, bytes],
    ) -> Iterator[tuple[bytes, bytes]]:
        key_of, database = self.table.key_of, self.table.database
        for entry, value in entries:
            if entry not in changed:
                yield key_of(entry), value
        for entry in changed:
            if within[0] <= entry < within[1]:
                before = database.get_at(version.snapshot, entry)
                if before is not None:
                    yield key_of(entry), before


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DiskVersion(FrozenVersion):
    """The rows of one version, in a table."""

    home: VersionedTable = field(kw_only=True)
    number: int = field(kw_only=True)
    snapshot: Any = field(kw_only=True)

    @property
    def table(self) -> DiskTable:
        """The table, which has the newest rows of the store."""
        return self.home.table

    def __len__(self) -> int:
        """The number of rows. Reads all of them."""
        return sum(1 for _ in self.items())

    def get(self, key: bytes) -> bytes | None:
        return self.home.get_at(self, key)

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return self.home.items_at(self, self.table.head, self.table.end, once=True)

    def keys_with(self, prefix: bytes, prefixes_of: PrefixesOf) -> Iterable[bytes]:
        if self.table.prefixes_of is None:
            return [key for key, _ in self.items() if prefixes_of([key])[0] == prefix]
        start, end = self.table.range_of(prefix)
        return [key for key, _ in self.home.items_at(self, start, end, once=False)]

    def with_changes(self, changes: dict[bytes, bytes | None]) -> FrozenVersion:
        if self.number == self.home.version:
            return self.home.commit(changes)
        copy = VersionedTable(self.table.database.table(self.table.prefixes_of))
        copy.add(self.items())
        return copy.commit(changes)


@dataclass(frozen=True, slots=True)
class DiskStates:
    """Makes the versions of one store on local disk."""

    database: LocalDatabase
    prefixes_of: PrefixesOf | None = None

    def empty(self) -> DiskVersion:
        return self.of(())

    def of(self, parts: Iterable[Iterable[tuple[bytes, bytes]]]) -> DiskVersion:
        """The version with the rows of all parts, each written before the next one is made."""
        table = VersionedTable(self.database.table(self.prefixes_of))
        for part in parts:
            table.add(part)
        return table.commit({})


def _parts(
    rows: Iterable[tuple[bytes, bytes | None]],
) -> Iterator[list[tuple[bytes, bytes | None]]]:
    remaining = iter(rows)
    while part := list(islice(remaining, _COPIED_AT_ONCE)):
        yield part


@dataclass(frozen=True, slots=True, eq=False)
class DiskRows:
    """The newest rows of a store."""

    database: LocalDatabase
    newest: Callable[[], DiskVersion]
    form: RowForm
    saved_epoch: Callable[[], int]
    """The last epoch whose changes are on disk."""
    cache_bytes: int
    """How much memory the operator may use for rows that it has used lately."""

    def __iter__(self) -> Iterator[tuple[Row, Any]]:
        form = self.form
        for key, value in self._entries():
            yield form.decode_key(key), form.decode_value(key, value)

    def all_keys(self) -> Iterator[Row]:
        return (self.form.decode_key(key) for key, _ in self._entries())

    def get(self, key: Row) -> Any | None:
        encoded = self.form.key(key)
        value = self.newest().table.get(encoded)
        return None if value is None else self.form.decode_value(encoded, value)

    def having(self, prefix: Row) -> list[tuple[Row, Any]]:
        form = self.form
        entries = self.newest().table.scan(form.prefix(prefix))
        return [(form.decode_key(key), form.decode_value(key, value)) for key, value in entries]

    def stop_counting(self) -> int:
        """The number of rows, which the operator counts from now on."""
        if self.form.start:
            return sum(1 for _ in self._entries())
        return self.newest().home.stop_counting()

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        version, start = self.newest(), self.form.start
        return version.table.scan(start) if start else version.items()
