"""A query as tasks run it: chained operators per source, then stages, each after an exchange.

Pure data, built by `stream.py`. All of it is pickled and sent to every task.

Note: tasks and state partitions are different things. The checkpoint fixes the number of state
partitions, as in Spark. The number of tasks may change from run to run: task `t` of `n` owns the
partitions `p` with `p % n == t`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from epochal.connectors.contract import Positions, ReaderFactory, WriterFactory
from epochal.continuous.operators.contract import OperatorSpec, StatefulSpec


@dataclass(frozen=True, slots=True)
class Watermark:
    """`withWatermark`: the column with event time, and how long to wait for late rows."""

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
    """One stateful operator after an exchange, and the stateless operators that follow it."""

    operator_id: int
    stateful: StatefulSpec
    input_schema: pa.Schema
    operators: tuple[OperatorSpec, ...]


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The whole query: all sources feed the first stage, the last stage feeds the sink."""

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
    end: str | None = None
    """Where to stop reading; None to read on for as long as the query runs."""


def readers_of(
    positions: Sequence[Positions], ends: Sequence[Positions] | None = None
) -> tuple[ReaderPlan, ...]:
    """Number the partitions of all sources, in order of source and partition id.

    With `ends` each partition is read up to its end. One that has no end is not read at all: it is
    newer than the ends.
    """
    found = [
        (source, partition, position)
        for source, of_source in enumerate(positions)
        for partition, position in sorted(of_source.items())
    ]
    return tuple(
        ReaderPlan(number, *each, None if ends is None else ends[each[0]].get(*each[1:]))
        for number, each in enumerate(found)
    )


def readers_of_task(readers: Sequence[ReaderPlan], task: int, tasks: int) -> tuple[ReaderPlan, ...]:
    """Return the readers that a task owns."""
    return tuple(each for each in readers if each.reader % tasks == task)


def partitions_of_task(state_partitions: int, task: int, tasks: int) -> range:
    """Return the state partitions that a task owns."""
    return range(task, state_partitions, tasks)
