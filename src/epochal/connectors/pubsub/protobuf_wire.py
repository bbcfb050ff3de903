"""Encodes single Protobuf fields. Building an object per message would be too slow. Pure."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_field(number: int, value: bytes) -> bytes:
    """Encode a length-delimited field."""
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def encode_attribute(key: str, value: str) -> bytes:
    """Encode one entry of PubsubMessage.attributes."""
    return encode_field(2, encode_field(1, key.encode()) + encode_field(2, value.encode()))
