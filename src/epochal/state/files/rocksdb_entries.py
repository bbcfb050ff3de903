"""The keys and values of RocksDB-backed stores: how rows are split, wrapped and checked. Pure.

    key, or value               00 row
    key that is split           size 00 row 00 row      size: of the first row and its byte
    key with a timestamp        time 00 row, or 00 row time
    list of values              size 00 row, then the delimiter and the next one
    value with a checksum       crc size 00 row         crc: CRC-32C of key and value
    deleted key with one        crc key                 crc: of the key

Sizes and checksums have four bytes, little-endian. The byte 00 before each row is the version of
its encoding. A row is an UnsafeRow, or Avro: see `rocksdb_avro`. If a store has column families, a
key begins with the number of its family, two bytes, little-endian.

A store that only looks up single keys stores the key as one row. A store that scans by prefix or
by range splits the key into two rows, the scanned columns first. RocksDB sorts keys by their bytes,
so numbers in the scanned columns are encoded to sort that way: big-endian, after a marker byte that
puts negative numbers first and nulls last. The operator metadata or the schema file records which
encoder a store uses.

A provider keeps the key as one row, whatever its files look like. `KeyForm` turns such rows into
keys and back, whole lists at a time.

A value is one row, or several rows joined by RocksDB's merge operator if an operator keeps several
rows per key. Version 1 of the merge operator puts a comma between two values, version 2 puts
nothing. With row checksums every row has its own checksum, also inside a list. The bytes record
none of this; all of it comes from the conf in the offset log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from epochal.errors import StateFormatError
from epochal.record_batches import batch_of
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.byte_spans import Ints, Spans, as_spans, spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.types import AtomicType, StructField, StructType, field_names

ENCODING_VERSION = 0
VERSION_BYTE = bytes([ENCODING_VERSION])
NEGATIVE, POSITIVE, NULL = 0, 1, 2
_TIMESTAMP_BYTES = 8
_LONG = struct.Struct(">q")
_INT = struct.Struct("<i")
_SIGN = np.uint64(1 << 63)
_ORDERED_TYPES: dict[str, str] = {
    "byte": ">i1",
    "short": ">i2",
    "integer": ">i4",
    "long": ">i8",
    "float": ">f4",
    "double": ">f8",
}


def decode_keys(
    keys: Spans, encoder: KeyEncoder, schema: StructType, source: str
) -> pa.StructArray:
    """Turn encoded keys into one struct per key, columns in the order of the schema."""
    match encoder.kind:
        case "prefix":
            return _split(keys, schema, encoder.prefix_columns, source)
        case "range":
            return _ranged(keys, schema, encoder.ordering, source)
        case "timestamp-prefix":
            return _timed(keys, schema, source, leading=True)
        case "timestamp-postfix":
            return _timed(keys, schema, source, leading=False)
    return decode_rows(rows_of(keys, source), schema, source=source)


def ordered_long(number: int | None) -> bytes:
    """A long in the form that sorts by its bytes."""
    if number is None:
        return bytes([NULL]) + bytes(_LONG.size)
    return bytes([NEGATIVE if number < 0 else POSITIVE]) + _LONG.pack(number)


def rows_of(spans: Spans, source: str) -> Spans:
    """The rows, without the byte in front that names their encoding."""
    if len(spans) == 0:
        return spans
    if (spans.lengths < 1).any():
        raise StateFormatError(source, 0, "a row lacks the byte that names its encoding")
    versions = spans.buffer[spans.starts]
    if (versions != ENCODING_VERSION).any():
        encoding = int(versions[versions != ENCODING_VERSION][0])
        raise StateFormatError(source, 0, f"a row has encoding {encoding}; only 0 is supported")
    return Spans(spans.buffer, spans.starts + 1, spans.lengths - 1)


def _split(keys: Spans, schema: StructType, columns: int, source: str) -> pa.StructArray:
    first, rest = _halves(keys, source)
    head = decode_rows(rows_of(first, source), StructType(schema.fields[:columns]), source=source)
    tail = decode_rows(rows_of(rest, source), StructType(schema.fields[columns:]), source=source)
    return _struct([*head.flatten(), *tail.flatten()], schema)


def _ranged(
    keys: Spans, schema: StructType, ordering: Sequence[int], source: str
) -> pa.StructArray:
    first, rest = _halves(keys, source)
    binary = StructType(
        tuple(StructField(schema.fields[n].name, AtomicType("binary")) for n in ordering)
    )
    encoded = decode_rows(rows_of(first, source), binary, source=source).flatten()
    columns: dict[int, Any] = {
        ordinal: _ordered(column, schema.fields[ordinal], source)
        for ordinal, column in zip(ordering, encoded, strict=True)
    }
    others = [n for n in range(len(schema.fields)) if n not in columns]
    if others:
        left = StructType(tuple(schema.fields[n] for n in others))
        decoded = decode_rows(rows_of(rest, source), left, source=source).flatten()
        columns.update(zip(others, decoded, strict=True))
    return _struct([columns[n] for n in range(len(schema.fields))], schema)


def _timed(keys: Spans, schema: StructType, source: str, *, leading: bool) -> pa.StructArray:
    if (keys.lengths < _TIMESTAMP_BYTES).any():
        raise StateFormatError(source, 0, "a key has no room for its timestamp")
    sizes = keys.lengths - _TIMESTAMP_BYTES
    places = keys.starts if leading else keys.starts + sizes
    rows = Spans(keys.buffer, keys.starts + (_TIMESTAMP_BYTES if leading else 0), sizes)
    plain = StructType(schema.fields[:-1])
    decoded = decode_rows(rows_of(rows, source), plain, source=source).flatten()
    flipped = _gather(keys, places, _TIMESTAMP_BYTES).view(">u8").reshape(-1).astype(np.uint64)
    times = (flipped ^ _SIGN).view(np.int64)
    return _struct([*decoded, pa.array(times, pa.int64())], schema)


def _halves(keys: Spans, source: str) -> tuple[Spans, Spans]:
    """Split keys that consist of a length, that many bytes, and the rest."""
    if len(keys) == 0:
        return keys, keys
    if (keys.lengths < 4).any():
        raise StateFormatError(source, 0, "a key has no room for the length of its first part")
    sizes: Ints = _gather(keys, keys.starts, 4).view("<i4").reshape(-1).astype(np.int64)
    if ((sizes < 0) | (sizes + 4 > keys.lengths)).any():
        raise StateFormatError(source, 0, "the first part of a key is longer than the key")
    first = Spans(keys.buffer, keys.starts + 4, sizes)
    return first, Spans(keys.buffer, first.ends, keys.lengths - 4 - sizes)


def _ordered(column: Any, field: StructField, source: str) -> Any:
    """Undo the encoding that makes the bytes of numbers sort like the numbers."""
    name = field.data_type.name if isinstance(field.data_type, AtomicType) else ""
    if name not in _ORDERED_TYPES:
        raise StateFormatError(
            source, 0, f"{field.name} is {field.data_type}; RocksDB keys cannot be ordered by it"
        )
    kind = np.dtype(_ORDERED_TYPES[name])
    width = kind.itemsize + 1
    encoded = as_spans(column)
    if column.null_count or (encoded.lengths != width).any():
        raise StateFormatError(source, 0, f"{field.name}: a number is not {name}'s width")
    table = _gather(encoded, encoded.starts, width)
    markers = table[:, 0]
    if (markers > NULL).any():
        raise StateFormatError(source, 0, f"{field.name}: a number has a marker above {NULL}")
    body = np.ascontiguousarray(table[:, 1:])
    if kind.kind == "f":
        # Negative floats are stored inverted, because their bits sort in the opposite order.
        body = np.where((markers == NEGATIVE)[:, None], ~body, body)
    numbers = np.ascontiguousarray(body).view(kind).reshape(-1).astype(kind.newbyteorder("="))
    return pa.array(numbers, mask=markers == NULL)


def _gather(spans: Spans, places: Ints, width: int) -> Any:
    return np.ascontiguousarray(spans.buffer[places[:, None] + np.arange(width)])


def _struct(columns: Sequence[Any], schema: StructType) -> pa.StructArray:
    return pa.StructArray.from_arrays(columns, names=list(field_names(schema)))


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How one store encodes its keys; `prefix_columns` is 0 for a store without prefix scans."""

    schema: StructType
    prefix_columns: int = 0

    def stored(self, rows: Sequence[bytes]) -> list[bytes]:
        """The keys of these key rows, as RocksDB stores them."""
        if not self.prefix_columns:
            return [VERSION_BYTE + row for row in rows]
        if not rows:
            return []
        columns = decode_rows(spans_of(rows), self.schema).flatten()
        first = self._encoded(columns[: self.prefix_columns], 0, len(rows))
        rest = self._encoded(columns[self.prefix_columns :], self.prefix_columns, len(rows))
        return [
            scanned_part(prefix) + VERSION_BYTE + remaining
            for prefix, remaining in zip(first, rest, strict=True)
        ]

    def rows(self, keys: Sequence[bytes], source: str) -> list[bytes]:
        """The key rows of keys that RocksDB stores."""
        if not self.prefix_columns:
            return [unversioned(key, source) for key in keys]
        if not keys:
            return []
        encoder = KeyEncoder("prefix", prefix_columns=self.prefix_columns)
        columns = decode_keys(spans_of(keys), encoder, self.schema, source)
        return encode_rows(columns, self.schema).to_list()

    def _encoded(self, columns: Sequence[pa.Array[Any]], start: int, rows: int) -> list[bytes]:
        """Encode the columns of the key from `start` on."""
        schema = StructType(self.schema.fields[start : start + len(columns)])
        batch = batch_of(columns, list(field_names(schema)), rows)
        return encode_rows(batch, schema).to_list()


def scanned_part(row: bytes) -> bytes:
    """The beginning of a key that is split into two rows, given the first."""
    return _INT.pack(len(row) + 1) + VERSION_BYTE + row


def joined_key(first: bytes, rest: bytes) -> bytes:
    """A key that is split into two parts, of which the first is scanned."""
    return _INT.pack(len(first)) + first + rest


def split_key(key: bytes, source: str) -> tuple[bytes, bytes]:
    """The parts of a key; the reverse of `joined_key`."""
    size = _INT.unpack_from(key)[0] if len(key) >= _INT.size else -1
    end = _INT.size + size
    if size < 0 or end > len(key):
        raise StateFormatError(source, 0, "the first part of a key is longer than the key")
    return key[_INT.size : end], key[end:]


def unversioned(data: bytes, source: str) -> bytes:
    """A row without the byte in front that names its encoding."""
    if data[:1] != VERSION_BYTE:
        encoding = f"encoding {data[0]}" if data else "no byte that names its encoding"
        raise StateFormatError(source, 0, f"a row has {encoding}; only encoding 0 is supported")
    return data[1:]


CHECKSUM_FAILED = "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
_CHECKED = struct.Struct("<Ii")
_CHECKED_KEY = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class ValueWrapper:
    """How the rows of one store are wrapped."""

    delimiter: bytes = b""
    checksummed: bool = False

    def merge(self, value: bytes | None, operand: bytes) -> bytes:
        """The value that RocksDB's merge operator makes of a value and an operand."""
        return operand if value is None else value + self.delimiter + operand

    def single(self, key: bytes, value: bytes, source: str) -> bytes:
        """Unwrap a value that is not a list: verify and remove its checksum."""
        if not self.checksummed:
            return value
        row, end = self._checked(key, value, 0, source)
        if end != len(value):
            raise StateFormatError(source, end, f"{len(value) - end} bytes follow a value's end")
        return row

    def several(self, key: bytes, value: bytes, source: str) -> list[bytes]:
        """Unwrap a list: its values in order, with checksums verified and removed."""
        values: list[bytes] = []
        at, end = 0, len(value)
        while at < end:
            if self.checksummed:
                checked, at = self._checked(key, value, at, source)
                values.append(self._sized(checked, 0, source)[0])
            else:
                row, at = self._sized(value, at, source)
                values.append(row)
            if at < end:
                if value[at : at + len(self.delimiter)] != self.delimiter:
                    raise StateFormatError(source, at, "a list lacks its delimiter")
                at += len(self.delimiter)
        return values

    def joined(self, key: bytes, values: Iterable[bytes]) -> bytes:
        """Wrap a list: its values in order, each with its length and, if there are, checksum."""
        sized = (_INT.pack(len(value)) + value for value in values)
        return self.delimiter.join(self.record(key, value)[1] or b"" for value in sized)

    def record(self, key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
        """Key and value of a changelog record that puts a single row, or deletes a key."""
        if not self.checksummed:
            return key, value
        if value is None:
            return _CHECKED_KEY.pack(google_crc32c.value(key)) + key, None
        checksum = google_crc32c.extend(google_crc32c.value(key), value)
        return key, _CHECKED.pack(checksum, len(value)) + value

    def deleted_key(self, key: bytes, source: str) -> bytes:
        """The key of a delete record, its checksum verified and removed."""
        if not self.checksummed:
            return key
        if len(key) < _CHECKED_KEY.size:
            raise StateFormatError(source, 0, "a deleted key has no room for its checksum")
        row = key[_CHECKED_KEY.size :]
        self._verify(_CHECKED_KEY.unpack_from(key)[0], google_crc32c.value(row), source, 0)
        return row

    def _sized(self, value: bytes, at: int, source: str) -> tuple[bytes, int]:
        if at + _INT.size > len(value):
            raise StateFormatError(source, at, "a list ends inside a length")
        (size,) = _INT.unpack_from(value, at)
        start = at + _INT.size
        if size < 0 or start + size > len(value):
            raise StateFormatError(
                source, at, f"a value in a list claims {size} bytes, {len(value) - start} are left"
            )
        return value[start : start + size], start + size

    def _checked(self, key: bytes, value: bytes, at: int, source: str) -> tuple[bytes, int]:
        if at + _CHECKED.size > len(value):
            raise StateFormatError(source, at, "a value has no room for its checksum")
        expected, size = _CHECKED.unpack_from(value, at)
        start = at + _CHECKED.size
        if size < 0 or start + size > len(value):
            raise StateFormatError(
                source, at, f"a value claims {size} bytes, {len(value) - start} are left"
            )
        row = value[start : start + size]
        self._verify(expected, google_crc32c.extend(google_crc32c.value(key), row), source, at)
        return row, start + size

    def _verify(self, expected: int, actual: int, source: str, at: int) -> None:
        if expected != actual:
            raise StateFormatError(
                source,
                at,
                f"the stored row checksum is {expected:#010x}, but the row's is {actual:#010x}",
                CHECKSUM_FAILED,
            )
