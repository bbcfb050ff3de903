"""Which columns of a source decide about what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from epochal.connectors.contract import Positions, ReaderFactory, SourceReader
from epochal.continuous.operators.contract import OperatorSpec
from epochal.continuous.operators.expressions.expr import Call, Column, Literal
from epochal.continuous.operators.stateless.expand import ExpandSpec
from epochal.continuous.operators.stateless.generate import GenerateSpec
from epochal.continuous.operators.stateless.row_operators import (
    FilterSpec,
    MapInArrowSpec,
    ProjectSpec,
)
from epochal.continuous.operators.watermark import ObserveEventTimeSpec
from epochal.continuous.plan.pruning import narrowed, wanted_columns

SCHEMA = pa.schema([(name, pa.int64()) for name in "abcd"])
ONE = pa.schema([("x", pa.int64())])
SUM = Call("Add", (Column(0), Call("Add", (Column(2), Literal(pa.scalar(1))))))
PASS_ON = MapInArrowSpec(lambda batches: batches, SCHEMA)


def test_a_projection_says_which_columns_it_computes_from() -> None:
    assert wanted_columns([ProjectSpec((SUM,), ONE)], SCHEMA) == frozenset("ac")
    assert wanted_columns([ProjectSpec((Literal(pa.scalar(1)),), ONE)], SCHEMA) == frozenset()


def test_filters_and_watermarks_before_it_look_too() -> None:
    operators: list[OperatorSpec] = [
        FilterSpec(Call("IsNotNull", (Column(3),))),
        ObserveEventTimeSpec(0, "b"),
        ProjectSpec((Column(0),), ONE),
        FilterSpec(Column(0)),
    ]
    assert wanted_columns(operators, SCHEMA) == frozenset("abd")


def test_generated_rows_keep_some_columns_and_are_computed_from_others() -> None:
    generate = GenerateSpec("Explode", (Column(3),), (1,), False, SCHEMA)
    assert wanted_columns([generate, PASS_ON], SCHEMA) == frozenset("bd")


def test_repeated_rows_are_computed_from_the_columns_of_all_projections() -> None:
    expand = ExpandSpec(((Column(0),), (SUM,), (Literal(pa.scalar(1)),)), ONE)
    assert wanted_columns([FilterSpec(Column(1)), expand], SCHEMA) == frozenset("abc")


def test_all_columns_are_wanted_where_rows_leave_whole() -> None:
    assert wanted_columns([], SCHEMA) is None
    assert wanted_columns([FilterSpec(Column(0))], SCHEMA) is None
    assert wanted_columns([PASS_ON, ProjectSpec((SUM,), ONE)], SCHEMA) is None


@dataclass(frozen=True)
class Whole(ReaderFactory):
    def open(self, partitions: Positions) -> SourceReader:
        raise AssertionError


@dataclass(frozen=True)
class Narrow(Whole):
    columns: frozenset[str] | None = field(default=None)

    def only(self, columns: frozenset[str]) -> Narrow:
        return Narrow(columns)


def test_readers_that_can_be_told_are_told() -> None:
    operators = [[ProjectSpec((SUM,), ONE)]]
    assert narrowed(Narrow(), operators, SCHEMA) == Narrow(frozenset({"a", "c"}))
    whole = Whole()
    assert narrowed(whole, operators, SCHEMA) is whole
    assert narrowed(Narrow(), [[]], SCHEMA) == Narrow()
