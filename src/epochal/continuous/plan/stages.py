"""A query as tasks run it: stages of chained operators, with an exchange before each but the first.

Pure data; `stream.py` builds it. Everything in it travels pickled to every task.

What a reader would get wrong: tasks and state partitions are different things. The number of
state partitions is fixed by the checkpoint, as Spark's is; tasks may be more or fewer from one
run to the next, and task `t` of `n` holds the partitions `p` with `p % n == t`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from epochal.connectors.contract import Positions, ReaderFactory, WriterFactory
from epochal.continuous.operators.contract import OperatorSpec, StatefulSpec


@dataclass(frozen=True, slots=True)
class Watermark:
    """`withWatermark`: event time in a column, and how long to wait for stragglers."""

    index: int
    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source, and the operators between it and the first exchange or the sink."""

    readers: ReaderFactory
    schema: pa.Schema
    operators: tuple[OperatorSpec, ...]
    acknowledges_in_tasks: bool = False
    """Whether the readers acknowledge what is committed; see `epochal.epoch.acknowledging`."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What follows an exchange: one stateful operator, and the stateless ones after it."""

    operator_id: int
    stateful: StatefulSpec
    input_schema: pa.Schema
    operators: tuple[OperatorSpec, ...]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The whole query: sources unite, then stages follow each other, then the sink."""

    sources: tuple[SourcePlan, ...]
    watermarks: tuple[Watermark, ...]
    stages: tuple[StagePlan, ...]
    writers: WriterFactory
    output_schema: pa.Schema
    state_partitions: int


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """One partition of one source, and its number over all sources."""

    reader: int
    source: int
    partition: str
    position: str


def readers_of(positions: Sequence[Positions]) -> tuple[ReaderPlan, ...]:
    """Number the partitions of all sources, in order of source and partition id."""
    found = [
        (source, partition, position)
        for source, places in enumerate(positions)
        for partition, position in sorted(places.items())
    ]
    return tuple(ReaderPlan(number, *each) for number, each in enumerate(found))


def readers_of_task(readers: Sequence[ReaderPlan], task: int, tasks: int) -> tuple[ReaderPlan, ...]:
    """The readers that a task owns."""
    return tuple(each for each in readers if each.reader % tasks == task)


def partitions_of_task(state_partitions: int, task: int, tasks: int) -> range:
    """The state partitions that a task holds."""
    return range(task, state_partitions, tasks)
