"""Finds the addresses on which a process and its descendants listen. It reads /proc, so Linux only.

Note: /proc/net lists sockets by inode, without an owner, and /proc/PID/fd lists the inodes of a
process. So both are read. A socket that several processes share is found once.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from tests.spark.continuous import parents_of_all

LISTEN = "0A"


def family(root: int) -> set[int]:
    """Return a process and all its descendants."""
    parents = parents_of_all()
    found, fresh = {root}, {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def addresses(pids: set[int]) -> set[str]:
    """Return the addresses on which these processes listen."""
    held = set()
    for pid in pids:
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    held.add(os.readlink(entry))
    return {
        address
        for table in ("tcp", "tcp6")
        for address, inode in _listening(Path(f"/proc/net/{table}"))
        if f"socket:[{inode}]" in held
    }


def _listening(table: Path) -> list[tuple[str, str]]:
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    return [(_address(row[1].partition(":")[0]), row[9]) for row in rows if row[3] == LISTEN]


def _address(digits: str) -> str:
    """Parse an address. The kernel prints it as words in the machine's byte order."""
    words = [int(digits[n : n + 8], 16) for n in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed)


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""
