"""A query as the user defined it, before anything is opened. The stream writer makes it.

The engine opens the sources, makes the plan from their schemas, opens the sink for the output
schema, and then fills in the two things the plan lacks: `writers` and `state_partitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.connectors.contract import Sink, SinkWriter, Source, WriterContext
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.run.query_settings import EngineOptions
from epochal.files import Files


class UnopenedWriters:
    """Placeholder in a plan for the writers of a sink that is not open yet."""

    def open(self, context: WriterContext) -> SinkWriter:
        raise AssertionError("the sink of this plan was never opened")


UNOPENED = UnopenedWriters()


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """A source, and its description in reports."""

    description: str
    open: Callable[[Files, int], Source]
    """Takes the checkpoint and the source's index."""


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """A sink, and its description in reports."""

    description: str
    open: Callable[[Files, str, pa.Schema], Sink]
    """Takes the checkpoint, the query's id and the schema of the rows."""
    slots: int = 0
    """How many of Spark's slots the query's tasks must leave free, for jobs over its output."""


@dataclass(frozen=True, slots=True)
class QueryDefinition:
    """Everything that `start()` needs."""

    sources: tuple[SourceDefinition, ...]
    sink: SinkDefinition
    plan: Callable[[Sequence[Source]], QueryPlan]
    """Makes the plan from the open sources, with `UNOPENED` writers and 0 state partitions."""
    options: EngineOptions = field(default_factory=EngineOptions)
    session: Mapping[str, str] = field(default_factory=dict)
    """What `state_settings.session_settings` returns: how the session keeps state."""
    state_partitions: int | None = None
    """Of a new checkpoint; None for as many as there are tasks."""
