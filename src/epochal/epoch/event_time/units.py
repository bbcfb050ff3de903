"""How far the watermark may follow the event times: by unit, and by partition. Pure.

Rows that wait are read partition by partition, at different speeds. If the watermark followed the
highest event time of all of them, the partition that is read first would make the rows of the
others late. So what is *seen* (`highs`) and what *counts* (`counted`) are two things:

- By unit, as in a batch of Spark's. What waits when reading begins is one unit. Its rows are judged
  by the watermark that held when it began. When the last of them has been read, event times count
  up to the highest seen, and the next unit begins. Units are independent of epochs.
- By partition. A reader that still has rows waiting, in this unit or after it, holds what counts
  down to its own highest event time. A reader that has been read to its end does not.

So of the rows that wait when reading begins, none is dropped that is in order within its partition.
When nothing waits, every epoch is a unit.

Note: a partition whose reader does not yet know that rows have come cannot hold anything. A backlog
that comes up while the query runs is therefore noticed by some partitions first. A unit of which
nobody knew that it would be one does not move the watermark: the unit of the backlog begins, and
when it has been read, everybody knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from epochal.epoch.messages import ReaderWaits

HOLDS_NOTHING = 1 << 62
"""The highest event time of a reader for a watermark that its rows do not move."""


class Places(Protocol):
    """What the sources know of the positions of their readers. Without IO."""

    def tells(self, reader: int) -> bool:
        """Whether the reader itself tells if it has rows waiting; then it is right."""
        ...

    def is_behind(self, reader: int, position: str, end: str) -> bool:
        """Whether there are rows between a position and an end."""
        ...

    def shared_ends(self, positions: Sequence[str]) -> Mapping[int, str]:
        """Where readers are still to arrive, because others have been there.

        Rows of files that were listed together belong together, whoever reads them.
        """
        ...

    @property
    def share_ends(self) -> bool:
        """Whether there are such readers."""
        ...

    def bounded(self, positions: Sequence[str], ends: Mapping[int, str]) -> Mapping[int, str]:
        """As much of what waits as a unit may have."""
        ...

    def is_last(self, reader: int, position: str) -> bool:
        """Whether the query reads the reader no further."""
        ...


@dataclass(frozen=True, slots=True)
class UnitMark:
    """What a decision says of a unit that is not read to its end, for a restart."""

    counted: tuple[int, ...]
    """The highest event times that count, per watermark."""
    ends: Mapping[int, str]
    """Where readers end the unit; without those that have arrived."""


class Units:
    """The units of an attempt, one after the other."""

    def __init__(
        self,
        places: Places | None = None,
        *,
        highs: Sequence[int] = (),
        counted: Sequence[int] | None = None,
        ends: Mapping[int, str] | None = None,
        is_epoch: bool = False,
    ) -> None:
        """With `is_epoch` each epoch is a unit, because it was planned like a batch of Spark's."""
        self.counted = tuple(highs if counted is None else counted)
        """The highest event times that count, per watermark; -1 if none."""
        self._places, self._is_epoch = places, is_epoch
        self._ends = dict(ends or {})
        self._was_known = bool(self._ends)
        """Whether the unit had rows waiting when it began."""
        self._began = self._seen = tuple(highs)
        """The highest event times seen when the unit began, and by now."""
        self._are_waiting = False

    @property
    def is_held(self) -> bool:
        """Whether rows wait, so that tasks must not move a watermark by themselves."""
        # What others read of a batch or of a list of files, a task cannot know.
        if not self.counted:
            return False
        shared = self._is_epoch or (self._places is not None and self._places.share_ends)
        return bool(self._ends) or self._are_waiting or shared

    @property
    def mark(self) -> UnitMark | None:
        """What a restart must know; None if all that was seen counts."""
        if not self._ends and self.counted == self._seen:
            return None
        return UnitMark(self.counted, dict(self._ends))

    def take(
        self, positions: Sequence[str], waits: Sequence[ReaderWaits], highs: Sequence[int]
    ) -> None:
        """Take in an epoch: where readers ended it, which have rows waiting, what was seen."""
        self._seen = tuple(highs)
        if self._places is None:
            self.counted = self._seen
            return
        places = self._places
        waiting = {
            wait.reader: wait
            for wait in waits
            if not places.is_last(wait.reader, positions[wait.reader])
        }
        shared = places.shared_ends(positions)
        self._are_waiting = bool(waiting)
        self._ends = {
            reader: end
            for reader, end in self._ends.items()
            if (reader in waiting or not places.tells(reader))
            and (not end or places.is_behind(reader, positions[reader], end))
        }
        if self._ends and not self._is_epoch:
            return
        if self._was_known or self._is_epoch or not waiting:
            # Readers that share an end have read different parts of what is after the unit.
            self._count(self._began if shared else self._seen, list(waiting.values()))
        ends = {reader: wait.end for reader, wait in waiting.items()}
        self._ends = {} if self._is_epoch else {**places.bounded(positions, ends), **shared}
        self._was_known, self._began = bool(self._ends), self._seen

    def _count(self, highs: Sequence[int], waiting: Sequence[ReaderWaits]) -> None:
        counted = []
        for index, (high, before) in enumerate(zip(highs, self.counted, strict=True)):
            held = [reader.highs[index] for reader in waiting if reader.highs]
            counted.append(max(before, min([high, *held])))
        self.counted = tuple(counted)
