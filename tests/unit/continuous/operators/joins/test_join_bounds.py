"""Bounds of joins that no text of SQL reaches, and joins with a table; `frames` has the others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import columns, table

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Call, Column, Expr, Literal
from epochal.continuous.operators.joins.join_bounds import (
    Sides,
    split_condition,
    value_watermark_ms,
)
from epochal.continuous.operators.joins.static_join import Side, StaticJoinSpec, StaticKind
from epochal.continuous.operators.joins.stream_join import JoinInput, StreamJoinSpec
from epochal.errors import OptionError

TIME = pa.timestamp("us", tz="UTC")
LEFT_TIME, RIGHT_TIME = Column(1), Column(3)
SIDES = Sides(2, (1, 3))
"""Left: number, time. Right: number, time."""
WATERMARK_MS = 100_000


def call(function: str, *arguments: Expr) -> Call:
    return Call(function, arguments, pa.bool_())


def micros(number: int) -> Literal:
    return Literal(pa.scalar(number, pa.duration("us")))


def plus(time: Expr, interval: Expr) -> Expr:
    return Call("TimestampAddInterval", (time, interval), TIME)


def bounds(condition: Expr | None, sides: Sides = SIDES) -> tuple[int | None, int | None]:
    left, right = (value_watermark_ms(condition, side, sides, WATERMARK_MS) for side in (0, 1))
    return left, right


def test_calendar_intervals_count_by_days_but_not_by_months() -> None:
    day = Literal(pa.scalar((0, 1, 0), pa.month_day_nano_interval()))
    month = Literal(pa.scalar((1, 0, 0), pa.month_day_nano_interval()))
    assert bounds(call("GreaterThan", LEFT_TIME, plus(RIGHT_TIME, day))) == (86_500_000, None)
    assert bounds(call("GreaterThan", LEFT_TIME, plus(RIGHT_TIME, month))) == (None, None)


def test_other_functions_and_other_columns_give_no_bound() -> None:
    year = Call("Year", (LEFT_TIME,), pa.int32())
    assert bounds(call("GreaterThan", year, RIGHT_TIME)) == (None, None)
    assert bounds(call("GreaterThan", LEFT_TIME, Column(2))) == (None, None)
    assert bounds(None) == (None, None)


def test_without_a_watermark_on_the_other_side_there_is_no_bound() -> None:
    condition = call("GreaterThan", LEFT_TIME, RIGHT_TIME)
    assert bounds(condition, Sides(2, (1, None))) == (None, None)


def test_a_condition_is_split_by_the_sides_that_it_uses() -> None:
    left = call("GreaterThan", Column(0), Literal(pa.scalar(1)))
    right = call("GreaterThan", Column(2), Literal(pa.scalar(2)))
    mixed = call("LessThan", Column(0), Column(2))
    never = Literal(pa.scalar(False))
    found = split_condition(call("And", call("And", left, right), mixed), 2)
    assert found == (left, call("GreaterThan", Column(0), Literal(pa.scalar(2))), mixed)
    assert split_condition(never, 2) == (never, never, None)
    assert split_condition(None, 2) == (None, None, None)


def test_a_join_passes_on_the_lowest_bound_of_its_sides() -> None:
    left = JoinInput(pa.schema([("a", pa.int64()), ("lt", TIME)]), 2, ("a",), "lt", 0)
    right = JoinInput(pa.schema([("b", pa.int64()), ("rt", TIME)]), 2, ("b",), "rt", 0)
    within = call(
        "And",
        call("GreaterThanOrEqual", RIGHT_TIME, LEFT_TIME),
        call("LessThanOrEqual", RIGHT_TIME, plus(LEFT_TIME, micros(2_000_000))),
    )
    schema = pa.schema([*left.schema, *right.schema])
    assert StreamJoinSpec("inner", left, right, within, schema).output_watermark_ms(9000) == 6999
    assert StreamJoinSpec("inner", left, right, None, schema).output_watermark_ms(9000) == 9000


ORDERS = columns(item=pa.string(), amount=pa.int64())
ITEMS = columns(id=pa.string(), price=pa.int64())
TABLE = pa.table({"id": ["a", "b", "b", None], "price": [1, 2, 3, 4]}, schema=ITEMS)
GIVEN = [("b", 10), (None, 20), ("x", 30), ("a", 40)]
AT = Moment(0, -1, 0, -1)
FULL = {"stream_key": ("item",), "table_key": ("id",)}


def spec(
    kind: StaticKind, side: Side = "left", keys: dict[str, Any] = FULL, **more: Any
) -> StaticJoinSpec:
    fields = [*ORDERS, *ITEMS] if side == "left" else [*ITEMS, *ORDERS]
    if kind in ("left_semi", "left_anti"):
        fields = list(ORDERS)
    if kind == "existence":
        fields = [*ORDERS, pa.field("exists", pa.bool_())]
    more = {"condition": None, "table": TABLE, **keys, **more}
    return StaticJoinSpec(stream_side=side, kind=kind, output_schema=pa.schema(fields), **more)


def joined(plan: StaticJoinSpec, given: list[tuple[Any, ...]] = GIVEN) -> list[tuple[Any, ...]]:
    found = plan.open().process(table(ORDERS, given), AT)
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


def test_without_keys_every_row_meets_the_whole_table() -> None:
    plan = spec("inner", keys={"stream_key": (), "table_key": ()})
    assert len(joined(plan)) == 16
    many = [("a", number) for number in range(200_000)]
    few = spec("left_semi", keys={"stream_key": (), "table_key": ()})
    assert len(joined(few, many)) == 200_000


@pytest.mark.parametrize(("kind", "side"), [("right_outer", "left"), ("left_semi", "right")])
def test_a_join_that_would_never_be_final_is_refused(kind: StaticKind, side: Side) -> None:
    with pytest.raises(OptionError, match="never be final"):
        spec(kind, side)
