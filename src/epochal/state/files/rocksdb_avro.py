"""Turns Avro-encoded keys and values of RocksDB-backed stores into UnsafeRows, and back. Pure.

transformWithState can store its rows as Avro, so that the schema of a value may change. Keys and
values are split and prefixed as always; only the rows inside them differ:

    value, whole key       version byte, id of the schema (int16, little-endian), Avro body
    first part of a key    version byte, Avro body
    other part of a key    version byte, id of the schema, Avro body

The scanned part of a range key has two fields of bytes per number: the marker, and the number in
big-endian. Everything after this module sees UnsafeRows of the schema that the store has now.

Spark derives the Avro schema from the row's own schema: a record whose every field is a union of
null and the field's type. Elements of arrays and values of maps are plain, unless they are nested
themselves. A decimal is a fixed number of bytes, and a map has only strings as keys. Since the
Avro schema follows from Spark's, a body is decoded with Spark's schema directly.

A body may be older than the schema that its store has now. `resolve` then does what Avro's schema
resolution does: it matches fields by name, fills new ones with null, and widens numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from epochal.errors import StateFormatError, StateValueError
from epochal.state.files.rocksdb_entries import (
    ENCODING_VERSION,
    VERSION_BYTE,
    joined_key,
    ordered_long,
    split_key,
)
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from epochal.state.rows.unsafe_row import Row, TimestampNanos, decimal_of, encode_row, unscaled_of

_ID = struct.Struct("<h")
_BINARY = AtomicType("binary")


@dataclass(frozen=True, slots=True)
class AvroForm:
    """How one column family stores its rows as Avro."""

    key: StructType
    value: StructType
    encoder: KeyEncoder
    written: Mapping[int, StructType]
    """Every schema that values were written with, by its id."""
    key_id: int = 0
    value_id: int = 0
    """The ids of the newest schemas, with which rows are written."""

    def plain_key(self, key: bytes, source: str) -> bytes:
        """The key as a store of UnsafeRows has it."""
        match self.encoder.kind:
            case "prefix":
                count = self.encoder.prefix_columns
                head, tail = (
                    StructType(self.key.fields[:count]),
                    StructType(self.key.fields[count:]),
                )
                first, rest = split_key(key, source)
                row = _encoded(decode_avro(_body(first, source), head, source=source), head, source)
                return joined_key(row, self._identified(rest, tail, source))
            case "range":
                return self._plain_range(key, source)
            case "plain":
                return self._identified(key, self.key, source)
        raise StateFormatError(
            source, 0, f"keys of the kind {self.encoder.kind} with Avro are not supported"
        )

    def plain_value(self, value: bytes, source: str) -> bytes:
        """The value as a store of UnsafeRows has it, with the columns of the newest schema."""
        number, body = _identity(value, source)
        written = self.written.get(number)
        if written is None:
            raise StateFormatError(
                source,
                0,
                f"a value was written with schema {number}; the schema files have "
                f"{sorted(self.written)}",
            )
        row = decode_avro(body, written, source=source)
        try:
            resolved = resolve(row, written, self.value)
        except UnicodeDecodeError as error:
            reason = f"bytes that became a string are not UTF-8 ({error.reason})"
            raise StateFormatError(source, 0, reason) from None
        return _encoded(resolved, self.value, source)

    def stored_key(self, key: Row) -> bytes:
        """A key as Avro; the reverse of `plain_key`."""
        fields = self.key.fields
        match self.encoder.kind:
            case "prefix":
                count = self.encoder.prefix_columns
                first = encode_avro(key[:count], StructType(fields[:count]))
                rest, others = key[count:], fields[count:]
            case "range":
                numbers = [ordered_long(key[n]) for n in self.encoder.ordering]
                parts = [part for number in numbers for part in (number[:1], number[1:])]
                first = encode_avro(parts, StructType(tuple(self._parts())))
                unordered = [n for n in range(len(fields)) if n not in self.encoder.ordering]
                rest, others = tuple(key[n] for n in unordered), tuple(fields[n] for n in unordered)
            case _:
                return self._with_id(key, self.key, self.key_id)
        second = self._with_id(rest, StructType(others), self.key_id)
        return joined_key(VERSION_BYTE + first, second)

    def stored_value(self, value: Row) -> bytes:
        """A value as Avro, with the newest schema; the reverse of `plain_value`."""
        return self._with_id(value, self.value, self.value_id)

    def _with_id(self, row: Row, schema: StructType, number: int) -> bytes:
        return VERSION_BYTE + _ID.pack(number) + encode_avro(row, schema)

    def _parts(self) -> Iterator[StructField]:
        """The fields of the scanned part of a range key."""
        for n in self.encoder.ordering:
            for part in ("marker", "value"):
                yield StructField(f"{self.key.fields[n].name}_{part}", _BINARY)

    def _plain_range(self, key: bytes, source: str) -> bytes:
        ordering = self.encoder.ordering
        parts = tuple(self._parts())
        first, rest = split_key(key, source)
        halves = decode_avro(_body(first, source), StructType(parts), source=source)
        if any(part is None for part in halves):
            raise StateFormatError(source, 0, "an ordered number of a key lacks a part")
        columns = StructType(tuple(parts[::2]))
        row = [marker + number for marker, number in zip(halves[::2], halves[1::2], strict=True)]
        others = tuple(f for n, f in enumerate(self.key.fields) if n not in ordering)
        return joined_key(
            _encoded(tuple(row), columns, source),
            self._identified(rest, StructType(others), source),
        )

    def _identified(self, data: bytes, schema: StructType, source: str) -> bytes:
        """A key, or its second part. Spark reads it with the schema of now, whatever its id."""
        _, body = _identity(data, source)
        return _encoded(decode_avro(body, schema, source=source), schema, source)


def _body(data: bytes, source: str) -> bytes:
    if not data.startswith(VERSION_BYTE):
        code = data[0] if data else "missing"
        raise StateFormatError(
            source, 0, f"a row's encoding is {code}; only {ENCODING_VERSION} is supported"
        )
    return data[1:]


def _identity(data: bytes, source: str) -> tuple[int, bytes]:
    body = _body(data, source)
    if len(body) < _ID.size:
        raise StateFormatError(source, 0, "a row has no room for the id of its schema")
    return _ID.unpack_from(body)[0], body[_ID.size :]


def _encoded(row: Row, schema: StructType, source: str) -> bytes:
    try:
        return VERSION_BYTE + encode_row(row, schema)
    except StateValueError as error:
        raise StateFormatError(source, 0, f"an Avro row does not fit its schema: {error}") from None


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
            return encode_avro(value, kind)
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
