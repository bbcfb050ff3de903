"""Reads the MANIFEST of a RocksDB database: which tables the database consists of. Pure.

A MANIFEST is a log of changes. It is written in blocks of 32 KiB; a record that does not fit is
continued in the next one, and each piece has a checksum. RocksDB takes a torn last record for the
end, and then opens the database as it was before: such a MANIFEST names other tables than the
snapshot has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from epochal.state.tables.sst_blocks import masked_crc32c, varint

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
