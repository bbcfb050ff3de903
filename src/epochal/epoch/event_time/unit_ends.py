"""Where the readers of an attempt must end: an epoch that is planned, or a unit of event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochal.checkpoint.entries import OffsetEntry
from epochal.epoch.contract import LoggedSource, Positions
from epochal.epoch.event_time.units import UnitMark, Units
from epochal.epoch.manifest import OpenUnit
from epochal.epoch.messages import Limits
from epochal.epoch.recovery import QueryShape, offsets_of_sources


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of an attempt, in order of their number."""

    sources: int
    partitions: tuple[tuple[int, str], ...] = ()
    """(source, partition id)."""

    def by_source(self, positions: Sequence[str]) -> tuple[dict[str, str], ...]:
        assert len(positions) == len(self.partitions)
        return self.some_by_source(dict(enumerate(positions)))

    def some_by_source(self, positions: Mapping[int, str]) -> tuple[dict[str, str], ...]:
        of_sources: tuple[dict[str, str], ...] = tuple({} for _ in range(self.sources))
        for reader, position in positions.items():
            source, partition = self.partitions[reader]
            of_sources[source][partition] = position
        return of_sources

    def limits(self, ends: Sequence[Positions], at: Sequence[Positions] | None = None) -> Limits:
        """Return where readers must end; without those that have no end, or are `at` it."""
        return tuple(
            (reader, ends[source][partition])
            for reader, (source, partition) in enumerate(self.partitions)
            if partition in ends[source]
            and (at is None or ends[source][partition] != at[source][partition])
        )

    def limits_of(
        self, plan: OffsetEntry, sources: Sequence[LoggedSource], query: QueryShape, url: str
    ) -> Limits:
        """Return where readers must end a batch that Spark planned, with this offset entry."""
        offsets = offsets_of_sources(plan, query, f"the batch that was set aside in {url}")
        pairs = zip(sources, offsets, strict=True)
        return self.limits([{} if offset is None else s.resume(offset) for s, offset in pairs])


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
        ends = [s.boundary(read) if s.lists_together and read else {} for s, read in pairs]
        return dict(self.readers.limits(ends, at))

    @property
    def share_ends(self) -> bool:
        return any(source.lists_together for source in self.sources)

    def bounded(self, positions: Sequence[str], ends: Mapping[int, str]) -> Mapping[int, str]:
        if not ends:
            return ends
        ends_by_source = self.readers.some_by_source(
            {reader: end for reader, end in ends.items() if end}
        )
        of_sources = zip(
            self.sources, self.readers.by_source(positions), ends_by_source, strict=True
        )
        within = [
            {p: e for p, e in source.unit_end(at, latest).items() if p in latest} if latest else {}
            for source, at, latest in of_sources
        ]
        return {**ends, **dict(self.readers.limits(within))}

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
    bounded_ends: list[Positions] = []
    for source, at in zip(sources, positions, strict=True):
        ends: Positions = source.latest() or {}
        ends = {
            p: end for p, end in ends.items() if p in at and source.lag({p: at[p]}, {p: end}) > 0
        }
        bounded = source.unit_end(at, ends) if ends else ends
        bounded_ends.append({partition: bounded[partition] for partition in ends})
    return tuple(bounded_ends)


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
    ends = {reader: end for reader, end in mark.ends.items() if end}
    return OpenUnit(mark.counted, readers.some_by_source(ends))
