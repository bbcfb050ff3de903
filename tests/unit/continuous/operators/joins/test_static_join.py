"""Joins of a stream with a table: nulls never match, and every kind emits what it should."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import columns, table

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.joins.static_join import Side, StaticJoinSpec, StaticKind
from epochal.errors import OptionError

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
