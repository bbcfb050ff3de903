"""Where readers must end an epoch that is planned: what a `Limit` says. Pure.

The plan of an epoch is an offset entry, as Spark writes one before it runs a batch. It is kept in
`.epochal/planned` until the epoch is committed. If the attempt dies, the next one runs the same
range again (see `recovery`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from epochal.checkpoint.entries import OffsetEntry
from epochal.epoch.contract import LoggedSource, Positions
from epochal.epoch.manifest import MANIFEST_KEY
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
        found: tuple[dict[str, str], ...] = tuple({} for _ in range(self.sources))
        for (source, partition), position in zip(self.partitions, positions, strict=True):
            found[source][partition] = position
        return found

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


def planned_limits(
    readers: Readers,
    sources: Sequence[LoggedSource],
    planned: OffsetEntry,
    query: QueryShape,
    url: str,
) -> Limits:
    """Return where each reader must end an epoch whose plan is `planned`."""
    offsets = offsets_of_sources(planned, query, f"the batch that was set aside in {url}")
    pairs = zip(sources, offsets, strict=True)
    return readers.limits([{} if offset is None else s.resume(offset) for s, offset in pairs])


def plan_entry(
    template: OffsetEntry,
    query: QueryShape,
    offsets: Sequence[str],
    watermark_ms: int,
    timestamp_ms: int,
) -> OffsetEntry:
    """Return the plan of an epoch whose sources end at these offsets."""
    return replace(
        template,
        offsets=lines_of(template, query, offsets),
        watermark_ms=watermark_ms,
        timestamp_ms=timestamp_ms,
        control_batch_info=None,
        extra={key: template.extra[key] for key in template.extra if key != MANIFEST_KEY},
        keys=None,
        has_metadata=True,
    )


def lines_of(
    template: OffsetEntry, query: QueryShape, offsets: Sequence[str]
) -> tuple[str | None, ...] | dict[str, str | None]:
    """Return the offsets in the form of the log: by line, or by the name of the source."""
    if template.version == 2:
        return dict(zip(template.by_source, offsets, strict=True))
    return tuple(offsets[n] for n in query.lines)
