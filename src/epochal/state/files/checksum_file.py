"""Reads the visible `<name>.crc` files that Spark 4.1 and later writes beside state files. Pure.

Such a file is one line of JSON: the CRC-32C of the whole state file as a signed number, and the
state file's size. Spark accepts a state file without a checksum file and refuses one whose checksum
file is wrong. A program that rewrites a state file must therefore rewrite or delete its checksum
file. (Hadoop's hidden `.<name>.crc` files are something else.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import google_crc32c

from epochal.errors import StateFormatError
from epochal.state.files.chain import checksum_name

MISMATCH = "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """The content of a checksum file."""

    value: int
    """CRC-32C as Java's signed int."""

    size: int


def checksum_of(data: bytes) -> FileChecksum:
    """The checksum and size of a state file's content."""
    value = google_crc32c.value(data)
    return FileChecksum(value - (1 << 32) if value >> 31 else value, len(data))


def parse_checksum_file(content: bytes, *, source: str = "checksum file") -> FileChecksum:
    """Read a checksum file; StateFormatError if it is malformed or its algorithm is unknown."""
    try:
        match json.loads(content):
            case {"algorithm": "CRC32C", "value": int(value), "mainFileSize": int(size)}:
                return FileChecksum(value, size)
    except (ValueError, RecursionError):
        pass
    raise StateFormatError(source, 0, f"{content[:80]!r} is not a CRC32C checksum", MISMATCH)


def verify_checksum(data: bytes, content: bytes, *, source: str = "state file") -> None:
    """Raise StateFormatError unless the state file is the one the checksum file describes."""
    expected, actual = parse_checksum_file(content, source=checksum_name(source)), checksum_of(data)
    if expected != actual:
        raise StateFormatError(
            source,
            0,
            f"its checksum file expects {expected.size} bytes with CRC32C {expected.value}, but it "
            f"has {actual.size} bytes with {actual.value}",
            MISMATCH,
        )
