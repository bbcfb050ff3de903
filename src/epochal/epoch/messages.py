"""What driver and tasks say to each other during a run. A closed set; pure data.

Every message of a task carries its attempt: the coordinator refuses those of another. Positions
are the sources' own JSON text, by partition id; partitions of readers are numbered over all
sources, tasks are the writers.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class PreparedState(msgspec.Struct, frozen=True, array_like=True):
    """A state version that a task has written under its attempt's name."""

    operator: int
    partition: int
    store: str
    version: int
    name: str
    checksum: int


class ReportPartitionOffset(msgspec.Struct, frozen=True, array_like=True, tag="offset"):
    """A reader ended `epoch` at `position`. One-way."""

    attempt: int
    reader: int
    epoch: int
    position: str


class CommitPartitionEpoch(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A task has made all of its `epoch` durable, not visible. One-way."""

    attempt: int
    task: int
    epoch: int
    message: bytes
    """What the sink's writer returned."""
    state: tuple[PreparedState, ...] = ()
    watermarks: tuple[int, ...] = ()
    """Highest event time seen so far, in ms, per watermark of the plan; -1 if none was seen."""
    rows_in: tuple[int, ...] = ()
    """Rows read in this epoch, per source."""
    rows_out: int = 0
    state_rows: tuple[tuple[int, int, int, int], ...] = ()
    """(operator, rows in total, rows updated, rows removed), for progress."""
    state_seconds: float = 0.0
    stage_seconds: float = 0.0
    """How long the task took to write its state, and to stage its output."""


class GetCurrentEpoch(msgspec.Struct, frozen=True, array_like=True, tag="current"):
    """What was pushed last? A task's fallback if pushes are lost. Two-way.

    -> Done while tasks register, then Peers, then the newest EpochStarted, in the end Leave.
    """

    attempt: int


class IncrementAndGetEpoch(msgspec.Struct, frozen=True, array_like=True, tag="increment"):
    """End the current epoch. Two-way -> EpochStarted."""

    attempt: int


class SetReaderPartitions(msgspec.Struct, frozen=True, array_like=True, tag="readers"):
    """How many reader partitions there are, over all sources. Two-way -> Done."""

    attempt: int
    count: int


class SetWriterPartitions(msgspec.Struct, frozen=True, array_like=True, tag="writers"):
    """How many tasks there are. Two-way -> Done."""

    attempt: int
    count: int


class StopContinuousExecutionWrites(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """From now on swallow one-way messages. Two-way -> Done."""

    attempt: int


class RegisterTask(msgspec.Struct, frozen=True, array_like=True, tag="register"):
    """A task is up and its exchange listens at `url`, with CURVE key `key`. Two-way -> Done.

    Pushes go to whoever registered last for the task.
    """

    attempt: int
    task: int
    url: str
    key: bytes
    host: str
    pid: int


class TaskReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """A task has loaded its state and reached its peers. One-way."""

    attempt: int
    task: int


class TaskActive(msgspec.Struct, frozen=True, array_like=True, tag="active"):
    """First rows or timers of this epoch: it is worth ending. One-way."""

    attempt: int
    task: int
    epoch: int


class TaskFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A task is about to die of this. One-way, sent before Spark hears of it."""

    attempt: int
    task: int
    error: str
    traceback: str


EpochRequest: TypeAlias = (
    ReportPartitionOffset
    | CommitPartitionEpoch
    | GetCurrentEpoch
    | IncrementAndGetEpoch
    | SetReaderPartitions
    | SetWriterPartitions
    | StopContinuousExecutionWrites
    | RegisterTask
    | TaskReady
    | TaskActive
    | TaskFailed
)


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """It is so."""


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
    """`epoch` is being read now: whatever was before it must be cut. Pushed, and replied."""

    attempt: int
    epoch: int
    watermarks: tuple[int, ...] = ()
    """Highest event time seen by any task up to the newest decided epoch, per watermark of the
    plan and before its delay is taken off; -1 if none. A floor for every task's own watermark."""
    hold: bool = False
    """Read nothing in `epoch`: the query is about to stop or to be reconfigured."""
    limits: tuple[tuple[int, str], ...] | None = None
    """(reader, position): read these exactly to there in `epoch`, all others not at all. A task
    cuts `epoch` unasked as soon as its readers are there, and reads nothing in the next. Follows a
    hold."""
    committed: int = -1
    """The newest committed epoch, if the query has sources that acknowledge in their tasks; then
    the message is also pushed again after every commit."""


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """The attempt is over: end at once, without an error. Pushed."""

    attempt: int
    committed: int = -1
    """As in EpochStarted."""


EpochReply: TypeAlias = Done | EpochStarted | Peers | Leave
