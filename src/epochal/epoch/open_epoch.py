"""The reports of an epoch that is not decided yet. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from epochal.epoch.messages import CommitPartitionEpoch
from epochal.errors import EpochConflictError, EpochError, EpochProtocolError


@dataclass(slots=True)
class OpenEpoch:
    """The reports of an epoch that is not decided yet."""

    ends: dict[int, str] = field(default_factory=dict)
    commits: dict[int, CommitPartitionEpoch] = field(default_factory=dict)


def record(
    table: dict[int, Any], number: int, value: object, count: int, kind: str, epoch: int
) -> EpochError | None:
    """Keep a report. The same report may come again; a different one is an error."""
    if not 0 <= number < count:
        return EpochProtocolError(f"{kind} {number}", f"there are {count}, numbered from 0")
    known = table.setdefault(number, value)
    if known != value:
        return EpochConflictError(f"{kind} {number}", epoch, clip(known), clip(value))
    return None


def clip(value: object) -> str:
    """Return what a message shows of a report."""
    return str(value)[:300]
