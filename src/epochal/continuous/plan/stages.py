"""A query as tasks run it: a tree of stages, each after an exchange of rows by key.

Pure data, made by `compile.py`. All of it is pickled and sent to every task.

Rows flow from the sources towards the sink. A source has a branch for each place in the query where
it occurs; a stage has one way out. Several of them may lead to the same input: a union. Stages are
in an order in which rows only ever move to a later stage.

Note: tasks and state partitions are different things. The checkpoint fixes the number of state
partitions, as in Spark. The number of tasks may change from run to run: task `t` of `n` owns the
partitions `p` with `p % n == t`.

The watermark of each stage's input is derived from that of the query, by the rules of Spark's
WatermarkPropagator. A watermark operator passes on the query's watermark, whatever its own delay. A
stage takes the lowest of what its inputs pass on; an input without a watermark does not count. A
stateful operator passes on what it takes, unless it keeps rows longer than that: its spec then has
a method `output_watermark_ms(input_ms) -> int | None`. A join, for example, may still return rows
of the time range that its condition allows. None means that the operator's rows have no watermark
at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from epochal.connectors.contract import Positions, ReaderFactory, WriterFactory
from epochal.continuous.operators.contract import OperatorSpec, StatefulSpec
from epochal.continuous.operators.stateless.row_operators import ObserveEventTimeSpec
from epochal.epoch.event_time.query_watermark import NO_WATERMARK, NOT_ADVANCED, WatermarksMove

SOURCES = -1
"""The sources of a task, as a producer of rows. They all end an epoch at the same moment."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """`withWatermark`: the column with event time, and how long to wait for late rows."""

    index: int
    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Target:
    """An input of a stage, or the sink."""

    stage: int
    """The number of stages means the sink."""
    side: int = 0
    """The number of the input: a join has two, all other operators have one."""


@dataclass(frozen=True, slots=True)
class Branch:
    """The operators between a source and the stage or sink that its rows reach first."""

    operators: tuple[OperatorSpec, ...]
    to: Target


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source, with a branch for each time that it occurs in the query."""

    readers: ReaderFactory
    schema: pa.Schema
    branches: tuple[Branch, ...]
    acknowledges_in_tasks: bool = False
    """Whether the readers acknowledge what is committed; see `epochal.epoch.contract`."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stateful operator after an exchange, and the stateless operators that follow it."""

    operator_id: int
    stateful: StatefulSpec
    input_schemas: tuple[pa.Schema, ...]
    """By side."""
    operators: tuple[OperatorSpec, ...]
    to: Target


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The whole query."""

    sources: tuple[SourcePlan, ...]
    watermarks: tuple[Watermark, ...]
    stages: tuple[StagePlan, ...]
    writers: WriterFactory
    output_schema: pa.Schema
    state_partitions: int
    watermarks_move: WatermarksMove = "turn"
    offset_lines: tuple[int, ...] = ()
    """The source of each line in the offset log. Spark writes a line for each time that a source
    occurs in the query. Empty: one line per source."""

    @property
    def sink(self) -> int:
        """The stage number that means the sink in a `Target`."""
        return len(self.stages)


@dataclass(frozen=True, slots=True)
class Edge:
    """The way of rows from one producer to one input."""

    producer: int
    """`SOURCES` or a stage."""
    to: Target
    is_local: bool = False
    """Whether rows stay in their task, instead of going to the task that has their key's state."""


def edges_of(plan: QueryPlan) -> tuple[Edge, ...]:
    """Return all edges, ordered by the stage that they lead to; those to the sink come last.

    A sink with a single producer has no edge: its rows are written as they are made. With several
    producers, one may already be an epoch ahead of another. The sink then has a local edge from
    each, on which rows of a later epoch wait.
    """
    ways = sorted({*_ways(plan)}, key=lambda way: (way[1].stage, way[1].side, way[0]))
    to_sink = [producer for producer, to in ways if to.stage == plan.sink]
    return tuple(
        Edge(producer, to, to.stage == plan.sink)
        for producer, to in ways
        if to.stage < plan.sink or len(to_sink) > 1
    )


def is_linear(plan: QueryPlan) -> bool:
    """Whether all sources feed the first stage, each stage the next, and the last one the sink."""
    return set(_ways(plan)) == {(at, Target(at + 1)) for at in range(SOURCES, plan.sink)}


def _ways(plan: QueryPlan) -> Iterator[tuple[int, Target]]:
    for source in plan.sources:
        for branch in source.branches:
            yield SOURCES, branch.to
    for number, stage in enumerate(plan.stages):
        assert number < stage.to.stage, "rows must move to a later stage"
        yield number, stage.to


def schemas_of(plan: QueryPlan) -> tuple[pa.Schema, ...]:
    """Return the schema of the rows on each edge between tasks, in the order of `edges_of`."""
    return tuple(
        plan.stages[edge.to.stage].input_schemas[edge.to.side]
        for edge in edges_of(plan)
        if not edge.is_local
    )


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """One partition of one source, and its number over all sources."""

    reader: int
    source: int
    partition: str
    position: str


def readers_of(positions: Sequence[Positions]) -> tuple[ReaderPlan, ...]:
    """Number the partitions of all sources, in order of source and partition id."""
    places = [
        (source, partition, position)
        for source, of_source in enumerate(positions)
        for partition, position in sorted(of_source.items())
    ]
    return tuple(ReaderPlan(number, *place) for number, place in enumerate(places))


def readers_of_task(readers: Sequence[ReaderPlan], task: int, tasks: int) -> tuple[ReaderPlan, ...]:
    return tuple(reader for reader in readers if reader.reader % tasks == task)


def partitions_of_task(state_partitions: int, task: int, tasks: int) -> range:
    return range(task, state_partitions, tasks)


def partitions_of_stage(stage: StagePlan, partitions: Sequence[int]) -> tuple[int, ...]:
    """Return those of these state partitions in which a stage has stores.

    All rows of an operator without a key belong to the first partition. Spark does not write the
    others.
    """
    return tuple(
        partition for partition in partitions if partition == 0 or any(stage.stateful.keys)
    )


def input_watermarks(plan: QueryPlan, watermark_ms: int) -> tuple[int, ...]:
    """Return the watermark of each stage's input, at least 0; -1 if the query declares none."""
    if not plan.watermarks:
        return (NO_WATERMARK,) * len(plan.stages)
    if watermark_ms <= NOT_ADVANCED:
        return (NOT_ADVANCED,) * len(plan.stages)
    arriving: list[list[int | None]] = [[] for _ in range(len(plan.stages) + 1)]
    for source in plan.sources:
        for branch in source.branches:
            arriving[branch.to.stage].append(_after(branch.operators, None, watermark_ms))
    bounds = []
    for number, stage in enumerate(plan.stages):  # a stage only feeds later ones
        taken = min((bound for bound in arriving[number] if bound is not None), default=None)
        bounds.append(max(NOT_ADVANCED, taken or NOT_ADVANCED))
        passed = None if taken is None else _passed_on(stage.stateful, taken)
        arriving[stage.to.stage].append(_after(stage.operators, passed, watermark_ms))
    return tuple(bounds)


def _after(operators: Sequence[OperatorSpec], passed: int | None, watermark_ms: int) -> int | None:
    observed = any(isinstance(operator, ObserveEventTimeSpec) for operator in operators)
    return watermark_ms if observed else passed


def _passed_on(spec: StatefulSpec, input_ms: int) -> int | None:
    rule = getattr(spec, "output_watermark_ms", None)
    return input_ms if rule is None else cast("int | None", cast(Any, rule)(input_ms))
