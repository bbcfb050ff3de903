"""Encodes Arrow columns as UnsafeRows, all rows at once. Pure.

The bytes are the same as those of `unsafe_row.py`, so keys from both are equal. Each column becomes
either the words of its slots, or payloads that the slots point to. One gathering copy then puts the
fixed part of each row and its payloads together. Nested values are encoded first and become
payloads of the level above, so every level works the same way.

Note: payloads are copied in whole words straight out of Arrow's buffers, so the last word of a
string also contains bytes of the next string. `_assemble` clears these bytes afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.errors import StateValueError
from epochal.state.rows.arrow_types import NUMBERS, arrow_type
from epochal.state.rows.byte_spans import Bytes, Flags, Ints, Spans, as_spans, join, numpy_view
from epochal.state.rows.types import (
    FIXED_KINDS,
    RESERVED_WHEN_NULL,
    Kind,
    Layout,
    StructType,
    bitset_bytes,
    slot_width,
)

Array: TypeAlias = "pa.Array[Any]"
Words: TypeAlias = npt.NDArray[np.uint64]

_WORDS = {kind: np.dtype(f"<u{number.itemsize}") for kind, number in NUMBERS.items()}


def encode_rows(columns: pa.StructArray | pa.RecordBatch, schema: StructType) -> Spans:
    """Encode one row for each entry, one after the other in one new buffer.

    Columns are matched with the schema by position and converted to its types. StateValueError if
    Arrow cannot convert a column without loss.
    """
    if isinstance(columns, pa.RecordBatch):
        arrays = list(columns.columns)
    else:
        if columns.null_count:
            raise StateValueError("row", "struct", f"{columns.null_count} rows are null")
        arrays = [columns.field(i) for i in range(columns.type.num_fields)]
    if len(arrays) != len(schema.fields):
        raise StateValueError(
            "row", "struct", f"{len(schema.fields)} columns are needed, not {len(arrays)}"
        )
    converted = [
        _converted(array, arrow_type(field.data_type), f"row.{field.name}")
        for array, field in zip(arrays, schema.fields, strict=True)
    ]
    return _structs(schema.layout, converted, len(columns))


def _converted(array: Array, arrow: Any, path: str) -> Array:
    try:
        return array if array.type.equals(arrow) else array.cast(arrow)
    except pa.ArrowException as error:
        reason = f"Arrow's {array.type} cannot be converted ({error})"
        raise StateValueError(path, str(arrow), reason) from None


@dataclass(frozen=True, slots=True, eq=False)
class _Payloads:
    """What slots point to: `sizes` bytes at each start. Each takes `room` bytes, in whole words."""

    buffer: Bytes
    starts: Ints
    sizes: Ints
    room: Ints


def _structs(layout: Layout, columns: list[Array], count: int) -> Spans:
    fields = len(layout.children)
    bitset = bitset_bytes(fields)
    fixed = bitset + 8 * fields
    parts = np.zeros((count, fixed // 8), np.uint64)
    sizes = np.full(count, fixed, np.int64)
    payloads: list[_Payloads] = []
    places: list[Ints] = []
    for index, (child, column) in enumerate(zip(layout.children, columns, strict=True)):
        nulls = null_flags(column)
        if nulls is not None:
            bit = np.uint64(1 << index % 64)
            parts[:, index // 64] |= np.where(nulls, bit, np.uint64(0))
        slot = bitset // 8 + index
        if child.kind in FIXED_KINDS:
            parts[:, slot] = fixed_words(child, column, nulls)
            continue
        payload = _payloads(child, column, nulls, in_struct=True)
        offsets = sizes.astype(np.uint64) << np.uint64(32)
        words = offsets | payload.sizes.astype(np.uint64)
        if nulls is not None and child.kind not in RESERVED_WHEN_NULL:
            words[nulls] = 0
        parts[:, slot] = words
        payloads.append(payload)
        places.append(sizes)
        sizes = sizes + payload.room
    starts = np.arange(count, dtype=np.int64) * fixed
    base = Spans(parts.reshape(-1).view(np.uint8), starts, np.full(count, fixed))
    return _assemble(base, payloads, places, sizes) if payloads else base


def _assemble(base: Spans, payloads: list[_Payloads], places: list[Ints], sizes: Ints) -> Spans:
    """Put each fixed part and its payloads together, and clear the padding."""
    columns = [Spans(payload.buffer, payload.starts, payload.room) for payload in payloads]
    data = np.array(join([base, *columns], slack=8))
    starts = np.cumsum(sizes) - sizes
    words = data.view("<u8")
    for payload, place in zip(payloads, places, strict=True):
        used = payload.sizes & 7
        partial = np.flatnonzero(used)
        last = starts[partial] + place[partial] + ((payload.sizes[partial] - 1) & ~7)
        keep = (np.uint64(1) << (used[partial] * 8).astype(np.uint64)) - np.uint64(1)
        words[last >> 3] &= keep
    return Spans(data, starts, sizes)


def _payloads(layout: Layout, column: Array, nulls: Flags | None, *, in_struct: bool) -> _Payloads:
    match layout.kind:
        case Kind.STRING | Kind.BINARY:
            spans = as_spans(column)
        case Kind.BIG_DECIMAL:
            spans = minimal_decimals(column, nulls)
        case Kind.INTERVAL | Kind.NANOS:
            spans = _pairs(layout.kind, column)
        case Kind.VARIANT:
            spans = _variants(column)
        case _:
            spans = _nested(layout, column, nulls)
    starts, sizes = spans.starts, spans.lengths
    reserves = in_struct and layout.kind in RESERVED_WHEN_NULL
    if nulls is not None:
        null_size = 16 if reserves and layout.kind is not Kind.BIG_DECIMAL else 0
        sizes = np.where(nulls, null_size, sizes)
    room = np.full(len(sizes), 16, np.int64) if reserves else (sizes + 7) & ~7
    return _Payloads(spans.buffer, starts, sizes, room)


def _nested(layout: Layout, column: Array, nulls: Flags | None) -> Spans:
    if nulls is None:
        return _present(layout, column)
    present = np.flatnonzero(~nulls)
    encoded = _present(layout, column.take(present))
    starts, sizes = np.zeros(len(nulls), np.int64), np.zeros(len(nulls), np.int64)
    starts[present], sizes[present] = encoded.starts, encoded.lengths
    return Spans(encoded.buffer, starts, sizes)


def _present(layout: Layout, column: Array) -> Spans:
    """Encode structs, arrays or maps, none of which is null."""
    if layout.kind is Kind.STRUCT:
        structs = cast(pa.StructArray, column)
        children = [structs.field(i) for i in range(len(layout.children))]
        return _structs(layout, children, len(column))
    offsets = _values(column, np.dtype(np.int32), len(column) + 1).astype(np.int64)
    counts = np.diff(offsets)
    start, length = (int(offsets[0]), int(offsets[-1] - offsets[0])) if len(column) else (0, 0)
    if layout.kind is Kind.ARRAY:
        elements = cast("pa.ListArray[Any]", column).values.slice(start, length)
        return _arrays(layout.children[0], elements, counts)
    key, value = layout.children
    pairs = cast("pa.MapArray[Any, Any]", column)
    keys = _arrays(key, pairs.keys.slice(start, length), counts)
    values = _arrays(value, pairs.items.slice(start, length), counts)
    heads = keys.lengths.astype("<i8").view(np.uint8)
    places = np.arange(len(column), dtype=np.int64) * 8
    sizes = 8 + keys.lengths + values.lengths
    data = join((Spans(heads, places, np.full(len(column), 8)), keys, values))
    return Spans(data, np.cumsum(sizes) - sizes, sizes)


def _arrays(layout: Layout, elements: Array, counts: Ints) -> Spans:
    """Encode arrays; the first has the first `counts[0]` elements, and so on."""
    width = slot_width(layout.kind)
    bitsets = (counts + 63) // 64 * 8
    sizes = (8 + bitsets + counts * width + 7) & ~7
    starts = np.cumsum(sizes) - sizes
    data = np.zeros(int(sizes.sum()), np.uint8)
    data.view("<i8")[starts >> 3] = counts
    parents = np.repeat(np.arange(len(counts)), counts)
    firsts = np.cumsum(counts) - counts
    nth = np.arange(len(parents)) - firsts[parents]
    nulls = null_flags(elements)
    if nulls is not None:
        places, bits = starts[parents] + 8 + (nth >> 3), (1 << (nth & 7)).astype(np.uint8)
        np.bitwise_or.at(data, places[nulls], bits[nulls])
    slots = (starts + 8 + bitsets)[parents] + nth * width
    view = data.view(f"<u{width}")
    if layout.kind in FIXED_KINDS:
        view[slots // width] = fixed_words(layout, elements, nulls).astype(f"<u{width}")
        return Spans(data, starts, sizes)
    payload = _payloads(layout, elements, nulls, in_struct=False)
    before = np.append(0, np.cumsum(payload.room))
    offsets = before[:-1] - before[firsts[parents]] + sizes[parents]
    words = offsets.astype(np.uint64) << np.uint64(32) | payload.sizes.astype(np.uint64)
    view[slots // 8] = words if nulls is None else np.where(nulls, np.uint64(0), words)
    empty = Spans(np.empty(0, np.uint8), np.zeros(len(parents), np.int64), np.zeros_like(parents))
    areas = _assemble(empty, [payload], [np.zeros_like(parents)], payload.room)
    area_sizes = before[firsts + counts] - before[firsts]
    tails = Spans(areas.buffer, before[firsts], area_sizes)
    return Spans(
        join((Spans(data, starts, sizes), tails)),
        np.cumsum(sizes + area_sizes) - sizes - area_sizes,
        sizes + area_sizes,
    )


def fixed_words(layout: Layout, column: Array, nulls: Flags | None) -> Words:
    """The slot words of a fixed kind: zero-extended values, and zero for a null."""
    match layout.kind:
        case Kind.VOID:
            return np.zeros(len(column), np.uint64)
        case Kind.BOOLEAN:
            flags = column.fill_null(False).to_numpy(zero_copy_only=False)
            words = flags.astype(np.uint64)
        case Kind.SMALL_DECIMAL:
            wide = _values(column, np.dtype("V16"), len(column))
            words = np.ascontiguousarray(wide).view("<u8")[::2].copy()
        case _:
            words = _values(column, _WORDS[layout.kind], len(column)).astype(np.uint64)
    if nulls is not None:
        words[nulls] = 0
    return words


def minimal_decimals(column: Array, nulls: Flags | None) -> Spans:
    """Decimals in the fewest big-endian bytes, each at the start of 16 bytes padded with zeros."""
    wide = np.ascontiguousarray(_values(column, np.dtype("V16"), len(column)))
    big = wide.view(np.uint8).reshape(-1, 16)[:, ::-1]
    negative = big[:, 0] >> 7
    informative = big != (negative * 0xFF)[:, None]
    first = np.where(informative.any(axis=1), informative.argmax(axis=1), 15)
    rows = np.arange(len(big))
    # Keep one more byte if the first informative one would flip the sign.
    first = first - ((big[rows, first] >> 7) != negative)
    sources = first[:, None] + np.arange(16)
    shifted = np.where(sources < 16, big[rows[:, None], np.minimum(sources, 15)], 0)
    if nulls is not None:
        shifted[nulls] = 0
    data = shifted.astype(np.uint8).reshape(-1)
    return Spans(data, rows * 16, (16 - first).astype(np.int64))


def _pairs(kind: Kind, column: Array) -> Spans:
    """Encode calendar intervals or timestamps with nanoseconds, two words each."""
    structs = cast(pa.StructArray, column)
    count = len(column)
    nulls = null_flags(column)
    data = np.zeros((count, 4), "<u4")
    parts = _parts(kind, structs, nulls)
    if kind is Kind.INTERVAL:
        data[:, 0] = _values(parts[0], np.dtype("<u4"), count)
        data[:, 1] = _values(parts[1], np.dtype("<u4"), count)
        data[:, 2:] = _values(parts[2], np.dtype("<u8"), count).copy().view("<u4").reshape(-1, 2)
    else:
        nanos = _values(parts[1], np.dtype("<i2"), count)
        wrong = (nanos < 0) | (nanos > 999)
        if (wrong if nulls is None else wrong & ~nulls).any():
            raise StateValueError("row", kind.value, "nanoseconds are outside 0 to 999")
        data[:, :2] = _values(parts[0], np.dtype("<u8"), count).copy().view("<u4").reshape(-1, 2)
        data[:, 2] = nanos
    if nulls is not None:
        data[nulls] = 0
    places = np.arange(count, dtype=np.int64) * 16
    return Spans(data.reshape(-1).view(np.uint8), places, np.full(count, 16))


def _variants(column: Array) -> Spans:
    structs = cast(pa.StructArray, column)
    parts = _parts(Kind.VARIANT, structs, null_flags(column))
    values, metadata = as_spans(parts[0]), as_spans(parts[1])
    heads = values.lengths.astype("<i4").view(np.uint8)
    places = np.arange(len(column), dtype=np.int64) * 4
    sizes = 4 + values.lengths + metadata.lengths
    data = join((Spans(heads, places, np.full(len(column), 4)), values, metadata))
    return Spans(data, np.cumsum(sizes) - sizes, sizes)


def _parts(kind: Kind, column: pa.StructArray, nulls: Flags | None) -> list[Array]:
    """The members of a value that is a struct only in Arrow; StateValueError if one is null."""
    parts: list[Array] = [column.field(i) for i in range(column.type.num_fields)]
    for index, part in enumerate(parts):
        missing = null_flags(part)
        if missing is not None and (missing if nulls is None else missing & ~nulls).any():
            name = column.type.field(index).name
            raise StateValueError("row", kind.value, f"its {name} is null")
    return parts


def null_flags(column: Array) -> Flags | None:
    """Which entries are null; None if there are none."""
    if column.null_count == 0:
        return None
    return column.is_null().to_numpy(zero_copy_only=False)


def _values(column: Array, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """The entries of the column's second buffer: its data, or the offsets of a nested column."""
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(count, dtype)
    return numpy_view(buffer, dtype)[column.offset : column.offset + count]
