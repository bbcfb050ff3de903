"""Stream-stream joins emit every pair once, and each outer row once when it cannot match."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, at_ms, columns, table

from epochal.continuous.operators.expressions.expr import Call, Column, Expr, Literal
from epochal.continuous.operators.joins.stream_join import JoinInput, Kind, StreamJoinSpec
from epochal.errors import StateLoadError
from epochal.state.rows.unsafe_row import decode_row, encode_row

pytestmark = pytest.mark.usefixtures("state_in")

TIME = pa.timestamp("us", tz="UTC")
CLICKS = columns(user=pa.string(), clicked=TIME, page=pa.int64())
BUYS = columns(buyer=pa.string(), bought=TIME, price=pa.int64())
LEFT, RIGHT = 0, 1


def seconds(number: float) -> Literal:
    return Literal(pa.scalar(int(number * 1_000_000), pa.duration("us")))


def later(column: int, by: float) -> Call:
    return Call("TimestampAddInterval", (Column(column), seconds(by)), TIME)


def both(*parts: Expr) -> Expr:
    found = parts[0]
    for part in parts[1:]:
        found = Call("And", (found, part), pa.bool_())
    return found


WITHIN = both(
    Call("GreaterThanOrEqual", (Column(4), Column(1)), pa.bool_()),
    Call("LessThanOrEqual", (Column(4), later(1, 2)), pa.bool_()),
)
"""bought between clicked and clicked + 2 s"""


def join(kind: Kind, condition: Expr | None = WITHIN, **right: Any) -> StreamJoinSpec:
    left = JoinInput(CLICKS, 3, ("user",), "clicked", 0)
    other = replace(JoinInput(BUYS, 3, ("buyer",), "bought", 0), **right)
    fields = list(CLICKS) if kind == "left_semi" else [*CLICKS, *BUYS]
    return StreamJoinSpec(kind, left, other, condition, pa.schema(fields))


def click(user: str | None, ms: int | None, page: int = 0) -> pa.RecordBatch:
    return table(CLICKS, [(user, None if ms is None else at_ms(ms), page)])


def buy(buyer: str | None, ms: int | None, price: int = 0) -> pa.RecordBatch:
    return table(BUYS, [(buyer, None if ms is None else at_ms(ms), price)])


def values(driver: Driver, side: str) -> dict[Any, Any]:
    return driver.state(f"{side}-keyWithIndexToValue")


def test_a_semi_join_does_not_emit_rows_that_earlier_releases_stored_as_matched() -> None:
    driver = Driver(join("left_semi"))
    driver.turn_of_sides([(LEFT, click("a", 1000, 1))])
    driver.cut()
    schema = driver.schemas["left-keyWithIndexToValue"].value
    store = driver.stores[0, "left-keyWithIndexToValue"]
    ((key, value),) = store.items()
    store[key] = encode_row((*decode_row(value, schema)[:-1], True), schema)
    driver.restart()
    assert driver.turn_of_sides([(RIGHT, buy("a", 1500, 2))]) == []
    driver.cut()
    assert values(driver, "left") == {}


def test_a_row_expires_whose_key_was_due_while_it_had_no_rows() -> None:
    driver = Driver(join("left_semi"))
    driver.turn_of_sides([(LEFT, click("a", 1000))])
    driver.cut()
    driver.turn_of_sides([(RIGHT, buy("a", 1500))], watermark_ms=10_000)
    driver.turn_of_sides([(LEFT, click("a", 20_000))], watermark_ms=10_000)
    driver.cut()
    assert len(values(driver, "left")) == 1
    driver.turn_of_sides([], watermark_ms=100_000)
    driver.cut()
    assert values(driver, "left") == {}


def test_state_whose_rows_do_not_fit_their_count_is_refused(state_in: str) -> None:
    driver = Driver(join("inner", None))
    driver.turn_of_sides([(LEFT, click("a", 1000, 1)), (LEFT, click("a", 1000, 2))])
    driver.cut()
    store = driver.stores[0, "left-keyWithIndexToValue"]
    del store[next(iter(store))]
    with pytest.raises(StateLoadError, match="has 2 rows according to left-keyToNumValues"):  # noqa: PT012
        driver.restart()
        assert state_in == "disk"  # then rows are not read before they are needed
        driver.turn_of_sides([(RIGHT, buy("a", 1000))])


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None]),
    "small": (pa.int8(), [-3, None]),
    "real": (pa.float64(), [-0.0, None]),
    "price": (pa.decimal128(20, 2), [Decimal("12345678901234567.25"), None]),
    "day": (pa.date32(), [date(1969, 12, 31), None]),
    "local": (pa.timestamp("us"), [at_ms(7).replace(tzinfo=None), None]),
    "raw": (pa.binary(), [b"\0\xff", None]),
    "lasts": (pa.duration("us"), [timedelta(microseconds=-5), None]),
    "parts": (pa.struct([("at", TIME), ("n", pa.int32())]), [{"at": at_ms(5), "n": None}, None]),
    "tags": (pa.list_(pa.string()), [["x", None], None]),
    "times": (pa.list_(TIME), [[at_ms(1), None], None]),
    "pairs": (pa.list_(pa.struct([("a", pa.int64())])), [[{"a": 1}, None], None]),
    "scores": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], None]),
    "seen": (pa.map_(pa.string(), TIME), [[("a", at_ms(1))], None]),
    "grid": (pa.map_(TIME, pa.list_(TIME)), [[(at_ms(1), [at_ms(2)]), (at_ms(3), None)], None]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_every_type_come_back_from_state(name: str) -> None:
    kind, given = VALUES[name]
    schema = columns(user=pa.string(), value=kind)
    left = JoinInput(schema, 2, ("user",), None)
    right = JoinInput(columns(buyer=pa.string()), 1, ("buyer",), None)
    output = pa.schema([*schema, *right.schema])
    driver = Driver(StreamJoinSpec("inner", left, right, None, output))
    driver.turn_of_sides([(LEFT, table(schema, [("a", value) for value in given]))])
    driver.cut()
    driver.restart()
    found = driver.turn_of_sides([(RIGHT, table(right.schema, [("a",)]))])
    assert [row["value"] for row in found] == given
    driver.cut()
    driver.restart()
