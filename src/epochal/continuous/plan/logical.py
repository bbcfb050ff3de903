"""A query as a tree of operators, from the sink down to its sources. Pure data.

Spark's DataFrames (`continuous.catalyst`) and our own builder (`continuous.api`) both make this
tree, and `compile.py` makes the stages of it that tasks run.

Within a schema, column names are unique. Spark's plans may repeat names, after a join for example,
so names that occur before get a number: `id`, `id#2`. The number depends on the position only, so
that it is the same in every run. Expressions refer to columns by index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.continuous.operators.contract import OperatorSpec, StatefulSpec


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A source. It may occur more than once in a tree, with the same number."""

    number: int
    """Its directory in the checkpoint is `sources/<number>`."""
    format: Any
    """The name of a format, or an object that implements `connectors.contract.Source`."""
    options: Mapping[str, str] = field(repr=False)
    user_schema: pa.Schema | None
    """The schema that the user gave, if any."""
    schema: pa.Schema = field(repr=False)
    description: str = ""
    spark: Any = field(default=None, repr=False, compare=False)
    """The session whose settings decide how the source's rows are read."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operator without state."""

    child: Node
    operator: OperatorSpec
    schema: pa.Schema = field(repr=False)


@dataclass(frozen=True, slots=True)
class Watermarked:
    """`withWatermark`: the column with event time, and how long to wait for late rows."""

    child: Node
    column: str
    delay_ms: int
    node_id: str | None = field(default=None, repr=False, compare=False)
    """Spark's id of the call. A DataFrame that a plan uses twice has the same one at both places,
    and so one watermark; None for a watermark of its own. It differs by run."""

    @property
    def schema(self) -> pa.Schema:
        return self.child.schema


@dataclass(frozen=True, slots=True)
class Union:
    """The rows of several trees, whose columns have the same types."""

    children: tuple[Node, ...]
    schema: pa.Schema = field(repr=False)


@dataclass(frozen=True, slots=True)
class Stateful:
    """An operator with state. Rows are exchanged by key before it."""

    children: tuple[Node, ...]
    """One, or two for a join: left, right."""
    operator_id: int
    """Its directory in the checkpoint is `state/<operator_id>`."""
    spec: StatefulSpec

    @property
    def schema(self) -> pa.Schema:
        return self.spec.output_schema


Node: TypeAlias = StreamSource | Step | Watermarked | Union | Stateful


def children_of(node: Node) -> tuple[Node, ...]:
    """The inputs of a node."""
    match node:
        case StreamSource():
            return ()
        case Step(child=child) | Watermarked(child=child):
            return (child,)
        case Union(children=children) | Stateful(children=children):
            return children


def preorder(node: Node) -> Iterator[Node]:
    """A node, and everything below it."""
    yield node
    for child in children_of(node):
        yield from preorder(child)


def postorder(node: Node) -> Iterator[Node]:
    """Everything below a node, and then the node."""
    for child in children_of(node):
        yield from postorder(child)
    yield node


def renumber(node: Node, *, sources: int, operators: int) -> Node:
    """Return the tree with the numbers of its sources and stateful operators raised by these."""

    def again(child: Node) -> Node:
        return renumber(child, sources=sources, operators=operators)

    match node:
        case StreamSource(number=number):
            return replace(node, number=number + sources)
        case Step(child=child) | Watermarked(child=child):
            return replace(node, child=again(child))
        case Union(children=children):
            return replace(node, children=tuple(map(again, children)))
        case Stateful(children=children, operator_id=number):
            raised = number + operators
            return replace(node, children=tuple(map(again, children)), operator_id=raised)


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with a number at each that occurred before."""
    taken: set[str] = set(names)
    names_so_far: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in names_so_far or (number > 1 and unique in taken):
            number += 1
            unique = f"{name}#{number}"
        names_so_far.append(unique)
    return names_so_far
