"""A query as the user defined it, before anything is opened.

The engine opens the sources, makes the plan from the tree, opens the sink for the output schema,
and then fills in the two things the plan lacks: `writers` and `state_partitions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.connectors.contract import Sink, Source
from epochal.connectors.registry import open_source
from epochal.continuous.plan.compile import compile_plan, sources_of
from epochal.continuous.plan.logical import Node, StreamSource
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.run.query_settings import EngineOptions
from epochal.epoch.event_time.query_watermark import WatermarksMove
from epochal.files import Files


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

    tree: Node
    sink: SinkDefinition
    options: EngineOptions = field(default_factory=EngineOptions)
    parallelism: int = 1
    """The number of partitions of a source that does not determine it: that of the session."""
    watermarks_move: WatermarksMove = "turn"
    """"epoch" for queries that must behave like Spark's micro-batches."""
    offset_lines: tuple[int, ...] | None = None
    """The source of each line in the offset log, if the tree does not say it."""
    session: Mapping[str, str] = field(default_factory=dict)
    """What `take_over.session_settings` returns: how the session keeps state."""
    state_partitions: int | None = None
    """Of a new checkpoint; None for as many as there are tasks."""

    needs_evaluator: bool = False
    """Whether Spark's own code evaluates a part of the query, beside the tasks."""

    refreshed: Callable[[], Node] | None = None
    """Makes the tree again, with what its tables contain now; None if it has no tables."""

    @property
    def sources(self) -> tuple[StreamSource, ...]:
        """The sources by number, each once."""
        return sources_of(self.tree)

    def compiled(self, tree: Node, sources: Sequence[Source]) -> QueryPlan:
        """Make the plan of a tree over the open sources."""
        return compile_plan(
            tree, sources, watermarks_move=self.watermarks_move, offset_lines=self.offset_lines
        )

    def open_source(self, source: StreamSource, checkpoint: Files) -> Source:
        return open_source(
            source.format,
            source.options,
            source.user_schema,
            checkpoint,
            source.number,
            parallelism=self.parallelism,
            spark=source.spark,
        )
