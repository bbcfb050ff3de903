"""Buffers the messages of one query in one sidecar: unread ones, and those waiting for a commit.

Rows given to a partition stay here until its batch is settled, because a retry must see the same
rows. A message is identified by its number, under which the pull client keeps its acknowledgement
id. Pub/Sub's flow control (`maxOutstandingMessages`, `maxOutstandingBytes`) limits the total. Up to
`reservoirBytes` of it stay in memory, and the rest is spilled to files. Rows that were given out
are spilled first, because they are rarely read again.

Note: ordering keys restrict where a row may go. The partitions of a batch run at the same time, so
a key that one of them has is kept from the others until the next batch. And when a row goes back to
Pub/Sub, the buffered rows of the same key after it go back too, because Pub/Sub redelivers them
after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.connectors.pubsub.sidecar.sidecar_messages import Slot

KEY, DATA = "ordering_key", "data"

MERGED_ROWS = 20_000
MERGED_BYTES = 16 << 20
"""`read` joins small batches of a partition up to these sizes."""

Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(slots=True)
class _Chunk:
    """Some rows, in memory or spilled. Their numbers and keys are always in memory."""

    numbers: Numbers
    keys: pa.StringArray | None
    """The ordering key of each row, "" if it has none; None if no row has one."""
    size: int
    rows: pa.RecordBatch | None
    stored: str | None = None
    """The file with the rows, if they are spilled."""

    @property
    def count(self) -> int:
        return len(self.numbers)


@dataclass(slots=True)
class _Entry:
    chunks: list[_Chunk] = field(default_factory=list)
    duplicates: list[Numbers] = field(default_factory=list)
    """Duplicates of messages in other partitions: settled with this one, but never read."""

    @property
    def count(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


class Reservoir:
    """Not thread-safe: its owner has a lock."""

    def __init__(self, *, memory_bytes: int, store: SpillFiles) -> None:
        self._memory_limit = memory_bytes
        self._store = store
        self._queue: list[_Chunk] = []
        self._entries: dict[Slot, _Entry] = {}
        # Per batch: which partition has which ordering key.
        self._taken: dict[int, dict[str, int]] = {}
        self.buffered_rows = 0
        self.buffered_bytes = 0
        self.held_rows = 0
        self.memory_bytes = 0

    def add(self, rows: pa.RecordBatch, first: int) -> None:
        """Add messages that were pulled, numbered from `first`."""
        if not rows.num_rows:
            return
        chunk = _chunk(rows, np.arange(first, first + rows.num_rows))
        self._queue.append(chunk)
        self._buffer(chunk, 1)
        self.memory_bytes += chunk.size
        self._spill()

    def fill(self, slot: Slot, *, rows: int, size: int) -> None:
        """Move at most `rows` rows of about `size` bytes from the buffer to a partition.

        The first row is given even if it is larger than `size`. Call this once per partition.
        """
        assert slot not in self._entries
        batch, partition = slot
        for old in [number for number in self._taken if number < batch]:
            del self._taken[old]
        taken = self._taken.setdefault(batch, {})
        elsewhere = pa.array([k for k, p in taken.items() if p != partition], pa.string())
        entry = self._entries[slot] = _Entry()
        chunks: list[_Chunk] = []
        position = 0
        full = False
        while position < len(self._queue) and not full:
            chunk = self._queue[position]
            position += 1
            self._buffer(chunk, -1)
            first = not entry.chunks
            wanted, rest, full = self._select(chunk, elsewhere, rows, size, first=first)
            if rest is not None:
                chunks.append(rest)
                self._buffer(rest, 1)
            if wanted is not None:
                entry.chunks.append(wanted)
                rows -= wanted.count
                size -= wanted.size
                if wanted.keys is not None:
                    keys = pc.unique(wanted.keys).to_pylist()
                    taken.update((key, partition) for key in keys if key)
        self._queue[:position] = chunks
        self.held_rows += entry.count
        self._spill()

    def has(self, slot: Slot) -> bool:
        return slot in self._entries

    def read(self, slot: Slot) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, the same every time, joined into batches."""
        group: list[pa.RecordBatch] = []
        count = size = 0
        for chunk in self._entries[slot].chunks:
            group.append(self._rows(chunk))
            count, size = count + chunk.count, size + chunk.size
            if count >= MERGED_ROWS or size >= MERGED_BYTES:
                yield _merge_batches(group)
                group, count, size = [], 0, 0
        if group:
            yield _merge_batches(group)

    def thin(self, slot: Slot, repeated: Numbers, unsure: Numbers) -> None:
        """Remove duplicates from a partition; both arguments are positions among its rows.

        `repeated` are settled with the partition. `unsure` are no longer known here: the caller
        must give them back to Pub/Sub.
        """
        entry = self._entries[slot]
        out = np.zeros(entry.count, dtype=bool)
        out[repeated] = out[unsure] = True
        settled = np.zeros(entry.count, dtype=bool)
        settled[repeated] = True
        self.held_rows -= entry.count
        chunks, start = [], 0
        for chunk in entry.chunks:
            part = slice(start, start + chunk.count)
            start += chunk.count
            entry.duplicates.append(chunk.numbers[settled[part]])
            if not out[part].any():
                chunks.append(chunk)
                continue
            rows, stays = self._rows(chunk), ~out[part]
            self._forget(chunk)
            if stays.any():
                chunks.append(_chunk(rows.filter(pa.array(stays)), chunk.numbers[stays]))
                self.memory_bytes += chunks[-1].size
        entry.chunks = chunks
        self.held_rows += entry.count

    def numbers(self, slot: Slot) -> Numbers:
        """Return the numbers of a partition's rows, in their order."""
        return _join_numbers([chunk.numbers for chunk in self._entries[slot].chunks])

    def slots(self, until: int) -> list[Slot]:
        """Return the partitions held of batches up to `until`."""
        return [slot for slot in self._entries if slot[0] <= until]

    def settle(self, slot: Slot) -> Numbers:
        """Forget a partition that is committed; return the numbers to acknowledge."""
        entry = self._entries.pop(slot)
        self.held_rows -= entry.count
        for chunk in entry.chunks:
            self._forget(chunk)
        return _join_numbers([*(chunk.numbers for chunk in entry.chunks), *entry.duplicates])

    def give_back(self, slot: Slot) -> Numbers:
        """Forget a partition that was not used; return the numbers to give back to Pub/Sub."""
        entry = self._entries[slot]
        keys: set[str] = set()
        for chunk in entry.chunks:
            if chunk.keys is not None:
                keys.update(key for key in pc.unique(chunk.keys).to_pylist() if key)
        numbers = self.settle(slot)
        return _join_numbers([numbers, *self._drop_keys(keys)]) if keys else numbers

    def drain(self) -> Numbers:
        """Forget everything; return all numbers, to be given back."""
        numbers = [self.settle(slot) for slot in list(self._entries)]
        for chunk in self._queue:
            numbers.append(chunk.numbers)
            self._forget(chunk)
            self._buffer(chunk, -1)
        self._queue.clear()
        return _join_numbers(numbers)

    def _select(
        self, chunk: _Chunk, elsewhere: pa.StringArray, rows: int, size: int, *, first: bool
    ) -> tuple[_Chunk | None, _Chunk | None, bool]:
        """Split a chunk into what a partition gets and what stays; also whether it is full now.

        The partition is full as soon as one row does not fit. A smaller row behind it might fit,
        but could have the same key and would then overtake it.
        """
        barred = None
        if chunk.keys is not None and len(elsewhere):
            barred = pc.is_in(chunk.keys, value_set=elsewhere)
            if not pc.any(barred).as_py():
                barred = None
        if barred is None and chunk.count <= rows and chunk.size <= size:
            return chunk, None, False
        batch = self._rows(chunk)
        self._forget(chunk)
        free = np.arange(chunk.count)
        if barred is not None:
            free = free[~barred.to_numpy(zero_copy_only=False)]
        chosen = free[: _how_many(batch, free, rows, size, first=first)]
        stays = np.ones(chunk.count, dtype=bool)
        stays[chosen] = False
        if barred is None:
            parts = batch.slice(0, len(chosen)), batch.slice(len(chosen))
        else:
            parts = batch.take(chosen), batch.filter(pa.array(stays))
        wanted = _chunk(parts[0], chunk.numbers[chosen]) if len(chosen) else None
        rest = _chunk(parts[1], chunk.numbers[stays]) if stays.any() else None
        for half in (wanted, rest):
            self.memory_bytes += 0 if half is None else half.size
        return wanted, rest, len(chosen) < len(free)

    def _drop_keys(self, keys: set[str]) -> list[Numbers]:
        dropped: list[Numbers] = []
        values = pa.array(sorted(keys), pa.string())
        chunks = []
        for chunk in self._queue:
            mask = None if chunk.keys is None else pc.is_in(chunk.keys, value_set=values)
            if mask is None or not pc.any(mask).as_py():
                chunks.append(chunk)
                continue
            self._buffer(chunk, -1)
            out = mask.to_numpy(zero_copy_only=False)
            dropped.append(chunk.numbers[out])
            rows = self._rows(chunk)
            self._forget(chunk)
            if not out.all():
                chunks.append(_chunk(rows.filter(pa.array(~out)), chunk.numbers[~out]))
                self._buffer(chunks[-1], 1)
                self.memory_bytes += chunks[-1].size
        self._queue = chunks
        return dropped

    def _buffer(self, chunk: _Chunk, sign: int) -> None:
        self.buffered_rows += sign * chunk.count
        self.buffered_bytes += sign * chunk.size

    def _rows(self, chunk: _Chunk) -> pa.RecordBatch:
        if chunk.rows is not None:
            return chunk.rows
        assert chunk.stored is not None
        return self._store.read(chunk.stored)

    def _forget(self, chunk: _Chunk) -> None:
        if chunk.stored is not None:
            self._store.drop(chunk.stored)
            chunk.stored = None
        else:
            self.memory_bytes -= chunk.size

    def _spill(self) -> None:
        if self.memory_bytes <= self._memory_limit:
            return
        for chunk in self._in_order_of_use():
            if chunk.rows is None:
                continue
            chunk.stored = self._store.write(chunk.rows)
            chunk.rows = None
            self.memory_bytes -= chunk.size
            if self.memory_bytes <= self._memory_limit:
                return

    def _in_order_of_use(self) -> Iterator[_Chunk]:
        """Yield all chunks; those that will be needed next come last."""
        for slot in sorted(self._entries):
            yield from self._entries[slot].chunks
        yield from reversed(self._queue)


def spans_of(numbers: Numbers) -> list[tuple[int, int]]:
    if not len(numbers):
        return []
    numbers = np.sort(numbers)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts = numbers[np.concatenate(([0], breaks))]
    stops = numbers[np.concatenate((breaks - 1, [len(numbers) - 1]))] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _chunk(rows: pa.RecordBatch, numbers: Numbers) -> _Chunk:
    keys = rows.column(KEY)
    if keys.null_count == len(keys):
        return _Chunk(numbers, None, rows.nbytes, rows)
    keys = keys.fill_null("")
    assert isinstance(keys, pa.StringArray)
    return _Chunk(numbers, keys, rows.nbytes, rows)


def _join_numbers(parts: list[Numbers]) -> Numbers:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _merge_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return (
        batches[0]
        if len(batches) == 1
        else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    )


def _how_many(batch: pa.RecordBatch, free: Numbers, rows: int, size: int, *, first: bool) -> int:
    """Return how many of the free rows fit; at least one if the partition is still empty."""
    overhead = (batch.nbytes - batch.column(DATA).nbytes) / batch.num_rows
    data: Any = batch.column(DATA)
    lengths = pc.binary_length(data).fill_null(0).to_numpy(zero_copy_only=False)
    sizes = np.cumsum(lengths[free] + overhead)
    fit = int(np.searchsorted(sizes, size, side="right"))
    return min(rows, max(fit, 1 if first and len(free) else 0))


class SpillFiles:
    """Stores rows that do not fit into memory as Arrow files, in a private directory.

    Only the process that wrote the files reads them. If it is killed, the next sidecar deletes the
    directory (see `sidecar`). So files are neither synced nor written atomically.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    def write(self, rows: pa.RecordBatch) -> str:
        """Write rows to a file; return its path."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = str(self._directory / f"{next(self._numbers)}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_batch(rows)
        return path

    def read(self, stored: str) -> pa.RecordBatch:
        """Memory-map the rows of a file, so that they take no memory of the process."""
        return pa.ipc.open_file(pa.memory_map(stored)).get_batch(0)

    def drop(self, stored: str) -> None:
        """Delete a file. Rows that were read from it stay valid, because they are mapped."""
        Path(stored).unlink(missing_ok=True)
