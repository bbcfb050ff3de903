"""What the coordinator asks to be done (effects), and what it hears besides messages (events).

Pure data. The steps of an epoch are always performed in this order, and the order is the guarantee:

    Decide → CommitSink → LogCommit → Acknowledge

An epoch that an earlier release decided has a state file per store. `PublishState` gives them
Spark's names, before the sink is committed; with a sink that decides, after it.

Nothing becomes visible before `Decide`, because until then a restart discards the epoch. Everything
is visible before `LogCommit`, because a committed epoch is never looked at again. Sources hear of
the epoch last, because they may forget its rows then.

`Push` and `Fail` are not part of that order. They are performed at once and never wait for storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from epochal.checkpoint.entries import StateUniqueIds
from epochal.epoch.event_time.query_watermark import EpochMarks
from epochal.epoch.manifest import ids_of
from epochal.epoch.messages import CommitPartitionEpoch, EpochReply, Limits, PreparedState


@dataclass(frozen=True, slots=True)
class Decide:
    """Create the offset entry of `epoch`. After that the epoch is finished, never recomputed."""

    epoch: int
    positions: tuple[str, ...]
    """Where the epoch ends, by reader."""
    messages: tuple[bytes, ...]
    """What the sink's writers returned, by task."""
    state: tuple[PreparedState, ...]
    marks: EpochMarks
    checksums: tuple[int, ...] = ()
    """Of the tasks' epoch files; empty if the query has no state."""
    published: int = 0
    """The version of Spark's state files that the decision starts from."""


@dataclass(frozen=True, slots=True)
class CommitSink:
    """Make the epoch's output visible."""

    epoch: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PublishState:
    """Give the epoch's prepared state files Spark's plain names: those of earlier releases."""

    epoch: int
    state: tuple[PreparedState, ...]


@dataclass(frozen=True, slots=True)
class LogCommit:
    """Create the commit entry of the epoch."""

    epoch: int
    next_watermark_ms: int
    ids: StateUniqueIds | None = None
    """The unique ids of the epoch's state files, if their names have any."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Report the committed epoch to sources and listeners."""

    epoch: int
    positions: tuple[str, ...]
    reports: tuple[CommitPartitionEpoch, ...]


@dataclass(frozen=True, slots=True)
class ReadingHeld:
    """All epochs up to this one are committed and no task reads. Next: `Limit` or `Finish`."""

    epoch: int
    positions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """Send a message to one task, or to all."""

    message: EpochReply
    task: int | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """End the attempt: it decides no further epoch. Followed by a push of `Leave`."""

    error: Exception


def steps_after_decision(
    epoch: int,
    state: tuple[PreparedState, ...],
    messages: tuple[bytes, ...],
    next_watermark_ms: int,
    *,
    sink_decides: bool,
) -> tuple[CommitSink | PublishState | LogCommit, ...]:
    """Return the steps that finish an epoch, in their order."""
    commit, log = CommitSink(epoch, messages), LogCommit(epoch, next_watermark_ms, ids_of(state))
    own_files = tuple(version for version in state if version.checksum >= 0)
    if not own_files:
        return commit, log
    publish = PublishState(epoch, own_files)
    # The commit entry is the last, because Spark goes on after it. Where the sink decides, its
    # commit is the decision: state that had Spark's name before it would be that of an epoch which
    # may still be dropped and cut again.
    return (commit, publish, log) if sink_decides else (publish, commit, log)


Step: TypeAlias = Decide | CommitSink | PublishState | LogCommit | Acknowledge | ReadingHeld
"""Steps must be performed one after the other, in the order in which they were returned."""

Effect: TypeAlias = Step | Push | Fail


@dataclass(frozen=True, slots=True)
class Performed:
    """A step was performed."""

    kind: type[Step]
    epoch: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The monotonic clock shows `now` seconds."""

    now: float


@dataclass(frozen=True, slots=True)
class Hold:
    """End the epoch that is being read, and read nothing after it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """After a hold: read on, each of these readers exactly to its position."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class Finish:
    """Let all tasks leave."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A step failed."""

    error: Exception


Event: TypeAlias = Performed | Tick | Hold | Limit | Finish | Broken
