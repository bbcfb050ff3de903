"""Turns Avro-encoded keys and values of RocksDB-backed stores into UnsafeRows, and back. Pure.

transformWithState can store its rows as Avro, so that the schema of a value may change. Keys and
values are split and prefixed as always; only the rows inside them differ:

    value, whole key       version byte, id of the schema (int16, little-endian), Avro body
    first part of a key    version byte, Avro body
    other part of a key    version byte, id of the schema, Avro body

The scanned part of a range key has two fields of bytes per number: the marker, and the number in
big-endian. Everything after this module sees UnsafeRows of the schema that the store has now.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from epochal.errors import StateFormatError, StateValueError
from epochal.state.files.rocksdb_keys import ENCODING_VERSION, ordered_long
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.avro_row import decode_avro, encode_avro, resolve
from epochal.state.rows.types import AtomicType, StructField, StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.state.rows.values import Row

_ID = struct.Struct("<h")
_SIZE = struct.Struct("<i")
_BINARY = AtomicType("binary")
_VERSION = bytes([ENCODING_VERSION])


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
                first, rest = _halves(key, source)
                row = _encoded(decode_avro(_body(first, source), head, source=source), head, source)
                return _joined(row, self._identified(rest, tail, source))
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
        return _joined(_VERSION + first, self._with_id(rest, StructType(others), self.key_id))

    def stored_value(self, value: Row) -> bytes:
        """A value as Avro, with the newest schema; the reverse of `plain_value`."""
        return self._with_id(value, self.value, self.value_id)

    def _with_id(self, row: Row, schema: StructType, number: int) -> bytes:
        return _VERSION + _ID.pack(number) + encode_avro(row, schema)

    def _parts(self) -> Iterator[StructField]:
        """The fields of the scanned part of a range key."""
        for n in self.encoder.ordering:
            for part in ("marker", "value"):
                yield StructField(f"{self.key.fields[n].name}_{part}", _BINARY)

    def _plain_range(self, key: bytes, source: str) -> bytes:
        ordering = self.encoder.ordering
        parts = tuple(self._parts())
        first, rest = _halves(key, source)
        halves = decode_avro(_body(first, source), StructType(parts), source=source)
        if any(part is None for part in halves):
            raise StateFormatError(source, 0, "an ordered number of a key lacks a part")
        columns = StructType(tuple(parts[::2]))
        row = [marker + number for marker, number in zip(halves[::2], halves[1::2], strict=True)]
        others = tuple(f for n, f in enumerate(self.key.fields) if n not in ordering)
        return _joined(
            _encoded(tuple(row), columns, source),
            self._identified(rest, StructType(others), source),
        )

    def _identified(self, data: bytes, schema: StructType, source: str) -> bytes:
        """A key, or its second part. Spark reads it with the schema of now, whatever its id."""
        _, body = _identity(data, source)
        return _encoded(decode_avro(body, schema, source=source), schema, source)


def _body(data: bytes, source: str) -> bytes:
    if not data.startswith(_VERSION):
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


def _halves(key: bytes, source: str) -> tuple[bytes, bytes]:
    size = _SIZE.unpack_from(key)[0] if len(key) >= _SIZE.size else -1
    end = _SIZE.size + size
    if size < 0 or end > len(key):
        raise StateFormatError(source, 0, "the first part of a key is longer than the key")
    return key[_SIZE.size : end], key[end:]


def _joined(first: bytes, rest: bytes) -> bytes:
    return _SIZE.pack(len(first)) + first + rest


def _encoded(row: Row, schema: StructType, source: str) -> bytes:
    try:
        return _VERSION + encode_row(row, schema)
    except StateValueError as error:
        raise StateFormatError(source, 0, f"an Avro row does not fit its schema: {error}") from None
