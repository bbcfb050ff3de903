"""Finds the epochs at which two queries have read the same input. Pure.

Two queries cut their epochs where they like, so epoch 7 of one and epoch 7 of the other need not be
the same slice. What they have in common are *boundaries*: an epoch of each after which all sources
stand at the same place and the watermark is the same. Between two common boundaries both have
processed exactly the same rows, in one epoch or in several: a *segment*. Its output must be equal.

The watermark is part of a boundary if a query has state, because its output then depends on it:
with the same input but a lower watermark, it has not yet closed the windows that the other has.

Note: rows that come too late are dropped by the watermark of the epoch before. So a query that cuts
its epochs elsewhere may drop other rows. Segments of one epoch each do not have this problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = tuple[tuple[str | None, ...], int]


@dataclass(frozen=True, slots=True)
class ReadPosition:
    offsets: tuple[str | None, ...]
    """Of the sources, as they are logged."""
    watermark_ms: int
    key: tuple[str | None, ...]
    """Equal if, and only if, two queries have read the same."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """An epoch of each query after which both have read the same, and how far that is."""

    a: int
    b: int
    offsets: tuple[str | None, ...]
    watermark_ms: int


@dataclass(frozen=True, slots=True)
class Segment:
    start: Boundary
    end: Boundary

    @property
    def epochs_a(self) -> range:
        return range(self.start.a + 1, self.end.a + 1)

    @property
    def epochs_b(self) -> range:
        return range(self.start.b + 1, self.end.b + 1)


def common_boundaries(
    a: Mapping[int, ReadPosition], b: Mapping[int, ReadPosition], *, timed: bool = True
) -> list[Boundary]:
    """The boundaries that two queries have in common, given their committed epochs, in order.

    `timed` says whether the watermark matters.
    """
    of_b = _newest_by_key(b, timed)
    boundaries: list[Boundary] = []
    for key, epoch in _newest_by_key(a, timed).items():
        other = of_b.get(key)
        # A query that was rewound may have a boundary twice. Then only what follows it counts.
        if other is not None and (not boundaries or other > boundaries[-1].b):
            boundaries.append(Boundary(epoch, other, a[epoch].offsets, a[epoch].watermark_ms))
    return boundaries


def why_none(a: Mapping[int, ReadPosition], b: Mapping[int, ReadPosition]) -> str:
    """Say what two queries lack to be comparable, if they have at most one common boundary."""
    if not a or not b:
        return f"{'the first' if not a else 'the second'} query has not committed an epoch yet"
    newest_a, newest_b = max(a), max(b)
    of_b = {key: (epoch, mark) for (key, mark), epoch in _newest_by_key(b, timed=True).items()}
    for (key, mark), epoch in reversed(_newest_by_key(a, timed=True).items()):
        other = of_b.get(key)
        if other is not None and other[1] != mark:
            return (
                f"after epoch {epoch} of the first and epoch {other[0]} of the second query the "
                f"input is the same, but the watermarks are {mark} and {other[1]} ms: one has "
                f"closed windows that are still open in the other. Let both run until they are "
                f"idle, or replay one epoch at a time (`epochal checkpoint clone --until`)"
            )
    return (
        f"they have not stopped reading at the same place since the clone. The newest epoch of the "
        f"first query, {newest_a}, ends at {_text(a[newest_a])}, that of the second, {newest_b}, "
        f"at {_text(b[newest_b])}. Let both read to the end of the input, or let the second one "
        f"replay what the first one read (`epochal checkpoint clone --until`)"
    )


def _newest_by_key(places: Mapping[int, ReadPosition], timed: bool) -> dict[Key, int]:
    newest: dict[Key, int] = {}
    for epoch in sorted(places):
        place = places[epoch]
        key = (place.key, place.watermark_ms if timed else 0)
        newest.pop(key, None)  # the newest epoch counts, at its position in the order
        newest[key] = epoch
    return newest


def _text(place: ReadPosition) -> str:
    return ", ".join(str(offset) for offset in place.offsets)
