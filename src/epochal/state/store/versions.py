"""Versions of a map from bytes to bytes that share their common rows. Pure.

A version is frozen. It consists of a large `base` that many versions share, and a small `overlay`
of the changes since, in which None marks a removed key. A `Draft` collects changes on top of a
version and freezes into the next version. When an overlay has grown to a certain part of its base,
both are flattened into a new base. So the time and memory for a version are proportional to its
changes, not to the size of the state. Rows are never copied.

Note: a frozen version is never changed in place. Therefore an iterator shows the store as it was
when the iterator was created, a snapshot can be written while the next version is being built, and
dropping a version from a cache never affects its readers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeAlias

RowChange: TypeAlias = tuple[bytes, bytes | None]
PrefixesOf: TypeAlias = Callable[[Sequence[bytes]], Sequence[bytes]]
"""The prefix of each key, as bytes."""

FLATTEN_ABOVE_ROWS = 1024
FLATTEN_ABOVE_PART = 8
"""An overlay is flattened into its base when it has 1,024 rows more than an eighth of the base. A
larger limit makes each version slower to freeze; a smaller one flattens more often."""

_OBJECT_BYTES = 48
"""Python's overhead for a byte string, including the allocator's rounding."""

_ABSENT = object()


@dataclass(slots=True)
class Layer:
    """Rows that never change, and an index of their keys by prefix, built at the first scan."""

    rows: Mapping[bytes, bytes | None]
    by_prefix: dict[bytes, list[bytes]] | None = None

    def keys_with(self, prefix: bytes, prefixes_of: PrefixesOf) -> list[bytes]:
        if self.by_prefix is None:
            index: dict[bytes, list[bytes]] = {}
            _add_keys(index, list(self.rows), prefixes_of)
            self.by_prefix = index
        return self.by_prefix.get(prefix, [])


@dataclass(frozen=True, slots=True, eq=False)
class FrozenVersion:
    """The rows of one version."""

    base: Layer
    overlay: Layer
    size: int
    row_bytes: int

    @classmethod
    def of(cls, rows: dict[bytes, bytes]) -> FrozenVersion:
        """The version with exactly these rows. The caller must not change `rows` afterwards."""
        row_bytes = sum(map(len, rows)) + sum(map(len, rows.values()))
        return cls(Layer(rows), Layer({}), len(rows), row_bytes + 2 * _OBJECT_BYTES * len(rows))

    def __len__(self) -> int:
        return self.size

    def get(self, key: bytes) -> bytes | None:
        value = self.overlay.rows.get(key, _ABSENT)
        return self.base.rows.get(key) if value is _ABSENT else value  # type: ignore[return-value]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every row, in no particular order."""
        return _merged(self.base.rows, self.overlay.rows)

    def draft(self) -> Draft:
        return Draft(self)

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        return list(map(self.get if self.overlay.rows else self.base.rows.get, keys))

    def keys_with(self, prefix: bytes, prefixes_of: PrefixesOf) -> Iterable[bytes]:
        """The keys with exactly this prefix. Some of them may be removed."""
        return chain(
            self.base.keys_with(prefix, prefixes_of), self.overlay.keys_with(prefix, prefixes_of)
        )

    def with_changes(self, changes: dict[bytes, bytes | None]) -> FrozenVersion:
        """The version after these changes. `changes` must not be changed afterwards."""
        if not self.base.rows and not self.overlay.rows:
            return FrozenVersion.of({k: v for k, v in changes.items() if v is not None})
        base, newer = self.base.rows, self.overlay.rows
        overlay = {**newer, **changes}
        after = list(changes.values())
        before = [
            base.get(key) if (value := newer.get(key, _ABSENT)) is _ABSENT else value
            for key in changes
        ]
        added, removed = before.count(None), after.count(None)
        size, row_bytes = self.size + added - removed, self.row_bytes
        if not added and not removed:
            row_bytes += sum(map(len, after)) - sum(map(len, before))  # type: ignore[arg-type]
        else:
            row_bytes += sum(map(_row_bytes, changes, after)) - sum(
                map(_row_bytes, changes, before)  # type: ignore[arg-type]
            )
            for key, value in changes.items():
                if value is None and key not in base:
                    del overlay[key]
        if len(overlay) <= FLATTEN_ABOVE_ROWS + len(base) // FLATTEN_ABOVE_PART:
            return FrozenVersion(self.base, Layer(overlay), size, row_bytes)
        flat = dict(base)
        for key, value in overlay.items():
            if value is None:
                del flat[key]
            else:
                flat[key] = value
        return FrozenVersion(Layer(flat), Layer({}), size, row_bytes)


EMPTY = FrozenVersion.of({})

MakeVersion: TypeAlias = Callable[[dict[bytes, bytes]], FrozenVersion]
"""Makes a version of rows in memory."""


class VersionMaker(Protocol):
    """Makes versions whose rows are somewhere else than in memory."""

    def empty(self) -> FrozenVersion: ...

    def of(self, parts: Iterable[Iterable[tuple[bytes, bytes]]]) -> FrozenVersion:
        """The version with the rows of all parts. They are never all in memory."""
        ...


class Draft:
    """Changes on top of a version; each key keeps its last change."""

    __slots__ = ("_by_prefix", "_prefixes_of", "changes", "parent")

    def __init__(self, parent: FrozenVersion) -> None:
        self.parent = parent
        self.changes: dict[bytes, bytes | None] = {}
        self._by_prefix: dict[bytes, list[bytes]] = {}
        self._prefixes_of: PrefixesOf | None = None

    def __len__(self) -> int:
        size = len(self.parent)
        for key, value in self.changes.items():
            size += (value is not None) - (self.parent.get(key) is not None)
        return size

    def get(self, key: bytes) -> bytes | None:
        value = self.changes.get(key, _ABSENT)
        return self.parent.get(key) if value is _ABSENT else value  # type: ignore[return-value]

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys)) if self.changes else self.parent.get_many(keys)

    def put(self, key: bytes, value: bytes) -> None:
        if self._prefixes_of is not None and key not in self.changes:
            _add_keys(self._by_prefix, [key], self._prefixes_of)
        self.changes[key] = value

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set many values. If a key repeats, its last value wins."""
        if self._prefixes_of is not None:
            new = [key for key in keys if key not in self.changes]
            _add_keys(self._by_prefix, new, self._prefixes_of)
        self.changes.update(zip(keys, values, strict=True))

    def remove(self, key: bytes) -> bool:
        """Remove a key. Returns False, and records nothing, if the key does not exist."""
        if self.get(key) is None:
            return False
        if self.parent.get(key) is None:
            del self.changes[key]
        else:
            self.changes[key] = None
        return True

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every row as of this call; later puts and removes do not show."""
        if not self.changes:
            return self.parent.items()
        changes = dict(self.changes)
        below = (row for row in self.parent.items() if row[0] not in changes)
        added = ((key, value) for key, value in changes.items() if value is not None)
        return chain(below, added)

    def with_prefix(self, prefix: bytes, prefixes_of: PrefixesOf) -> list[tuple[bytes, bytes]]:
        """Every row whose key has exactly this prefix, as of this call."""
        if self._prefixes_of is None:
            self._prefixes_of = prefixes_of
            _add_keys(self._by_prefix, list(self.changes), prefixes_of)
        candidates = dict.fromkeys(
            (*self.parent.keys_with(prefix, prefixes_of), *self._by_prefix.get(prefix, ()))
        )
        values = ((key, self.get(key)) for key in candidates)
        return [(key, value) for key, value in values if value is not None]

    def freeze(self) -> FrozenVersion:
        """The version with these changes applied. The draft must not be changed afterwards."""
        return self.parent.with_changes(self.changes) if self.changes else self.parent


def memory_bytes(versions: Iterable[FrozenVersion]) -> int:
    """An estimate of the memory that versions with shared layers take together."""
    layers: dict[int, int] = {}
    largest = 0
    for version in versions:
        largest = max(largest, version.row_bytes)
        for layer in (version.base, version.overlay):
            layers[id(layer.rows)] = sys.getsizeof(layer.rows)
    return largest + sum(layers.values())


def _merged(
    base: Mapping[bytes, bytes | None], overlay: Mapping[bytes, bytes | None]
) -> Iterator[tuple[bytes, bytes]]:
    for key, value in base.items():
        if key not in overlay and value is not None:
            yield key, value
    for key, value in overlay.items():
        if value is not None:
            yield key, value


def _row_bytes(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value) + 2 * _OBJECT_BYTES


def _add_keys(
    index: dict[bytes, list[bytes]], keys: Sequence[bytes], prefixes_of: PrefixesOf
) -> None:
    for prefix, key in zip(prefixes_of(keys), keys, strict=True):
        index.setdefault(prefix, []).append(key)
