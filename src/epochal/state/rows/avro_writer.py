"""Encodes rows as the Avro bodies that Spark stores; the reverse of `avro_row`. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from epochal.errors import StateValueError
from epochal.state.rows.avro_row import fixed_size
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructType,
)
from epochal.state.rows.values import TimestampNanos, unscaled_of

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_WHOLE = ("byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz")
_NANOS_PER_MICRO = 1000
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
            return _block([_element(each, element, path) for each in value])
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
