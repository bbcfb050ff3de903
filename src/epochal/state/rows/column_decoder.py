"""Decodes many UnsafeRows into Arrow columns, all rows of a column at once. Pure.

It applies the rules of `unsafe_row.py` in numpy: each step looks at one field of all rows, and
checks it for all rows before it follows any offset. A check only finds *that* a row is bad. The
first bad row is then read by `unsafe_row.py`, which reports where and why. So both modules always
agree on what is an error, and the error messages exist once.

Note: keys in a file may start in the middle of an 8-byte word. Words are therefore gathered as two
4-byte halves, and only the halves are assumed to be aligned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.errors import StateFormatError, StateValueError
from epochal.state.rows.arrow_types import NUMBERS, arrow_type
from epochal.state.rows.byte_spans import AnyBinaryArray, Flags, Ints, Spans, arrow_buffer
from epochal.state.rows.types import (
    FIXED_KINDS,
    RESERVED_WHEN_NULL,
    Kind,
    Layout,
    StructType,
    bitset_bytes,
    slot_width,
)
from epochal.state.rows.unsafe_row import decode_row

Array: TypeAlias = "pa.Array[Any]"
Halves: TypeAlias = npt.NDArray[np.uint32]
Words: TypeAlias = npt.NDArray[np.uint64]

_MAX_COLUMN_BYTES = (1 << 31) - 1
ROWS_AT_ONCE = 1 << 16
"""Decoding this many rows at a time keeps the intermediate arrays in the processor's cache."""


def decode_rows(rows: Spans, schema: StructType, *, source: str = "state rows") -> pa.StructArray:
    """Read every row into one struct column; StateFormatError if any row is malformed.

    A column of text or bytes can hold 2 GiB. Decode larger states in slices.
    """
    odd = rows.lengths & 7
    if odd.any():
        _explain(rows, int(np.flatnonzero(odd)[0]), schema, source)
    aligned = rows.packed() if (rows.starts & 3).any() else rows
    decoder = _Decoder(aligned, rows, schema, source)
    everything = _Items(aligned.starts, aligned.lengths, np.arange(len(rows)))
    children = decoder.struct(schema.layout, arrow_type(schema), everything)
    decoded = pa.Array.from_buffers(arrow_type(schema), len(rows), [None], children=children)
    return cast(pa.StructArray, decoded)


def validate_rows(rows: Spans, schema: StructType, *, source: str = "state rows") -> None:
    """Raise StateFormatError unless every row is well-formed."""
    for start in range(0, len(rows), ROWS_AT_ONCE):
        decode_rows(rows.slice(start, start + ROWS_AT_ONCE), schema, source=source)


def _explain(rows: Spans, index: int, schema: StructType, source: str) -> NoReturn:
    """Raise the error that `decode_row` gives for this row, with its offset in the buffer."""
    try:
        decode_row(rows[index], schema, source=source)
    except StateFormatError as error:
        offset = int(rows.starts[index]) + error.offset
        raise StateFormatError(source, offset, error.reason, error.condition) from None
    raise AssertionError(f"row {index} of {source} fails as part of a column but not as a row")


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """Structs, arrays or maps to read: where each starts, its size, and the row it belongs to."""

    starts: Ints
    sizes: Ints
    owners: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, which: Flags | Ints) -> _Items:
        return _Items(self.starts[which], self.sizes[which], self.owners[which])


@dataclass(frozen=True, slots=True, eq=False)
class _Room:
    """Which array each element belongs to, and how many bytes each array has for payloads."""

    parents: Ints
    sizes: Ints
    owners: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Slots:
    """One field of all structs, or all elements of all arrays.

    `at` are the positions of the slots and `bases` the positions that offsets count from. Payloads
    lie between the offsets `fixed` and `limits`.
    """

    at: Ints
    bases: Ints
    fixed: Ints | int
    limits: Ints
    owners: Ints
    nulls: Flags | None
    width: int
    in_array: _Room | None


class _Decoder:
    def __init__(self, rows: Spans, original: Spans, schema: StructType, source: str) -> None:
        self._bytes = rows.buffer[: len(rows.buffer) & ~3]
        self._halves: Halves = self._bytes.view("<u4")
        aligned = not (rows.starts & 7).any()
        words = rows.buffer[: len(rows.buffer) & ~7].view("<u8")
        self._whole_words: Words | None = words if aligned else None
        self._rows = original
        self._schema = schema
        self._source = source

    def struct(self, layout: Layout, arrow: Any, items: _Items) -> list[Array]:
        """The fields of structs, one column each."""
        count = len(layout.children)
        bitset = bitset_bytes(count)
        fixed = bitset + 8 * count
        self._check((items.sizes < fixed) | (items.sizes & 7 != 0), items.owners)
        if count == 0:
            self._check(items.sizes != 0, items.owners)
            return []
        null_words = [self._words(items.starts + 8 * word) for word in range(bitset // 8)]
        if count % 64:
            self._check(null_words[-1] >> np.uint64(count % 64) != 0, items.owners)
        any_nulls = [bool(word.any()) for word in null_words]
        room = items.sizes - fixed
        columns: list[Array] = []
        for index, child in enumerate(layout.children):
            nulls = None
            if any_nulls[index // 64]:
                bits = null_words[index // 64] >> np.uint64(index % 64) & np.uint64(1)
                nulls = bits.astype(np.bool_)
            slots = _Slots(
                items.starts + (bitset + 8 * index),
                items.starts,
                fixed,
                items.sizes,
                items.owners,
                nulls,
                8,
                None,
            )
            column, taken = self._column(child, arrow.field(index).type, slots)
            if taken is not None:
                room = room - taken
            columns.append(column)
        self._check(room < 0, items.owners)
        return columns

    def arrays(self, layout: Layout, arrow: Any, items: _Items) -> tuple[Ints, Array]:
        """The number of elements of each array, and the elements of all arrays in one column."""
        element = layout.children[0]
        width = slot_width(element.kind)
        self._check((items.sizes < 8) | (items.sizes & 7 != 0), items.owners)
        counts = self._words(items.starts).view(np.int64)
        self._check((counts < 0) | (counts > items.sizes), items.owners)
        bitsets = (counts + 63) // 64 * 8
        filled = 8 + bitsets + counts * width
        fixed = (filled + 7) & ~7
        self._check(fixed > items.sizes, items.owners)
        self._check_tail(items.starts + bitsets, counts & 63, items.owners)
        self._check_tail(items.starts + fixed - 8, (filled & 7) * 8, items.owners)
        parents = np.repeat(np.arange(len(items)), counts)
        nth = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
        bases = items.starts[parents]
        null_bytes = self._bytes[bases + 8 + (nth >> 3)]
        nulls = (null_bytes >> (nth & 7).astype(np.uint8) & 1).astype(np.bool_)
        slots = _Slots(
            bases + 8 + bitsets[parents] + nth * width,
            bases,
            fixed[parents],
            items.sizes[parents],
            items.owners[parents],
            nulls if nulls.any() else None,
            width,
            _Room(parents, items.sizes - fixed, items.owners),
        )
        column, _ = self._column(element, arrow.value_type, slots)
        return counts, column

    def _column(self, layout: Layout, arrow: Any, slots: _Slots) -> tuple[Array, Ints | None]:
        """The values in the slots, and how many bytes of the variable-length area each uses."""
        if layout.kind in FIXED_KINDS:
            return self._fixed(layout, arrow, slots), None
        offsets, sizes, taken = self._pointers(layout, slots)
        starts = slots.bases + offsets
        if layout.kind in (Kind.STRING, Kind.BINARY, Kind.VARIANT, Kind.BIG_DECIMAL):
            # The unused bytes of the last word must be zero. A payload of whole words has none:
            # numpy shifts out all 64 bits, and the resulting 0 passes the check.
            last = np.maximum(starts + ((sizes - 1) & ~7), 0)
            unused = self._words(last) >> (64 - (-sizes & 7) * 8).astype(np.uint64)
            self._check(unused != 0, slots.owners)
        if layout.kind is Kind.BIG_DECIMAL and slots.in_array is None:
            short = (sizes > 0) & (sizes <= 8)
            self._check(self._words(starts[short] + 8) != 0, slots.owners[short])
        items = _Items(starts, sizes, slots.owners)
        return self._payload(layout, arrow, items, slots.nulls), taken

    def _pointers(self, layout: Layout, slots: _Slots) -> tuple[Ints, Ints, Ints]:
        """Offset, size and room of each payload, checked to be in bounds; 0 and 0 for nulls.

        Halves are read as unsigned, so a negative number becomes too large and is out of bounds.
        """
        sizes = self._halves[slots.at >> 2].astype(np.int64)
        offsets = self._halves[(slots.at >> 2) + 1].astype(np.int64)
        reserves = slots.in_array is None and layout.kind in RESERVED_WHEN_NULL
        taken = np.full(len(sizes), 16) if reserves else (sizes + 7) & ~7
        outside = (offsets < slots.fixed) | (offsets + taken > slots.limits) | (offsets & 7 != 0)
        if layout.kind in _SIZES:
            low, high = _SIZES[layout.kind]
            unfit = (sizes < low) | (sizes > high)
            outside |= unfit if slots.nulls is None else unfit & ~slots.nulls
        if slots.nulls is not None:
            nowhere = slots.nulls & (sizes == 0) & (offsets == 0)
            outside &= ~nowhere
            null_size = 16 if reserves and layout.kind is not Kind.BIG_DECIMAL else 0
            reserved = reserves & (sizes == null_size)
            outside |= slots.nulls & ~nowhere & ~reserved
            taken[nowhere] = 0
            offsets, sizes = np.where(slots.nulls, 0, offsets), np.where(slots.nulls, 0, sizes)
        self._check(outside, slots.owners)
        if (room := slots.in_array) is not None:
            # Check this before following any offset: if elements could share bytes, a small forged
            # row could unfold into an enormous value.
            used = np.bincount(room.parents, weights=taken, minlength=len(room.sizes))
            self._check(used > room.sizes, room.owners)
        return offsets, sizes, taken

    def _payload(self, layout: Layout, arrow: Any, items: _Items, nulls: Flags | None) -> Array:
        match layout.kind:
            case Kind.STRING | Kind.BINARY:
                return self._text(layout, arrow, items, nulls)
            case Kind.BIG_DECIMAL:
                return self._big_decimal(arrow, items, nulls)
            case Kind.VARIANT:
                return self._variant(arrow, items, nulls)
        if nulls is None:
            return self._nested(layout, arrow, items)
        present = np.flatnonzero(~nulls)
        decoded = self._nested(layout, arrow, items.take(present))
        places = np.zeros(len(nulls), np.int64)
        places[present] = np.arange(len(present))
        return decoded.take(cast(Any, pa.array(places, mask=nulls)))

    def _nested(self, layout: Layout, arrow: Any, items: _Items) -> Array:
        count = len(items)
        match layout.kind:
            case Kind.INTERVAL:
                months = self._halves[items.starts >> 2]
                days = self._halves[(items.starts >> 2) + 1]
                micros = self._words(items.starts + 8)
                columns = [
                    _primitive(arrow.field(i).type, values, None)
                    for i, values in enumerate((months, days, micros))
                ]
                return pa.Array.from_buffers(arrow, count, [None], children=columns)
            case Kind.NANOS:
                nanos = self._words(items.starts + 8)
                self._check(nanos > 999, items.owners)
                columns = [
                    _primitive(pa.int64(), self._words(items.starts), None),
                    _primitive(pa.int16(), nanos.astype(np.int16), None),
                ]
                return pa.Array.from_buffers(arrow, count, [None], children=columns)
            case Kind.STRUCT:
                columns = self.struct(layout, arrow, items)
                return pa.Array.from_buffers(arrow, count, [None], children=columns)
            case Kind.ARRAY:
                counts, elements = self.arrays(layout, arrow, items)
                offsets = arrow_buffer(_offsets(counts))
                return pa.Array.from_buffers(arrow, count, [None, offsets], children=[elements])
            case Kind.MAP:
                return self._maps(layout, arrow, items)
        raise AssertionError(layout.kind)

    def _maps(self, layout: Layout, arrow: Any, items: _Items) -> Array:
        key, value = layout.children
        self._check((items.sizes < 24) | (items.sizes & 7 != 0), items.owners)
        key_sizes = self._words(items.starts).view(np.int64)
        wrong = (key_sizes < 8) | (key_sizes > items.sizes - 16) | (key_sizes & 7 != 0)
        self._check(wrong, items.owners)
        keys = _Items(items.starts + 8, key_sizes, items.owners)
        values = _Items(keys.starts + key_sizes, items.sizes - 8 - key_sizes, items.owners)
        key_list = pa.list_(arrow.key_type)
        counts, key_column = self.arrays(Layout(Kind.ARRAY, (key,)), key_list, keys)
        value_list = pa.list_(arrow.item_type)
        others, value_column = self.arrays(Layout(Kind.ARRAY, (value,)), value_list, values)
        self._check(counts != others, items.owners)
        if key_column.null_count:
            lost = key_column.is_null().to_numpy(zero_copy_only=False)
            self._check(lost, np.repeat(items.owners, counts))
        fields = [arrow.key_field, arrow.item_field]
        pairs = pa.StructArray.from_arrays([key_column, value_column], fields=fields)
        offsets = arrow_buffer(_offsets(counts))
        return pa.Array.from_buffers(arrow, len(items), [None, offsets], children=[pairs])

    def _fixed(self, layout: Layout, arrow: Any, slots: _Slots) -> Array:
        kind, nulls = layout.kind, slots.nulls
        if slots.width == 8:
            words = self._words(slots.at)
        else:
            view = self._bytes.view(f"<u{slots.width}")
            words = view[slots.at >> slots.width.bit_length() - 1].astype(np.uint64)
        if nulls is not None:
            self._check(nulls & (words != 0), slots.owners)
        if kind is Kind.VOID:
            self._check(words != 0, slots.owners)
            return pa.nulls(len(words))
        if kind is Kind.BOOLEAN:
            self._check(words > 1, slots.owners)
            bits = np.packbits(words.astype(np.bool_), bitorder="little")
            return _from_buffers(arrow, len(words), bits, nulls)
        if kind is Kind.SMALL_DECIMAL:
            return self._small_decimal(layout, arrow, words.view(np.int64), slots)
        number = NUMBERS.get(kind)
        if number is not None and number.itemsize < 8:
            self._check(words >> np.uint64(8 * number.itemsize) != 0, slots.owners)
            words = words.astype(f"<u{number.itemsize}")
        return _primitive(arrow, words, nulls)

    def _small_decimal(self, layout: Layout, arrow: Any, unscaled: Ints, slots: _Slots) -> Array:
        bound = 10**layout.precision
        self._check((unscaled >= bound) | (unscaled <= -bound), slots.owners)
        wide = np.empty((len(unscaled), 2), np.int64)
        wide[:, 0] = unscaled
        wide[:, 1] = unscaled >> 63
        return _from_buffers(arrow, len(unscaled), wide, slots.nulls)

    def _big_decimal(self, arrow: Any, items: _Items, nulls: Flags | None) -> Array:
        count = len(items)
        wide = np.empty((count, 16), np.uint8)
        firsts = self._bytes[np.minimum(items.starts, len(self._bytes) - 1)]
        fill = np.where(firsts >= 0x80, 0xFF, 0).astype(np.uint8)
        if nulls is not None:
            fill[nulls] = 0
        last = items.starts + items.sizes - 1
        for position in range(16):
            inside = items.sizes > position
            bytes_here = self._bytes[np.where(inside, last - position, 0)]
            wide[:, position] = np.where(inside, bytes_here, fill)
        decoded = _from_buffers(arrow, count, wide, nulls)
        try:
            decoded.validate(full=True)
        except pa.ArrowInvalid:
            for index in range(count):
                try:
                    decoded.slice(index, 1).validate(full=True)
                except pa.ArrowInvalid:
                    self._fail(int(items.owners[index]))
        return decoded

    def _variant(self, arrow: Any, items: _Items, nulls: Flags | None) -> Array:
        present = np.ones(len(items), np.bool_) if nulls is None else ~nulls
        lengths = self._halves[items.starts >> 2].view(np.int32).astype(np.int64)
        lengths = np.where(present, lengths, 0)
        self._check(present & ((lengths < 0) | (lengths > items.sizes - 4)), items.owners)
        values = _Items(items.starts + 4, lengths, items.owners)
        rest = np.where(present, items.sizes - 4 - lengths, 0)
        metadata = _Items(values.starts + lengths, rest, items.owners)
        plain = Layout(Kind.BINARY)
        columns = [self._text(plain, pa.binary(), part, nulls) for part in (values, metadata)]
        return pa.Array.from_buffers(arrow, len(items), [_validity(nulls)], children=columns)

    def _text(self, layout: Layout, arrow: Any, items: _Items, nulls: Flags | None) -> Array:
        total = int(items.sizes.sum())
        if total > _MAX_COLUMN_BYTES:
            raise StateValueError(
                self._source, layout.kind.value, f"{total} bytes do not fit in one Arrow column"
            )
        raw = Spans(self._bytes, items.starts, items.sizes).to_arrow()
        narrow = raw if raw.type == pa.binary() else raw.cast(pa.binary())
        _, offsets, data = narrow.buffers()
        decoded = pa.Array.from_buffers(arrow, len(items), [_validity(nulls), offsets, data])
        try:
            decoded.validate(full=True)
        except pa.ArrowInvalid:
            self._fail_on_text(raw, items)
        return decoded

    def _fail_on_text(self, raw: AnyBinaryArray, items: _Items) -> NoReturn:
        for index, text in enumerate(raw):
            try:
                text.as_py().decode()
            except UnicodeDecodeError:
                self._fail(int(items.owners[index]))
        raise AssertionError(f"{self._source}: Arrow refuses text that is UTF-8")

    def _words(self, at: Ints) -> Words:
        if self._whole_words is not None:
            return cast(Words, self._whole_words[at >> 3])
        pairs = np.empty((len(at), 2), "<u4")
        pairs[:, 0] = self._halves[at >> 2]
        pairs[:, 1] = self._halves[(at >> 2) + 1]
        return pairs.reshape(-1).view("<u8")

    def _check(self, wrong: Flags, owners: Ints) -> None:
        if wrong.any():
            self._fail(int(owners[wrong].min()))

    def _check_tail(self, at: Ints, used_bits: Ints, owners: Ints) -> None:
        """Check that each word is zero above its used bits. 0 used bits means the word is full."""
        partial = np.flatnonzero(used_bits)
        if len(partial):
            words = self._words(at[partial])
            self._check(words >> used_bits[partial].astype(np.uint64) != 0, owners[partial])

    def _fail(self, row: int) -> NoReturn:
        _explain(self._rows, row, self._schema, self._source)


_SIZES = {
    Kind.BIG_DECIMAL: (1, 16),
    Kind.INTERVAL: (16, 16),
    Kind.NANOS: (16, 16),
    Kind.VARIANT: (4, 1 << 32),
}


def _validity(nulls: Flags | None) -> pa.Buffer | None:
    return None if nulls is None else arrow_buffer(np.packbits(~nulls, bitorder="little"))


def _from_buffers(arrow: Any, count: int, data: npt.NDArray[Any], nulls: Flags | None) -> Array:
    return pa.Array.from_buffers(arrow, count, [_validity(nulls), arrow_buffer(data)])


def _primitive(arrow: Any, values: npt.NDArray[Any], nulls: Flags | None) -> Array:
    return _from_buffers(arrow, len(values), values, nulls)


def _offsets(counts: Ints) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets
