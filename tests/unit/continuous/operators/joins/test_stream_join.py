"""Stream-stream joins emit every pair once, and each outer row once when it cannot match."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, at_ms, columns, in_any_order, table

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


def pages_and_prices(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(((row["page"], row.get("price")) for row in rows), key=repr)


def values(driver: Driver, side: str) -> dict[Any, Any]:
    return driver.state(f"{side}-keyWithIndexToValue")


def test_every_order_of_an_epochs_rows_gives_the_same_pairs() -> None:
    rows = [
        (LEFT, click("a", 1000, 1)),
        (LEFT, click("a", 2000, 2)),
        (RIGHT, buy("a", 2500, 10)),
        (RIGHT, buy("a", 4500, 20)),
        (RIGHT, buy("b", 2500, 30)),
    ]
    for order in itertools.permutations(rows):
        driver = Driver(join("inner"))
        assert pages_and_prices(driver.turn_of_sides(order)) == [(1, 10), (2, 10)]
        assert driver.turn_of_sides([]) == []


def test_rows_of_different_epochs_match_after_a_restart() -> None:
    driver = Driver(join("inner"), partitions=3)
    driver.turn_of_sides([(LEFT, click("a", 1000, 1)), (RIGHT, buy("c", 0, 5))])
    driver.cut()
    driver.restart()
    assert pages_and_prices(driver.turn_of_sides([(RIGHT, buy("a", 3000, 7))])) == [(1, 7)]
    driver.cut()
    assert values(driver, "left") == {("a", 0): ("a", 1_000_000, 1, True)}
    assert driver.state("left-keyToNumValues") == {("a",): (1,)}


def test_an_outer_row_is_emitted_one_millisecond_after_its_last_possible_match() -> None:
    driver = Driver(join("left_outer"))
    assert driver.turn_of_sides([(LEFT, click("a", 1000, 1))], watermark_ms=0) == []
    assert driver.turn_of_sides([], watermark_ms=3000) == []  # a buy at 3.000 s still matches
    assert pages_and_prices(driver.turn_of_sides([], watermark_ms=3001)) == [(1, None)]
    assert driver.turn_of_sides([], watermark_ms=9000) == []
    driver.cut()
    assert values(driver, "left") == {}


@pytest.mark.parametrize("kind", ["left_outer", "right_outer", "full_outer"])
def test_a_row_that_matched_is_never_emitted_with_nulls(kind: Kind) -> None:
    driver = Driver(join(kind))
    found = driver.turn_of_sides([(LEFT, click("a", 1000, 1)), (RIGHT, buy("a", 1500, 2))])
    assert pages_and_prices(found) == [(1, 2)]
    driver.cut()
    driver.restart()
    assert driver.turn_of_sides([], watermark_ms=60_000) == []
    driver.cut()
    assert values(driver, "left") == values(driver, "right") == {}


def test_a_full_outer_join_emits_the_unmatched_rows_of_both_sides() -> None:
    driver = Driver(join("full_outer"))
    given = [(LEFT, click("a", 1000, 1)), (RIGHT, buy("b", 1000, 2)), (RIGHT, buy(None, 1000, 3))]
    assert driver.turn_of_sides(given) == []
    found = driver.turn_of_sides([], watermark_ms=60_000)
    assert pages_and_prices(found) == [(1, None), (None, 2), (None, 3)]


def test_late_rows_are_dropped_and_rows_without_time_are_not() -> None:
    driver = Driver(join("inner", None))
    given = [(LEFT, click("a", 5000, 1)), (LEFT, click("a", 5001, 2)), (LEFT, click("a", None, 3))]
    driver.turn_of_sides(given, late_ms=5000)
    assert pages_and_prices(driver.turn_of_sides([(RIGHT, buy("a", 9000, 7))])) == [(2, 7), (3, 7)]


def test_a_row_that_fails_a_condition_on_its_own_side_is_not_stored() -> None:
    dear = Call("GreaterThan", (Column(5), Literal(pa.scalar(10))), pa.bool_())
    driver = Driver(join("right_outer", both(WITHIN, dear)))
    given = [(LEFT, click("a", 1000, 1)), (RIGHT, buy("a", 1000, 10)), (RIGHT, buy("a", 1000, 11))]
    assert pages_and_prices(driver.turn_of_sides(given)) == [(1, 11), (None, 10)]
    driver.cut()
    assert values(driver, "right") == {("a", 0): ("a", 1_000_000, 11, True)}


def test_a_semi_join_emits_each_left_row_once_in_every_order() -> None:
    rows = [
        (LEFT, click("a", 1000, 1)),
        (LEFT, click("a", 1100, 2)),
        (LEFT, click("a", 9000, 3)),
        (RIGHT, buy("a", 2000, 10)),
        (RIGHT, buy("a", 2500, 20)),
    ]
    for order in itertools.permutations(rows):
        driver = Driver(join("left_semi"))
        found = driver.turn_of_sides(order)
        assert in_any_order(found) == in_any_order(
            {"user": "a", "clicked": at_ms(ms), "page": page} for ms, page in ((1000, 1), (1100, 2))
        )
        driver.cut()
        assert values(driver, "left") == {("a", 0): ("a", 9_000_000, 3, False)}
        assert driver.turn_of_sides([(RIGHT, buy("a", 2600, 30))]) == []


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


def test_removal_moves_the_last_row_of_a_key_into_its_place() -> None:
    driver = Driver(join("inner"))
    times = (1000, 5000, 1100, 6000, 7000)
    driver.turn_of_sides([(LEFT, click("a", ms, page)) for page, ms in enumerate(times)])
    driver.cut()
    driver.turn_of_sides([], watermark_ms=3101)
    driver.cut()
    assert {key[1]: row[2] for key, row in values(driver, "left").items()} == {0: 4, 1: 1, 2: 3}
    assert driver.state("left-keyToNumValues") == {("a",): (3,)}


def test_with_event_time_in_the_key_whole_keys_expire() -> None:
    left = JoinInput(CLICKS, 3, ("user", "clicked"), "clicked", 0)
    right = JoinInput(BUYS, 3, ("buyer", "bought"), None, 0)
    spec = StreamJoinSpec("left_outer", left, right, None, pa.schema([*CLICKS, *BUYS]))
    driver = Driver(spec)
    driver.turn_of_sides([(LEFT, click("a", 1000, 1)), (RIGHT, buy("a", 2000, 2))])
    assert driver.turn_of_sides([], watermark_ms=999) == []
    assert pages_and_prices(driver.turn_of_sides([], watermark_ms=1000)) == [(1, None)]
    driver.turn_of_sides([], watermark_ms=2000)
    driver.cut()
    assert values(driver, "left") == values(driver, "right") == {}


def test_a_computed_key_is_not_stored_with_the_row() -> None:
    schema = pa.schema([*BUYS, pa.field("_key", pa.string())])
    driver = Driver(join("inner", None, schema=schema, key=("_key",)))
    given = table(schema, [("x", at_ms(1000), 5, "a")])
    found = driver.turn_of_sides([(LEFT, click("a", 1000, 1)), (RIGHT, given)])
    assert pages_and_prices(found) == [(1, 5)]
    driver.cut()
    assert values(driver, "right") == {("a", 0): ("x", 1_000_000, 5, True)}


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


def test_the_stores_are_laid_out_as_in_spark() -> None:
    found = {
        each.name: (
            [(field.name, str(field.data_type)) for field in each.key.fields],
            [field.name for field in each.value.fields],
        )
        for each in join("inner").stores
    }
    assert list(found) == [
        "left-keyToNumValues",
        "left-keyWithIndexToValue",
        "right-keyToNumValues",
        "right-keyWithIndexToValue",
    ]
    assert [name for name, _ in found["left-keyWithIndexToValue"][0]] == ["field0", "index"]
    assert found["left-keyWithIndexToValue"][1] == ["user", "clicked", "page", "matched"]
    assert found["right-keyToNumValues"][1] == ["value"]


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
