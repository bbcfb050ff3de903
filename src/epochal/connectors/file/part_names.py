"""Names the files that tasks write: as Spark does, with the query and the attempt in the UUID.

So leftovers can be attributed to the attempt that wrote them.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from epochal.errors import OptionError

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
        found = UUID("-".join(parts[2:7]))
    except ValueError:
        return None
    if found.version != 8 or found.bytes[:6] != mark:
        return None
    return (found.int >> 64 & 0xFFF) << 12 | found.int >> 50 & 0xFFF


def checked_attempt(attempt: int) -> int:
    """Return the attempt; OptionError if it does not fit into file names."""
    if attempt >= 1 << _ATTEMPT_BITS:
        raise OptionError(
            f"Attempt {attempt} does not fit into file names, which have room for "
            f"{(1 << _ATTEMPT_BITS) - 1}. Start the query with a new checkpointLocation."
        )
    return attempt


def part_name(task: int, uuid: UUID, suffix: str) -> str:
    """The name of a task's file, as Spark forms it; `suffix` starts with a dot."""
    return f"part-{task:05d}-{uuid}-c000{suffix}"
