"""Where the readers of an attempt must end an epoch that is planned: what a `Limit` says. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from epochal.checkpoint.entries import OffsetEntry
from epochal.epoch.contract import LoggedSource, Positions
from epochal.epoch.recovery import QueryShape, offsets_of_sources

Limits: TypeAlias = tuple[tuple[int, str], ...]
"""(reader, position)."""


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of an attempt, in order of their number."""

    sources: int
    partitions: tuple[tuple[int, str], ...] = ()
    """(source, partition id)."""

    def by_source(self, positions: Sequence[str]) -> tuple[dict[str, str], ...]:
        """Return the positions of each source's partitions."""
        of_sources: tuple[dict[str, str], ...] = tuple({} for _ in range(self.sources))
        for (source, partition), position in zip(self.partitions, positions, strict=True):
            of_sources[source][partition] = position
        return of_sources

    def some_by_source(self, positions: Mapping[int, str]) -> tuple[dict[str, str], ...]:
        """Return the positions of these readers, per source."""
        found: tuple[dict[str, str], ...] = tuple({} for _ in range(self.sources))
        for reader, position in positions.items():
            source, partition = self.partitions[reader]
            found[source][partition] = position
        return found

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
