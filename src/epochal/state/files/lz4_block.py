"""Reads and writes Spark's `lz4` codec: lz4-java's framing of LZ4 blocks. Pure.

Note: this is not the LZ4 frame format, and its checksum keeps only 28 of xxHash's 32 bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator

import lz4.block
import xxhash

from epochal.errors import StateFormatError
from epochal.files import Room

BLOCK_BYTES = 32 * 1024
"""What we write: Spark's default `spark.io.compression.lz4.blockSize`. The reader accepts any size
that the format allows."""

_MAGIC = b"LZ4Block"
_HEADER = struct.Struct("<8sBiiI")
_HEADER_BYTES = _HEADER.size
_STORED, _COMPRESSED = 0x10, 0x20
_SEED = 0x9747B28C
_RATIO = 255


def _checksum(block: bytes | memoryview) -> int:
    return xxhash.xxh32_intdigest(block, _SEED) & 0x0FFFFFFF


def compress_blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Compress a file that is given in pieces."""
    level = max(0, math.ceil(math.log2(BLOCK_BYTES)) - 10)
    for data in pieces:
        view = memoryview(data)
        for start in range(0, len(data), BLOCK_BYTES):
            block = view[start : start + BLOCK_BYTES]
            payload = lz4.block.compress(block, store_size=False)
            method = _COMPRESSED
            if len(payload) >= len(block):
                method, payload = _STORED, bytes(block)
            token, checksum = method | level, _checksum(block)
            yield _HEADER.pack(_MAGIC, token, len(payload), len(block), checksum) + payload
    yield _HEADER.pack(_MAGIC, _STORED | level, 0, 0, 0)


def decompress_blocks(data: bytes, source: str, room: Room) -> Iterator[bytes]:
    """Decompress a whole file, block by block, and verify the checksum of each."""
    view = memoryview(data)
    at, end = 0, len(data)
    while at < end:
        start = at + _HEADER_BYTES
        if start > end:
            raise StateFormatError(source, at, "the file ends inside an LZ4 block header")
        magic, token, packed, size, checksum = _HEADER.unpack_from(data, at)
        method, largest = token & 0xF0, 1 << (10 + (token & 0x0F))
        if magic != _MAGIC or method not in (_STORED, _COMPRESSED):
            raise StateFormatError(source, at, "no LZ4 block starts here: is the codec lz4?")
        if (
            packed < 0
            or not 0 <= size <= min(largest, (packed + 1) * _RATIO)
            or (size == 0) != (packed == 0)
            or (method == _STORED and packed != size)
            or (size == 0 and checksum != 0)
        ):
            raise StateFormatError(
                source,
                at,
                f"an LZ4 block claims that {packed} bytes unpack to {size}, which is impossible",
            )
        at = start + packed
        if at > end:
            raise StateFormatError(
                source, start, f"the file ends {at - end} bytes before its LZ4 block does"
            )
        if size:
            room.take(size)
            yield _block(view[start:at], method, size, checksum, source, start)
    if at == 0:
        raise StateFormatError(source, 0, "the file is empty")


def _block(
    payload: memoryview, method: int, size: int, checksum: int, source: str, at: int
) -> bytes:
    if method == _STORED:
        block = bytes(payload)
    else:
        try:
            block = lz4.block.decompress(payload, uncompressed_size=size)
        except lz4.block.LZ4BlockError as error:
            raise StateFormatError(source, at, f"an LZ4 block is damaged ({error})") from None
    actual = _checksum(block)
    if len(block) != size or actual != checksum:
        raise StateFormatError(
            source,
            at,
            f"an LZ4 block has {len(block)} bytes with checksum {actual:#09x}; its header expects "
            f"{size} bytes with {checksum:#09x}",
        )
    return block
