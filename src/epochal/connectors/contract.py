"""What a source and a sink promise the engine, and what the engine promises them.

A source has partitions. A **position** is the place in one partition where the next row will be
read, as JSON text that only the source understands. An **offset** is the source's place in all
its partitions, in the form that Spark writes in its offset log. A source whose offset says less
than its positions (whole seconds, whole files) tells by `boundary` where both mean the same; a
query that stops gracefully ends there, so that Spark may take the checkpoint over.

The engine opens a `Source` and a `Sink` once, on the driver. Readers and writers are opened in
tasks by factories, which travel there pickled: a factory holds plain data, its `open` connects.

What a reader would get wrong: nothing may be promised for the past. After a crash a reader is
opened at the positions of the last decided epoch; whatever it handed out later is forgotten and
must be handed out again, though not in the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

Position: TypeAlias = str
Offset: TypeAlias = str
Positions: TypeAlias = Mapping[str, Position]
"""By the id of the source's partition."""

Prepare: TypeAlias = Callable[[], bytes]
"""Makes an epoch's output durable, not visible, and returns the message for the sink's commit."""


class SourceReader(Protocol):
    """Some partitions of one source, in a task. Used by one thread; never blocks."""

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows, or None if none are there now. Raises if the source is broken."""
        ...

    def positions(self) -> Positions:
        """Where each partition goes on after what `read` returned.

        It may have moved though `read` returned None, over what holds no rows.
        """
        ...

    def limit(self, ends: Positions) -> None:
        """Read no partition beyond its end. Never called with an end already passed."""
        ...

    def close(self) -> None: ...


class AcknowledgingReader(SourceReader, Protocol):
    """A reader that acknowledges its rows itself, as Pub/Sub needs it.

    The readers of a source that declares `acknowledges_in_tasks` must have these two methods; for
    other sources the engine never calls them. See `epochal.epoch.acknowledging`.
    """

    def ended(self, epoch: int) -> None:
        """What `read` returned since the last call belongs to `epoch`."""
        ...

    def committed(self, epoch: int) -> None:
        """All epochs up to this one are history. May skip some; is never called for others.

        Not at all for the last ones, if the task dies: then the source must hand their rows out
        again, or its query sees to it that they count once.
        """
        ...


class ReaderFactory(Protocol):
    """Opens readers in tasks; picklable.

    A factory may also have `only(columns: frozenset[str]) -> ReaderFactory`: readers that fill just
    these columns and leave the others null. The engine calls it if a query uses no other columns.
    """

    def open(self, partitions: Positions) -> SourceReader:
        """Start reading these partitions at these positions."""
        ...


class Source(Protocol):
    """The driver's side of a source."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def readers(self) -> ReaderFactory: ...

    @property
    def acknowledges_in_tasks(self) -> bool:
        """Whether the readers acknowledge committed epochs, as `AcknowledgingReader`.

        False for most sources: then the driver calls `acknowledge`.
        """
        ...

    def initial(self) -> Positions:
        """Where a query without a history starts. Called once in the life of a checkpoint."""
        ...

    def resume(self, offset: Offset) -> Positions:
        """Positions for an offset that Spark logged."""
        ...

    def discover(self, known: Positions) -> Positions:
        """Positions of the partitions that exist but are not known yet; empty if none."""
        ...

    def offset(self, positions: Positions) -> Offset:
        """The offset to log for these positions of all partitions."""
        ...

    def boundary(self, positions: Positions) -> Positions:
        """The nearest positions, not before these, that `resume(offset(...))` gives back."""
        ...

    def latest(self) -> Positions | None:
        """Where the source ends now, to measure lag and to wait for; None if it has no end."""
        ...

    def lag(self, positions: Positions, latest: Positions) -> int:
        """How many rows, or whatever the source counts, lie between; 0 once all is read."""
        ...

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        """The epoch that ended here is committed. Off the data path; may be repeated or skipped.

        Never called if the source `acknowledges_in_tasks`.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Who writes: in names of files it keeps attempts and tasks apart."""

    task: int
    attempt: int
    run_id: str
    schema: pa.Schema
    epoch: int = 0
    """The epoch that the first rows belong to."""


class SinkWriter(Protocol):
    """One task's output. `write` and `cut` are called by one thread, which they must not hold up;
    what `cut` returns runs on another thread, in the order of epochs."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def cut(self, epoch: int) -> Prepare:
        """End the epoch's output here; what is written next belongs to the next epoch."""
        ...

    def close(self) -> None:
        """Leave; output of epochs that were not prepared may be dropped."""
        ...


class WriterFactory(Protocol):
    """Opens writers in tasks; picklable."""

    def open(self, context: WriterContext) -> SinkWriter: ...


class Sink(Protocol):
    """The driver's side of a sink."""

    @property
    def exactly_once(self) -> bool:
        """Whether output stays invisible until `commit`."""
        ...

    @property
    def decides(self) -> bool:
        """Whether the sink's own atomic commit is the epoch's decision (Kafka transactions).

        If so, `commit` must record the epoch atomically with its output, and `decided` tell.
        """
        ...

    @property
    def writers(self) -> WriterFactory: ...

    def fence(self, attempt: int) -> None:
        """Shut out whatever an earlier attempt may still have running. Before tasks start."""
        ...

    def decided(self, epoch: int) -> bool:
        """Whether `epoch` is visible already. Asked of the newest logged epoch, after `fence`."""
        ...

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        """Make an epoch visible, once, however often it is called: by the number of the epoch."""
        ...

    def close(self) -> None: ...
