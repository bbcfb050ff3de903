"""The contract between the engine and its sources and sinks.

A source has partitions. A **position** is the place in one partition where the next row will be
read. It is JSON text that only the source interprets. An **offset** covers all partitions of the
source, in the format of Spark's offset log. Some offsets are coarser than positions (whole
seconds, whole files). For these, `boundary` returns the nearest positions that an offset can
express exactly. A query that stops gracefully ends there, so that Spark can continue from the
checkpoint.

The engine opens a `Source` and a `Sink` once, on the driver. Tasks open readers and writers
through factories, which are sent to them pickled. A factory therefore holds plain data only; its
`open` makes the connections.

Note: a reader must be able to repeat itself. After a crash the engine opens a reader at the
positions of the last decided epoch. The reader must return every later row again, though not
necessarily in the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from epochal.epoch.contract import CommittedSink, LoggedSource

Position: TypeAlias = str
Offset: TypeAlias = str
Positions: TypeAlias = Mapping[str, Position]
"""The position of each partition, by partition id."""

Prepare: TypeAlias = Callable[[], bytes]
"""Makes an epoch's output durable but not yet visible; returns the message for `Sink.commit`."""


BadRows: TypeAlias = Mapping[int, str]
"""Why rows of a batch cannot be written, by their index in the batch."""


class SourceReader(Protocol):
    """Reads some partitions of one source in a task. Used by one thread; must never block.

    A class that inherits from it has what is optional, so that it has no effect.
    """

    reads_all: bool = False
    """A read that returns fewer rows than it may has taken everything that was there, of all
    partitions. The engine then does not ask again in a turn."""
    last_read: Sequence[str] = ()
    """The partitions of the rows that the last read has returned. Only if the source says that it
    `tells_waiting`."""

    @property
    def fd(self) -> int | None:
        """A descriptor that becomes readable when rows come after a read that returned None. The
        engine then reads at once. Without one, it asks now and then.
        """
        return None

    def wait(self, seconds: float) -> bool:
        """Wait for rows in the calling thread; False, at once, if that is not possible. A task
        without other work then need not use `fd`.
        """
        del seconds
        return False

    def waiting(self) -> Positions:
        """The ends of partitions that have rows waiting, as far as that is known."""
        return {}

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        """The next rows, or None if there are none right now. Raises if the source has failed."""
        ...

    def positions(self) -> Positions:
        """Where each partition continues after the rows that `read` has returned.

        A position may advance even if `read` returned None, past data that holds no rows.
        """
        ...

    def limit(self, ends: Positions) -> None:
        """Stop each partition at its end, until a later call names a later end.

        Never called with an end that is already passed.
        """
        ...

    def close(self) -> None:
        """Release resources."""
        return None


class AcknowledgingReader(SourceReader, Protocol):
    """A reader that acknowledges its rows itself, as Pub/Sub needs it.

    The readers of a source that declares `acknowledges_in_tasks` must have these two methods; for
    other sources the engine never calls them. See `epochal.epoch.contract`.
    """

    def ended(self, epoch: int) -> None:
        """The rows that `read` returned since the last call belong to `epoch`."""
        ...

    def committed(self, epoch: int) -> None:
        """All epochs up to `epoch` are committed. Calls may skip epochs.

        If the task dies, there is no call for its last epochs. The source may then redeliver their
        rows, and the query must drop them as duplicates.
        """
        ...


class ReaderFactory(Protocol):
    """Opens readers in tasks; picklable."""

    def open(self, partitions: Positions) -> SourceReader:
        """Start reading these partitions at these positions."""
        ...

    def only(self, columns: frozenset[str]) -> ReaderFactory:
        """Readers that fill just these columns, if they can, and leave the others null.

        Called if a query uses no other columns.
        """
        del columns
        return self


@dataclass(frozen=True, slots=True)
class FunctionReaders(ReaderFactory):
    """Opens readers by a function, which must be picklable."""

    open_reader: Callable[[Positions], SourceReader]

    def open(self, partitions: Positions) -> SourceReader:
        return self.open_reader(partitions)


class Source(LoggedSource, Protocol):
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
        return False

    def initial(self) -> Positions:
        """Where a new query starts. Called once in the life of a checkpoint."""
        ...

    def resume(self, offset: Offset) -> Positions:
        """The positions for an offset that Spark logged."""
        ...

    def discover(self, known: Positions) -> Positions:
        """The start positions of partitions that are not in `known`; empty if there are none."""
        return {name: at for name, at in self.initial().items() if name not in known}

    def offset(self, positions: Positions) -> Offset:
        """The offset to log for these positions of all partitions."""
        ...

    def boundary(self, positions: Positions) -> Positions:
        """The nearest positions, not before these, that `resume(offset(...))` leaves unchanged.

        The same ones, if an offset can express every position.
        """
        return positions

    def latest(self) -> Positions | None:
        """The current end of the source, to measure lag and to wait for; None if it has no end."""
        return None

    def lag(self, positions: Positions, latest: Positions) -> int:
        """The distance in rows, or in the source's own unit; 0 once everything is read."""
        ...

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        """The epoch that ended here is committed. Off the data path; may be repeated or skipped.

        Never called if the source `acknowledges_in_tasks`.
        """
        del epoch, positions

    def close(self) -> None:
        """Release resources."""
        return None

    @property
    def bounded(self) -> BoundedSource | None:
        """The source again, if it can bound what an epoch reads."""
        return None


class BoundedSource(Source, Protocol):
    """A source that can bound what an epoch reads. The engine then plans every epoch."""

    @property
    def bounds_epochs(self) -> bool:
        """Whether the options set a bound."""
        ...

    def last_end(self, at: Positions) -> Positions:
        """Where a run ends that starts at `at` and reads what is there now: a boundary."""
        ...

    def next_end(self, at: Positions, last: Positions | None, *, bounded: bool = True) -> Positions:
        """Where an epoch that starts at `at` must end: a boundary that is not before `at`.

        Not after `last`, the end of the query; None if it has none. Without `bounded`, all that
        waits.
        """
        ...


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Identifies a writer. Sinks use it to keep the files of attempts and tasks apart."""

    task: int
    attempt: int
    run_id: str
    schema: pa.Schema
    epoch: int = 0
    """The epoch of the first rows."""


class SinkWriter(Protocol):
    """One task's output.

    One thread calls `write` and `cut`; they must not block it. The function that `cut` returns
    runs on another thread, in the order of epochs.

    A class that inherits from it has what is optional, so that it has no effect.
    """

    dead_letters: int = 0
    """The number of rows of the epoch that was cut last that became dead letters."""
    checks_rows: bool = False
    """Whether `bad_rows` knows which rows the sink would refuse; needed for onBadRow=deadLetter."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def cut(self, epoch: int) -> Prepare:
        """End the epoch's output here. Later rows belong to the next epoch."""
        ...

    def close(self) -> None:
        """Release resources. Output of epochs that were not prepared may be dropped."""
        return None

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        """Return the rows that cannot be written, with the reason; empty if all can.

        Called by the thread that calls `write`, with rows that are about to be written. Rows that
        it names become dead letters and never reach `write`. Look at whole columns first: nearly
        all batches have no bad row. A reason is a sentence without a full stop at its end.
        """
        del batch
        return {}

    def note_idle(self) -> None:
        """The task had no input in the epoch that is about to be cut.

        In output mode complete each epoch emits all rows again. If no task had input, the result is
        the same as before.
        """
        return None


class DeadLetterWriter(SinkWriter, Protocol):
    """A writer that can also write dead letters, together with the rows of the epoch."""

    @property
    def max_dead_letter_bytes(self) -> int: ...

    def write_dead_letters(self, letters: Sequence[bytes]) -> None:
        """Write these JSON documents to the sink's place for dead letters."""
        ...


class WriterFactory(Protocol):
    """Opens writers in tasks; picklable."""

    def open(self, context: WriterContext) -> SinkWriter: ...


@dataclass(frozen=True, slots=True)
class FunctionWriters(WriterFactory):
    """Opens writers by a function, which must be picklable."""

    open_writer: Callable[[WriterContext], SinkWriter]

    def open(self, context: WriterContext) -> SinkWriter:
        return self.open_writer(context)


class Sink(CommittedSink, Protocol):
    """The driver's side of a sink."""

    @property
    def exactly_once(self) -> bool:
        """Whether output stays invisible until `commit`."""
        ...

    @property
    def decides(self) -> bool:
        """Whether the sink's own atomic commit decides the epoch (Kafka transactions).

        If so, `commit` must record the epoch atomically with its output, and `decided` must read
        that record.
        """
        return False

    @property
    def writers(self) -> WriterFactory: ...

    def fence(self, attempt: int) -> None:
        """Fence off writers of earlier attempts that may still run. Called before tasks start.

        Files of such a writer are harmless if no commit names them: then there is nothing to do.
        """
        del attempt

    def decided(self, epoch: int) -> bool:
        """Whether `epoch` is already visible. Called for the newest logged epoch, after `fence`."""
        ...

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        """Make an epoch visible. Must be idempotent: repeated calls for an epoch have no effect."""
        ...

    def close(self) -> None:
        """Release resources."""
        return None
