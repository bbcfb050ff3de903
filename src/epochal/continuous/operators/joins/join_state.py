"""The stored rows of one side of a join, in one partition, and those that match new rows.

Layout and order are those of Spark's stores, so that either engine can continue from the other's
state. Store `keyToNumValues` has the number of rows of each key, `keyWithIndexToValue` has each row
under its key and an index from 0. A value ends with `matched`: whether the row ever matched.
Removing a row moves the last one of its key into its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeAlias

import numpy as np

from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.containers import Agenda, DiskAgenda, DiskMap, cut, touch
from epochal.continuous.operators.contract import Row, StateChanges
from epochal.errors import StateLoadError
from epochal.state.disk.disk_rows import DiskRows

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

TimeOf: TypeAlias = Callable[[Row, Row], Any]
"""Takes a key and a row; returns the time in microseconds at which the row expires, or None."""


def time_at(place: int, *, in_key: bool, window: bool) -> TimeOf:
    """How to find the time in a key or a row: a timestamp, or the end of a window."""

    def key_rows(key: Row, row: Row) -> Any:
        return key[place]

    def of_key_window(key: Row, row: Row) -> Any:
        return None if key[place] is None else key[place][1]

    def of_row(key: Row, row: Row) -> Any:
        return row[place]

    def of_row_window(key: Row, row: Row) -> Any:
        return None if row[place] is None else row[place][1]

    if in_key:
        return of_key_window if window else key_rows
    return of_row_window if window else of_row


class KeyRows:
    """The rows of one key."""

    __slots__ = ("due", "moved", "old", "rows", "stored")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.stored = 0
        """How many rows the store has."""
        self.old = 0
        """How many of `rows` are from earlier epochs."""
        self.moved: set[int] | None = None
        """Indexes at which the store has another row, if it has one. None if there are none."""
        self.due: int | None = None
        """The earliest time on the agenda at which a row expires."""

    def note_moved(self, indexes: Iterable[int]) -> None:
        if self.moved is None:
            self.moved = set()
        self.moved.update(indexes)

    def note_due(self, key: Row, time_of: TimeOf) -> None:
        times = [time_of(key, row) for row in self.rows]
        self.due = min((time for time in times if time is not None), default=None)

    def mark_matched(self, index: int) -> None:
        row = self.rows[index]
        if not row[-1]:
            self.rows[index] = (*row[:-1], True)
            self.note_moved((index,))

    def remove_old(self, index: int) -> None:
        """Remove a row of an earlier epoch: the last one of those takes its place."""
        last = self.old - 1
        self.rows[index] = self.rows[last]
        self.note_moved((index,))
        self.old = last
        self.remove_new(last)

    def remove_new(self, index: int) -> None:
        """Remove a row without changing the order of the others."""
        del self.rows[index]
        self.note_moved(range(index, min(len(self.rows), self.stored)))

    def evict(self, key: Row, time_of: TimeOf, until: int) -> list[Row]:
        """Remove and return the rows that expire, in Spark's order."""
        rows, index, evicted = self.rows, 0, []
        while index < len(rows):
            time = time_of(key, rows[index])
            if time is None or time > until:
                index += 1
                continue
            evicted.append(rows[index])
            last = rows.pop()
            if index < len(rows):
                rows[index] = last
                self.note_moved((index,))
        return evicted


class SideState:
    """All rows of one side in one partition."""

    def __init__(self, side: str, time_of: TimeOf | None) -> None:
        self.keys: MutableMapping[Row, KeyRows] = {}
        self._side, self._time_of = side, time_of
        self._dirty: dict[Row, KeyRows] = {}
        self._ends: Agenda[Row] = Agenda()
        self._rows = 0
        self._counts: DiskRows | dict[Row, int] | None = None
        self._values: DiskRows | dict[Row, dict[int, Row]] | None = None

    def load(self, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        """Load one of the two stores of this side. Rows are known once both are."""
        if store == counts_store(self._side):
            self._counts = (
                rows if isinstance(rows, DiskRows) else {hashable(key): n for key, (n,) in rows}
            )
        elif store == values_store(self._side):
            self._values = rows if isinstance(rows, DiskRows) else _by_index(rows)
        else:
            return
        match self._counts, self._values:
            case dict() as counts, dict() as loaded:
                self._counts = self._values = None
                self._combine(counts, loaded)
            case DiskRows() as counts_on_disk, DiskRows() as values_on_disk:
                self._use_disk(counts_on_disk, values_on_disk)

    def append(self, keys: Sequence[Row], rows: Iterable[Row]) -> None:
        """Store new rows."""
        all_keys, dirty, time_of = self.keys, self._dirty, self._time_of
        for key, row in zip(keys, rows, strict=True):
            key_rows = all_keys.get(key)
            if key_rows is None:
                # A key that was removed in this epoch may still be in the store.
                key_rows = all_keys[key] = dirty.get(key) or KeyRows()
            if len(key_rows.rows) < key_rows.stored:
                # The store still has a removed row at this index.
                key_rows.note_moved((len(key_rows.rows),))
            key_rows.rows.append(row)
            dirty[key] = key_rows
            if time_of is not None:
                # A key is always on the agenda at, or before, the time of its earliest row. A later
                # row needs no entry: when the key is due, `expire` enters its next time.
                time = time_of(key, row)
                if time is not None and (key_rows.due is None or time < key_rows.due):
                    key_rows.due = time
                    self._ends.add(time, key)
        self._rows += len(keys)
        if type(all_keys) is DiskMap:
            for key in keys:
                all_keys.touch(key)

    def touch(self, key: Row, rows: KeyRows, removed: int = 0) -> None:
        """Note that rows of a key changed, and how many of them were removed."""
        self._dirty[key] = rows
        self._rows -= removed
        touch(self.keys, key)
        if not rows.rows:
            # `_dirty` keeps it until the cut: it knows how many rows the store has to lose, also if
            # `append` brings the key back before.
            self.keys.pop(key, None)

    def expire(self, until: int, *, forgets_new: bool, keeps_unmatched: bool) -> list[Row]:
        """Remove and return the rows that expire at or before `until`, in microseconds.

        With `forgets_new`, rows of this epoch are treated as never stored, except those that did
        not match if `keeps_unmatched`: they are neither returned, nor do they affect the order of
        the others.
        """
        assert self._time_of is not None
        evicted: list[Row] = []
        # A key may be due at several times, or for a row that a semi join has removed.
        for key in dict.fromkeys(key for _, keys in self._ends.take(until) for key in keys):
            key_rows = self.keys.get(key)
            if key_rows is None:
                if key in self._dirty:  # `append` may bring it back before the cut
                    self._dirty[key].due = None
                continue
            before = len(key_rows.rows)
            if forgets_new and key_rows.old < before:
                self._forget_new(key, key_rows, until, keeps_unmatched)
            evicted += key_rows.evict(key, self._time_of, until)
            self.touch(key, key_rows, before - len(key_rows.rows))
            key_rows.note_due(key, self._time_of)
            if key_rows.due is not None:
                self._ends.add(key_rows.due, key)
        return evicted

    def changes(self, partition: int, epoch: int) -> list[StateChanges]:
        """The changes since the last call, which belong to `epoch`."""
        dirty, self._dirty = self._dirty, {}
        counts: list[tuple[Row, Row]] = []
        values: list[tuple[Row, Row]] = []
        gone: list[Row] = []
        gone_values: list[Row] = []
        for key, key_rows in dirty.items():
            rows, count, stored = key_rows.rows, len(key_rows.rows), key_rows.stored
            if count != stored:
                if count:
                    counts.append((key, (count,)))
                else:
                    gone.append(key)
            if key_rows.moved is not None:
                # What moved beyond the end of the store is new there: the next lines write it.
                stays = min(count, stored)
                values += [((*key, at), rows[at]) for at in key_rows.moved if at < stays]
                key_rows.moved = None
            if count > stored:
                values += [((*key, at), rows[at]) for at in range(stored, count)]
            elif count < stored:
                gone_values += [(*key, at) for at in range(count, stored)]
            key_rows.stored = key_rows.old = count
        cut(self.keys, epoch)
        return [
            StateChanges(counts_store(self._side), partition, counts, gone, len(self.keys)),
            StateChanges(values_store(self._side), partition, values, gone_values, self._rows),
        ]

    def _forget_new(self, key: Row, key_rows: KeyRows, until: int, keeps_unmatched: bool) -> None:
        # New rows are behind those of earlier epochs, which keep their indexes.
        assert self._time_of is not None
        rows = key_rows.rows[: key_rows.old]
        for row in key_rows.rows[key_rows.old :]:
            time = self._time_of(key, row)
            if time is None or time > until or (keeps_unmatched and not row[-1]):
                rows.append(row)
        key_rows.rows[:] = rows
        key_rows.note_moved(range(key_rows.old, min(len(rows), key_rows.stored)))

    def _use_disk(self, counts: DiskRows, values: DiskRows) -> None:
        """Read rows from disk when they are needed."""
        time_of = self._time_of

        def load(key: Row) -> KeyRows | None:
            count = counts.get(key)
            return None if count is None else self._key_rows(key, count[0], values)

        def scan() -> Iterator[tuple[Row, KeyRows]]:
            for key, (count,) in counts:
                yield hashable(key), self._key_rows(hashable(key), count, values)

        self._rows = values.stop_counting()
        self.keys = DiskMap(counts, load, scan, counts.stop_counting())
        self._ends = DiskAgenda(counts)
        if time_of is not None:
            for (*stored, _), row in values:
                key = hashable(tuple(stored))
                time = time_of(key, row)
                if time is not None:
                    self._ends.add(time, key)

    def _key_rows(self, key: Row, count: int, values: DiskRows) -> KeyRows:
        key_rows = KeyRows()
        for index in range(count):
            row = values.get((*key, index))
            if row is None:
                raise self._inconsistent(key, count, list(range(index)))
            key_rows.rows.append(row)
        key_rows.stored = key_rows.old = count
        if self._time_of is not None:
            key_rows.note_due(key, self._time_of)
        return key_rows

    def _inconsistent(self, key: Row, count: int, indexes: list[int]) -> StateLoadError:
        return StateLoadError(
            values_store(self._side),
            f"key {key} has {count} rows according to {counts_store(self._side)}, but the rows "
            f"have the indexes {indexes[:20]}",
            "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
        )

    def _combine(self, counts: dict[Row, int], values: dict[Row, dict[int, Row]]) -> None:
        for key in counts.keys() | values.keys():
            count, by_index = counts.get(key, 0), values.get(key, {})
            if sorted(by_index) != list(range(count)):
                raise self._inconsistent(key, count, sorted(by_index))
            self.append([key] * count, [by_index[at] for at in range(count)])
            self.keys[key].stored = self.keys[key].old = count
        self._dirty.clear()


def _by_index(rows: Iterable[tuple[Row, Row]]) -> dict[Row, dict[int, Row]]:
    """The rows of each key by their index."""
    rows_by_key: dict[Row, dict[int, Row]] = {}
    for (*key, index), value in rows:
        rows_by_key.setdefault(hashable(tuple(key)), {})[index] = value
    return rows_by_key


def counts_store(side: str) -> str:
    return f"{side}-keyToNumValues"


def values_store(side: str) -> str:
    return f"{side}-keyWithIndexToValue"


@dataclass(slots=True)
class Pairs:
    """Pairs of a new row with a stored row of the other side, which has the same key."""

    new: Ints
    """Indexes of the new rows in their batch, ascending."""
    stored: list[Row]
    index: Ints
    """The index of each stored row among the rows of its key."""
    rows: dict[int, KeyRows]
    """For each new row in a pair, the stored rows of its key."""

    def places(self) -> Iterator[tuple[int, KeyRows, int]]:
        """Yield the new row, the stored rows of its key, and the index among them, of each pair."""
        for number, index in zip(self.new.tolist(), self.index.tolist(), strict=True):
            yield number, self.rows[number], index

    def filtered(self, met: Any) -> Pairs:
        """The pairs for which `met`, an array of booleans, is true."""
        return Pairs(
            self.new[met], list(compress(self.stored, met.tolist())), self.index[met], self.rows
        )


def pairs_of(keys: list[Row], other: SideState) -> Pairs:
    """Pair each key with all rows of the other side that have it."""
    rows: dict[int, KeyRows] = {}
    stored: list[Row] = []
    counts: list[int] = []
    stored_keys = other.keys
    for number, key_rows in enumerate(map(stored_keys.get, keys)):
        if key_rows is not None:
            rows[number] = key_rows
            stored += key_rows.rows
            counts.append(len(key_rows.rows))
    numbers = np.fromiter(rows, np.int64, len(rows))
    lengths = np.array(counts, np.int64)
    starts = np.cumsum(lengths) - lengths
    index = np.arange(len(stored)) - np.repeat(starts, lengths)
    return Pairs(np.repeat(numbers, lengths), stored, index, rows)


def remove_matched(
    left: SideState, keys: list[Row], pairs: Pairs, fleeting: list[bool]
) -> tuple[list[bool], list[Row]]:
    """Remove the left rows that match, in the order of the right rows.

    Returns which right rows matched, and the left rows. A right row for which `fleeting` is true
    matches left rows of earlier epochs only.
    """
    # Equal rows of a key are rows of their own, so identity tells them apart. No other row can have
    # the id of a row in `pairs`, because that one is alive.
    matching: dict[int, set[int]] = {}
    for number, row in zip(pairs.new.tolist(), pairs.stored, strict=True):
        matching.setdefault(number, set()).add(id(row))
    matched = [False] * len(keys)
    removed: list[Row] = []
    for number, wanted in matching.items():
        # Right rows with the same key share `key_rows`: what one of them took is gone for the next.
        key_rows = pairs.rows[number]
        index = 0
        while index < (key_rows.old if fleeting[number] else len(key_rows.rows)):
            row = key_rows.rows[index]
            # A row that matched before is only here if an earlier release of Spark stored it.
            if not row[-1] and id(row) not in wanted:
                index += 1
                continue
            if not row[-1]:
                removed.append(row)
                matched[number] = True
            if index < key_rows.old:
                key_rows.remove_old(index)
            else:
                key_rows.remove_new(index)
            left.touch(keys[number], key_rows, 1)
    return matched, removed
