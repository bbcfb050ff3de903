"""Which messages a query has had, so that none of them is processed twice. Pure.

Used with `delivery=exactly-once`. A message counts as had once a copy of its partition is on disk:
from then on it will be processed, by this run or by the next. Before, its partition may still come
to nothing, so a repetition that comes meanwhile is neither processed nor acknowledged: it goes back
and comes again later.

What a reader would get wrong: a repetition of a message with a copy may be acknowledged with the
partition it came in, though another partition has the message: that one's copy outlives both.
"""

from __future__ import annotations

from epochal.connectors.pubsub.sidecar.grants import Slot


class Seen:
    """The message ids of one query within its window: about a hundred bytes each."""

    def __init__(self) -> None:
        self._where: dict[str, Slot] = {}
        self._ids: dict[Slot, list[str]] = {}
        self._copied: set[Slot] = set()

    def __len__(self) -> int:
        return len(self._where)

    def load(self, slot: Slot, ids: list[str]) -> None:
        """A copy was found on disk."""
        self._forget(slot)
        self._ids[slot] = ids
        self._where.update(dict.fromkeys(ids, slot))
        self._copied.add(slot)

    def admit(self, slot: Slot, ids: list[str]) -> tuple[list[int], list[int]]:
        """Which of the messages a partition is to have are repetitions, and which may be.

        Both are positions. What else there is belongs to this partition from now on; asking again
        starts it anew.
        """
        if slot in self._copied:
            return list(range(len(ids))), []
        self._forget(slot)
        mine: list[str] = []
        repeated: list[int] = []
        unsure: list[int] = []
        for position, each in enumerate(ids):
            found = self._where.get(each)
            if found is None:
                self._where[each] = slot
                mine.append(each)
            elif found == slot or found in self._copied:
                repeated.append(position)
            else:
                unsure.append(position)
        self._ids[slot] = mine
        return repeated, unsure

    def settled(self, slot: Slot, *, copied: bool) -> None:
        """A partition has its copy, or will never have rows."""
        if copied:
            self._copied.add(slot)
        elif slot not in self._copied:
            self._forget(slot)

    def commit(self, end: int) -> None:
        """Batches up to `end` are over: what has no copy by now never will."""
        for slot in [s for s in self._ids if s[0] <= end and s not in self._copied]:
            self._forget(slot)

    def expire(self, batch: int) -> None:
        """Forget a batch: its messages are acknowledged, and the window is over."""
        for slot in [s for s in self._ids if s[0] == batch]:
            self._copied.discard(slot)
            self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        for each in self._ids.pop(slot, ()):
            if self._where.get(each) == slot:
                del self._where[each]
