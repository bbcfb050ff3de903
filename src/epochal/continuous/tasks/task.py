"""One task of a query: reads, computes, exchanges and cuts epochs. Pure; one thread calls `turn`.

A turn processes the frames that have arrived, reads from each source, processes the rows that stay
in this task, and returns everything that must leave: frames for other tasks, messages for the
driver, epochs to make durable. A turn never waits. The caller owns the clock, sockets and files.

When the driver starts a new epoch, the sources end the old one: the task notes their positions, and
a marker follows the rows on every edge of the plan. A stage that has the marker on all its
channels hands over its state changes and passes the marker on. When the marker reaches the sink,
from all producers that feed it, the epoch is cut. `stage_times` says when operators expire.

Note: the sources and each stage may be in different epochs at the same time, because a marker takes
time to travel. There is no such thing as the epoch of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.connectors.contract import Prepare, SinkWriter
from epochal.continuous.operators.contract import Moment, StateChanges, StatefulOperator
from epochal.continuous.plan.stages import (
    SOURCES,
    QueryPlan,
    ReaderPlan,
    StagePlan,
    Target,
    edges_of,
    partitions_of_stage,
    partitions_of_task,
)
from epochal.continuous.tasks.exchange import HELD, Exchange, ExchangeCounters
from epochal.continuous.tasks.frames import SPLIT_BYTES, Frame, fit, group_rows, join, split_rows
from epochal.continuous.tasks.key_split import KeySplit
from epochal.continuous.tasks.stage_times import EpochTimes, StageTimes, TurnTimes
from epochal.continuous.tasks.task_sources import Chain, TaskSources
from epochal.epoch.event_time.query_watermark import NONE_SEEN
from epochal.epoch.messages import CommitPartitionEpoch, EpochStarted, ReaderWaits, TaskActive


@dataclass(frozen=True, slots=True)
class EpochCut:
    """An epoch that has ended in this task. Another thread makes it durable."""

    report: CommitPartitionEpoch
    """What the driver will hear of it, as far as it is known before it is durable."""
    changes: tuple[tuple[int, StateChanges], ...]
    """(operator, changes in one store of one partition)."""
    prepare: Prepare

    @property
    def epoch(self) -> int:
        return self.report.epoch


@dataclass(slots=True)
class TurnOutput:
    """What the caller must do after a turn."""

    frames: list[tuple[int, Frame]] = field(default_factory=list)
    """(task, frame), to be sent in this order."""
    messages: list[TaskActive] = field(default_factory=list)
    """The first rows or timers of an epoch have come; `TaskReports` decides how the driver hears
    of it."""
    cuts: list[EpochCut] = field(default_factory=list)
    busy: bool = False
    """There is more work already, so the next turn should follow at once."""
    had_rows: bool = False
    """Whether rows were read, or came from other tasks."""

    def send(self, target: int, frame: Frame) -> None:
        self.frames.append((target, frame))


@dataclass(slots=True)
class _Ending:
    """An epoch that has ended at the sources but not yet at all stages."""

    rows_in: tuple[int, ...]
    watermarks: list[int]
    positions: tuple[tuple[int, str], ...]
    waits: tuple[ReaderWaits, ...]
    late_rows: list[tuple[int, int]] = field(default_factory=list)
    changes: list[tuple[int, StateChanges]] = field(default_factory=list)


class _Stage:
    """A stateful operator, the chain after it, and where that leads."""

    def __init__(self, plan: StagePlan, partitions: Sequence[int], state_partitions: int) -> None:
        self.operator_id, self.to = plan.operator_id, plan.to
        mine = partitions_of_stage(plan, partitions)
        self.operator: StatefulOperator = plan.stateful.open(mine, state_partitions)
        self.chain = Chain(plan.operators)
        self.had_input = False
        self.late_rows = 0
        """Dropped as late until the last cut."""


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
        self._stages = [_Stage(stage, partitions, plan.state_partitions) for stage in plan.stages]
        self._edges = edges_of(plan)
        self._numbers = {(edge.producer, edge.to): at for at, edge in enumerate(self._edges)}
        self._out = {
            producer: [at for at, edge in enumerate(self._edges) if edge.producer == producer]
            for producer in range(SOURCES, plan.sink)
        }
        """The edges of each producer; none if it is the only one that feeds the sink."""
        self._splits = {
            edge.to: KeySplit(
                plan.stages[edge.to.stage].input_schemas[edge.to.side],
                plan.stages[edge.to.stage].stateful.keys[edge.to.side],
                plan.state_partitions,
                tasks,
            )
            for edge in self._edges
            if not edge.is_local
        }
        self._exchange = Exchange(
            edges=self._edges, task=task, tasks=tasks, attempt=attempt, epoch=first_epoch
        )
        self._turn_times = TurnTimes(plan) if plan.watermarks_move == "turn" else None
        self._times: StageTimes = self._turn_times or EpochTimes(plan)
        self._has_watermarks = bool(plan.watermarks)
        self._are_waiting = False
        """Whether the last read left rows behind, so that event times must not run ahead."""
        self._sent: dict[Target, tuple[int, ...]] = {}
        """The highest event times that were sent while no rows were waiting."""
        self._writer = writer
        self._rows_out = 0
        self._sources = TaskSources(plan, readers)
        self._chains = [stage.chain for stage in self._stages]
        for source in self._sources.open.values():
            self._chains += [chain for chain, _ in source.branches]
        self._reading = self._wanted = first_epoch
        self._started = self._hold = False
        self._active = self._committed = self._limited = first_epoch - 1
        self._ending: dict[int, _Ending] = {}

    @property
    def operators(self) -> list[StatefulOperator]:
        """The stateful operators, in the order of the plan's stages."""
        return [stage.operator for stage in self._stages]

    @property
    def descriptors(self) -> tuple[int, ...] | None:
        """Become readable when rows come; None if the sources must be read to find out."""
        return self._sources.descriptors

    def wait(self, seconds: float) -> bool:
        """Wait for rows of the sources and nothing else; False, at once, if that cannot be done."""
        return not self._stages and not self.holds and self._sources.wait(seconds)

    @property
    def counters(self) -> ExchangeCounters:
        return self._exchange.counters

    @property
    def reading(self) -> int:
        return self._reading

    @property
    def holds(self) -> bool:
        """Whether the sources must not be read, whatever waits in them."""
        return not self._started or (self._hold and self._reading == self._wanted)

    @property
    def limited(self) -> bool:
        """Whether the sources read to given positions, however long that takes."""
        return self._limited == self._reading

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
        if read and self._blocked(SOURCES):
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
            self._sources.note_commit(epoch)

    def pulse(self) -> list[tuple[int, Frame]]:
        """Return frames by which peers detect lost frames; for times without traffic."""
        out = TurnOutput()
        self._exchange.pulse(out.send)
        return out.frames

    def close(self) -> None:
        self._sources.close()
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
        self._times.learn(push)
        if push.epoch <= self._limited:
            return
        self._hold = self._hold or push.hold
        if push.limits is not None:
            # Read exactly to the limits; then cut and read no more.
            self._limited, self._hold = push.epoch, False
            self._sources.limit(dict(push.limits))

    def _cut_sources(self, out: TurnOutput) -> None:
        # With limits the task itself ends the epoch, as soon as all its readers have arrived. The
        # driver cannot do it, because it does not know when that is.
        if self._limited == self._reading == self._wanted:
            if not self._sources.limits_reached():
                return
            self._wanted += 1
            self._hold = True
        # A loop, because pushes may be lost: then several epochs end here at once. All but the
        # first of them are empty.
        while self._reading < self._wanted:
            epoch = self._reading
            positions = tuple(sorted(self._sources.positions().items()))
            waits = self._sources.waits()
            rows = self._sources.end(epoch)
            highs = [NONE_SEEN] * len(self._plan.watermarks)
            self._ending[epoch] = ending = _Ending(rows, highs, positions, waits)
            self._sources.raise_highs(ending.watermarks)
            # The positions are noted and the marker is queued in the same turn, without a read in
            # between: what is before the marker is exactly what is before the positions.
            self._reading += 1
            self._pass_on(SOURCES, epoch, out)

    def _read_sources(self, now_ms: int, out: TurnOutput) -> None:
        if self.holds:
            return
        # Asked once, not before each source: rows that one source has just emitted wait to be
        # flushed, and would keep the sources after it from ever being read.
        if self._blocked(SOURCES):
            return
        for source in self._sources.open.values():
            batches, more = source.read()
            out.busy = out.busy or more
            if not batches:
                continue
            rows = sum(batch.num_rows for batch in batches)
            if not rows:
                continue
            source.rows += rows
            out.had_rows = True
            self._note_active(out)
            at = self._times.of_sources(now_ms, self._reading)
            batches = join(batches)
            passed_on = [(to, chain.run(batches, at)) for chain, to in source.branches]
            if self._has_watermarks:
                source.note_event_times(rows)
                self._are_waiting = bool(self._turn_times and self._sources.waits())
            for to, passed in passed_on:
                self._emit(SOURCES, to, passed, self._reading)

    def _run_stages(self, now_ms: int, out: TurnOutput, *, expire: bool) -> None:
        exchange = self._exchange
        for index, stage in enumerate(self._stages):
            exchange.flush(index, out.send)
            inbox = exchange.inboxes[index]
            while inbox.waiting and not self._blocked(index) and self._times.knows(inbox.epoch):
                self._process(index, now_ms)
                out.had_rows = out.had_rows or stage.had_input
                if not inbox.aligned:
                    break
                self._cut_stage(index, now_ms, out)
            if expire and not self._blocked(index):
                self._expire(index, now_ms, out)
            exchange.acknowledge(index, out.frames)
            exchange.flush_blocked(index, out.send)
            if inbox.waiting and self._times.knows(inbox.epoch):
                out.busy = True
            stage.had_input = stage.had_input and not expire
        if len(exchange.inboxes) > len(self._stages):
            self._run_sink(out)

    def _run_sink(self, out: TurnOutput) -> None:
        """Write rows that have several producers, each epoch when all of them have ended it."""
        sink, exchange = self._plan.sink, self._exchange
        exchange.flush(sink, out.send)
        inbox = exchange.inboxes[sink]
        while inbox.waiting:
            self._write(frame.batch for frame in inbox.take() if frame.batch is not None)
            if not inbox.aligned:
                break
            self._cut_sink(inbox.epoch, out)
            inbox.advance()
        exchange.acknowledge(sink, out.frames)
        exchange.flush_blocked(sink, out.send)
        if inbox.waiting:
            out.busy = True

    def _process(self, index: int, now_ms: int) -> None:
        stage, inbox = self._stages[index], self._exchange.inboxes[index]
        frames = inbox.take()
        at = self._times.of_stage(index, inbox, now_ms)
        if not frames:
            return
        stage.had_input = True
        output: list[pa.RecordBatch] = []
        for side, of_side in self._by_side(index, frames):
            for partition, batches in group_rows(of_side).items():
                for batch in join(batches):
                    output.extend(stage.operator.process(partition, batch, at, side))
        self._emit_from(index, output, at)

    def _by_side(self, index: int, frames: list[Frame]) -> list[tuple[int, list[Frame]]]:
        sides = len(self._plan.stages[index].input_schemas)
        if sides == 1:
            return [(0, frames)]
        return [
            (side, [frame for frame in frames if self._edges[frame.edge].to.side == side])
            for side in range(sides)
        ]

    def _expire(self, index: int, now_ms: int, out: TurnOutput) -> None:
        """Let time pass for a stage within its epoch."""
        stage = self._stages[index]
        due_ms = stage.operator.due_ms()
        due = due_ms is not None and due_ms <= now_ms
        if self._turn_times is None:
            if due:
                self._note_active(out)  # the stage expires when the epoch ends: let that be soon
            return
        inbox = self._exchange.inboxes[index]
        if not (self._turn_times.moved(index, inbox) or stage.had_input or due):
            return
        at = self._times.of_stage(index, inbox, now_ms)
        output = list(stage.operator.expire(at))
        self._turn_times.expired(index, at)
        if output or due:
            self._note_active(out)
        self._emit_from(index, output, at)

    def _cut_stage(self, index: int, now_ms: int, out: TurnOutput) -> None:
        stage, inbox = self._stages[index], self._exchange.inboxes[index]
        epoch = inbox.epoch
        if self._turn_times is None:
            at = self._times.of_stage(index, inbox, now_ms)
            self._emit_from(index, list(stage.operator.expire(at)), at)
        # The sources cut an epoch before its marker leaves, so this task's own marker, and with it
        # the alignment of the stage, always comes after the entry was made.
        ending = self._ending[epoch]
        ending.changes += [(stage.operator_id, change) for change in stage.operator.cut(epoch)]
        stage.chain.raise_highs(ending.watermarks)
        late_before, stage.late_rows = stage.late_rows, getattr(stage.operator, "late_rows", 0)
        if late_rows := stage.late_rows - late_before:
            ending.late_rows.append((stage.operator_id, late_rows))
        inbox.advance()
        self._pass_on(index, epoch, out)

    def _pass_on(self, producer: int, epoch: int, out: TurnOutput) -> None:
        """End an epoch on all edges of a producer, or cut the sink if only this one feeds it."""
        edges = self._out[producer]
        for edge in edges:
            highs = self._highs(producer, self._edges[edge].to)
            self._exchange.outboxes[edge].mark(epoch, highs)
        if not edges:
            self._cut_sink(epoch, out)

    def _cut_sink(self, epoch: int, out: TurnOutput) -> None:
        ending = self._ending.pop(epoch)
        if not any(ending.rows_in):
            self._writer.note_idle()
        prepare = self._writer.cut(epoch)
        letters = self._writer.dead_letters
        report = CommitPartitionEpoch(
            self._attempt,
            self._task,
            epoch,
            message=b"",
            watermarks=tuple(ending.watermarks),
            rows_in=ending.rows_in,
            rows_out=self._rows_out - letters,
            dead_letters=letters,
            positions=ending.positions,
            observed=tuple(buffers for chain in self._chains for buffers in chain.observed(epoch)),
            waits=ending.waits,
            late_rows=tuple(ending.late_rows),
        )
        out.cuts.append(EpochCut(report, tuple(ending.changes), prepare))
        self._rows_out = 0

    def _emit_from(self, index: int, output: Sequence[pa.RecordBatch], at: Moment) -> None:
        if output:
            stage = self._stages[index]
            self._emit(index, stage.to, stage.chain.run(output, at), at.epoch)

    def _emit(
        self, producer: int, to: Target, batches: Sequence[pa.RecordBatch], epoch: int
    ) -> None:
        """Send rows on their edge, or write them if there is none."""
        edge = self._numbers.get((producer, to))
        if edge is None:
            self._write(batches)
            return
        outbox, highs = self._exchange.outboxes[edge], self._highs(producer, to)
        if self._edges[edge].is_local:
            for batch in join(list(batches)):
                outbox.add(self._task, batch, (), epoch=epoch, highs=highs, size=batch.nbytes)
            return
        schema, split = self._plan.stages[to.stage].input_schemas[to.side], self._splits[to]
        for rows in join([fit(batch, schema) for batch in batches]):
            row_bytes = split.size(rows)
            is_large = row_bytes * rows.num_rows > SPLIT_BYTES
            for target, all_rows, all_runs in split.split(rows):
                parts = [(all_rows, all_runs)]
                if is_large:
                    parts = split_rows(all_rows, all_runs, SPLIT_BYTES)
                for part, runs in parts:
                    size = part.nbytes if is_large else round(row_bytes * part.num_rows)
                    outbox.add(target, part, runs, epoch=epoch, highs=highs, size=size)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self._rows_out += batch.num_rows
            self._writer.write(batch)

    def _note_active(self, out: TurnOutput) -> None:
        if self._active < self._reading:
            self._active = self._reading
            out.messages.append(TaskActive(self._attempt, self._task, self._reading))

    def _blocked(self, producer: int) -> bool:
        outboxes = self._exchange.outboxes
        for edge in self._out[producer]:  # noqa: SIM110  `any` is slower
            if outboxes[edge].blocked:
                return True
        return False

    def _highs(self, producer: int, to: Target) -> tuple[int, ...]:
        """Return the highest event times for the receiver, if it computes its time from them."""
        count = len(self._plan.watermarks)
        if self._turn_times is None or not count:
            return ()
        if producer == SOURCES:
            if self._are_waiting:
                return self._sent.get(to, (HELD,) * count)
            highs = [NONE_SEEN] * count
            self._sources.raise_highs(highs, to)
            self._sent[to] = tuple(highs)
        else:
            highs = list(self._exchange.inboxes[producer].highs(count))
            self._stages[producer].chain.raise_highs(highs)
        return tuple(highs)
