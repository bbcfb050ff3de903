"""What the sources say of the places of their readers in a unit of event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        return self._source(reader).tells_waiting

    def is_behind(self, reader: int, position: str, end: str) -> bool:
        _, partition = self.readers.partitions[reader]
        return self._source(reader).lag({partition: position}, {partition: end}) > 0

    def shared_ends(self, positions: Sequence[str]) -> Mapping[int, str]:
        if not self.share_ends:
            return {}
        at = self.readers.by_source(positions)
        pairs = zip(self.sources, at, strict=True)
        ends = [s.boundary(each) if s.lists_together and each else {} for s, each in pairs]
        return dict(self.readers.limits(ends, at))

    @property
    def share_ends(self) -> bool:
        return any(source.lists_together for source in self.sources)

    def bounded(self, positions: Sequence[str], ends: Mapping[int, str]) -> Mapping[int, str]:
        if not ends:
            return ends
        at = self.readers.by_source(positions)
        known = {reader: end for reader, end in ends.items() if end}
        latest = self.readers.some_by_source(known)
        found = dict(ends)
        for number, source in enumerate(self.sources):
            if latest[number]:
                bounded = source.unit_end(at[number], latest[number])
                within: list[Positions] = [{}] * len(self.sources)
                within[number] = {p: e for p, e in bounded.items() if p in latest[number]}
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


def ends_of_waiting(
    sources: Sequence[LoggedSource], positions: Sequence[Positions]
) -> tuple[Positions, ...]:
    """Ask the sources where the rows end that wait now; return it per source, for partitions that
    have any. The first unit of an attempt ends there.
    """
    found: list[Positions] = []
    for source, at in zip(sources, positions, strict=True):
        ends: Positions = source.latest() or {}
        ends = {
            p: end for p, end in ends.items() if p in at and source.lag({p: at[p]}, {p: end}) > 0
        }
        bounded = source.unit_end(at, ends) if ends else ends
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
