"""Parses and writes RocksDB changelog files: the operations that made one version. Pure.

There are four layouts, and only three of them name themselves. A file that does not begin with the
string `v2`, `v3` or `v4` has the oldest layout, whose first bytes are already the first record.
Spark detects the layout by trying to read a string there. This module takes the same steps.

    layout    begins with              put                             delete               end
    1                                  keyLen key valueLen value       keyLen key FFFFFFFF  FFFFFFFF
    2         0002 "v2"                01 keyLen key valueLen value    10 keyLen key FFFFFFFF     00
    3         0002 "v3" len lineage    as layout 1
    4         0002 "v4" len lineage    as layout 2

Lengths of keys and values have four bytes, that of the lineage has two, all big-endian. A merge
(11) and the delete of a range (20, with its end as the value) are like a put. Layouts 2 and 4 are
those of stores with column families. What keys and values consist of, `rocksdb_entries` says.

Note: the lineage in a v3 or v4 file lists the versions *before* this one, from the last snapshot
on. Its ids are the only way to know which of several files of one version belongs to this history.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeGuard

from epochal.errors import StateFormatError
from epochal.state.files.delta_snapshot import put_records

INVALID_VERSION = "CANNOT_LOAD_STATE_STORE.INVALID_CHANGE_LOG_READER_VERSION"
INVALID_LINEAGE = "CANNOT_LOAD_STATE_STORE.INVALID_CHECKPOINT_LINEAGE"


_END = b"\xff\xff\xff\xff"


class Operation(IntEnum):
    """What a record does. The numbers are those in v2 and v4 files."""

    PUT = 0x01
    DELETE = 0x10
    MERGE = 0x11
    DELETE_RANGE = 0x20


@dataclass(frozen=True, slots=True)
class LineageItem:
    """A version of a store and the unique id of the files that hold it."""

    version: int
    unique_id: str


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One operation; `value` is None for a delete, and the end key for a range delete."""

    change: Operation
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Changelog:
    """The content of one changelog file."""

    layout: int
    lineage: tuple[LineageItem, ...]
    records: tuple[ChangeRecord, ...]


def parse_changelog(data: bytes, source: str) -> Changelog:
    """Read a decompressed changelog; a StateFormatError names `source` and the byte."""
    layout, start = _layout_of(data)
    if layout not in (1, 2, 3, 4):
        reason = f"it is a changelog of version {layout}; the newest supported version is 4"
        raise StateFormatError(source, 0, reason, INVALID_VERSION)
    reader = _Reader(data, start, source)
    lineage = reader.lineage() if layout >= 3 else ()
    records = reader.tagged_records() if layout in (2, 4) else reader.plain_records()
    return Changelog(layout, lineage, tuple(records))


def read_lineage(data: bytes, source: str) -> tuple[LineageItem, ...]:
    """Read only the lineage of a changelog; empty if its layout has none."""
    layout, start = _layout_of(data)
    return _Reader(data, start, source).lineage() if layout in (3, 4) else ()


def with_lineage(data: bytes, lineage: Sequence[LineageItem], source: str) -> bytes:
    """A changelog of layout 3 or 4 with another lineage."""
    layout, start = _layout_of(data)
    reader = _Reader(data, start, source)
    reader.lineage()
    return _head(f"v{layout}", lineage) + data[reader.at :]


def encode_changelog(
    records: Iterable[tuple[bytes, bytes | None]],
    lineage: Sequence[LineageItem] | None,
    *,
    of_families: bool = False,
) -> bytes:
    """Write a changelog: layout 1, or 2 for a store with column families; with a lineage 3 or 4."""
    pieces: list[bytes] = []
    put, delete, end = b"", b"", _END
    if of_families:
        put, delete, end = bytes([Operation.PUT]), bytes([Operation.DELETE]), b"\0"
    if lineage is not None:
        pieces.append(_head("v4" if of_families else "v3", lineage))
    elif of_families:
        pieces.append(b"\0\2v2")
    listed = list(records)
    if _are_puts(listed):
        return b"".join((*pieces, put_records(listed, put), end))
    for key, value in listed:
        pieces += (delete if value is None else put, len(key).to_bytes(4, "big"), key)
        pieces += (_END,) if value is None else (len(value).to_bytes(4, "big"), value)
    return b"".join((*pieces, end))


def _are_puts(records: list[tuple[bytes, bytes | None]]) -> TypeGuard[list[tuple[bytes, bytes]]]:
    """Whether there are records, and none deletes a key."""
    return bool(records) and all(value is not None for _, value in records)


def _head(layout: str, lineage: Sequence[LineageItem]) -> bytes:
    items = [{"version": i.version, "checkpointUniqueId": i.unique_id} for i in lineage]
    texts = (layout, json.dumps(items, separators=(",", ":")))
    return b"".join(len(text).to_bytes(2, "big") + text.encode("ascii") for text in texts)


def _layout_of(data: bytes) -> tuple[int, int]:
    """The layout, and where the content after the version string begins."""
    if len(data) < 2:
        return 1, 0
    length = int.from_bytes(data[:2], "big")
    text = data[2 : 2 + length]
    if len(text) < length or not text.startswith(b"v"):
        return 1, 0
    digits = text[1:].removeprefix(b"-").removeprefix(b"+")
    # Python refuses to read a number of thousands of digits; to Java it is just out of range.
    if not digits.isdigit() or len(digits) > 1000 or not -(1 << 15) <= int(text[1:]) < 1 << 15:
        return 1, 0
    return int(text[1:]), 2 + length


class _Reader:
    def __init__(self, data: bytes, at: int, source: str) -> None:
        self._data, self.at, self._source = data, at, source

    def lineage(self) -> tuple[LineageItem, ...]:
        start = self.at
        text = self._take(int.from_bytes(self._take(2), "big"))
        try:
            items = json.loads(text)
            return tuple(
                LineageItem(int(item["version"]), str(item["checkpointUniqueId"])) for item in items
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"its lineage cannot be read ({error})"
            raise StateFormatError(self._source, start, reason, INVALID_LINEAGE) from None

    def plain_records(self) -> list[ChangeRecord]:
        records: list[ChangeRecord] = []
        while True:
            start = self.at
            key_length = self._int()
            if key_length == -1:
                return records
            if key_length < 0:
                raise self._broken(start, f"key size cannot be {key_length}")
            key = self._take(key_length)
            value_length = self._int()
            if value_length < 0:
                records.append(ChangeRecord(Operation.DELETE, key, None))
            else:
                records.append(ChangeRecord(Operation.PUT, key, self._take(value_length)))

    def tagged_records(self) -> list[ChangeRecord]:
        records: list[ChangeRecord] = []
        while True:
            start = self.at
            tag = self._take(1)[0]
            if tag == 0:
                return records
            try:
                change = Operation(tag)
            except ValueError:
                raise self._broken(start, f"record type cannot be 0x{tag:02x}") from None
            key = self._block()
            if change is not Operation.DELETE:
                records.append(ChangeRecord(change, key, self._block()))
                continue
            size = self._int()
            if size != -1:
                raise self._broken(self.at - 4, f"a delete ends with -1, not {size}")
            records.append(ChangeRecord(change, key, None))

    def _block(self) -> bytes:
        start = self.at
        length = self._int()
        if length < 0:
            raise self._broken(start, f"a length cannot be {length}")
        return self._take(length)

    def _int(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self._data):
            left = len(self._data) - self.at
            raise self._broken(self.at, f"{length} bytes were expected, but {left} are left")
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def _broken(self, at: int, reason: str) -> StateFormatError:
        return StateFormatError(self._source, at, reason)
