"""The timers of one state partition.

A timer is a pair of a key and a time in milliseconds; each pair exists at most once. The caller
decides whether times refer to the clock or to the watermark.

Note: a due timer that was taken still exists, and is listed, until the caller deletes it. If its
handler registers the same timer again, nothing changes, and the caller deletes it afterwards. This
is how Spark's timers behave.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, MutableMapping

from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.containers import Agenda, DiskAgenda, DiskMap, touch
from epochal.continuous.operators.contract import Row, StateChanges, StoreSchema
from epochal.state.disk.disk_rows import DiskRows
from epochal.state.rows.types import AtomicType, StructField, StructType

PROCESSING_TIMERS = "$procTimers_keyToTimestamp"
EVENT_TIMERS = "$eventTimers_keyToTimestamp"
"""Spark's names for the same store."""

_EMPTY: Row = (None,)


def timer_store(name: str, key: StructType) -> StoreSchema:
    """The store of timers in Spark's layout: (key, time) maps to an empty value."""
    fields = (
        StructField("key", key),
        StructField("expiryTimestampMs", AtomicType("long"), nullable=False),
    )
    empty = StructType((StructField("__dummy__", AtomicType("void")),))
    return StoreSchema(name, StructType(fields), empty, scan_columns=1)


class Timers:
    """The timers of one partition."""

    __slots__ = ("_agenda", "_before", "_count", "name", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: MutableMapping[Row, set[int]] = {}
        """The times of each key."""
        self._agenda: Agenda[Row] = Agenda()
        # For each timer touched in this epoch: whether it existed before. A timer that is set and
        # deleted within one epoch then causes no write.
        self._before: dict[tuple[Row, int], bool] = {}
        self._count = 0

    def load(self, rows: Iterable[tuple[Row, Row]]) -> None:
        if isinstance(rows, DiskRows):
            self._load_from_disk(rows)
            return
        for (key, at), _ in rows:
            self.register(hashable(key), at)
        self._before.clear()

    def _load_from_disk(self, rows: DiskRows) -> None:
        def load(key: Row) -> set[int] | None:
            return {at for (_, at), _ in rows.having((key,))} or None

        def scan() -> Iterator[tuple[Row, set[int]]]:
            for stored in dict.fromkeys(hashable(key) for key, _ in rows.all_keys()):
                yield stored, load(stored) or set()

        self._count = rows.stop_counting()
        self.values = DiskMap(rows, load, scan, self._count)
        self._agenda = DiskAgenda(rows, lambda key, at: (key, at), lambda key: hashable(key[0]))
        for key, at in rows.all_keys():
            self._agenda.add(at, hashable(key))

    def register(self, key: Row, at: int) -> None:
        if type(at) is not int:
            at = operator.index(at)
        times = self.values.get(key)
        if times is None:
            self.values[key] = {at}
        elif at in times:
            return
        else:
            times.add(at)
            touch(self.values, key)
        self._agenda.add(at, key)
        self._before.setdefault((key, at), False)
        self._count += 1

    def delete(self, key: Row, at: int) -> None:
        times = self.values.get(key)
        if times is None or at not in times:
            return
        times.remove(at)
        touch(self.values, key)
        if not times:
            del self.values[key]
        self._agenda.discard(at, key)
        self._before.setdefault((key, at), True)
        self._count -= 1

    def of(self, key: Row) -> Iterator[int]:
        """The timers of a key. Callers must not rely on their order."""
        return iter(sorted(self.values.get(key, ())))

    def first(self) -> int | None:
        return self._agenda.first()

    def take(self, until: int) -> list[tuple[int, list[Row]]]:
        """The timers due by `until`, ascending. The caller deletes each after its handler ran."""
        return self._agenda.take(until)

    def changes(self, partition: int) -> StateChanges:
        puts: list[tuple[Row, Row]] = []
        removes: list[Row] = []
        for entry, before in self._before.items():
            now = entry[1] in self.values.get(entry[0], ())
            if now and not before:
                puts.append((entry, _EMPTY))
            elif before and not now:
                removes.append(entry)
        self._before = {}
        return StateChanges(self.name, partition, puts, removes, self._count)
