"""Write-ahead copies of partitions, and which messages a query has seen: for exactly-once delivery.

Copies make a batch of messages replayable.

    LOCATION/pubsub/PROJECT.SUBSCRIPTION/BATCH/PARTITION.arrow

A copy is written before any row of its partition is read. Creating the file decides what the
partition contains: if it exists already, its content counts. So a retry on another executor, or a
sidecar of an old run that is still alive, cannot change a partition. A partition that was never
filled is decided the same way, by an empty copy.

Note: a copy does not mean that its messages are acknowledged. It is kept for `dedupWindow` after
its batch was committed, because its messages may be redelivered until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from epochal.connectors.arrow_stream import encode_stream
from epochal.connectors.pubsub.pull.received_rows import message_keys
from epochal.connectors.pubsub.sidecar.sidecar_messages import Slot
from epochal.files import Files, open_files

SUFFIX = ".arrow"


class Copies:
    """The copies of one source of one query."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @property
    def url(self) -> str:
        return self._files.url

    def decide(
        self, slot: Slot, schema: pa.Schema, batches: Sequence[pa.RecordBatch]
    ) -> list[pa.RecordBatch] | None:
        """Make these rows the content of a partition.

        Returns None if that worked, or the existing rows if the partition was decided before.
        """
        # `create` fails if the file exists, so of several deciders one wins, and all others read
        # what it wrote. No decider needs to know of another.
        try:
            data = encode_stream(schema, batches, compression="zstd")
            self._files.create(_path(slot), data.to_pybytes())
        except FileExistsError:
            return self.read(slot)
        return None

    def read(self, slot: Slot) -> list[pa.RecordBatch] | None:
        """Return the rows of a partition; None if it is not decided yet."""
        try:
            data = self._files.read(_path(slot))
        except FileNotFoundError:
            return None
        return list(pa.ipc.open_stream(pa.BufferReader(data)))

    def read_or_seal(self, slot: Slot, schema: pa.Schema) -> list[pa.RecordBatch]:
        """Return the rows of a partition; if it is not decided yet, make it empty for good."""
        rows = self.read(slot)
        if rows is None:
            rows = self.decide(slot, schema, ())
        return rows or []

    def message_keys(self) -> Iterator[tuple[Slot, list[str]]]:
        for batch in self.batches():
            for info in self._files.list(str(batch)):
                name = info.name.removesuffix(SUFFIX)
                if info.hidden or not name.isdigit():
                    continue
                slot = batch, int(name)
                rows = self.read(slot) or []
                yield slot, [key for part in rows for key in message_keys(part)]

    def batches(self) -> list[int]:
        return sorted(int(info.name) for info in self._files.list() if info.name.isdigit())

    def drop(self, batch: int) -> None:
        self._files.delete_tree(str(batch))


def open_copies(location: str, subscription: str) -> Copies:
    """Open the copies below a location, for a subscription given by its full name."""
    _, project, _, name = subscription.split("/")
    return Copies(open_files(location).at(f"pubsub/{project}.{name}"))


def _path(slot: Slot) -> str:
    return f"{slot[0]}/{slot[1]}{SUFFIX}"


class Seen:
    """The keys of messages that a query has seen within `dedupWindow`, about 120 bytes each. Pure.

    A message counts as seen once a copy of its partition is on disk: from then on this run or the
    next will process it. Before that, the partition may still be dropped. A duplicate that arrives
    in the meantime is therefore neither processed nor acknowledged. It goes back to Pub/Sub and is
    redelivered later.

    Note: a duplicate of a message that has a copy may be acknowledged with the partition in which
    the duplicate arrived, although the message belongs to another partition. This is safe, because
    the copy is on disk and is kept until both partitions are settled.
    """

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
