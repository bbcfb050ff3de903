"""Makes the stages that tasks run from a query's tree of operators. Pure.

Operators without state are chained to what produces their input. A union is no operator: its
children lead to the same place. Each stateful operator becomes a stage. The order of stages is the
reverse of the tree's preorder, so that rows only move to later stages; their operator ids come from
the tree, because a checkpoint pins them.

Note: a source that occurs twice has the same number at both places. It is read once, and each place
becomes a branch of it. Watermarks are numbered in preorder. Nodes with the same id feed one, as in
Spark: it follows the highest event time of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from epochal.connectors.contract import ReaderFactory, SinkWriter, Source, WriterContext
from epochal.continuous.operators.contract import OperatorSpec
from epochal.continuous.operators.expressions.expr import Column, Expr, columns_in
from epochal.continuous.operators.stateless.generate import GenerateSpec
from epochal.continuous.operators.stateless.row_operators import (
    ExpandSpec,
    FilterSpec,
    ObserveEventTimeSpec,
    ProjectSpec,
)
from epochal.continuous.plan.logical import (
    Node,
    Stateful,
    Step,
    StreamSource,
    Union,
    Watermarked,
    preorder,
)
from epochal.continuous.plan.stages import (
    Branch,
    QueryPlan,
    SourcePlan,
    StagePlan,
    Target,
    Watermark,
)
from epochal.epoch.contract import acknowledged_in_tasks
from epochal.epoch.event_time.query_watermark import WatermarksMove
from epochal.errors import EpochError


class UnopenedWriters:
    """Placeholder in a plan for the writers of a sink that is not open yet."""

    def open(self, context: WriterContext) -> SinkWriter:
        raise AssertionError("the sink of this plan was never opened")


UNOPENED = UnopenedWriters()


def sources_of(tree: Node) -> tuple[StreamSource, ...]:
    """Return the sources of a query by number, each once."""
    sources: dict[int, StreamSource] = {}
    for node in preorder(tree):
        if isinstance(node, StreamSource):
            sources.setdefault(node.number, node)
    if sorted(sources) != list(range(len(sources))):
        raise EpochError(
            f"The sources of the query have the numbers {sorted(sources)}, but they must be "
            f"numbered from 0: a checkpoint has a directory for each number. This is a bug."
        )
    return tuple(sources[number] for number in range(len(sources)))


def offset_lines_of(tree: Node) -> tuple[int, ...]:
    """Return the source of each line in the offset log: one for each time that it occurs."""
    return tuple(node.number for node in preorder(tree) if isinstance(node, StreamSource))


def compile_plan(
    tree: Node,
    sources: Sequence[Source],
    *,
    watermarks_move: WatermarksMove = "turn",
    offset_lines: Sequence[int] | None = None,
) -> QueryPlan:
    """Return the plan over these open sources, which are in the order of their numbers.

    It lacks the sink's writers and the number of state partitions. `offset_lines` is needed only if
    the checkpoint's offset log has other lines than the tree says.
    """
    nodes = sources_of(tree)
    lines = tuple(offset_lines_of(tree) if offset_lines is None else offset_lines)
    stages = sum(isinstance(node, Stateful) for node in preorder(tree))
    walk = _Walk(stages)
    walk.feed(tree, (), Target(stages))
    branches_of_sources = []
    for node, source, in_tasks in zip(nodes, sources, acknowledged_in_tasks(sources), strict=True):
        branches = tuple(walk.branches[node.number])
        readers = narrow_readers(
            source.readers, [branch.operators for branch in branches], node.schema
        )
        branches_of_sources.append(SourcePlan(readers, node.schema, branches, in_tasks))
    return QueryPlan(
        tuple(branches_of_sources),
        tuple(walk.watermarks),
        tuple(walk.stages[number] for number in range(stages)),
        UNOPENED,
        tree.schema,
        0,
        watermarks_move,
        () if lines == tuple(range(len(nodes))) else lines,
    )


@dataclass(slots=True)
class _Walk:
    """Visits the tree in preorder and collects its parts."""

    unnumbered: int
    """Stages that have no number yet. The one nearest to the sink gets the highest."""
    branches: dict[int, list[Branch]] = field(default_factory=dict)
    stages: dict[int, StagePlan] = field(default_factory=dict)
    watermarks: list[Watermark] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    """The number of the watermark of each node that has an id."""

    def feed(self, node: Node, operators: tuple[OperatorSpec, ...], to: Target) -> None:
        """Let the rows of a node pass through these operators, to that place."""
        match node:
            case StreamSource(number=number):
                self.branches.setdefault(number, []).append(Branch(operators, to))
            case Step(child=child, operator=operator):
                self.feed(child, (operator, *operators), to)
            case Watermarked(child=child, column=column):
                observe = ObserveEventTimeSpec(self._watermark(node), column)
                self.feed(child, (observe, *operators), to)
            case Union(children=children, schema=schema):
                columns = tuple(map(Column, range(len(schema))))
                for child in children:
                    same = child.schema.names == schema.names
                    renames = () if same else (ProjectSpec(columns, schema),)
                    self.feed(child, (*renames, *operators), to)
            case Stateful(children=children, operator_id=operator_id, spec=spec):
                self.unnumbered -= 1
                number = self.unnumbered
                inputs = tuple(child.schema for child in children)
                self.stages[number] = StagePlan(operator_id, spec, inputs, operators, to)
                for side, child in enumerate(children):
                    self.feed(child, (), Target(number, side))

    def _watermark(self, node: Watermarked) -> int:
        """Return the number of the watermark that a node feeds."""
        number = len(self.watermarks)
        if node.node_id is not None:
            number = self.numbers.setdefault(node.node_id, number)
        if number == len(self.watermarks):
            self.watermarks.append(Watermark(number, node.column, node.delay_ms))
        return number


def narrow_readers(
    readers: ReaderFactory, branches: Sequence[Sequence[OperatorSpec]], schema: pa.Schema
) -> ReaderFactory:
    """Return readers that fill only the columns that a branch uses, if the factory can do that.

    `branches` are the operators of each place in the query that the source feeds. Skipped columns
    stay in the batch as nulls, which cost nothing. Expressions refer to columns by index, so no
    column may be removed.
    """
    wanted: frozenset[str] = frozenset()
    for operators in branches:
        used = wanted_columns(operators, schema)
        if used is None:
            return readers
        wanted |= used
    return readers.only(wanted)


def wanted_columns(operators: Sequence[OperatorSpec], schema: pa.Schema) -> frozenset[str] | None:
    """Return the columns that these operators use; None if they may use all of them."""
    names: set[str] = set()
    for operator in operators:
        match operator:
            case FilterSpec(condition):
                names |= _names_in([condition], schema)
            case ObserveEventTimeSpec(column=name):
                names.add(name)
            case ProjectSpec(columns):
                return frozenset(names | _names_in(columns, schema))
            case ExpandSpec(projections):
                return frozenset(names | _names_in(chain(*projections), schema))
            case GenerateSpec(arguments=arguments, input_columns=indexes):
                names |= {schema.names[index] for index in indexes}
                return frozenset(names | _names_in(arguments, schema))
            case _:
                return None  # a user's function: it may look at any column
    return None  # no projection: all columns leave the last operator


def _names_in(exprs: Iterable[Expr], schema: pa.Schema) -> set[str]:
    return {schema.names[index] for expr in exprs for index in columns_in(expr)}
