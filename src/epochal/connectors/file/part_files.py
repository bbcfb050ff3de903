"""Writes the files of tasks, and names them: as Spark does, with query and attempt in the UUID.

So leftovers can be attributed to the attempt that wrote them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Set
from dataclasses import dataclass
from uuid import UUID

from epochal.checkpoint.metadata_log import storage_errors
from epochal.errors import OptionError, StorageError
from epochal.files import FileInfo, Files, join_url

_ATTEMPT_BITS = 24


def mark_of(query_id: str) -> bytes:
    """Six bytes that identify a query, and thereby its checkpoint, in file names."""
    return hashlib.sha256(query_id.encode()).digest()[:6]


def file_uuid(mark: bytes, attempt: int, chance: bytes) -> UUID:
    """A UUID of version 8 (free form) from mark, attempt and 50 bits of randomness."""
    bits = int.from_bytes(mark) << 80
    bits |= 8 << 76  # version
    bits |= (attempt >> 12 & 0xFFF) << 64
    bits |= 2 << 62  # variant
    bits |= (attempt & 0xFFF) << 50
    bits |= int.from_bytes(chance) & (1 << 50) - 1
    return UUID(int=bits)


def attempt_of(name: str, mark: bytes) -> int | None:
    """The attempt that wrote a file of this query; None for any other file."""
    # A leading dot marks a temporary file whose writer died.
    parts = name.removeprefix(".").split("-")
    if len(parts) < 8 or parts[0] != "part" or not parts[1].isdigit():
        return None
    try:
        uuid = UUID("-".join(parts[2:7]))
    except ValueError:
        return None
    if uuid.version != 8 or uuid.bytes[:6] != mark:
        return None
    return (uuid.int >> 64 & 0xFFF) << 12 | uuid.int >> 50 & 0xFFF


@dataclass(frozen=True, slots=True)
class PartNames:
    """The names of one task's files."""

    mark: bytes
    attempt: int
    task: int

    def __post_init__(self) -> None:
        if self.attempt >= 1 << _ATTEMPT_BITS:
            raise OptionError(
                f"Attempt {self.attempt} does not fit into file names, which have room for "
                f"{(1 << _ATTEMPT_BITS) - 1}. Start the query with a new checkpointLocation."
            )

    def draw(self, suffix: str) -> str:
        """A new name, as Spark forms it; `suffix` starts with a dot."""
        uuid = file_uuid(self.mark, self.attempt, os.urandom(7))
        return f"part-{self.task:05d}-{uuid}-c000{suffix}"


def create_part(files: Files, directory: str, name: str, data: bytes) -> tuple[str, FileInfo]:
    """Write a file in a directory; return its path and what the storage says of it."""
    below = f"{directory}/{name}" if directory else name
    url = join_url(files.url, below)
    try:
        with storage_errors(url):
            files.create(below, data)
            info = files.info(below)
    except FileNotFoundError:
        raise StorageError(
            url, "the table's directory does not exist: it was deleted or moved"
        ) from None
    assert info is not None, f"{below} disappeared right after it was written"
    return below, info


def find_leftovers(
    files: Iterable[tuple[str, int | None]], *, attempt: int, known: Set[str]
) -> list[str]:
    """The files that attempts before `attempt` left, of (path, attempt that wrote it).

    `known` are the names of files that the output has, or keeps for readers of earlier versions,
    and of those that an epoch in the checkpoint's log names: it may still have to be committed.
    """
    return [
        path
        for path, wrote in files
        if wrote is not None and wrote < attempt and path.rpartition("/")[2] not in known
    ]
