"""Decodes and encodes the bodies that Spark stores with `stateStore.encodingFormat=avro`. Pure.

Spark derives the Avro schema from the row's own schema: a record whose every field is a union of
null and the field's type. Elements of arrays and values of maps are plain, unless they are nested
themselves. A decimal is a fixed number of bytes, and a map has only strings as keys. Since the
Avro schema follows from Spark's, a body is decoded with Spark's schema directly.

A body may be older than the schema that its store has now. `resolve` then does what Avro's schema
resolution does: it matches fields by name, fills new ones with null, and widens numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from epochal.errors import StateFormatError, StateValueError
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructType,
)
from epochal.state.rows.values import Row, TimestampNanos, decimal_of, unscaled_of

_LONG_BITS = 64
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_WHOLE = ("byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz")
_NANOS_PER_MICRO = 1000


def decode_avro(body: bytes, schema: StructType, *, source: str = "state row") -> Row:
    """Read the record that fills `body`, as the values that `encode_row` takes.

    StateFormatError if the body is not a record of the schema.
    """
    reader = _Reader(body, source)
    row = reader.record(schema)
    reader.finish()
    return row


def resolve(value: Any, written: DataType, wanted: DataType) -> Any:
    """The value of type `written` as a value of type `wanted`."""
    if value is None or written == wanted:
        return value
    match written, wanted:
        case StructType(), StructType():
            fields = dict(zip(written.names, zip(value, written.fields, strict=True), strict=True))
            return tuple(
                resolve(fields[field.name][0], fields[field.name][1].data_type, field.data_type)
                if field.name in fields
                else None
                for field in wanted.fields
            )
        case ArrayType(), ArrayType():
            return [resolve(element, written.element, wanted.element) for element in value]
        case MapType(), MapType():
            return [(key, resolve(element, written.value, wanted.value)) for key, element in value]
        case _, AtomicType(name="float" | "double") if isinstance(value, int):
            return float(value)
        case StringType(), AtomicType(name="binary"):
            return value.encode()
        case AtomicType(name="binary"), StringType():
            return value.decode()
    return value


def fixed_size(precision: int) -> int:
    """How many bytes Spark gives to a decimal of this precision."""
    size = 1
    while 1 << (8 * size - 1) < 10**precision:
        size += 1
    return size


class _Reader:
    """Reads one body. Every method checks bounds before it reads."""

    def __init__(self, data: bytes, source: str) -> None:
        self._data, self._source = data, source
        self._at = 0

    def record(self, schema: StructType) -> Row:
        return tuple(self._field(field.data_type) for field in schema.fields)

    def finish(self) -> None:
        if self._at != len(self._data):
            raise self._error(f"{len(self._data) - self._at} bytes follow the record")

    def _field(self, kind: DataType) -> Any:
        """A union of null and the type; a field without type is always null and takes no bytes."""
        if kind == AtomicType("void"):
            return None
        branch = self._long()
        if branch not in (0, 1):
            raise self._error(f"a field selects branch {branch} of its union, which has two")
        return self._plain(kind) if branch else None

    def _element(self, kind: DataType) -> Any:
        nested = isinstance(kind, StructType | ArrayType | MapType)
        return self._field(kind) if nested else self._plain(kind)

    def _plain(self, kind: DataType) -> Any:
        match kind:
            case StructType():
                return self.record(kind)
            case ArrayType(element=element):
                return [self._element(element) for _ in self._items()]
            case MapType(key=StringType(), value=value):
                return [(self._text(), self._element(value)) for _ in self._items()]
            case StringType():
                return self._text()
            case DecimalType(precision=precision, scale=scale):
                raw = self._take(fixed_size(precision))
                return decimal_of(int.from_bytes(raw, "big", signed=True), scale)
            case AtomicType(name=name):
                return self._atom(name)
        raise self._error(f"Spark does not store {kind} as Avro")

    def _atom(self, name: str) -> Any:
        if name in _WHOLE:
            return self._long()
        if name.startswith(("timestamp_ltz(", "timestamp_ntz(")):
            return TimestampNanos(*divmod(self._long(), _NANOS_PER_MICRO))
        match name:
            case "boolean":
                flag = self._take(1)[0]
                if flag > 1:
                    raise self._error(f"a boolean is {flag}, not 0 or 1")
                return flag == 1
            case "float":
                return _FLOAT.unpack(self._take(_FLOAT.size))[0]
            case "double":
                return _DOUBLE.unpack(self._take(_DOUBLE.size))[0]
            case "binary":
                return self._take(self._long())
            case "void":
                return None
        raise self._error(f"Spark does not store {name} as Avro")

    def _items(self) -> Iterator[None]:
        """Once per item of an array or a map. Items come in blocks; an empty block ends them."""
        while count := self._long():
            if count < 0:  # then the size of the block in bytes follows
                count = -count
                self._long()
            if count > len(self._data) - self._at:
                raise self._error(f"a block claims {count} items, more than bytes are left")
            yield from repeat(None, count)

    def _text(self) -> str:
        raw = self._take(self._long())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._error(f"a text is not UTF-8 ({error.reason})") from None

    def _long(self) -> int:
        """A number in zigzag form, seven bits per byte, the lowest first."""
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= _LONG_BITS:
                raise self._error("a number has more than 64 bits")
        return (number >> 1) ^ -(number & 1)

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise self._error(f"{size} bytes are needed, {len(self._data) - self._at} are left")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def _error(self, reason: str) -> StateFormatError:
        return StateFormatError(self._source, self._at, reason)


_NULL, _PRESENT = b"\0", b"\2"
"""The branches of a field's union: zero and one, in zigzag form."""


def encode_avro(row: Sequence[Any], schema: StructType) -> bytes:
    """Write a record; StateValueError if a value does not fit its type."""
    return _record(row, schema)


def _record(row: Sequence[Any], schema: StructType) -> bytes:
    pairs = zip(row, schema.fields, strict=True)
    return b"".join(_field(value, field.data_type, field.name) for value, field in pairs)


def _field(value: Any, kind: DataType, path: str) -> bytes:
    if kind == AtomicType("void"):
        return b""
    return _NULL if value is None else _PRESENT + _plain(value, kind, path)


def _element(value: Any, kind: DataType, path: str) -> bytes:
    if isinstance(kind, StructType | ArrayType | MapType):
        return _field(value, kind, path)
    if value is None:
        raise StateValueError(path, str(kind), "Spark cannot store a null in here as Avro")
    return _plain(value, kind, path)


def _plain(value: Any, kind: DataType, path: str) -> bytes:
    match kind:
        case StructType():
            return _record(value, kind)
        case ArrayType(element=element):
            return _block([_element(item, element, path) for item in value])
        case MapType(key=StringType(), value=inner):
            return _block([_bytes(k.encode()) + _element(v, inner, path) for k, v in value])
        case StringType():
            return _bytes(value.encode())
        case DecimalType(precision=precision, scale=scale):
            unscaled = unscaled_of(value, precision, scale)
            if unscaled is None:
                raise StateValueError(path, f"decimal({precision},{scale})", f"{value} is too wide")
            return unscaled.to_bytes(fixed_size(precision), "big", signed=True)
        case AtomicType(name=name):
            return _atom(value, name, path)
    raise StateValueError(path, str(kind), "Spark does not store it as Avro")


def _atom(value: Any, name: str, path: str) -> bytes:
    if name in _WHOLE:
        return _long(value)
    if isinstance(value, TimestampNanos):
        return _long(value.epoch_micros * _NANOS_PER_MICRO + value.nanos)
    match name:
        case "boolean":
            return b"\1" if value else b"\0"
        case "float":
            return _FLOAT.pack(value)
        case "double":
            return _DOUBLE.pack(value)
        case "binary":
            return _bytes(value)
    raise StateValueError(path, name, "Spark does not store it as Avro")


def _block(items: Sequence[bytes]) -> bytes:
    head = _long(len(items)) if items else b""
    return b"".join((head, *items, b"\0"))


def _bytes(data: bytes) -> bytes:
    return _long(len(data)) + data


def _long(value: int) -> bytes:
    """A number in zigzag form, seven bits per byte, the lowest first."""
    rest = value << 1 if value >= 0 else (~value << 1) | 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
