"""The timers of one state partition: which key set one for when, and what is due.

A timer is a key and a time in milliseconds; the same one is never there twice. Whether times are
read off the clock or the watermark is the caller's business.

What a reader would get wrong: a timer that has been taken as due still exists, and is listed,
until it is deleted; so a handler that sets the very timer that fires changes nothing, and loses
it when the caller deletes it afterwards. Spark's timers behave so.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

from epochal.continuous.operators.agenda import Agenda
from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.contract import Row, StateChanges, StoreSchema
from epochal.state.rows.types import AtomicType, StructField, StructType

PROCESSING_TIMERS = "$procTimers_keyToTimestamp"
EVENT_TIMERS = "$eventTimers_keyToTimestamp"
"""Spark's own names for the same index."""

_EMPTY: Row = (None,)


def timer_store(name: str, key: StructType) -> StoreSchema:
    """The store that keeps timers: (key, time) to nothing, as Spark lays it out."""
    fields = (
        StructField("key", key),
        StructField("expiryTimestampMs", AtomicType("long"), nullable=False),
    )
    empty = StructType((StructField("__dummy__", AtomicType("void")),))
    return StoreSchema(name, StructType(fields), empty)


class Timers:
    """Timers of one partition."""

    __slots__ = ("_agenda", "_before", "_by_key", "_count", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_key: dict[Row, set[int]] = {}
        self._agenda: Agenda[Row] = Agenda()
        self._before: dict[tuple[Row, int], bool] = {}
        self._count = 0

    def load(self, rows: Iterable[tuple[Row, Row]]) -> None:
        for (key, at), _ in rows:
            self.register(hashable(key), at)
        self._before.clear()

    def register(self, key: Row, at: int) -> None:
        if type(at) is not int:
            at = operator.index(at)
        times = self._by_key.get(key)
        if times is None:
            self._by_key[key] = {at}
        elif at in times:
            return
        else:
            times.add(at)
        self._agenda.add(at, key)
        self._before.setdefault((key, at), False)
        self._count += 1

    def delete(self, key: Row, at: int) -> None:
        times = self._by_key.get(key)
        if times is None or at not in times:
            return
        times.remove(at)
        if not times:
            del self._by_key[key]
        self._agenda.discard(at, key)
        self._before.setdefault((key, at), True)
        self._count -= 1

    def of(self, key: Row) -> Iterator[int]:
        """The key's timers; in no order that is promised."""
        return iter(sorted(self._by_key.get(key, ())))

    def first(self) -> int | None:
        return self._agenda.first()

    def take(self, until: int) -> list[tuple[int, list[Row]]]:
        """What is due by then, ascending. The caller deletes each after its handler."""
        return self._agenda.take(until)

    def changes(self, partition: int) -> StateChanges:
        puts: list[tuple[Row, Row]] = []
        removes: list[Row] = []
        for entry, before in self._before.items():
            now = entry[1] in self._by_key.get(entry[0], ())
            if now and not before:
                puts.append((entry, _EMPTY))
            elif before and not now:
                removes.append(entry)
        self._before = {}
        return StateChanges(self.name, partition, puts, removes, self._count)
