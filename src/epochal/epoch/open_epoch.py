"""The reports of epochs that are not decided yet. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochal.epoch.messages import CommitPartitionEpoch
from epochal.errors import (
    EpochBacklogError,
    EpochConflictError,
    EpochError,
    EpochProtocolError,
)


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


def backlog_error(
    opened: Mapping[int, OpenEpoch], complete: Collection[int], limit: int
) -> EpochBacklogError | None:
    """Return an error if there are more reports, or complete epochs, than the limit allows.

    Reports of complete epochs count as one epoch, not as reports. Otherwise the queues of reports
    would always exceed the limit first, and the error would name the wrong queue.
    """
    partial = [each for epoch, each in opened.items() if epoch not in complete]
    queues = {
        "partition offset": sum(len(each.ends) for each in partial),
        "partition commit": sum(len(each.commits) for each in partial),
        "epoch": len(complete),
    }
    over = next((queue for queue, size in queues.items() if size > limit), None)
    return EpochBacklogError(over, queues[over], limit) if over else None


def clip(value: object) -> str:
    """Return what a message shows of a report."""
    return str(value)[:300]
