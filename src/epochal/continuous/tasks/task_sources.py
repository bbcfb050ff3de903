"""The sources of a task, and chains of stateless operators. Pure; one thread makes all calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa

from epochal.connectors.contract import AcknowledgingReader, Position, SourceReader
from epochal.continuous.operators.aggregation.observe import Observe
from epochal.continuous.operators.contract import Moment, Operator, OperatorSpec
from epochal.continuous.operators.stateless.row_operators import ObserveEventTime
from epochal.continuous.plan.stages import QueryPlan, ReaderPlan, Target
from epochal.epoch.event_time.query_watermark import NONE_SEEN
from epochal.epoch.event_time.units import HOLDS_NOTHING
from epochal.epoch.messages import ReaderWaits
from epochal.record_batches import FEW_ROWS

MAX_ROWS_PER_TURN = 5_000
"""Per source. More would delay frames that arrive meanwhile. Under full load the next turn follows
at once. So this is the size of a batch under full load, also of one that a user's function gets:
the rows of a turn pass the operators together, and what has come from other tasks since the last
turn as one batch per state partition."""

MAX_READS_PER_TURN = 64


class Chain:
    """Consecutive operators without an exchange between them."""

    def __init__(self, specs: Sequence[OperatorSpec]) -> None:
        self.operators: list[Operator] = [spec.open() for spec in specs]
        self.observers = [one for one in self.operators if isinstance(one, ObserveEventTime)]

    def run(self, batches: Iterable[pa.RecordBatch], at: Moment) -> list[pa.RecordBatch]:
        for operator in self.operators:
            batches = [output for batch in batches for output in operator.process(batch, at)]
        return [batch for batch in batches if batch.num_rows]

    def observed(self, epoch: int) -> Iterator[tuple[str, bytes]]:
        """Yield what `observe` has aggregated in an epoch that has ended."""
        for operator in self.operators:
            if isinstance(operator, Observe) and (buffers := operator.taken(epoch)) is not None:
                yield operator.name, buffers

    def raise_highs(self, highs: list[int]) -> None:
        """Raise the highest event times to those that this chain has seen, per watermark."""
        for observer in self.observers:
            highs[observer.watermark] = max(highs[observer.watermark], observer.highest_ms())


@dataclass(slots=True)
class OpenSource:
    """A source of which this task reads at least one partition."""

    reader: SourceReader
    numbers: dict[str, int]
    """The number of each partition over all sources."""
    branches: list[tuple[Chain, Target]]
    acknowledging: AcknowledgingReader | None
    """The reader again, if it acknowledges committed epochs itself."""
    reads_all: bool = False
    """Whether a read that returns fewer rows than it may has taken all that there are."""
    rows: int = 0
    """Read in the current epoch."""
    highs: dict[str, list[int]] = field(default_factory=dict)
    """Per partition and watermark, an event time that the rows read so far have reached. It may be
    lower than their highest: rows of several partitions pass the operators together."""
    _observers: list[ObserveEventTime] = field(default_factory=list)
    """Of the watermarks that the rows move."""
    _partitions_read: set[str] = field(default_factory=set)
    """Since the event times of rows were noted last."""

    def read(self) -> tuple[list[pa.RecordBatch], bool]:
        """Return the rows for this turn, and whether there are more."""
        batches: list[pa.RecordBatch] = []
        rows = short = 0
        while (wanted := MAX_ROWS_PER_TURN - rows) > 0 and len(batches) < MAX_READS_PER_TURN:
            batch = self.reader.read(wanted)
            if batch is None:
                return batches, False
            rows += batch.num_rows
            batches.append(batch)
            if self._observers:
                self._partitions_read.update(self.reader.last_read)
            if self.reads_all and batch.num_rows < wanted:
                return batches, False
            # It has emptied a partition. Reading that again would return the one or two rows that
            # arrived meanwhile, over and over, and spend the turn on batches of one row.
            short += batch.num_rows < FEW_ROWS
            if short >= len(self.numbers):
                return batches, False
        return batches, True

    def note_event_times(self, rows: int) -> None:
        """Note those of the rows that were read last, now that they have passed the operators."""
        if not self._observers:
            return
        partitions, self._partitions_read = self._partitions_read, set()
        seen: dict[int, int] = {}
        for observer in self._observers:
            times = observer.take()
            if not times.rows:
                continue  # another branch may have brought rows to the same watermark
            if len(partitions) == 1:
                reached = times.highest_ms
            elif times.rows == rows and times.lowest_ms is not None:
                reached = times.lowest_ms  # every row was observed, so each partition has one
            else:
                reached = NONE_SEEN
            seen[observer.watermark] = min(seen.get(observer.watermark, reached), reached)
        for partition in partitions:
            highs = self.highs[partition]
            for watermark, reached in seen.items():
                highs[watermark] = max(highs[watermark], reached)

    def waits(self) -> list[ReaderWaits]:
        return [
            ReaderWaits(self.numbers[partition], end, tuple(self.highs[partition]))
            for partition, end in self.reader.waiting().items()
        ]

    def begin(self, watermarks: int) -> None:
        """Begin to note event times, for so many watermarks."""
        self._observers = [observer for chain, _ in self.branches for observer in chain.observers]
        fed = {observer.watermark for observer in self._observers}
        highs = [NONE_SEEN if number in fed else HOLDS_NOTHING for number in range(watermarks)]
        self.highs = {partition: list(highs) for partition in self.numbers}


class TaskSources:
    """All sources of a task. They end an epoch together."""

    def __init__(self, plan: QueryPlan, readers: Sequence[ReaderPlan]) -> None:
        self._count = len(plan.sources)
        self.open: dict[int, OpenSource] = {}
        """By number of the source; without those of which the task reads no partition."""
        for index, source in enumerate(plan.sources):
            mine = [own for own in readers if own.source == index]
            if not mine:
                continue
            reader = source.readers.open({own.partition: own.position for own in mine})
            self.open[index] = OpenSource(
                reader,
                {own.partition: own.reader for own in mine},
                [(Chain(branch.operators), branch.to) for branch in source.branches],
                cast(AcknowledgingReader, reader) if source.acknowledges_in_tasks else None,
                reader.reads_all,
            )
            self.open[index].begin(len(plan.watermarks))
        self._has_watermarks = bool(plan.watermarks)
        readers_open = [source.reader for source in self.open.values()]
        self._waits: Callable[[float], bool] | None = None
        """Only of a single reader: nobody would notice rows of another one meanwhile."""
        if len(readers_open) == 1:
            self._waits = readers_open[0].wait
        self._limits: dict[int, Position] = {}

    @property
    def descriptors(self) -> tuple[int, ...] | None:
        """Become readable when rows come; None if some reader must be asked instead."""
        fds = [source.reader.fd for source in self.open.values()]
        return tuple(fd for fd in fds if fd is not None) if None not in fds else None

    def wait(self, seconds: float) -> bool:
        """Wait for rows in this thread; False, at once, if that cannot be done now."""
        return self._waits is not None and self._waits(seconds)

    def limit(self, ends: dict[int, Position]) -> None:
        """Read each reader to its end, or no further if it has none."""
        self._limits = {**self.positions(), **ends}
        for source in self.open.values():
            source.reader.limit({p: self._limits[number] for p, number in source.numbers.items()})

    def limits_reached(self) -> bool:
        return all(self._limits[number] == at for number, at in self.positions().items())

    def positions(self) -> dict[int, Position]:
        """Return where each reader is, by its number over all sources."""
        by_number: dict[int, Position] = {}
        for source in self.open.values():
            positions = source.reader.positions()
            by_number.update({number: positions[p] for p, number in source.numbers.items()})
        return by_number

    def end(self, epoch: int) -> tuple[int, ...]:
        """End an epoch; return the rows read in it, per source."""
        rows = [0] * self._count
        for number, source in self.open.items():
            rows[number], source.rows = source.rows, 0
            if source.acknowledging is not None:
                source.acknowledging.ended(epoch)
        return tuple(rows)

    def raise_highs(self, highs: list[int], to: Target | None = None) -> None:
        """Raise the highest event times by what was seen on the way to `to`, or on all ways."""
        for source in self.open.values():
            for chain, target in source.branches:
                if to is None or target == to:
                    chain.raise_highs(highs)

    def waits(self) -> tuple[ReaderWaits, ...]:
        """Return the readers that have rows waiting, if the query has watermarks."""
        if not self._has_watermarks:
            return ()
        return tuple(wait for source in self.open.values() for wait in source.waits())

    def note_commit(self, epoch: int) -> None:
        """Let readers that acknowledge do so for all epochs up to this one."""
        for source in self.open.values():
            if source.acknowledging is not None:
                source.acknowledging.committed(epoch)

    def close(self) -> None:
        for source in self.open.values():
            source.reader.close()
