"""Compresses and decompresses state files with the four codecs that Spark supports. Pure.

The codec is not recorded in the file; it comes from the offset log. A wrong codec and a damaged
file therefore look alike: both raise StateFormatError at the byte where reading stopped.

A length in a header is checked against what the format and its greatest compression ratio allow,
and against the bounds of the storage, before anything of that size is allocated.

Each codec's library is imported when it is first used: a checkpoint has one codec, and importing
all of them takes longer than reading a small state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple, TypeAlias

from epochal.errors import OptionError, StateFormatError
from epochal.files import UNBOUNDED, Bounds, Room

SNAPPY_BLOCK_BYTES = 32 * 1024

NAMES = frozenset({"lz4", "zstd", "snappy", "lzf"})
_CLASS_NAMES = {
    "org.apache.spark.io.LZ4CompressionCodec": "lz4",
    "org.apache.spark.io.ZStdCompressionCodec": "zstd",
    "org.apache.spark.io.SnappyCompressionCodec": "snappy",
    "org.apache.spark.io.LZFCompressionCodec": "lzf",
}


Unpacked: TypeAlias = bytes | bytearray


class _Codec(NamedTuple):
    compress: Callable[[Iterable[bytes]], Iterator[bytes]]
    decompress: Callable[[bytes, str, Room], Iterator[bytes]]


def codec_name(name: str) -> str:
    """Spark's short name for a codec that is given by its short name or its class name."""
    short = _CLASS_NAMES.get(name, name.lower())
    if short not in NAMES:
        raise OptionError(
            f"The compression codec {name!r} is unknown; Spark's state stores use "
            f"{', '.join(sorted(NAMES))}. Use the codec that the query's offset log names in "
            f"spark.sql.streaming.stateStore.compression.codec."
        )
    return short


def compress(data: bytes, codec: str) -> bytes:
    """Compress the content of a whole file so that Spark can read it."""
    return b"".join(compress_pieces((data,), codec))


def compress_pieces(pieces: Iterable[bytes], codec: str) -> Iterator[bytes]:
    """Compress a file that is given piece by piece, without holding all of it."""
    return _codec(codec).compress(pieces)


def decompress(
    data: bytes, codec: str, *, source: str = "state file", bounds: Bounds = UNBOUNDED
) -> bytes:
    """Decompress a whole file and verify every checksum that the codec has.

    StorageError if it unpacks to more than the bounds of its storage allow.
    """
    return bytes(decompress_buffer(data, codec, source=source, bounds=bounds))


def decompress_buffer(
    data: bytes, codec: str, *, source: str = "state file", bounds: Bounds = UNBOUNDED
) -> Unpacked:
    """Like `decompress`, but may return a bytearray and so saves one copy."""
    # One growing buffer: joining a list of blocks would copy the file once more into fresh memory,
    # which costs more than unpacking it.
    whole = bytearray()
    for piece in _codec(codec).decompress(data, source, bounds.room(source)):
        whole += piece
    return whole


def decompress_pieces(data: bytes, codec: str, *, source: str = "state file") -> Iterator[bytes]:
    """Decompress a whole file in small pieces, without holding all of them."""
    return _codec(codec).decompress(data, source, UNBOUNDED.room(source))


LZ4_BLOCK_BYTES = 32 * 1024
"""What we write: Spark's default `spark.io.compression.lz4.blockSize`. The reader accepts any size
that the format allows."""
_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBiiI")
_LZ4_STORED, _LZ4_COMPRESSED = 0x10, 0x20
_LZ4_RATIO = 255


def _lz4_checksum(block: bytes | memoryview) -> int:
    """What lz4-java keeps of a checksum: 28 of xxHash's 32 bits."""
    import xxhash

    return xxhash.xxh32_intdigest(block, 0x9747B28C) & 0x0FFFFFFF


def _compress_lz4(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Write lz4-java's framing of LZ4 blocks. It is not the LZ4 frame format."""
    import lz4.block

    level = LZ4_BLOCK_BYTES.bit_length() - 11  # the block size as a power of two; 0 is 1 KiB
    for data in pieces:
        view = memoryview(data)
        for start in range(0, len(data), LZ4_BLOCK_BYTES):
            block = view[start : start + LZ4_BLOCK_BYTES]
            payload = lz4.block.compress(block, store_size=False)
            method = _LZ4_COMPRESSED
            if len(payload) >= len(block):
                method, payload = _LZ4_STORED, bytes(block)
            token, checksum = method | level, _lz4_checksum(block)
            yield _LZ4_HEADER.pack(_LZ4_MAGIC, token, len(payload), len(block), checksum) + payload
    yield _LZ4_HEADER.pack(_LZ4_MAGIC, _LZ4_STORED | level, 0, 0, 0)


def _decompress_lz4(data: bytes, source: str, room: Room) -> Iterator[bytes]:
    view = memoryview(data)
    at, end = 0, len(data)
    while at < end:
        start = at + _LZ4_HEADER.size
        if start > end:
            raise StateFormatError(source, at, "the file ends inside an LZ4 block header")
        magic, token, packed, size, checksum = _LZ4_HEADER.unpack_from(data, at)
        method, largest = token & 0xF0, 1 << (10 + (token & 0x0F))
        if magic != _LZ4_MAGIC or method not in (_LZ4_STORED, _LZ4_COMPRESSED):
            raise StateFormatError(source, at, "no LZ4 block starts here: is the codec lz4?")
        # `size` bytes are allocated before one is unpacked, so they must be possible: no block is
        # larger than its token says, and LZ4 makes at most 255 bytes of one.
        if (
            packed < 0
            or not 0 <= size <= min(largest, (packed + 1) * _LZ4_RATIO)
            or (size == 0) != (packed == 0)
            or (method == _LZ4_STORED and packed != size)
            or (size == 0 and checksum != 0)
        ):
            reason = (
                f"an LZ4 block claims that {packed} bytes unpack to {size}, which is impossible"
            )
            raise StateFormatError(source, at, reason)
        at = start + packed
        if at > end:
            reason = f"the file ends {at - end} bytes before its LZ4 block does"
            raise StateFormatError(source, start, reason)
        # An empty block ends a stream, and another stream may follow. The mark is not demanded: a
        # file that is cut between two blocks lacks the end mark of its records, too.
        if size:
            room.take(size)
            yield _lz4_block(view[start:at], method, size, checksum, source, start)
    if at == 0:
        raise StateFormatError(source, 0, "the file is empty")


def _lz4_block(
    payload: memoryview, method: int, size: int, checksum: int, source: str, at: int
) -> bytes:
    import lz4.block

    try:
        block = (
            bytes(payload)
            if method == _LZ4_STORED
            else lz4.block.decompress(payload, uncompressed_size=size)
        )
    except lz4.block.LZ4BlockError as error:
        raise StateFormatError(source, at, f"an LZ4 block is damaged ({error})") from None
    actual = _lz4_checksum(block)
    if len(block) != size or actual != checksum:
        raise StateFormatError(
            source,
            at,
            f"an LZ4 block has {len(block)} bytes with checksum {actual:#09x}; its header expects "
            f"{size} bytes with {checksum:#09x}",
        )
    return block


_ZSTD_MAX_WINDOW_BYTES = 1 << 27
_ZSTD_FED_BYTES = 1 << 16
_ZSTD_RATIO = 1 << 15
"""The most that a byte can unpack to: a block of four bytes can be a run of 128 KiB."""


def _compress_zstd(pieces: Iterable[bytes]) -> Iterator[bytes]:
    import zstandard

    compressor = zstandard.ZstdCompressor(
        level=1, write_checksum=False, write_content_size=False
    ).compressobj()
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()


def _decompress_zstd(data: bytes, source: str, room: Room) -> Iterator[bytes]:
    import zstandard

    if not data:
        raise StateFormatError(source, 0, "the file is empty")
    view = memoryview(data)
    at = 0
    while at < len(data):
        start = at
        frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES).decompressobj()
        while not frame.eof:
            if at == len(data):
                raise StateFormatError(source, at, "the file ends inside a zstd frame")
            # All that the fed bytes unpack to comes at once, before it is counted. So the less room
            # is left, the less is fed; but at least one byte, so that the loop ends.
            most = _ZSTD_FED_BYTES
            if room.left is not None:
                most = min(most, room.left // _ZSTD_RATIO + 1)
            fed = view[at : at + most]
            try:
                piece = frame.decompress(fed)
            except (zstandard.ZstdError, MemoryError) as error:
                reason = f"a zstd frame is damaged ({error})"
                raise StateFormatError(source, start, reason) from None
            at += len(fed) - len(frame.unused_data)  # the next frame may begin in what was fed
            room.take(len(piece))
            yield piece


_SNAPPY_HEADER = bytes.fromhex("82534e41505059000000000100000001")
_SNAPPY_MAGIC = _SNAPPY_HEADER[:8]
_SNAPPY_RATIO = 64


def _compress_snappy(pieces: Iterable[bytes]) -> Iterator[bytes]:
    import cramjam

    yield _SNAPPY_HEADER
    for data in pieces:
        for start in range(0, len(data), SNAPPY_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + SNAPPY_BLOCK_BYTES]))
            yield struct.pack(">i", len(block)) + block


def _decompress_snappy(data: bytes, source: str, room: Room) -> Iterator[bytes]:
    import cramjam

    if data[:8] != _SNAPPY_MAGIC or len(data) < len(_SNAPPY_HEADER):
        raise StateFormatError(source, 0, "no snappy-java stream starts here: is the codec snappy?")
    at = len(_SNAPPY_HEADER)
    while at < len(data):
        if data[at : at + 8] == _SNAPPY_MAGIC:  # a second stream, concatenated
            at += len(_SNAPPY_HEADER)
            continue
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        start, at = at + 4, at + 4 + length
        if start > len(data) or length < 1 or at > len(data):
            raise StateFormatError(source, start - 4, f"a snappy block claims {length} bytes")
        block = data[start:at]
        # `decompress_raw` allocates what the block claims. A copy makes at most 64 bytes and takes
        # at least two, so no block unpacks to 64 times its size.
        size = _snappy_length(block)
        if size is None or size > len(block) * _SNAPPY_RATIO:
            raise StateFormatError(source, start, f"a snappy block claims to unpack to {size}")
        room.take(size)
        try:
            piece = bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise StateFormatError(source, start, f"a snappy block is damaged ({error})") from None
        yield piece


def _snappy_length(block: bytes) -> int | None:
    size = 0
    for position, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return size
    return None


_LZF_LARGEST = 0xFFFF


def _compress_lzf(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Write stored chunks only: every reader accepts them, and compressing in Python is slow."""
    for data in pieces:
        for start in range(0, len(data), _LZF_LARGEST):
            chunk = data[start : start + _LZF_LARGEST]
            yield b"ZV\x00" + struct.pack(">H", len(chunk)) + chunk


def _decompress_lzf(data: bytes, source: str, room: Room) -> Iterator[bytes]:
    if not data:
        raise StateFormatError(source, 0, "the file is empty")
    at = 0
    while at < len(data):
        header = data[at : at + 7]
        kind = header[2] if len(header) >= 5 and header[:2] == b"ZV" else -1
        if kind not in (0, 1) or (kind == 1 and len(header) < 7):
            raise StateFormatError(source, at, "no LZF chunk starts here: is the codec lzf?")
        length = int.from_bytes(header[3:5], "big")
        start = at + (5 if kind == 0 else 7)
        at = start + length
        if at > len(data):
            raise StateFormatError(
                source, start, f"the file ends {at - len(data)} bytes before its LZF chunk does"
            )
        chunk = data[start:at]
        if kind == 1:
            chunk = _lzf_chunk(chunk, int.from_bytes(header[5:7], "big"), source, start)
        room.take(len(chunk))
        yield chunk


def _lzf_chunk(chunk: bytes, size: int, source: str, at: int) -> bytes:
    out = bytearray()
    position, end = 0, len(chunk)
    # The header claims less than 64 KiB, and unpacking ends once there is more than it claims.
    while position < end and len(out) <= size:
        control = chunk[position]
        position += 1
        if control < 32:
            out += chunk[position : position + control + 1]
            position += control + 1
            continue
        length = control >> 5
        if length == 7:
            length += chunk[position] if position < end else 0
            position += 1
        length += 2
        low = chunk[position] if position < end else 0
        position += 1
        start = len(out) - ((control & 0x1F) << 8 | low) - 1
        if start < 0:
            break
        if start + length <= len(out):
            out += out[start : start + length]
        else:  # the copy overlaps itself: a run
            pattern = out[start:]
            out += (pattern * (length // len(pattern) + 1))[:length]
    if position != end or len(out) != size:
        raise StateFormatError(
            source, at, f"an LZF chunk is damaged: it unpacks to {len(out)} bytes, not {size}"
        )
    return bytes(out)


@cache
def _codec(name: str) -> _Codec:
    match codec_name(name):
        case "lz4":
            return _Codec(_compress_lz4, _decompress_lz4)
        case "zstd":
            return _Codec(_compress_zstd, _decompress_zstd)
        case "snappy":
            return _Codec(_compress_snappy, _decompress_snappy)
        case _:
            return _Codec(_compress_lzf, _decompress_lzf)
