"""What the sources say of the places of their readers in a unit of event time.

A source may have some of these, and what it lacks has no effect:

- `tells_waiting = True`: its readers tell which partitions have rows waiting.
- `lists_together = True`: what is between two boundaries of its offsets was listed together, and
  all its partitions must have read it before its event times count. Files are like that.
- `unit_end(at, latest) -> Positions`: as much of what waits as a unit may have.
- `lag`, as all sources of the engine have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from epochal.epoch.contract import LoggedSource, Positions
from epochal.epoch.event_time.units import UnitMark, Units
from epochal.epoch.manifest import OpenUnit
from epochal.epoch.planned_ends import Readers


@dataclass(frozen=True, slots=True)
class SourcePlaces:
    """Implements `epochal.epoch.event_time.units.Places`."""

    readers: Readers
    sources: Sequence[LoggedSource]
    last: Sequence[Positions] | None = None
    """Where the query ends, per source; None if it has no end."""

    def tells(self, reader: int) -> bool:
        return getattr(self._source(reader), "tells_waiting", False)

    def is_behind(self, reader: int, position: str, end: str) -> bool:
        _, partition = self.readers.partitions[reader]
        lag = cast(Any, self._source(reader)).lag
        return bool(lag({partition: position}, {partition: end}) > 0)

    def shared_ends(self, positions: Sequence[str]) -> Mapping[int, str]:
        if not self.share_ends:
            return {}
        at = self.readers.by_source(positions)
        pairs = zip(self.sources, at, strict=True)
        ends = [s.boundary(each) if _lists_together(s) and each else {} for s, each in pairs]
        return dict(self.readers.limits(ends, at))

    @property
    def share_ends(self) -> bool:
        return any(map(_lists_together, self.sources))

    def bounded(self, positions: Sequence[str], ends: Mapping[int, str]) -> Mapping[int, str]:
        if not ends:
            return ends
        at = self.readers.by_source(positions)
        known = {reader: end for reader, end in ends.items() if end}
        latest = self.readers.some_by_source(known)
        found = dict(ends)
        for number, source in enumerate(self.sources):
            bound = getattr(source, "unit_end", None)
            if bound is not None and latest[number]:
                within: list[Positions] = [{}] * len(self.sources)
                within[number] = {
                    p: e
                    for p, e in bound(at[number], latest[number]).items()
                    if p in latest[number]
                }
                found.update(self.readers.limits(within))
        return found

    def is_last(self, reader: int, position: str) -> bool:
        if self.last is None:
            return False
        source, partition = self.readers.partitions[reader]
        end = self.last[source].get(partition)
        return end is None or not self.is_behind(reader, position, end)

    def _source(self, reader: int) -> LoggedSource:
        return self.sources[self.readers.partitions[reader][0]]


def _lists_together(source: LoggedSource) -> bool:
    return getattr(source, "lists_together", False)


def ends_of_waiting(
    sources: Sequence[LoggedSource], positions: Sequence[Positions]
) -> tuple[Positions, ...]:
    """Ask the sources where the rows end that wait now; return it per source, for partitions that
    have any. The first unit of an attempt ends there.
    """
    found: list[Positions] = []
    for source, at in zip(sources, positions, strict=True):
        latest, lag = getattr(source, "latest", None), cast(Any, source)
        ends: Positions = (latest() or {}) if latest is not None else {}
        ends = {p: end for p, end in ends.items() if p in at and lag.lag({p: at[p]}, {p: end}) > 0}
        bound = getattr(source, "unit_end", None)
        bounded: Positions = bound(at, ends) if bound is not None and ends else ends
        found.append({partition: bounded[partition] for partition in ends})
    return tuple(found)


def first_unit(
    places: SourcePlaces, unit: OpenUnit, highs: Sequence[int], *, is_epoch: bool
) -> Units:
    """Return the units of an attempt that begins with this one."""
    ends = dict(places.readers.limits(unit.ends)) if unit.ends else {}
    return Units(places, highs=highs, counted=unit.counted, ends=ends, is_epoch=is_epoch)


def open_unit(mark: UnitMark | None, readers: Readers) -> OpenUnit | None:
    """Return a unit in the form of the log. Ends that are not known are left out."""
    if mark is None:
        return None
    known = {reader: end for reader, end in mark.ends.items() if end}
    return OpenUnit(mark.counted, readers.some_by_source(known))
