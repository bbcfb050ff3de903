"""One task of a query: reads, computes, exchanges and cuts epochs. Pure; one thread calls `turn`.

A turn processes the frames that have arrived, reads from each source, processes the rows that stay
in this task, and returns everything that must leave: frames for other tasks, messages for the
driver, epochs to make durable. A turn never waits. The caller owns the clock, sockets and files.

When the driver starts a new epoch, the sources end the old one: the task reports their positions,
and a marker follows the rows through every exchange. A stage that has the marker on all its
channels hands over its state changes and passes the marker on. When the last stage has done so, the
epoch is cut.

Note: the sources and each stage may be in different epochs at the same time, because a marker takes
time to travel. There is no such thing as the epoch of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa

from epochal.connectors.contract import (
    AcknowledgingReader,
    Position,
    Prepare,
    SinkWriter,
    SourceReader,
)
from epochal.continuous.operators.contract import (
    EventTimeObserver,
    Moment,
    Operator,
    OperatorSpec,
    StateChanges,
    StatefulOperator,
)
from epochal.continuous.plan.stages import QueryPlan, ReaderPlan, StagePlan, partitions_of_task
from epochal.continuous.tasks.batches import by_partition, fitting, joined
from epochal.continuous.tasks.exchange import Exchange, ExchangeCounters
from epochal.continuous.tasks.frames import SPLIT_BYTES, Frame, split_rows
from epochal.continuous.tasks.key_split import KeySplit
from epochal.epoch.messages import (
    EpochRequest,
    EpochStarted,
    ReportPartitionOffset,
    TaskActive,
)
from epochal.epoch.query_watermark import NO_WATERMARK, NONE_SEEN, NOT_ADVANCED, watermark_of

MAX_ROWS_PER_TURN = 5_000
"""Per source. More would delay frames that arrive meanwhile. Under full load the next turn follows
at once."""

MAX_READS_PER_TURN = 64

FEW_ROWS = 64
"""A read that returns fewer rows than this has emptied a partition. Reading it again would return
the one or two rows that arrived meanwhile, over and over, and spend the turn on batches of one
row."""


@dataclass(frozen=True, slots=True)
class EpochCut:
    """An epoch that has ended in this task. Another thread makes it durable."""

    epoch: int
    changes: tuple[tuple[int, StateChanges], ...]
    """(operator, changes in one store of one partition)."""
    prepare: Prepare
    watermarks: tuple[int, ...]
    rows_in: tuple[int, ...]
    rows_out: int


@dataclass(slots=True)
class TurnOutput:
    """What the caller must do after a turn."""

    frames: list[tuple[int, Frame]] = field(default_factory=list)
    """(task, frame), to be sent in this order."""
    messages: list[EpochRequest] = field(default_factory=list)
    cuts: list[EpochCut] = field(default_factory=list)
    busy: bool = False
    """There is more work already, so the next turn should follow at once."""

    def send(self, target: int, frame: Frame) -> None:
        self.frames.append((target, frame))


@dataclass(slots=True)
class _Ending:
    """An epoch that has ended at the sources but not yet at all stages."""

    rows_in: tuple[int, ...]
    watermarks: list[int]
    changes: list[tuple[int, StateChanges]] = field(default_factory=list)


@dataclass(slots=True)
class _Source:
    reader: SourceReader
    numbers: dict[str, int]
    """The number of each partition over all sources."""
    chain: _Chain
    acknowledging: AcknowledgingReader | None
    """The reader again, if it acknowledges committed epochs itself."""
    rows: int = 0


class _Chain:
    """Consecutive operators without an exchange between them."""

    def __init__(self, specs: Sequence[OperatorSpec]) -> None:
        self.operators: list[Operator] = [spec.open() for spec in specs]
        self.observers = [
            cast(EventTimeObserver, each) for each in self.operators if hasattr(each, "highest_ms")
        ]

    def run(self, batches: Iterable[pa.RecordBatch], at: Moment) -> list[pa.RecordBatch]:
        for operator in self.operators:
            batches = [made for batch in batches for made in operator.process(batch, at)]
        return [batch for batch in batches if batch.num_rows]


class _Stage:
    """A stateful operator, the chain after it, and the watermark of its input."""

    def __init__(
        self, plan: StagePlan, partitions: Sequence[int], state_partitions: int, start_ms: int
    ) -> None:
        self.operator_id = plan.operator_id
        self.operator: StatefulOperator = plan.stateful.open(partitions, state_partitions)
        self.chain = _Chain(plan.operators)
        self.watermark_ms = self.late_ms = start_ms
        self.had_input = False


class TaskCore:
    """The running operators of one task."""

    def __init__(
        self,
        plan: QueryPlan,
        *,
        task: int,
        tasks: int,
        attempt: int,
        first_epoch: int,
        readers: Sequence[ReaderPlan],
        writer: SinkWriter,
    ) -> None:
        self._plan, self._task, self._attempt = plan, task, attempt
        partitions = partitions_of_task(plan.state_partitions, task, tasks)
        self._delays_ms = tuple(mark.delay_ms for mark in plan.watermarks)
        self._start_ms = NOT_ADVANCED if plan.watermarks else NO_WATERMARK
        self._stages = [
            _Stage(each, partitions, plan.state_partitions, self._start_ms) for each in plan.stages
        ]
        self._splits = [
            KeySplit(each.input_schema, each.stateful.keys[0], plan.state_partitions, tasks)
            for each in plan.stages
        ]
        self._exchange = Exchange(
            stages=len(plan.stages), task=task, tasks=tasks, attempt=attempt, epoch=first_epoch
        )
        self._writer = writer
        self._rows_out = 0
        self._sources = _open_sources(plan, readers)
        self._reading = self._wanted = first_epoch
        self._started = self._hold = False
        self._limits: dict[int, Position] | None = None
        self._floor: tuple[int, ...] = ()
        self._active = self._committed = first_epoch - 1
        self._ending: dict[int, _Ending] = {}

    @property
    def operators(self) -> list[StatefulOperator]:
        """The stateful operators, in the order of the plan's stages."""
        return [stage.operator for stage in self._stages]

    @property
    def counters(self) -> ExchangeCounters:
        return self._exchange.counters

    @property
    def reading(self) -> int:
        """The epoch that the sources are reading."""
        return self._reading

    def turn(
        self,
        now_ms: int,
        frames: Iterable[Frame] = (),
        pushes: Iterable[EpochStarted] = (),
        *,
        read: bool = True,
    ) -> TurnOutput:
        """Do all work that is possible now; without `read`, do not read from the sources."""
        out = TurnOutput()
        self._exchange.receive(frames)
        for push in pushes:
            self._process_push(push)
        if read and self._blocked(0):
            self._run_stages(now_ms, out, expire=False)  # this may free credits for new rows
        self._cut_sources(out)
        if read:
            self._read_sources(now_ms, out)
        self._run_stages(now_ms, out, expire=True)
        return out

    def note_commit(self, epoch: int) -> None:
        """Let readers that acknowledge do so for all epochs up to this one: they are committed."""
        if epoch > self._committed:
            self._committed = epoch
            for source in self._sources:
                if source is not None and source.acknowledging is not None:
                    source.acknowledging.committed(epoch)

    def pulse(self) -> list[tuple[int, Frame]]:
        """Return frames by which peers detect lost frames; for times without traffic."""
        out = TurnOutput()
        self._exchange.pulse(out.send)
        return out.frames

    def close(self) -> None:
        """Close readers and writer."""
        for source in self._sources:
            if source is not None:
                source.reader.close()
        self._writer.close()

    def _process_push(self, push: EpochStarted) -> None:
        if push.attempt != self._attempt:
            return
        self.note_commit(push.committed)
        if push.epoch < self._wanted:
            return  # an old push that arrived late, or again
        if push.epoch > self._wanted or not self._started:
            self._wanted = push.epoch
            self._hold = False
        self._started = True
        if push.watermarks:
            floor = self._floor or push.watermarks
            self._floor = tuple(map(max, floor, push.watermarks))
        self._hold = self._hold or (push.hold and self._limits is None)
        if push.limits is not None and self._limits is None:
            self._hold = False
            self._limit(dict(push.limits))

    def _limit(self, ends: dict[int, Position]) -> None:
        """Read each reader to its end, or no further if it has none; then cut and read no more."""
        self._limits = {**self._positions(), **ends}
        for source in self._sources:
            if source is not None:
                numbers = source.numbers.items()
                source.reader.limit({p: self._limits[number] for p, number in numbers})

    def _limits_reached(self) -> bool:
        assert self._limits is not None
        return all(self._limits[number] == at for number, at in self._positions().items())

    def _positions(self) -> dict[int, Position]:
        found: dict[int, Position] = {}
        for source in self._sources:
            if source is not None:
                positions = source.reader.positions()
                found.update({number: positions[p] for p, number in source.numbers.items()})
        return found

    def _cut_sources(self, out: TurnOutput) -> None:
        # With limits the task itself ends the epoch, as soon as all its readers have arrived. The
        # driver cannot do it, because it does not know when that is.
        if self._limits is not None and self._reading == self._wanted and not self._hold:
            if not self._limits_reached():
                return
            self._wanted += 1
            self._hold = True
        # A loop, because pushes may be lost: then several epochs end here at once. All but the
        # first of them are empty.
        while self._reading < self._wanted:
            epoch = self._reading
            for number, position in sorted(self._positions().items()):
                out.messages.append(ReportPartitionOffset(self._attempt, number, epoch, position))
            rows = tuple(0 if source is None else source.rows for source in self._sources)
            ending = _Ending(rows, [NONE_SEEN] * len(self._plan.watermarks))
            self._ending[epoch] = ending
            for source in self._sources:
                if source is not None:
                    source.rows = 0
                    _raise_highs(source.chain, ending.watermarks)
                    if source.acknowledging is not None:
                        source.acknowledging.ended(epoch)
            self._reading += 1
            self._pass_on(0, epoch, tuple(self._source_highs()), out)

    def _read_sources(self, now_ms: int, out: TurnOutput) -> None:
        if not self._started or (self._hold and self._reading == self._wanted):
            return
        at = Moment(now_ms, self._floor_ms(), self._reading, self._floor_ms())
        for source in self._sources:
            if source is None or self._blocked(0):
                continue
            batches, more = _read(source)
            rows = sum(batch.num_rows for batch in batches)
            out.busy = out.busy or more
            if not rows:
                continue
            source.rows += rows
            self._note_active(out)
            made = source.chain.run(joined(batches), at)
            self._emit(0, made, self._reading, tuple(self._source_highs()))

    def _run_stages(self, now_ms: int, out: TurnOutput, *, expire: bool) -> None:
        exchange = self._exchange
        for index, stage in enumerate(self._stages):
            exchange.flush(index, out.send)
            inbox = exchange.inboxes[index]
            while inbox.waiting and not self._blocked(index + 1):
                self._process(index, now_ms)
                if not inbox.aligned:
                    break
                self._cut_stage(index, out)
            if expire and not self._blocked(index + 1):
                self._expire(index, now_ms, out)
            exchange.acknowledge(index, out.send)
            if exchange.outboxes[index].blocked:
                exchange.flush(index, out.send)  # the task's own rows may have credit now
            if inbox.waiting:
                out.busy = True
            stage.had_input = stage.had_input and not expire

    def _process(self, index: int, now_ms: int) -> None:
        stage, inbox = self._stages[index], self._exchange.inboxes[index]
        frames = inbox.take()
        self._advance_time(index)
        if not frames:
            return
        stage.had_input = True
        at = Moment(now_ms, stage.watermark_ms, inbox.epoch, stage.late_ms)
        made: list[pa.RecordBatch] = []
        for partition, batches in by_partition(frames).items():
            for batch in joined(batches):
                made.extend(stage.operator.process(partition, batch, at))
        self._emit_from(index, made, at)

    def _expire(self, index: int, now_ms: int, out: TurnOutput) -> None:
        stage, inbox = self._stages[index], self._exchange.inboxes[index]
        self._advance_time(index)
        due_ms = stage.operator.due_ms()
        due = due_ms is not None and due_ms <= now_ms
        if not (stage.had_input or due or stage.watermark_ms != stage.late_ms):
            return
        at = Moment(now_ms, stage.watermark_ms, inbox.epoch, stage.late_ms)
        made = list(stage.operator.expire(at))
        stage.late_ms = stage.watermark_ms
        if made or due:
            self._note_active(out)
        self._emit_from(index, made, at)

    def _cut_stage(self, index: int, out: TurnOutput) -> None:
        stage, inbox = self._stages[index], self._exchange.inboxes[index]
        epoch = inbox.epoch
        # The sources cut an epoch before its marker leaves, so this task's own marker, and with it
        # the alignment of the stage, always comes after the entry was made.
        ending = self._ending[epoch]
        ending.changes += [(stage.operator_id, each) for each in stage.operator.cut(epoch)]
        _raise_highs(stage.chain, ending.watermarks)
        inbox.advance()
        self._pass_on(index + 1, epoch, self._stage_highs(index), out)

    def _pass_on(self, index: int, epoch: int, highs: tuple[int, ...], out: TurnOutput) -> None:
        """Send the marker of an epoch to stage `index`, or cut the sink after the last one."""
        if index < len(self._stages):
            self._exchange.outboxes[index].mark(epoch, highs)
            return
        ending = self._ending.pop(epoch)
        out.cuts.append(
            EpochCut(
                epoch,
                tuple(ending.changes),
                self._writer.cut(epoch),
                tuple(ending.watermarks),
                ending.rows_in,
                self._rows_out,
            )
        )
        self._rows_out = 0

    def _emit_from(self, index: int, made: Sequence[pa.RecordBatch], at: Moment) -> None:
        if made:
            batches = self._stages[index].chain.run(made, at)
            self._emit(index + 1, batches, at.epoch, self._stage_highs(index))

    def _emit(
        self, index: int, batches: Sequence[pa.RecordBatch], epoch: int, highs: tuple[int, ...]
    ) -> None:
        """Send rows to stage `index`, or write them to the sink after the last one."""
        if index == len(self._stages):
            for batch in batches:
                self._rows_out += batch.num_rows
                self._writer.write(batch)
            return
        schema, split = self._plan.stages[index].input_schema, self._splits[index]
        for rows in joined([fitting(batch, schema) for batch in batches]):
            row_bytes, outbox = split.size(rows), self._exchange.outboxes[index]
            is_large = row_bytes * rows.num_rows > SPLIT_BYTES
            for target, all_rows, all_runs in split.split(rows):
                parts = [(all_rows, all_runs)]
                if is_large:
                    parts = split_rows(all_rows, all_runs, SPLIT_BYTES)
                for part, runs in parts:
                    size = part.nbytes if is_large else round(row_bytes * part.num_rows)
                    outbox.add(target, part, runs, epoch=epoch, highs=highs, size=size)

    def _note_active(self, out: TurnOutput) -> None:
        if self._active < self._reading:
            self._active = self._reading
            out.messages.append(TaskActive(self._attempt, self._task, self._reading))

    def _blocked(self, index: int) -> bool:
        return index < len(self._stages) and self._exchange.outboxes[index].blocked

    def _source_highs(self) -> list[int]:
        highs = [NONE_SEEN] * len(self._plan.watermarks)
        for source in self._sources:
            if source is not None:
                _raise_highs(source.chain, highs)
        return highs

    def _stage_highs(self, index: int) -> tuple[int, ...]:
        """Return the highest event times for the next stage: of the input and of the chain."""
        highs = list(self._exchange.inboxes[index].highs(len(self._plan.watermarks)))
        _raise_highs(self._stages[index].chain, highs)
        return tuple(highs)

    def _advance_time(self, index: int) -> None:
        if self._delays_ms:
            stage = self._stages[index]
            highs = self._exchange.inboxes[index].highs(len(self._delays_ms))
            floor_ms = max(stage.watermark_ms, self._floor_ms())
            stage.watermark_ms = watermark_of(highs, self._delays_ms, floor_ms)

    def _floor_ms(self) -> int:
        return watermark_of(self._floor, self._delays_ms, self._start_ms)


def _open_sources(plan: QueryPlan, readers: Sequence[ReaderPlan]) -> list[_Source | None]:
    """Open a reader per source of the plan; None if the task reads none of its partitions."""
    found: list[_Source | None] = []
    for index, source in enumerate(plan.sources):
        mine = [each for each in readers if each.source == index]
        if not mine:
            found.append(None)
            continue
        reader = source.readers.open({each.partition: each.position for each in mine})
        if ends := {each.partition: each.end for each in mine if each.end is not None}:
            reader.limit(ends)
        numbers = {each.partition: each.reader for each in mine}
        acknowledging = cast(AcknowledgingReader, reader) if source.acknowledges_in_tasks else None
        found.append(_Source(reader, numbers, _Chain(source.operators), acknowledging))
    return found


def _read(source: _Source) -> tuple[list[pa.RecordBatch], bool]:
    """Return the rows of a source for this turn, and whether it has more."""
    batches: list[pa.RecordBatch] = []
    rows = short = 0  # `short` counts reads that have emptied a partition
    while rows < MAX_ROWS_PER_TURN and len(batches) < MAX_READS_PER_TURN:
        batch = source.reader.read(MAX_ROWS_PER_TURN - rows)
        if batch is None:
            return batches, False
        rows += batch.num_rows
        batches.append(batch)
        short += batch.num_rows < FEW_ROWS
        if short >= len(source.numbers):
            return batches, False
    return batches, True


def _raise_highs(chain: _Chain, highs: list[int]) -> None:
    for observer in chain.observers:
        highs[observer.watermark] = max(highs[observer.watermark], observer.highest_ms())
