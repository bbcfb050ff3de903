"""Write-ahead copies of partitions, which make a batch of Pub/Sub messages replayable.

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
from epochal.connectors.pubsub.sidecar.grants import Slot
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
        """Yield the keys of the messages of every copy."""
        for batch in self.batches():
            for info in self._files.list(str(batch)):
                name = info.name.removesuffix(SUFFIX)
                if info.hidden or not name.isdigit():
                    continue
                slot = batch, int(name)
                rows = self.read(slot) or []
                yield slot, [key for part in rows for key in message_keys(part)]

    def batches(self) -> list[int]:
        """Return the batches that have copies, in order."""
        return sorted(int(info.name) for info in self._files.list() if info.name.isdigit())

    def drop(self, batch: int) -> None:
        """Delete the copies of a batch."""
        self._files.delete_tree(str(batch))


def open_copies(location: str, subscription: str) -> Copies:
    """Open the copies below a location, for a subscription given by its full name."""
    _, project, _, name = subscription.split("/")
    return Copies(open_files(location).at(f"pubsub/{project}.{name}"))


def _path(slot: Slot) -> str:
    return f"{slot[0]}/{slot[1]}{SUFFIX}"
