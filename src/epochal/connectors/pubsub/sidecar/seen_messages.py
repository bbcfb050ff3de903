"""Remembers which messages a query has seen, so that none is processed twice. Pure.

Used with `delivery=exactly-once`. A message counts as seen once a copy of its partition is on disk:
from then on this run or the next will process it. Before that, the partition may still be dropped.
A duplicate that arrives in the meantime is therefore neither processed nor acknowledged. It goes
back to Pub/Sub and is redelivered later.

Note: a duplicate of a message that has a copy may be acknowledged with the partition in which the
duplicate arrived, although the message belongs to another partition. This is safe, because the copy
is on disk and is kept until both partitions are settled.
"""

from __future__ import annotations

from epochal.connectors.pubsub.sidecar.grants import Slot


class Seen:
    """The keys of messages that one query has seen within `dedupWindow`, about 120 bytes each."""

    def __init__(self) -> None:
        self._where: dict[str, Slot] = {}
        self._keys: dict[Slot, list[str]] = {}
        self._copied: set[Slot] = set()

    def __len__(self) -> int:
        return len(self._where)

    def load(self, slot: Slot, keys: list[str]) -> None:
        """Add the keys of a copy that was found on disk."""
        self._forget(slot)
        self._keys[slot] = keys
        self._where.update(dict.fromkeys(keys, slot))
        self._copied.add(slot)

    def admit(self, slot: Slot, keys: list[str]) -> tuple[list[int], list[int]]:
        """Decide which messages of a partition are duplicates, and which may be.

        Returns two lists of positions in `keys`. All other messages belong to this partition from
        now on. A second call for the same partition replaces the first.
        """
        if slot in self._copied:
            return list(range(len(keys))), []
        self._forget(slot)
        mine: list[str] = []
        repeated: list[int] = []
        unsure: list[int] = []
        for position, key in enumerate(keys):
            slot_before = self._where.get(key)
            if slot_before is None:
                self._where[key] = slot
                mine.append(key)
            elif slot_before == slot or slot_before in self._copied:
                repeated.append(position)
            else:
                unsure.append(position)
        self._keys[slot] = mine
        return repeated, unsure

    def settled(self, slot: Slot, *, copied: bool) -> None:
        """A partition now has its copy, or will never have one."""
        if copied:
            self._copied.add(slot)
        elif slot not in self._copied:
            self._forget(slot)

    def commit(self, end: int) -> None:
        """Batches up to `end` are committed: forget partitions that have no copy by now."""
        for slot in [s for s in self._keys if s[0] <= end and s not in self._copied]:
            self._forget(slot)

    def expire(self, batch: int) -> None:
        """Forget a batch: its messages are acknowledged and its window has passed."""
        for slot in [s for s in self._keys if s[0] == batch]:
            self._copied.discard(slot)
            self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        for key in self._keys.pop(slot, ()):
            if self._where.get(key) == slot:
                del self._where[key]
