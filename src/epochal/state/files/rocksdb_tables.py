"""Checks the tables (SST files) and the MANIFEST of a RocksDB database without RocksDB. Pure.

A table is a sequence of blocks. After each come one byte, how it is compressed, and four bytes, its
checksum. The footer leads to two of them: one lists the blocks with properties and filters, the
other, the index, lists the blocks with rows. Only these lists are unpacked; of all other blocks the
bytes as they are stored are hashed.

RocksDB has a call that does the same, but its binding for Python does not offer it, and opening a
database for each snapshot would read the tables that snapshots share once for each.

A MANIFEST is a log of changes: which tables the database consists of. It is written in blocks of
32 KiB; a record that does not fit is continued in the next one, and each piece has a checksum.
RocksDB takes a torn last record for the end, and then opens the database as it was before: such a
MANIFEST names other tables than the snapshot has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
import xxhash

from epochal.errors import StateFormatError
from epochal.files import Room

_MAGIC = 0x88E241B785F4CFF7
_FOOTER_BYTES = 53
_TRAILER_BYTES = 5
_KNOWN_VERSIONS = range(2, 6)
_PARTITIONED, _FIRST_KEYS = 2, 3
_INDEX_TYPE = b"rocksdb.block.based.table.index.type"
_DELTAS = b"rocksdb.index.value.is.delta.encoded"
_PROPERTIES = b"rocksdb.properties"
_SESSION = b"rocksdb.creating.session.identity"
_SESSION_DIGITS = range(13, 25)
_MASK = 0xFFFFFFFF
_XXH3 = 4
_SNAPPY = 1
_LAST_BYTE_PRIME = 0x6B9083D9


class Handle(NamedTuple):
    """Where a block is."""

    offset: int
    size: int


def check_table(data: bytes, source: str, room: Room) -> str | int | None:
    """Check every block; StateFormatError at the first whose checksum is wrong.

    Returns the number of the session that wrote the table, which its unique id in a MANIFEST begins
    with, or None if it has none; or why nothing could be checked, for a format that Spark has never
    written.
    """
    return _Table(data, source, room).check()


class _Unknown(Exception):
    """A form of tables that Spark's releases of RocksDB do not write."""


class _Table:
    def __init__(self, data: bytes, source: str, room: Room) -> None:
        self._data, self._source, self._room = data, source, room
        self._view = memoryview(data)
        self._kind = 0

    def check(self) -> str | int | None:
        footer = len(self._data) - _FOOTER_BYTES
        if footer < 0:
            raise self._broken(0, "it is too short for a table")
        version, magic = struct.unpack_from("<IQ", self._data, len(self._data) - 12)
        if magic != _MAGIC:
            raise self._broken(len(self._data) - 8, "it does not end as a table does")
        if version not in _KNOWN_VERSIONS:
            return f"it has format version {version}"
        self._kind = self._data[footer]
        try:
            listing, at = _handle(self._data, footer + 1)
            index, at = _handle(self._data, at)
            return self._blocks(listing, index)
        except _Unknown as unknown:
            return str(unknown)
        except (IndexError, struct.error, ValueError) as error:
            raise self._broken(footer, f"its index cannot be read ({error})") from None

    def _blocks(self, listing: Handle, index: Handle) -> int | None:
        properties: dict[bytes, bytes] = {}
        for name, value in _entries(self._unpacked(listing)):
            handle, _ = _handle(value, 0)
            if name == _PROPERTIES:
                properties = dict(_entries(self._unpacked(handle)))
            else:
                self._verified(handle)
        index_type = int.from_bytes(properties.get(_INDEX_TYPE, b""), "little")
        if index_type == _FIRST_KEYS:
            raise _Unknown("its index has the first key of each block")
        deltas = properties.get(_DELTAS, b"\0") != b"\0"
        handles = _handles(self._unpacked(index), deltas)
        if index_type == _PARTITIONED:
            parts = handles
            handles = (block for part in parts for block in _handles(self._unpacked(part), deltas))
        for handle in handles:
            self._verified(handle)
        return _session(properties.get(_SESSION, b""))

    def _verified(self, handle: Handle) -> memoryview:
        """The bytes of a block as they are stored; StateFormatError if its checksum is wrong."""
        offset, end = handle.offset, handle.offset + handle.size
        if end + _TRAILER_BYTES > len(self._data) - _FOOTER_BYTES:
            raise self._broken(offset, f"a block of {handle.size} bytes reaches beyond its end")
        (stored,) = struct.unpack_from("<I", self._data, end + 1)
        computed = self._checksum(offset, end)
        if stored != computed:
            raise self._broken(
                offset,
                f"the block has the checksum {computed:#010x}; the table says {stored:#010x}",
            )
        return self._view[offset:end]

    def _checksum(self, offset: int, end: int) -> int:
        """The checksum of a block, with the byte that says how it is compressed."""
        if self._kind == _XXH3:
            whole = xxhash.xxh3_64_intdigest(self._view[offset:end]) & _MASK
            return whole ^ (self._data[end] * _LAST_BYTE_PRIME & _MASK)
        block = self._view[offset : end + 1]
        match self._kind:
            case 0:
                raise _Unknown("it was written without checksums")
            case 1:
                return masked_crc32c(bytes(block))
            case 2:
                return xxhash.xxh32_intdigest(block)
            case 3:
                return xxhash.xxh64_intdigest(block) & _MASK
        raise ValueError(f"there is no checksum of type {self._kind}")

    def _unpacked(self, handle: Handle) -> bytes:
        packed = self._verified(handle)
        method = self._data[handle.offset + handle.size]
        if method == 0:
            return bytes(packed)
        if method not in _UNPACK:
            raise _Unknown(f"it is compressed by method {method}")
        size, at = varint(packed, 0)
        self._room.take(size)
        try:
            # Snappy begins with the size itself.
            return _UNPACK[method](bytes(packed if method == _SNAPPY else packed[at:]), size)
        except Exception as error:  # noqa: BLE001 - each library has its own
            raise ValueError(f"a block cannot be unpacked: {error}") from None

    def _broken(self, offset: int, reason: str) -> StateFormatError:
        return StateFormatError(self._source, offset, reason)


def _lz4(packed: bytes, size: int) -> bytes:
    import lz4.block

    unpacked: bytes = lz4.block.decompress(packed, uncompressed_size=size)
    return unpacked


def _snappy(packed: bytes, size: int) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.decompress_raw(packed))


def _zstd(packed: bytes, size: int) -> bytes:
    import cramjam

    target = bytearray(size)
    cramjam.zstd.decompress_into(packed, target)
    return bytes(target)


_UNPACK = {_SNAPPY: _snappy, 4: _lz4, 5: _lz4, 7: _zstd}


def _session(identity: bytes) -> int | None:
    """The number in a session's name, whose digits have the base 36: its last 64 bits."""
    if len(identity) not in _SESSION_DIGITS:
        return None
    upper, lower = int(identity[:-12], 36), int(identity[-12:], 36)
    return (lower & (1 << 62) - 1) | (upper & 3) << 62


def masked_crc32c(data: bytes) -> int:
    """The CRC32C that RocksDB stores: rotated, because the CRC of a CRC is weak."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _MASK


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number in 7 bits per byte, and where the next field starts."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")


def _handle(data: bytes, at: int) -> tuple[Handle, int]:
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return Handle(offset, size), at


def _end_of_entries(block: bytes) -> int:
    """Where the entries of a block end. A list of the keys that are whole follows, and its size."""
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end: int = len(block) - 4 - 4 * restarts
    if end < 0:
        raise ValueError("a block is shorter than it says")
    return end


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and values of a block of properties or of other blocks."""
    at, end, key = 0, _end_of_entries(block), b""
    while at < end:
        shared, at = varint(block, at)
        rest, at = varint(block, at)
        size, at = varint(block, at)
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + size]
        at += size


def _handles(block: bytes, deltas: bool) -> Iterator[Handle]:
    """The blocks that an index lists.

    With `deltas`, only the first of a run of entries has the whole place of its block. All others
    follow the block before them, and have the difference between the sizes.
    """
    at, end, last = 0, _end_of_entries(block), Handle(0, 0)
    while at < end:
        shared, at = varint(block, at)
        rest, at = varint(block, at)
        if not deltas:
            _, at = varint(block, at)
        at += rest
        if deltas and shared:
            change, at = varint(block, at)
            size = last.size + ((change >> 1) ^ -(change & 1))
            last = Handle(last.offset + last.size + _TRAILER_BYTES, size)
        else:
            last, at = _handle(block, at)
        yield last


_BLOCK_BYTES = 32 * 1024
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_DELETED_FILE, _NEW_FILE = 6, 103
_IGNORABLE = 1 << 13
_END_OF_FILE_FIELDS, _UNIQUE_ID = 1, 12
_NUMBERS = {2: 1, 3: 1, 4: 1, 9: 1, 10: 1, 200: 1, 202: 0, 203: 1, 300: 1, _DELETED_FILE: 2}
"""How many numbers follow a tag. Those of a deleted file are its level and its own."""
_TEXTS = frozenset({1, 201})


class LiveTable(NamedTuple):
    """What a MANIFEST records of a table."""

    size: int
    session: int | None
    """The first half of its unique id: it identifies the session that wrote it."""


def live_tables(manifest: bytes) -> dict[int, LiveTable] | None:
    """Each table by its number; ValueError if a record is damaged.

    None if a record is of a kind that Spark's releases of RocksDB do not write.
    """
    live: dict[int, LiveTable] = {}
    try:
        for record in list(_records(manifest)):
            if not _apply(record, live):
                return None
    except (IndexError, struct.error):
        raise ValueError("it ends inside a record") from None
    return live


def _records(data: bytes) -> Iterator[bytes]:
    at, pieces = 0, b""
    while at < len(data):
        if _BLOCK_BYTES - at % _BLOCK_BYTES < _HEADER.size:
            at += _BLOCK_BYTES - at % _BLOCK_BYTES
            continue
        checksum, size, kind = _HEADER.unpack_from(data, at)
        content = data[at + _HEADER.size : at + _HEADER.size + size]
        if len(content) < size or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            raise ValueError(f"at byte {at}, no record begins")
        if checksum != masked_crc32c(bytes([kind]) + content):
            raise ValueError(f"the record at byte {at} does not have its checksum")
        at += _HEADER.size + size
        pieces = content if kind in (_WHOLE, _FIRST) else pieces + content
        if kind in (_WHOLE, _LAST):
            yield pieces
            pieces = b""
    if pieces:
        raise ValueError("its last record is torn")


def _apply(record: bytes, live: dict[int, LiveTable]) -> bool:
    """Apply one change to the tables; False if it is of an unknown kind."""
    at = 0
    while at < len(record):
        tag, at = varint(record, at)
        if tag in _NUMBERS:
            number = 0
            for _ in range(_NUMBERS[tag]):
                number, at = varint(record, at)
            if tag == _DELETED_FILE:
                live.pop(number, None)
        elif tag in _TEXTS or tag & _IGNORABLE:
            at = _after_text(record, at)
        elif tag == 5:  # where the next compaction of a level begins
            at = _after_text(record, varint(record, at)[1])
        elif tag == _NEW_FILE:
            at = _new_file(record, at, live)
        else:
            return False
    return True


def _after_text(record: bytes, at: int) -> int:
    size, at = varint(record, at)
    return at + size


def _new_file(record: bytes, at: int, live: dict[int, LiveTable]) -> int:
    _, at = varint(record, at)  # its level
    number, at = varint(record, at)
    size, at = varint(record, at)
    at = _after_text(record, _after_text(record, at))  # its first and its last key
    for _ in range(2):  # its first and its last change
        _, at = varint(record, at)
    session: int | None = None
    while True:
        field, at = varint(record, at)
        if field == _END_OF_FILE_FIELDS:
            live[number] = LiveTable(size, session)
            return at
        begin, at = at, _after_text(record, at)
        if field == _UNIQUE_ID:
            (session,) = struct.unpack_from("<Q", record, varint(record, begin)[1])
