"""The watermark of each stage's input, in the numbers of Spark's WatermarkPropagator."""

from __future__ import annotations

from tests.unit.continuous.plan.plans import (
    ROWS,
    TimedJoin,
    Timeless,
    planned,
    source,
    state,
    timed,
)

from epochal.continuous.plan.logical import Node, Union, Watermarked
from epochal.continuous.plan.stages import input_watermarks


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
