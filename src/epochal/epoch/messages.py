"""The messages between the driver and its tasks during a run. A closed set; pure data.

Every message of a task carries its attempt; the coordinator refuses messages of another attempt.
Positions are JSON text that only the source understands. A reader is one partition of one source,
and readers are numbered over all sources. Each task has one writer.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from epochal.errors.base import FailureKind

Limits: TypeAlias = tuple[tuple[int, str], ...]
"""(reader, position), for readers that must read on exactly to their position."""


class PreparedState(msgspec.Struct, frozen=True, array_like=True):
    """A state version that a task has prepared, and its name.

    With a checksum it has a file of its own, as in earlier releases. If that is -1, it is in the
    task's epoch file, and the name only tells the unique id that its file will have.
    """

    operator: int
    partition: int
    store: str
    version: int
    name: str
    checksum: int


def by_store(state: PreparedState) -> tuple[int, int, str]:
    """Return the key that orders state versions by their store."""
    return state.operator, state.partition, state.store


class ReaderWaits(msgspec.Struct, frozen=True, array_like=True):
    """A reader had rows waiting when it ended an epoch."""

    reader: int
    end: str = ""
    """Where its rows end, as far as it knows; empty if it does not know."""
    highs: tuple[int, ...] = ()
    """Its highest event time, per watermark of the plan; -1 if none. It may be lower than the rows
    that were read, never higher. Empty if partitions of the source do not hold the watermark."""


class ReportPartitionOffset(msgspec.Struct, frozen=True, array_like=True, tag="offset"):
    """A reader ended `epoch` at `position`. One-way.

    Tasks of the engine send it inside CommitPartitionEpoch, as an item of `positions`: the driver's
    cost is the number of messages. Alone it means the same.
    """

    attempt: int
    reader: int
    epoch: int
    position: str


class CommitPartitionEpoch(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A task has made its part of `epoch` durable, but not visible. One-way."""

    attempt: int
    task: int
    epoch: int
    message: bytes
    """What the sink's writer returned."""
    state: tuple[PreparedState, ...] = ()
    watermarks: tuple[int, ...] = ()
    """Highest event time seen so far, in ms, per watermark of the plan; -1 if none."""
    rows_in: tuple[int, ...] = ()
    """Rows read in this epoch, per source."""
    rows_out: int = 0
    state_rows: tuple[tuple[int, int, int, int], ...] = ()
    """(operator, rows in total, rows updated, rows removed), for progress reports."""
    state_seconds: float = 0.0
    stage_seconds: float = 0.0
    """How long the task took to write its state, and to stage its output."""
    dead_letters: int = 0
    """Rows that the sink refused; not in `rows_out`."""
    checksum: int = -1
    """Of the task's epoch file; -1 if the query has no state."""
    positions: tuple[tuple[int, str], ...] = ()
    """(reader, where it ended `epoch`), for the readers of this task."""
    active: int = -1
    """The newest epoch in which the task has rows or timers so far; -1 if none. See TaskActive."""
    observed: tuple[tuple[str, bytes], ...] = ()
    """(name, buffers), for each `observe` with rows."""
    waits: tuple[ReaderWaits, ...] = ()
    """The readers of this task that had rows waiting, if the query has watermarks."""
    late_rows: tuple[tuple[int, int], ...] = ()
    """(operator, rows that it dropped as late), for operators that dropped any."""


class GetCurrentEpoch(msgspec.Struct, frozen=True, array_like=True, tag="current"):
    """Ask for the newest push, in case it was lost with a connection. Two-way.

    The reply is Done while tasks register, then Peers, then the newest EpochStarted, at the end
    Leave.
    """

    attempt: int


class IncrementAndGetEpoch(msgspec.Struct, frozen=True, array_like=True, tag="increment"):
    """End the current epoch. Two-way -> EpochStarted.

    The engine does not send it, because the coordinator ends epochs itself, by the clock. The
    testing driver does: there a test ends epochs.
    """

    attempt: int


class SetReaderPartitions(msgspec.Struct, frozen=True, array_like=True, tag="readers"):
    """Set the number of readers, over all sources. Two-way -> Done. Sent when an attempt starts."""

    attempt: int
    count: int


class SetWriterPartitions(msgspec.Struct, frozen=True, array_like=True, tag="writers"):
    """Set the number of tasks. Two-way -> Done. Sent when an attempt starts."""

    attempt: int
    count: int


class StopContinuousExecutionWrites(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Ignore one-way messages from now on. Two-way -> Done. Sent when an attempt ends."""

    attempt: int


class RegisterTask(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """A task is up and its exchange listens at `url`, with CURVE key `key`. Two-way -> Done.

    The driver pushes to the process that registered last for the task.
    """

    attempt: int
    task: int
    url: str
    key: bytes
    host: str
    pid: int


class TaskReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """A task has loaded its state and connected to its peers. One-way."""

    attempt: int
    task: int


class TaskActive(msgspec.Struct, frozen=True, array_like=True, tag="active"):
    """A task has the first rows or timers of this epoch, so it should end soon. One-way.

    Sent only if no CommitPartitionEpoch of the task carries the news: mostly after idleness.
    """

    attempt: int
    task: int
    epoch: int


class StatePublished(msgspec.Struct, frozen=True, array_like=True, tag="published"):
    """A task has written the state after `epoch` under Spark's names, as ordered. One-way."""

    attempt: int
    task: int
    epoch: int


class TaskFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A task is about to fail with this error. One-way, sent before Spark learns of it."""

    attempt: int
    task: int
    error: str
    traceback: str
    kind: FailureKind = FailureKind.LOST


OneWay: TypeAlias = (
    ReportPartitionOffset
    | CommitPartitionEpoch
    | TaskReady
    | TaskActive
    | TaskFailed
    | StatePublished
)
"""Requests that the coordinator does not answer."""

TwoWay: TypeAlias = (
    GetCurrentEpoch
    | IncrementAndGetEpoch
    | SetReaderPartitions
    | SetWriterPartitions
    | StopContinuousExecutionWrites
    | RegisterTask
)
"""Requests that it answers."""

EpochRequest: TypeAlias = OneWay | TwoWay


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """The request was carried out."""


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where a task's exchange listens."""

    task: int
    url: str
    key: bytes


class Peers(msgspec.Struct, frozen=True, array_like=True, tag="peers"):
    """All tasks have registered. Pushed."""

    attempt: int
    peers: tuple[Peer, ...]


class EpochStarted(msgspec.Struct, frozen=True, array_like=True, tag="epoch"):
    """`epoch` is being read now: tasks must cut all epochs before it. Pushed, and a reply."""

    attempt: int
    epoch: int
    watermarks: tuple[int, ...] = ()
    """Highest event time that counts (see `units`) up to the newest decided epoch, per watermark of
    the plan, before the delay is subtracted; -1 if none. The lower bound of a task's watermark."""
    hold: bool = False
    """Read nothing in `epoch`: the query is about to stop or to be reconfigured."""
    limits: Limits | None = None
    """In `epoch`, read these exactly to their position and no others. A task
    then cuts `epoch` by itself as soon as its readers have arrived, and reads nothing in the next
    epoch. Only after a hold."""
    committed: int = -1
    """The newest committed epoch, if a source of the query acknowledges in its tasks; else -1. The
    message is then pushed again after every commit."""
    epoch_watermarks_ms: tuple[tuple[int, int], ...] = ()
    """(epoch, watermark in ms) of every epoch that tasks may still process, and of the one before
    them, if watermarks move at epoch boundaries. Pushes may be lost, so each one has them all."""
    publish: int = -1
    """The committed epoch whose state the task must write under Spark's names; -1 for none."""
    floor: int = 0
    """The lowest version of the state that is still needed. Files that only older versions need may
    be deleted."""
    held: bool = False
    """Rows wait: a task's own watermark must not go beyond the lower bound. See `units`."""


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """The attempt is over: tasks end at once, without an error. Pushed."""

    attempt: int
    committed: int = -1
    """As in EpochStarted."""


EpochReply: TypeAlias = Done | EpochStarted | Peers | Leave
