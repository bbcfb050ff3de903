"""A query as the user wrote it down, before anything is opened. `stream.py` makes it.

The engine opens its sources, asks for the plan that their schemas allow, opens its sink for the
schema that comes out, and then fills in what the plan lacks: `writers` and `state_partitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.connectors.contract import Sink, SinkWriter, Source, WriterContext
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.run.query_settings import EngineOptions
from epochal.files import Files


class UnopenedWriters:
    """Stands in a plan for the writers of a sink that is not open yet."""

    def open(self, context: WriterContext) -> SinkWriter:
        raise AssertionError("the sink of this plan was never opened")


UNOPENED = UnopenedWriters()


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """A source, and how reports call it."""

    description: str
    open: Callable[[Files, int], Source]
    """Takes the checkpoint and the source's place among the sources."""


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """A sink, and how reports call it."""

    description: str
    open: Callable[[Files, str, pa.Schema], Sink]
    """Takes the checkpoint, the query's id and the schema of the rows to come."""


@dataclass(frozen=True, slots=True)
class QueryDefinition:
    """Everything that `start()` knows."""

    sources: tuple[SourceDefinition, ...]
    sink: SinkDefinition
    plan: Callable[[Sequence[Source]], QueryPlan]
    """Made from the open sources; with `UNOPENED` writers and 0 state partitions."""
    options: EngineOptions = field(default_factory=EngineOptions)
