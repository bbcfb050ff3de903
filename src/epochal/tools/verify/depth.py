"""Defines how much `verify` reads, and how it reports progress. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum

Progress = Callable[[int, int], None]
"""Called with the number of state files checked so far, and the total."""


class Depth(StrEnum):
    """How much `verify` reads.

    `QUICK` reads the logs and the names of the state files. `NORMAL` also reads every state file
    and checks every row; of RocksDB's data files it checks the blocks, not the rows in them.
    `DEEP` also opens the databases of RocksDB and checks their keys, replays the deltas before
    every snapshot, and checks Hadoop's checksums of files that contain checksums themselves.
    """

    QUICK = "quick"
    NORMAL = "normal"
    DEEP = "deep"


_ONLY_DEEP = frozenset({"CRC_REFUSED", "STATE_SNAPSHOT_DISAGREES"})


def depth_to_find(codes: Collection[str]) -> Depth:
    """The depth at which `verify` finds everything that has one of these codes."""
    return Depth.DEEP if _ONLY_DEEP & set(codes) else Depth.NORMAL
