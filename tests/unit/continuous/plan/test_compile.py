"""Stages, branches and edges that a tree of operators becomes, and the watermark of each stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from tests.unit.continuous.plan.plans import (
    ROWS,
    TimedJoin,
    Timeless,
    planned,
    source,
    state,
    timed,
)

from epochal.connectors.contract import Positions, ReaderFactory, SourceReader
from epochal.continuous.operators.contract import OperatorSpec
from epochal.continuous.operators.expressions.expr import Call, Column, Literal
from epochal.continuous.operators.stateless.generate import GenerateSpec
from epochal.continuous.operators.stateless.row_operators import (
    ExpandSpec,
    FilterSpec,
    MapInArrowSpec,
    ObserveEventTimeSpec,
    ProjectSpec,
)
from epochal.continuous.plan.compile import narrow_readers, sources_of, wanted_columns
from epochal.continuous.plan.logical import Node, Step, Union, Watermarked
from epochal.continuous.plan.stages import Branch, Target, Watermark, input_watermarks
from epochal.errors import EpochError

TRUE = FilterSpec(Literal(pa.scalar(True)))


def test_a_source_that_occurs_twice_is_read_once_and_has_a_branch_and_a_line_for_each() -> None:
    plan = planned(Union((state(0, source(0)), Step(source(0), TRUE, ROWS)), ROWS))
    assert [each.branches for each in plan.sources] == [
        (Branch((), Target(0)), Branch((TRUE,), Target(1)))
    ]
    assert plan.offset_lines == (0, 0)
    assert planned(source(0), offset_lines=(0, 0)).offset_lines == (0, 0)


def test_watermarks_are_numbered_from_the_sink_and_observed_on_every_branch() -> None:
    tree = Watermarked(Union((timed(0, 5), source(1)), ROWS), "key", 9)
    plan = planned(tree)
    assert plan.watermarks == (Watermark(0, "key", 9), Watermark(1, "at", 5))
    assert [each.branches[0].operators for each in plan.sources] == [
        (ObserveEventTimeSpec(1, "at"), ObserveEventTimeSpec(0, "key")),
        (ObserveEventTimeSpec(0, "key"),),
    ]


def test_nodes_with_the_same_id_feed_one_watermark() -> None:
    one, other = (replace(timed(0, delay), node_id=name) for delay, name in ((5, "a"), (7, "b")))
    plan = planned(Union((timed(0, 3), one, Step(one, TRUE, ROWS), other, timed(0, 5)), ROWS))
    assert [each.delay_ms for each in plan.watermarks] == [3, 5, 7, 5]
    assert [each.index for each in plan.watermarks] == [0, 1, 2, 3]
    observed = [branch.operators[0] for branch in plan.sources[0].branches]
    assert observed == [ObserveEventTimeSpec(number, "at") for number in (0, 1, 1, 2, 3)]


def test_a_union_has_the_names_of_its_schema() -> None:
    names = pa.schema([ROWS.field(0).with_name("user"), ROWS.field(1)])
    plan = planned(Union((source(0), source(1)), names))
    project = ProjectSpec((Column(0), Column(1)), names)
    assert [each.branches[0].operators for each in plan.sources] == [(project,), (project,)]


def test_sources_must_be_numbered_from_zero() -> None:
    assert [each.number for each in sources_of(Union((source(1), source(0)), ROWS))] == [0, 1]
    with pytest.raises(EpochError, match=r"numbers \[1\]"):
        sources_of(source(1))


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
    assert narrow_readers(Narrow(), operators, SCHEMA) == Narrow(frozenset({"a", "c"}))
    whole = Whole()
    assert narrow_readers(whole, operators, SCHEMA) is whole
    assert narrow_readers(Narrow(), [[]], SCHEMA) == Narrow()


def bounds(tree: Node, watermark_ms: int) -> dict[int, int]:
    """By operator id."""
    plan = planned(tree)
    found = input_watermarks(plan, watermark_ms)
    return {stage.operator_id: ms for stage, ms in zip(plan.stages, found, strict=True)}


def test_aggregations_and_deduplications_pass_the_watermark_on() -> None:
    assert bounds(state(0, state(1, state(2, timed()))), 9000) == {0: 9000, 1: 9000, 2: 9000}


def test_a_join_passes_on_what_its_condition_still_allows() -> None:
    tree = state(0, state(1, timed(0, 1000), timed(1, 3000), spec=TimedJoin()))
    assert bounds(tree, 9000) == {1: 9000, 0: 6999}
    assert bounds(tree, 1500) == {1: 1500, 0: 0}
    assert bounds(tree, 0) == {1: 0, 0: 0}


def test_a_stage_takes_the_lowest_of_its_inputs_and_those_without_do_not_count() -> None:
    join = state(2, timed(0), timed(1), spec=TimedJoin())
    assert bounds(state(0, Union((join, timed(2)), ROWS)), 9000) == {2: 9000, 0: 6999}
    assert bounds(state(0, Union((source(0), timed(1)), ROWS)), 9000) == {0: 9000}
    assert bounds(state(0, Union((state(1, source(0)), timed(1)), ROWS)), 9000) == {0: 9000, 1: 0}


def test_an_operator_may_pass_on_none_until_another_is_declared() -> None:
    timeless = state(1, timed(), spec=Timeless())
    assert bounds(state(0, timeless), 9000) == {1: 9000, 0: 0}
    assert bounds(state(0, Watermarked(timeless, "at", 5)), 9000) == {1: 9000, 0: 9000}


def test_a_query_without_a_watermark_has_none() -> None:
    assert bounds(state(0, source()), 0) == {0: -1}
