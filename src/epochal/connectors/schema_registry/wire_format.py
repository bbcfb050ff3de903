"""Confluent's wire format: a header with the id of the schema, then the payload. Pure.

byte 0      0, the magic byte
bytes 1-4   the id of the schema, big-endian
Protobuf    where the message is in its file: a count and that many indices, as zigzag varints.
            One byte 0 stands for the usual case, the first message of the file
the rest    the payload
"""

from __future__ import annotations

from collections.abc import Sequence

from epochal.errors import PayloadError

MAGIC = 0
HEADER_BYTES = 5
MAX_DEPTH = 64
"""Messages are not nested deeper than this."""


def schema_id(value: bytes) -> int:
    """The id in a value's header; PayloadError if there is none."""
    if len(value) < HEADER_BYTES or value[0] != MAGIC:
        start = value[:HEADER_BYTES].hex(" ") or "nothing"
        raise PayloadError(
            f"the value of {len(value)} bytes begins with {start}, not with the byte 0 and the id "
            f"of a schema, so it was not written with a schema registry"
        )
    return int.from_bytes(value[1:HEADER_BYTES])


def header(schema: int, indices: Sequence[int] | None = None) -> bytes:
    """The header of values; `indices` only for Protobuf."""
    start = bytes([MAGIC]) + schema.to_bytes(4)
    if indices is None:
        return start
    if list(indices) == [0]:
        return start + b"\x00"
    return start + b"".join(_varint(number) for number in (len(indices), *indices))


def message_indices(value: bytes) -> tuple[tuple[int, ...], int]:
    """Where a Protobuf message is in its file, and where in the value the payload begins."""
    count, at = _read_varint(value, HEADER_BYTES)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_DEPTH:
        raise PayloadError(f"the header names {count} message indices, which is not possible")
    indices = []
    for _ in range(count):
        index, at = _read_varint(value, at)
        indices.append(index)
    return tuple(indices), at


def _varint(number: int) -> bytes:
    left, encoded = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(value) or shift > 28:
            raise PayloadError("the header's message indices end too early")
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
