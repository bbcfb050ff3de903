"""Opens a query on the driver: claims the checkpoint, opens sources and sink, makes the plan.

The open query lives from `start()` to the end of the run, over all attempts.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from epochal.checkpoint.claim import QUERY_PURPOSE, Claim
from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS
from epochal.checkpoint.stop_request import forget_other_stops, forget_stop
from epochal.clock import Clock
from epochal.connectors.contract import Positions, Sink, Source
from epochal.continuous.operators.aggregation.observe import ObserveSpec
from epochal.continuous.operators.contract import OperatorSpec
from epochal.continuous.plan.logical import Step, preorder
from epochal.continuous.plan.pinned_plan import check_empty, settle_id
from epochal.continuous.plan.stages import QueryPlan, Target, is_linear
from epochal.continuous.run.progress import OperatorNote, QueryNote
from epochal.continuous.run.query_settings import EngineOptions
from epochal.continuous.run.query_spec import QueryDefinition
from epochal.continuous.run.take_over import check_state, settings_in_force, state_conf
from epochal.continuous.spark_job.task_hosts import TaskHosts, endpoint_of
from epochal.epoch.committed import CommittedEpoch
from epochal.errors import EpochalError, OptionError
from epochal.files import Files, open_files
from epochal.rpc.server import RpcServer
from epochal.state.disk.local_database import check_library
from epochal.state.store.conf import StateStoreConf

logger = logging.getLogger(__name__)

_NO_END = (
    "so trigger(availableNow=True) does not know when to stop. Use trigger(epoch=...), and stop "
    "the query yourself."
)
_NO_PLAN = (
    "but another source of the query has a bound for each epoch, so where an epoch ends must be "
    "planned for all sources. Remove the bound, or read the sources in two queries."
)


@dataclass(slots=True)
class Opened:
    """Everything that the attempts of a run share."""

    query_id: str
    run_id: str
    definition: QueryDefinition
    files: Files
    guard: Claim
    sources: tuple[Source, ...]
    sink: Sink
    plan: QueryPlan
    """The first attempt sets its number of state partitions."""
    settings: Mapping[str, str]
    """Those that the checkpoint pins, or will pin."""
    state_conf: StateStoreConf
    note: QueryNote
    server: RpcServer
    tasks: int = 0
    """0 until the first attempt has counted the slots."""
    wanted_tasks: int = 0
    """Those of the first attempt. Later ones have fewer while slots are lost."""
    ends: tuple[Positions, ...] | None = None
    """Where the sources ended at the start, with `availableNow`; the run reads no further."""
    hosts: TaskHosts = field(default_factory=TaskHosts)
    late_rows: dict[int, int] = field(default_factory=dict)
    """How many rows each operator has dropped as late in this run."""
    _closing: ExitStack = field(default_factory=ExitStack)
    _attempted: bool = False

    @property
    def options(self) -> EngineOptions:
        return self.definition.options

    def next_attempt(self, newest_decided: int) -> int:
        """Publish the next attempt and return its number.

        The claim has published the first one already. It counts unless a decision names a newer
        attempt, in which case that number is fenced.
        """
        first, self._attempted = not self._attempted, True
        if first and self.guard.attempt > newest_decided:
            return self.guard.attempt
        return self.guard.next_attempt(above=newest_decided)

    def settle_partitions(self, count: int) -> None:
        self.plan = replace(self.plan, state_partitions=count)
        operators = tuple(
            OperatorNote(stage.operator_id, stage.stateful.name, count, len(stage.stateful.stores))
            for stage in self.plan.stages
        )
        self.note = replace(self.note, operators=operators)

    def refresh(self) -> None:
        if self.definition.refreshed is not None:
            plan = self.definition.compiled(self.definition.refreshed(), self.sources)
            partitions = self.plan.state_partitions
            self.plan = replace(plan, writers=self.plan.writers, state_partitions=partitions)

    @property
    def has_end(self) -> bool:
        """Whether the run ends by itself, when all that waited at the start is read."""
        return self.options.available_now or self.options.once

    @property
    def plans_epochs(self) -> bool:
        """Whether each epoch ends where it was planned to end, and not when it is due."""
        sources = [source.bounded for source in self.sources]
        return self.has_end or any(source and source.bounds_epochs for source in sources)

    def find_ends(self, positions: Sequence[Positions]) -> None:
        """Fix where the run ends, unless an earlier attempt has done so or it has no end."""
        if self.ends is not None or not self.plans_epochs:
            return
        ends = []
        for name, source, at in zip(self.note.sources, self.sources, positions, strict=True):
            bounded = source.bounded
            if bounded is not None:
                ends.append(bounded.last_end(at) if self.has_end else at)
                continue
            latest = source.latest()
            if latest is None:
                raise OptionError(
                    f"Source {name} cannot tell where it ends, "
                    + (_NO_END if self.has_end else _NO_PLAN)
                )
            ends.append(_end(source, at, latest))
        if self.has_end:
            self.ends = tuple(ends)

    def next_ends(self, positions: Sequence[Positions]) -> tuple[Positions, ...]:
        """Return where the next epoch must end if it starts at these positions."""
        ends: list[Positions] = []
        for number, (source, at) in enumerate(zip(self.sources, positions, strict=True)):
            last = None if self.ends is None else self.ends[number]
            bounded = source.bounded
            if bounded is not None:
                ends.append(bounded.next_end(at, last, bounded=not self.options.once))
            else:
                ends.append(last or _end(source, at, source.latest() or at))
        return tuple(ends)

    def is_read(self, positions: Sequence[Positions]) -> bool:
        """Return whether everything up to the ends of the run is read; False without ends."""
        return self.ends is not None and all(
            source.lag(at, end) <= 0
            for source, at, end in zip(self.sources, positions, self.ends, strict=True)
        )

    def note_late_rows(self, epoch: CommittedEpoch) -> None:
        """Count rows that came too late, and warn of the first."""
        for operator, rows in epoch.late_rows:
            if not self.late_rows:
                logger.warning(
                    "operator %d dropped %d rows in epoch %d, because they came later than the "
                    "watermark allows (%s ms). Progress reports count such rows as "
                    "numRowsDroppedByWatermark; this warning is not repeated",
                    *(operator, rows, epoch.epoch, epoch.watermark_ms),
                )
            self.late_rows[operator] = self.late_rows.get(operator, 0) + rows

    def close(self) -> None:
        """Close sink and sources and release the checkpoint. May be called again."""
        self._closing.close()

    def explanation(self) -> str:
        """Return the plan as text, sources first."""
        plan, lines = self.plan, [f"== Continuous query {self.query_id} =="]
        is_tree = not is_linear(plan)
        for number, source in enumerate(plan.sources):
            for branch in source.branches:
                steps = [f"source {number}: {self.note.sources[number]}", *_names(branch.operators)]
                steps += [_place(plan, branch.to)] * is_tree
                lines.append(" -> ".join(steps))
        for stage in plan.stages:
            keys = " and ".join(f"({', '.join(key)})" for key in stage.stateful.keys)
            keyed = f"{stage.stateful.name} by {keys}"
            stateful = f"state {stage.operator_id}: {keyed}, {plan.state_partitions} partitions"
            steps = ["exchange", stateful, *_names(stage.operators)]
            steps += [_place(plan, stage.to)] * is_tree
            lines.append(" -> ".join(steps))
            if late := self.late_rows.get(stage.operator_id):
                lines.append(f"  dropped {late} rows that came too late")
        lines += [
            f"watermark {mark.index}: {mark.column}, {mark.delay_ms} ms" for mark in plan.watermarks
        ]
        lines.append(f"sink: {self.note.sink}")
        return "\n".join(lines)


def _end(source: Source, at: Positions, latest: Positions) -> Positions:
    """Return the end of all that waits: a boundary, so that Spark can go on from there."""
    return source.boundary(latest) if source.lag(at, latest) > 0 else at


def open_query(
    definition: QueryDefinition, clock: Clock, start_server: Callable[[], RpcServer]
) -> Opened:
    """Claim the checkpoint, open sources and sink, and make the plan."""
    options, run_id = definition.options, str(uuid4())
    location = options.checkpoint_location or tempfile.mkdtemp(prefix="epochal-checkpoint-")
    open_files(location).make_dirs()
    files = open_files(location, existing=True)
    settings = settings_in_force(files, definition.session)
    conf = state_conf(files, settings, definition.session)
    check_state(files, conf, definition.tree)
    if definition.options.state_memory is not None:
        check_library()
    with ExitStack() as opening:
        lease = options.lease.total_seconds()
        guard = Claim.acquire(
            files, run_id, purpose=QUERY_PURPOSE, clock=clock, claim_seconds=lease
        )
        opening.callback(_quietly, guard.release, "the claim")
        opening.callback(_quietly, partial(forget_stop, files, run_id), "the request to stop")
        forget_other_stops(files, run_id)
        offsets = OffsetLog(files.at(OFFSETS), read_only=True)
        commits = CommitLog(files.at(COMMITS), read_only=True)
        has_history = any(log.latest_batch_id() is not None for log in (offsets, commits))
        if not has_history:
            check_empty(files)
        query_id = settle_id(files, has_history)
        sources: list[Source] = []
        for stream in definition.sources:
            source = definition.open_source(stream, files)
            opening.callback(_quietly, source.close, stream.description)
            sources.append(source)
        plan = definition.compiled(definition.tree, sources)
        sink = definition.sink.open(files, query_id, plan.output_schema)
        opening.callback(_quietly, sink.close, definition.sink.description)
        server, hosts = start_server(), TaskHosts(options.silence_timeout.total_seconds(), clock)
        opening.callback(_quietly, server.stop, "the endpoint")
        server.register(endpoint_of(run_id), hosts.note)
        note = QueryNote(
            *(query_id, run_id, options.query_name),
            tuple(stream.description for stream in definition.sources),
            definition.sink.description,
            observations=tuple(
                node.operator
                for node in preorder(definition.tree)
                if isinstance(node, Step) and isinstance(node.operator, ObserveSpec)
            ),
        )
        return Opened(
            query_id=query_id,
            run_id=run_id,
            definition=definition,
            files=files,
            guard=guard,
            sources=tuple(sources),
            sink=sink,
            plan=replace(plan, writers=sink.writers),
            settings=settings,
            state_conf=replace(
                conf,
                min_versions_to_retain=options.min_batches_to_retain,
                memory_bytes=options.state_memory,
                local_dir=options.state_local_dir,
            ),
            note=note,
            server=server,
            hosts=hosts,
            _closing=opening.pop_all(),
        )


def _names(operators: Sequence[OperatorSpec]) -> list[str]:
    return [type(operator).__name__.removesuffix("Spec") for operator in operators]


def _place(plan: QueryPlan, to: Target) -> str:
    if to.stage == plan.sink:
        return "sink"
    stage = plan.stages[to.stage]
    side = f", input {to.side}" if len(stage.input_schemas) > 1 else ""
    return f"exchange to state {stage.operator_id}{side}"


def _quietly(close: Callable[[], None], what: str) -> None:
    try:
        close()
    except (EpochalError, OSError) as error:
        logger.warning("closing %s failed: %s", what, error)
