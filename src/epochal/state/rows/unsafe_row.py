"""Encodes Python values as one of Spark's UnsafeRows, and decodes one row. Pure.

Values are in their stored form: a date is an int of days, a timestamp an int of microseconds since
the epoch, a time an int of nanoseconds, a year-month interval an int of months, a decimal a
`Decimal`, a struct a tuple, an array a list, and a map a list of pairs in order. These can hold
everything that Spark can store; `datetime` ends at the year 9999 and at microseconds.

Decoding *is* validation: it checks every size, offset, null bit and padding byte, so garbage raises
StateFormatError and nothing else. Payloads may leave holes, because Spark updates rows in place.
But their total size never exceeds the room in the row, so a small forged row cannot unfold into a
large value.

Note: equal keys must be equal bytes. Small numbers are zero-extended, not sign-extended. A null
decimal of more than 18 digits, calendar interval or nanosecond timestamp keeps its 16 bytes in a
struct, but not in an array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, TypeAlias

from epochal.errors import StateFormatError, StateValueError
from epochal.state.rows.types import (
    FIXED_KINDS,
    RESERVED_WHEN_NULL,
    Kind,
    Layout,
    StructType,
    bitset_bytes,
    padded,
    slot_width,
)

_WORD = struct.Struct("<q")
_FIXED: dict[Kind, struct.Struct] = {
    Kind.BYTE: struct.Struct("<b"),
    Kind.SHORT: struct.Struct("<h"),
    Kind.INT: struct.Struct("<i"),
    Kind.LONG: _WORD,
    Kind.FLOAT: struct.Struct("<f"),
    Kind.DOUBLE: struct.Struct("<d"),
}
_INTERVAL = struct.Struct("<iiq")
_NANOS = struct.Struct("<qq")

Row: TypeAlias = tuple[Any, ...]

_EXACT = Context(prec=80, Emin=-999999, Emax=999999)


@dataclass(frozen=True, slots=True)
class CalendarInterval:
    """Spark's calendar interval; its three parts do not convert into each other."""

    months: int
    days: int
    microseconds: int


@dataclass(frozen=True, slots=True)
class TimestampNanos:
    """A timestamp finer than a microsecond; `nanos` is 0 to 999."""

    epoch_micros: int
    nanos: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Spark's variant, in its binary encoding."""

    value: bytes
    metadata: bytes


def unscaled_of(value: Decimal, precision: int, scale: int) -> int | None:
    """The integer that represents `value` at the scale; None if `value` does not fit exactly."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    magnitude = int("".join(map(str, digits)) or "0")
    shift = exponent + scale
    if shift >= 0:
        if magnitude and shift > precision:
            return None
        magnitude *= 10**shift if magnitude else 1
    else:
        magnitude, rest = divmod(magnitude, 10 ** min(-shift, len(digits) + 1))
        if rest:
            return None
    if magnitude >= 10**precision:
        return None
    return -magnitude if sign else magnitude


def decimal_of(unscaled: int, scale: int) -> Decimal:
    """The decimal that `unscaled` represents at the scale."""
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def minimal_bytes(unscaled: int) -> bytes:
    """Big-endian two's complement in as few bytes as possible, as Java's BigInteger gives."""
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def encode_row(values: Sequence[Any], schema: StructType) -> bytes:
    """Encode the values as Spark does; StateValueError if one does not fit its column."""
    return bytes(_encode_struct(values, schema.layout, "row"))


def decode_row(data: bytes, schema: StructType, *, source: str = "state row") -> Row:
    """Read the row that fills `data`; StateFormatError if any byte is wrong."""
    layout = schema.layout
    return _Reader(data, source).struct(layout, 0, len(data), "row")


def validate_row(data: bytes, schema: StructType, *, source: str = "state row") -> None:
    """Raise StateFormatError unless `data` is a well-formed row of the schema."""
    decode_row(data, schema, source=source)


class _Reader:
    """Reads values from one buffer. Every method checks bounds before it reads."""

    def __init__(self, data: bytes, source: str) -> None:
        self._data = data
        self._source = source

    def struct(self, layout: Layout, start: int, size: int, path: str) -> Row:
        count = len(layout.children)
        bitset = bitset_bytes(count)
        fixed_end = start + bitset + 8 * count
        end = start + size
        if size % 8 or fixed_end > end or (count == 0 and size):
            raise self._error(start, path, f"{size} bytes cannot hold a struct of {count} fields")
        self._check_bitset(start, bitset, count, path)
        values: list[Any] = []
        room = end - fixed_end
        for index, child in enumerate(layout.children):
            slot = start + bitset + 8 * index
            name = f"{path}.{layout.names[index]}"
            is_null = bool(self._data[start + index // 8] >> index % 8 & 1)
            if child.kind in FIXED_KINDS:
                values.append(self._fixed(child, slot, 8, is_null, name))
                continue
            if is_null and child.kind not in RESERVED_WHEN_NULL:
                self._check_zero(slot, slot + 8, name, "a null field")
                values.append(None)
                continue
            offset, length = self._pointer(slot)
            if is_null and offset == 0 and length == 0:
                values.append(None)
                continue
            reserved = self._reserved(child, length, is_null, slot, name)
            room -= reserved
            self._check_payload(offset, reserved, bitset + 8 * count, size, room, slot, name)
            if is_null:
                values.append(None)
            else:
                self._check_zero(
                    start + offset + length, start + offset + reserved, name, "padding"
                )
                values.append(self._payload(child, start + offset, length, name))
        return tuple(values)

    def array(self, layout: Layout, start: int, size: int, path: str) -> list[Any]:
        element = layout.children[0]
        if size < 8 or size % 8:
            raise self._error(start, path, f"{size} bytes cannot hold an array")
        count = self._word(start)
        width = slot_width(element.kind)
        if not 0 <= count <= size:
            raise self._error(start, path, f"{size} bytes cannot hold {count} elements")
        bitset = bitset_bytes(count)
        slots = 8 + bitset
        fixed = slots + padded(count * width)
        if fixed > size:
            raise self._error(start, path, f"{size} bytes cannot hold {count} elements")
        self._check_bitset(start + 8, bitset, count, path)
        self._check_zero(start + slots + count * width, start + fixed, path, "padding")
        values: list[Any] = []
        room = size - fixed
        for index in range(count):
            slot = start + slots + width * index
            name = f"{path}[{index}]"
            is_null = bool(self._data[start + 8 + index // 8] >> index % 8 & 1)
            if element.kind in FIXED_KINDS:
                values.append(self._fixed(element, slot, width, is_null, name))
            elif is_null:
                self._check_zero(slot, slot + 8, name, "a null element")
                values.append(None)
            else:
                offset, length = self._pointer(slot)
                self._check_length(element, length, slot, name)
                room -= padded(length)
                self._check_payload(offset, padded(length), fixed, size, room, slot, name)
                self._check_zero(
                    start + offset + length, start + offset + padded(length), name, "padding"
                )
                values.append(self._payload(element, start + offset, length, name))
        return values

    def map(self, layout: Layout, start: int, size: int, path: str) -> list[tuple[Any, Any]]:
        key_bytes = self._word(start) if size >= 8 else -1
        if not 8 <= key_bytes <= size - 16 or size % 8 or key_bytes % 8:
            raise self._error(
                start, path, f"{size} bytes cannot hold a map with {key_bytes} bytes of keys"
            )
        key, value = layout.children
        keys = self.array(Layout(Kind.ARRAY, (key,)), start + 8, key_bytes, f"{path}.key")
        values_at = start + 8 + key_bytes
        values = self.array(
            Layout(Kind.ARRAY, (value,)), values_at, size - 8 - key_bytes, f"{path}.value"
        )
        if len(keys) != len(values) or any(item is None for item in keys):
            raise self._error(
                start, path, f"a map of {len(keys)} keys, none null, has {len(values)} values"
            )
        return list(zip(keys, values, strict=True))

    def _fixed(self, layout: Layout, slot: int, width: int, is_null: bool, path: str) -> Any:
        if is_null or layout.kind is Kind.VOID:
            self._check_zero(slot, slot + width, path, "a null value")
            return None
        if layout.kind is Kind.BOOLEAN:
            value = int.from_bytes(self._data[slot : slot + width], "little")
            if value > 1:
                raise self._error(slot, path, f"{value:#x} is not a boolean")
            return value == 1
        if layout.kind is Kind.SMALL_DECIMAL:
            unscaled = self._word(slot)
            return self._decimal(unscaled, layout, slot, path)
        packer = _FIXED[layout.kind]
        self._check_zero(slot + packer.size, slot + width, path, "the unused part of its word")
        return packer.unpack_from(self._data, slot)[0]

    def _payload(self, layout: Layout, at: int, size: int, path: str) -> Any:
        match layout.kind:
            case Kind.STRUCT:
                return self.struct(layout, at, size, path)
            case Kind.ARRAY:
                return self.array(layout, at, size, path)
            case Kind.MAP:
                return self.map(layout, at, size, path)
        raw = self._data[at : at + size]
        match layout.kind:
            case Kind.BINARY:
                return raw
            case Kind.STRING:
                try:
                    return raw.decode()
                except UnicodeDecodeError as error:
                    bad = raw[error.start]
                    raise self._error(
                        at + error.start, path, f"{bad:#04x} does not belong to UTF-8 text"
                    ) from None
            case Kind.BIG_DECIMAL:
                unscaled = int.from_bytes(raw, "big", signed=True)
                return self._decimal(unscaled, layout, at, path)
            case Kind.INTERVAL:
                return CalendarInterval(*_INTERVAL.unpack(raw))
            case Kind.NANOS:
                micros, nanos = _NANOS.unpack(raw)
                if not 0 <= nanos <= 999:
                    raise self._error(at + 8, path, f"{nanos} is not 0 to 999 nanoseconds")
                return TimestampNanos(micros, nanos)
            case Kind.VARIANT:
                return self._variant(raw, at, path)
        raise AssertionError(f"{layout.kind} has no payload")

    def _variant(self, raw: bytes, at: int, path: str) -> Variant:
        length = int.from_bytes(raw[:4], "little", signed=True)
        if not 0 <= length <= len(raw) - 4:
            raise self._error(at, path, f"a variant of {len(raw)} bytes has a {length}-byte value")
        return Variant(raw[4 : 4 + length], raw[4 + length :])

    def _decimal(self, unscaled: int, layout: Layout, at: int, path: str) -> Decimal:
        if abs(unscaled) >= 10**layout.precision:
            raise self._error(
                at, path, f"{unscaled} has more than the {layout.precision} digits declared"
            )
        return decimal_of(unscaled, layout.scale)

    def _reserved(self, layout: Layout, length: int, is_null: bool, slot: int, path: str) -> int:
        if not is_null:
            self._check_length(layout, length, slot, path)
        elif length != (0 if layout.kind is Kind.BIG_DECIMAL else 16):
            raise self._error(slot, path, f"a null field has a payload of {length} bytes")
        return 16 if layout.kind in RESERVED_WHEN_NULL else padded(length)

    def _check_length(self, layout: Layout, length: int, slot: int, path: str) -> None:
        match layout.kind:
            case Kind.BIG_DECIMAL:
                wrong = not 1 <= length <= 16
            case Kind.INTERVAL | Kind.NANOS:
                wrong = length != 16
            case Kind.VARIANT:
                wrong = length < 4
            case _:
                wrong = length < 0
        if wrong:
            raise self._error(slot, path, f"it cannot be a {layout.kind.value} of {length} bytes")

    def _check_payload(
        self, offset: int, reserved: int, fixed: int, size: int, room: int, slot: int, path: str
    ) -> None:
        if offset < fixed or offset % 8 or offset + reserved > size or room < 0:
            raise self._error(
                slot,
                path,
                f"a payload of {reserved} bytes at {offset} lies outside its place, {fixed} to "
                f"{size}",
            )

    def _check_bitset(self, start: int, bitset: int, count: int, path: str) -> None:
        bits = int.from_bytes(self._data[start : start + bitset], "little")
        if bits >> count:
            raise self._error(start, path, f"a null bit is set beyond its {count} fields")

    def _check_zero(self, start: int, end: int, path: str, what: str) -> None:
        if start < end and any(self._data[start:end]):
            digits = self._data[start:end].hex()
            raise self._error(start, path, f"{what} holds {digits} where zeros belong")

    def _pointer(self, slot: int) -> tuple[int, int]:
        word = self._word(slot)
        size = word & 0xFFFFFFFF
        return word >> 32, size - (1 << 32) if size >> 31 else size

    def _word(self, at: int) -> int:
        return int.from_bytes(self._data[at : at + 8], "little", signed=True)

    def _error(self, offset: int, path: str, reason: str) -> StateFormatError:
        return StateFormatError(self._source, offset, f"{path}: {reason}")


def _encode_struct(values: Sequence[Any], layout: Layout, path: str) -> bytearray:
    count = len(layout.children)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) != count:
        raise StateValueError(path, "struct", f"{count} fields are needed, not {values!r}")
    bitset = bitset_bytes(count)
    row = bytearray(bitset + 8 * count)
    for index, (value, child) in enumerate(zip(values, layout.children, strict=True)):
        slot = bitset + 8 * index
        if value is None or child.kind is Kind.VOID:
            row[index // 8] |= 1 << index % 8
            if child.kind in RESERVED_WHEN_NULL:
                size = 0 if child.kind is Kind.BIG_DECIMAL else 16
                _WORD.pack_into(row, slot, len(row) << 32 | size)
                row += bytes(16)
            continue
        name = f"{path}.{layout.names[index]}"
        raw = _ENCODERS[child.kind](value, child, name)
        if child.kind in FIXED_KINDS:
            row[slot : slot + len(raw)] = raw
        else:
            _WORD.pack_into(row, slot, len(row) << 32 | len(raw))
            row += raw
            room = 16 if child.kind is Kind.BIG_DECIMAL else padded(len(raw))
            row += bytes(room - len(raw))
    return row


def _encode_array(values: Any, layout: Layout, path: str) -> bytearray:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise StateValueError(path, "array", f"a sequence is needed, not {values!r}")
    element = layout.children[0]
    width = slot_width(element.kind)
    slots = 8 + bitset_bytes(len(values))
    data = bytearray(slots + padded(width * len(values)))
    _WORD.pack_into(data, 0, len(values))
    for index, value in enumerate(values):
        if value is None or element.kind is Kind.VOID:
            data[8 + index // 8] |= 1 << index % 8
            continue
        slot = slots + width * index
        raw = _ENCODERS[element.kind](value, element, f"{path}[{index}]")
        if element.kind in FIXED_KINDS:
            data[slot : slot + len(raw)] = raw
        else:
            _WORD.pack_into(data, slot, len(data) << 32 | len(raw))
            data += raw
            data += bytes(padded(len(raw)) - len(raw))
    return data


def _encode_map(values: Any, layout: Layout, path: str) -> bytearray:
    try:
        pairs = list(values.items() if isinstance(values, dict) else values)
        keys, items = [key for key, _ in pairs], [item for _, item in pairs]
    except (TypeError, ValueError):
        raise StateValueError(path, "map", f"pairs are needed, not {values!r}") from None
    if any(key is None for key in keys):
        raise StateValueError(path, "map", "a key is null")
    key, value = layout.children
    key_array = _encode_array(keys, Layout(Kind.ARRAY, (key,)), f"{path}.key")
    value_array = _encode_array(items, Layout(Kind.ARRAY, (value,)), f"{path}.value")
    return bytearray(_WORD.pack(len(key_array))) + key_array + value_array


def _encode_number(value: Any, layout: Layout, path: str) -> bytes:
    try:
        return _FIXED[layout.kind].pack(value)
    except (struct.error, OverflowError):
        raise StateValueError(path, layout.kind.value, f"{value!r} does not fit") from None


def _encode_boolean(value: Any, layout: Layout, path: str) -> bytes:
    if not isinstance(value, bool):
        raise StateValueError(path, "boolean", f"{value!r} is not a boolean")
    return b"\x01" if value else b"\x00"


def _encode_decimal(value: Any, layout: Layout, path: str) -> bytes:
    if isinstance(value, int):
        value = Decimal(value)
    precision, scale = layout.precision, layout.scale
    fits = unscaled_of(value, precision, scale) if isinstance(value, Decimal) else None
    if fits is None:
        raise StateValueError(path, f"decimal({precision},{scale})", f"{value!r} does not fit")
    return _WORD.pack(fits) if layout.kind is Kind.SMALL_DECIMAL else minimal_bytes(fits)


def _encode_string(value: Any, layout: Layout, path: str) -> bytes:
    try:
        return str.encode(value)
    except (TypeError, UnicodeEncodeError):
        raise StateValueError(path, "string", f"{value!r} is not text") from None


def _encode_binary(value: Any, layout: Layout, path: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise StateValueError(path, "binary", f"{value!r} is not bytes")
    return bytes(value)


def _encode_interval(value: Any, layout: Layout, path: str) -> bytes:
    try:
        return _INTERVAL.pack(value.months, value.days, value.microseconds)
    except (struct.error, AttributeError):
        raise StateValueError(path, "interval", f"{value!r} does not fit") from None


def _encode_nanos(value: Any, layout: Layout, path: str) -> bytes:
    try:
        if 0 <= value.nanos <= 999:
            return _NANOS.pack(value.epoch_micros, value.nanos)
    except (struct.error, AttributeError, TypeError):
        pass
    raise StateValueError(path, "timestamp with nanoseconds", f"{value!r} does not fit")


def _encode_variant(value: Any, layout: Layout, path: str) -> bytes:
    if not isinstance(value, Variant):
        raise StateValueError(path, "variant", f"{value!r} is not a Variant")
    return struct.pack("<i", len(value.value)) + value.value + value.metadata


_ENCODERS: dict[Kind, Callable[[Any, Layout, str], bytes | bytearray]] = {
    **dict.fromkeys(_FIXED, _encode_number),
    Kind.BOOLEAN: _encode_boolean,
    Kind.SMALL_DECIMAL: _encode_decimal,
    Kind.BIG_DECIMAL: _encode_decimal,
    Kind.STRING: _encode_string,
    Kind.BINARY: _encode_binary,
    Kind.INTERVAL: _encode_interval,
    Kind.NANOS: _encode_nanos,
    Kind.VARIANT: _encode_variant,
    Kind.STRUCT: _encode_struct,
    Kind.ARRAY: _encode_array,
    Kind.MAP: _encode_map,
}
