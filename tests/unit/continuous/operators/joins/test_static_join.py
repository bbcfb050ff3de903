"""Joins of a stream with a table: nulls never match, and every kind emits what it should."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import columns, table

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Call, Column
from epochal.continuous.operators.joins.static_join import Side, StaticJoinSpec, StaticKind
from epochal.errors import OptionError

ORDERS = columns(item=pa.string(), amount=pa.int64())
ITEMS = columns(id=pa.string(), price=pa.int64())
TABLE = pa.table(
    {"id": ["a", "b", "b", None], "price": [1, 2, 3, 4]},
    schema=ITEMS,
)
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


MATCHES = [("b", 10, "b", 2), ("b", 10, "b", 3), ("a", 40, "a", 1)]


def test_an_inner_join_pairs_equal_keys_and_no_nulls() -> None:
    assert joined(spec("inner")) == MATCHES
    assert joined(spec("inner", "right")) == [(*row[2:], *row[:2]) for row in MATCHES]


def test_an_outer_join_keeps_the_streams_rows_in_order() -> None:
    expected = [
        *MATCHES[:2],
        (None, 20, None, None),
        ("x", 30, None, None),
        MATCHES[2],
    ]
    assert joined(spec("left_outer")) == expected
    assert joined(spec("right_outer", "right")) == [(*row[2:], *row[:2]) for row in expected]


def test_semi_anti_and_existence_joins_keep_each_row_at_most_once() -> None:
    assert joined(spec("left_semi")) == [("b", 10), ("a", 40)]
    assert joined(spec("left_anti")) == [(None, 20), ("x", 30)]
    assert joined(spec("existence")) == [
        ("b", 10, True),
        (None, 20, False),
        ("x", 30, False),
        ("a", 40, True),
    ]


def test_null_safe_keys_match_nulls() -> None:
    assert (None, 20, None, 4) in joined(spec("inner", null_safe=(True,)))


def test_a_condition_decides_among_rows_with_equal_keys() -> None:
    dear = Call("GreaterThan", (Call("Multiply", (Column(3), Column(3))), Column(1)), pa.bool_())
    rows = [("b", 5), ("b", 1), ("a", 9)]
    assert joined(spec("inner", condition=dear), rows) == [
        ("b", 5, "b", 3),
        ("b", 1, "b", 2),
        ("b", 1, "b", 3),
    ]
    assert joined(spec("left_anti", condition=dear), rows) == [("a", 9)]
    assert joined(spec("left_outer", condition=dear), rows)[-1] == ("a", 9, None, None)


def test_without_keys_every_row_meets_the_whole_table() -> None:
    plan = spec("inner", keys={"stream_key": (), "table_key": ()})
    assert len(joined(plan)) == 16
    many = [("a", number) for number in range(200_000)]
    few = spec("left_semi", keys={"stream_key": (), "table_key": ()})
    assert len(joined(few, many)) == 200_000


def test_an_empty_table_matches_nothing() -> None:
    empty = TABLE.slice(0, 0)
    assert joined(spec("inner", table=empty)) == []
    assert len(joined(spec("left_anti", table=empty))) == 4
    assert len(joined(spec("left_outer", table=empty))) == 4
    assert joined(spec("inner", keys={"stream_key": (), "table_key": ()}, table=empty)) == []


def test_computed_keys_are_not_emitted() -> None:
    given = pa.schema([*ORDERS, pa.field("_key", pa.int64())])
    items = TABLE.append_column("_key", pa.array([1, 2, 3, 4]))
    plan = spec(
        "inner",
        keys={"stream_key": ("_key",), "table_key": ("_key",)},
        table=items,
        stream_columns=2,
        table_columns=2,
    )
    (found,) = plan.open().process(table(given, [("q", 7, 3)]), AT)
    assert found.to_pylist() == [{"item": "q", "amount": 7, "id": "b", "price": 3}]


@pytest.mark.parametrize(("kind", "side"), [("right_outer", "left"), ("left_semi", "right")])
def test_a_join_that_would_never_be_final_is_refused(kind: StaticKind, side: Side) -> None:
    with pytest.raises(OptionError, match="never be final"):
        spec(kind, side)
