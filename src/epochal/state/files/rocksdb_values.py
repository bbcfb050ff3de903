"""Wraps and unwraps the values of RocksDB-backed stores: checksums and lists of values. Pure.

A value is one row, or several rows joined by RocksDB's merge operator if an operator keeps several
rows per key. Version 1 of the merge operator puts a comma between two values, version 2 puts
nothing. With row checksums every row has its own checksum, also inside a list.

The bytes record none of this; all of it comes from the conf in the offset log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import google_crc32c

from epochal.errors import StateFormatError

CHECKSUM_FAILED = "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
_INT = struct.Struct("<i")
_CHECKED = struct.Struct("<Ii")
_CHECKED_KEY = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class ValueForm:
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
