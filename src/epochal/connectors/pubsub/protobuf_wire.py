"""Encodes single Protobuf fields. Building an object per message would be too slow. Pure."""

from __future__ import annotations


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: bytes) -> bytes:
    """Encode a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def attribute(key: str, value: str) -> bytes:
    """Encode one entry of PubsubMessage.attributes."""
    return field(2, field(1, key.encode()) + field(2, value.encode()))
