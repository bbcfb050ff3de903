"""Handles many byte strings over one buffer, without a Python object for each. Pure.

A span is a start and a length. The rows, keys and values of a whole file are spans over the file's
bytes, so selecting and merging them copies no data. Only `packed` and `join` copy, in C.

Spans of equal length are elements of one numpy type, at any byte of the buffer. numpy copies them,
or turns them into Python's byte strings, without an object for each position. Rows consist of whole
8-byte words, so even a state whose keys vary has few lengths. If there are many lengths, Arrow's
`take` copies the spans; importing Arrow's functions takes longer than reading a hundred thousand
keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
AnyBinaryArray: TypeAlias = pa.BinaryArray | pa.LargeBinaryArray

_FEW_LENGTHS = 16
_SHORT_BYTES = 1 << 12
_LISTED_AT_ONCE = 1 << 13
"""Spans per step: few enough for their positions to stay in the processor's cache."""
_MAX_NARROW = (1 << 31) - 1
"""The largest offset of an Arrow array with 32-bit offsets."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """`buffer[starts[i] : starts[i] + lengths[i]]` for each i, in any order, possibly repeated."""

    buffer: Bytes
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        start = int(self.starts[index])
        return self.buffer[start : start + int(self.lengths[index])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        data = memoryview(cast(Any, self.buffer))
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield bytes(data[start : start + length])

    @property
    def ends(self) -> Ints:
        return self.starts + self.lengths

    def take(self, which: Ints | Flags) -> Spans:
        """The spans at the given indices, or where the mask is set, over the same buffer."""
        return Spans(self.buffer, self.starts[which], self.lengths[which])

    def packed(self) -> Spans:
        """The same byte strings, copied next to each other into a buffer of their own."""
        return as_spans(self.to_arrow())

    def to_arrow(self) -> AnyBinaryArray:
        """Copy into an Arrow array of byte strings."""
        few = _few_lengths(self.lengths)
        if few is None or int(self.lengths.sum()) > _MAX_NARROW:
            return _pick(self.buffer, [self], [0])
        offsets = np.zeros(len(self) + 1, np.int32)
        np.cumsum(self.lengths, out=offsets[1:])
        if len(few) == 1 and self.lengths.all():
            data = _elements(self.buffer, few[0])[self.starts].view(np.uint8)
        else:
            data = np.empty(int(offsets[-1]), np.uint8)
            for length in few:
                here = np.flatnonzero(self.lengths == length)
                elements = _elements(self.buffer, length)[self.starts[here]]
                _elements(data, length)[offsets[here]] = elements
        array = pa.Array.from_buffers(
            pa.binary(), len(self), [None, arrow_buffer(offsets), arrow_buffer(data)]
        )
        return cast(pa.BinaryArray, array)

    def slice(self, start: int, end: int) -> Spans:
        return Spans(self.buffer, self.starts[start:end], self.lengths[start:end])

    def to_list(self) -> list[bytes]:
        strings: list[bytes] = []
        for start in range(0, len(self), _LISTED_AT_ONCE):
            strings += self.slice(start, start + _LISTED_AT_ONCE)._listed()
        return strings

    def _listed(self) -> list[bytes]:
        few = _few_lengths(self.lengths)
        if few is None:
            return list(self)
        if len(few) == 1 and self.lengths.all():
            return cast(list[bytes], _elements(self.buffer, few[0])[self.starts].tolist())
        strings = np.full(len(self), b"", np.object_)
        for length in few:
            here = np.flatnonzero(self.lengths == length)
            strings[here] = _elements(self.buffer, length)[self.starts[here]].astype(np.object_)
        return cast(list[bytes], strings.tolist())


def _few_lengths(lengths: Ints) -> list[int] | None:
    """The lengths above 0 that occur; None if there are too many, or if they are too long."""
    if len(lengths) == 0 or (lengths == lengths[0]).all():
        return [length for length in lengths[:1].tolist() if length]
    if int(lengths.max()) > _SHORT_BYTES:
        return None
    occurring = np.flatnonzero(np.bincount(lengths)[1:]) + 1
    return occurring.tolist() if len(occurring) <= _FEW_LENGTHS else None


def _elements(buffer: Bytes, length: int) -> npt.NDArray[np.void]:
    """A view with one element for each byte of the buffer: the `length` bytes that start there."""
    return np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer, strides=(1,))


def arrow_buffer(array: npt.NDArray[Any]) -> pa.Buffer:
    """The array's memory as an Arrow buffer, without copying it."""
    return pa.py_buffer(cast(Any, array))


def numpy_view(buffer: pa.Buffer, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An Arrow buffer's memory as a read-only array, without copying it."""
    count = buffer.size // dtype.itemsize
    return np.frombuffer(cast(Any, buffer), dtype, count)


def as_spans(array: pa.Array[Any]) -> Spans:
    """The byte strings of an Arrow binary or string array, without copying them."""
    wide = array.type in (pa.large_binary(), pa.large_string())
    _, offsets, data = array.buffers()
    window = slice(array.offset, array.offset + len(array) + 1)
    if offsets is None or len(array) == 0:
        empty = np.empty(0, np.int64)
        return Spans(np.empty(0, np.uint8), empty, empty)
    positions = numpy_view(offsets, np.dtype(np.int64 if wide else np.int32))[window]
    positions = positions.astype(np.int64, copy=False)
    buffer = np.empty(0, np.uint8) if data is None else numpy_view(data, np.dtype(np.uint8))
    first, last = int(positions[0]), int(positions[-1])
    return Spans(buffer[first:last], positions[:-1] - first, np.diff(positions))


def spans_of(items: Sequence[bytes]) -> Spans:
    """Spans over a copy of the given byte strings."""
    lengths = np.fromiter(map(len, items), np.int64, len(items))
    ends = np.cumsum(lengths)
    return Spans(np.frombuffer(b"".join(items), np.uint8), ends - lengths, lengths)


def join(columns: Sequence[Spans], *, slack: int = 0) -> Bytes:
    """Concatenate row by row: every column's first span, then every column's second, and so on.

    With `slack`, a span may reach that many bytes beyond its buffer. What it copies from there is
    undefined.
    """
    buffers: list[Bytes] = []
    bases: dict[int, int] = {}
    size = 0
    for column in columns:
        if id(column.buffer) not in bases:
            bases[id(column.buffer)] = size
            buffers.append(column.buffer)
            size += len(column.buffer)
    if slack:
        buffers.append(np.zeros(slack, np.uint8))
    buffer = buffers[0] if len(buffers) == 1 else np.concatenate(buffers)
    picked = _pick(buffer, columns, [bases[id(column.buffer)] for column in columns])
    total = sum(int(column.lengths.sum()) for column in columns)
    data = picked.buffers()[2]
    return np.empty(0, np.uint8) if data is None else numpy_view(data, np.dtype(np.uint8))[:total]


def _pick(buffer: Bytes, columns: Sequence[Spans], bases: Sequence[int]) -> AnyBinaryArray:
    """Copy the spans of all columns, row by row. `bases` are added to the starts of each column.

    This builds an Arrow array in which spans and the gaps between them alternate, and takes only
    the spans. If spans are out of order, a gap has a negative length; that is harmless, because
    gaps are never read. Arrow uses the last offset only to reserve memory.
    """
    width = len(columns)
    count = len(columns[0]) * width
    total = sum(int(column.lengths.sum()) for column in columns)
    narrow = max(total, len(buffer), 2 * count) <= _MAX_NARROW
    offsets = np.empty(2 * count + 2, np.int32 if narrow else np.int64)
    offsets[0] = 0
    for position, (column, base) in enumerate(zip(columns, bases, strict=True)):
        first = 1 + 2 * position
        starts = column.starts + base if base else column.starts
        offsets[first : -1 : 2 * width] = starts
        offsets[first + 1 :: 2 * width] = starts + column.lengths
    offsets[-1] = min(2 * total, len(buffer))
    everything = pa.Array.from_buffers(
        pa.binary() if narrow else pa.large_binary(),
        2 * count + 1,
        [None, arrow_buffer(offsets), arrow_buffer(buffer)],
    )
    # Indices from a buffer: for a numpy array Arrow would import pandas, which is slow.
    odd = arrow_buffer(np.arange(1, 2 * count, 2, dtype=offsets.dtype))
    indices = pa.Array.from_buffers(pa.int32() if narrow else pa.int64(), count, [None, odd])
    return cast(AnyBinaryArray, everything.take(cast(Any, indices)))
