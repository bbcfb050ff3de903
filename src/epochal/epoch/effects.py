"""What the coordinator asks to be done, and what it is told besides messages. Pure data.

The effects of one epoch come in one order, and that order is the guarantee: `Decide` before
anything becomes visible, `LogCommit` after everything is, `Acknowledge` last. `Push` and `Fail`
stand outside of it: whoever performs them need not wait for the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from epochal.epoch.messages import CommitPartitionEpoch, EpochReply, PreparedState


@dataclass(frozen=True, slots=True)
class Decide:
    """Create the offset entry of `epoch`: from here on it is finished, never recomputed."""

    epoch: int
    positions: tuple[str, ...]
    """Where the epoch ends, by reader."""
    messages: tuple[bytes, ...]
    """What the sink's writers returned, by task."""
    state: tuple[PreparedState, ...]
    highs: tuple[int, ...]
    """Highest event time seen so far by any task, per watermark of the plan; -1 if none."""
    watermark_ms: int
    """The watermark that the epoch began with."""


@dataclass(frozen=True, slots=True)
class CommitSink:
    """Make the epoch's output visible."""

    epoch: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PublishState:
    """Give the epoch's prepared state Spark's plain names."""

    epoch: int
    state: tuple[PreparedState, ...]


@dataclass(frozen=True, slots=True)
class LogCommit:
    """Create the commit entry: the epoch is history."""

    epoch: int
    next_watermark_ms: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the sources, and whoever watches, that the epoch is committed."""

    epoch: int
    positions: tuple[str, ...]
    reports: tuple[CommitPartitionEpoch, ...]


@dataclass(frozen=True, slots=True)
class ReadingHeld:
    """All is committed up to here, and no task reads: limit, or let the tasks leave."""

    epoch: int
    positions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """Send a message to one task, or to all."""

    message: EpochReply
    task: int | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """End the attempt: nothing more is decided in it. Followed by a push of `Leave`."""

    error: Exception


Step: TypeAlias = Decide | CommitSink | PublishState | LogCommit | Acknowledge | ReadingHeld
"""To be performed one after the other."""

Effect: TypeAlias = Step | Push | Fail


@dataclass(frozen=True, slots=True)
class Performed:
    """A step was taken."""

    kind: type[Step]
    epoch: int


@dataclass(frozen=True, slots=True)
class Tick:
    """It is now `now` seconds, monotonic."""

    now: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Cut what is being read, and read nothing more."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Read on after a hold, each of these readers exactly to its position."""

    limits: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Let all tasks leave."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A step could not be taken."""

    error: Exception


Event: TypeAlias = Performed | Tick | Hold | Limit | Finish | Broken
