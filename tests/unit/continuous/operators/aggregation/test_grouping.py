"""Aggregates over batches of any size: filters, nulls, shared buffers, sums out of range."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, at_ms, columns, table

from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.aggregation.calls import AggregateCall, Mode
from epochal.continuous.operators.contract import Moment
from epochal.errors import OptionError, StateValueError

INPUT = columns(
    k=pa.int32(),
    v=pa.int64(),
    x=pa.float64(),
    y=pa.float64(),
    s=pa.string(),
    d=pa.decimal128(38, 0),
    st=pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.float64())]),
    keep=pa.bool_(),
    m=pa.map_(pa.string(), pa.timestamp("us", tz="UTC")),
)
LISTS = pa.list_(pa.int64())


def call(
    function: str,
    *arguments: str,
    kind: pa.DataType | None = None,
    filter: str | None = None,
    mode: Mode = "ansi",
    alias: str = "r",
    **extra: Any,
) -> AggregateCall:
    return AggregateCall(function, arguments, alias, kind or pa.float64(), filter, mode, extra)


def driver(*calls: AggregateCall, key: Sequence[str] = ("k",), **options: Any) -> Driver:
    options = {"output_mode": "update", **options}
    return Driver(AggregateSpec(tuple(key), tuple(calls), INPUT, **options))


def rows_of(*rows: Mapping[str, Any]) -> pa.RecordBatch:
    return table(INPUT, [[{"k": 1, **row}.get(name) for name in INPUT.names] for row in rows])


def result(found: AggregateCall, *rows: Mapping[str, Any], repeat: int = 1) -> Any:
    """The result for the rows. More than 127 rows are grouped in Arrow."""
    (row,) = driver(found).turn(rows_of(*(each for each in rows for _ in range(repeat))))
    return row["r"]


@pytest.mark.parametrize("repeat", [1, 200])
@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (call("Count", filter="keep", kind=pa.int64()), 1),
        (call("Count", "v", filter="keep", kind=pa.int64()), 1),
        (call("Count", "v", "s", kind=pa.int64()), 1),
        (call("Count", "st", kind=pa.int64()), 1),
        (call("Sum", "v", filter="keep", kind=pa.int64()), 5),
        (call("Average", "v", filter="keep"), 5.0),
        (call("Min", "v", filter="keep", kind=pa.int64()), 5),
        (call("First", "v", filter="keep", kind=pa.int64()), 5),
        (call("Last", "s", kind=pa.string()), None),
        (call("Last", "s", kind=pa.string(), ignoreNulls=True), "b"),
        (call("First", "s", kind=pa.string(), ignoreNulls=True), "b"),
    ],
)
def test_only_rows_that_pass_count(found: AggregateCall, wanted: Any, repeat: int) -> None:
    rows: list[dict[str, Any]] = [
        {"v": 3, "keep": False},
        {"v": 5, "keep": True, "s": "b"},
        {"v": None, "keep": None, "st": {"a": 1, "b": None}},
    ]
    scale = repeat if found.function in ("Count", "Sum") else 1
    assert result(found, *rows, repeat=repeat) == (
        wanted * scale if isinstance(wanted, int) else wanted
    )


@pytest.mark.parametrize("repeat", [1, 200])
def test_a_group_without_rows_that_pass_has_the_result_of_none(repeat: int) -> None:
    row = {"v": 1, "x": 2.0, "y": 1.0, "s": "a", "keep": False}
    for function, arguments, wanted in [
        ("Count", ("v",), 0),
        ("Sum", ("v",), None),
        ("Average", ("v",), None),
        ("StddevSamp", ("x",), None),
        ("Corr", ("x", "y"), None),
        ("MaxBy", ("v", "s"), None),
        ("BitXorAgg", ("v",), None),
    ]:
        kind = pa.int64() if function in ("Count", "Sum", "MaxBy", "BitXorAgg") else None
        found = call(function, *arguments, kind=kind, filter="keep")
        assert result(found, row, repeat=repeat) == wanted, function


def test_aggregates_that_compute_the_same_share_a_buffer() -> None:
    calls = [
        call("Sum", "v", kind=pa.int64(), alias="a"),
        call("Max", "v", kind=pa.int64(), alias="b"),
        call("Sum", "v", kind=pa.int64(), alias="c"),
        call("Sum", "v", kind=pa.int64(), alias="d", filter="keep"),
    ]
    found = driver(*calls)
    (store,) = found.spec.stores
    assert store.value.names == ("sum", "max", "sum")
    (row,) = found.turn(rows_of({"v": 2, "keep": True}, {"v": 3, "keep": False}))
    assert row == {"k": 1, "a": 5, "b": 3, "c": 5, "d": 2}
    found.cut()
    assert found.state() == {(1,): (5, 3, 2)}


@pytest.mark.parametrize("repeat", [1, 100])
def test_a_sum_of_longs_out_of_range_raises_wraps_or_is_null(repeat: int) -> None:
    rows = [{"v": 2**63 - 1}] * 2 * repeat
    with pytest.raises(StateValueError, match="out of range"):
        result(call("Sum", "v", kind=pa.int64()), *rows)
    wrapped = (2 * repeat * (2**63 - 1) + 2**63) % 2**64 - 2**63
    assert result(call("Sum", "v", kind=pa.int64(), mode="legacy"), *rows) == wrapped
    assert result(call("Sum", "v", kind=pa.int64(), mode="try"), *rows) is None


def test_a_decimal_sum_out_of_range_is_null_in_state_and_an_error_in_the_result() -> None:
    kind = pa.decimal128(38, 0)
    rows = [{"d": Decimal(10**38 - 1)}, {"d": Decimal(1)}]
    found = driver(call("Sum", "d", kind=kind, mode="legacy"))
    assert found.turn(rows_of(*rows)) == [{"k": 1, "r": None}]
    found.cut()
    assert found.state() == {(1,): (None, False)}
    assert found.turn(rows_of({"d": Decimal(5)})) == [{"k": 1, "r": None}]
    with pytest.raises(StateValueError, match="out of range"):
        result(call("Sum", "d", kind=kind), *rows)


@pytest.mark.parametrize("repeat", [1, 200])
def test_the_earlier_of_two_zeros_is_the_extreme(repeat: int) -> None:
    zeros = [{"x": -0.0}, {"x": 0.0}]
    assert math.copysign(1, result(call("Max", "x"), *zeros, repeat=repeat)) == -1
    assert math.copysign(1, result(call("Min", "x"), *reversed(zeros), repeat=repeat)) == 1


def test_structs_are_ordered_field_by_field_with_nulls_first_and_nan_last() -> None:
    kind = INPUT.field("st").type
    values = [{"a": 1, "b": math.nan}, {"a": 1, "b": 9.0}, {"a": None, "b": 1.0}]
    rows = [{"st": each} for each in values]
    assert result(call("Min", "st", kind=kind), *rows) == values[2]
    assert result(call("Max", "st", kind=kind), *rows)["a"] == 1
    assert math.isnan(result(call("Max", "st", kind=kind), *rows)["b"])


def test_of_equal_orderings_the_later_value_is_kept() -> None:
    rows: list[dict[str, Any]] = [{"s": "a", "v": 1}, {"s": "b", "v": 1}, {"s": "c", "v": None}]
    assert result(call("MaxBy", "s", "v", kind=pa.string()), *rows) == "b"
    assert result(call("MinBy", "s", "v", kind=pa.string()), *rows) == "b"


def test_lists_and_sets_survive_a_restart() -> None:
    calls = [
        call("CollectList", "x", kind=pa.list_(pa.float64()), alias="list"),
        call("CollectSet", "x", kind=pa.list_(pa.float64()), alias="set"),
        call("CollectList", "v", kind=LISTS, alias="nulls", ignoreNulls=False),
    ]
    found = driver(*calls)
    found.turn(rows_of({"x": -0.0, "v": 1}, {"x": math.nan}, {"x": None}))
    found.cut()
    found.restart()
    (row,) = found.turn(rows_of({"x": 0.0, "v": 2}, {"x": -math.nan}))
    assert str(row["list"]) == "[-0.0, nan, 0.0, nan]"
    assert str(row["set"]) == "[0.0, nan]"
    assert row["nulls"] == [1, None, None, 2, None]


def test_maps_are_kept_and_shown_as_they_came() -> None:
    kind = INPUT.field("m").type
    calls = [
        call("Last", "m", kind=kind, alias="last"),
        call("CollectList", "m", kind=pa.list_(kind), alias="all"),
    ]
    found = driver(*calls)
    found.turn(rows_of({"m": [("a", at_ms(5)), ("b", None)]}, {"k": 2, "m": []}))
    found.cut()
    found.restart()
    got = found.turn(rows_of({"m": None}, {"k": 2, "m": [("c", at_ms(7))]}))
    assert got == [
        {"k": 1, "last": None, "all": [[("a", at_ms(5)), ("b", None)]]},
        {"k": 2, "last": [("c", at_ms(7))], "all": [[], [("c", at_ms(7))]]},
    ]


def test_statistics_agree_with_their_definition_in_any_order_of_merges() -> None:
    rng = random.Random(3)
    values = [(rng.gauss(5, 2), rng.gauss(0, 1)) for _ in range(60)]
    names = ["VariancePop", "StddevSamp", "Skewness", "Kurtosis", "CovPopulation", "Corr"]
    calls = [call(n, *(("x", "y") if n[0] == "C" else ("x",)), alias=n) for n in names]
    found = driver(*calls)
    for place in range(0, 60, 7):
        (row,) = found.turn(rows_of(*({"x": x, "y": y} for x, y in values[place : place + 7])))
        found.cut()
        found.restart()
    x, y = ([pair[side] for pair in values] for side in (0, 1))
    mean, other = sum(x) / 60, sum(y) / 60
    m2, m3, m4 = (sum((each - mean) ** n for each in x) for n in (2, 3, 4))
    both = sum((a - mean) * (b - other) for a, b in values)
    spread = math.sqrt(m2 * sum((each - other) ** 2 for each in y))
    wanted = [
        m2 / 60,
        math.sqrt(m2 / 59),
        math.sqrt(60) * m3 / m2**1.5,
        60 * m4 / m2**2 - 3,
        both / 60,
        both / spread,
    ]
    assert [row[n] for n in names] == pytest.approx(wanted, rel=1e-12)


def test_a_single_value_has_no_deviation_of_samples() -> None:
    row = {"x": 2.0, "y": 1.0}
    assert result(call("StddevSamp", "x"), row) is None
    assert math.isnan(result(call("StddevSamp", "x", nullOnDivideByZero=False), row))
    assert result(call("StddevPop", "x"), row) == 0.0


def test_a_global_aggregate_has_a_row_before_there_is_input() -> None:
    found = driver(call("Count", kind=pa.int64()), key=(), per_epoch=True)
    assert found.turn(None) == [{"r": 0}]
    found.cut()
    assert found.state() == {(): (0,)}
    assert found.turn(None) == []
    assert found.turn(rows_of({"v": 1})) == [{"r": 1}]


def test_an_epoch_shows_each_changed_group_once_and_all_groups_in_complete_mode() -> None:
    for mode, shown in (("update", [2]), ("complete", [1, 2])):
        found = driver(call("Count", kind=pa.int64()), output_mode=mode, per_epoch=True)
        found.turn(rows_of({"k": 1}))
        operator = found.operator
        found.turn(None)
        at = Moment(0, -1, 0, -1)
        for _ in range(2):
            assert list(operator.process(0, rows_of({"k": 2}), at)) == []
        (batch,) = operator.expire(at)
        assert batch.to_pydict()["k"] == shown
        assert batch.to_pydict()["r"][-1] == 2


def test_without_aggregates_the_groups_themselves_are_the_result() -> None:
    found = driver(per_epoch=True)
    assert found.turn(rows_of({"k": 1}, {"k": 2}, {"k": 1})) == [{"k": 1}, {"k": 2}]
    found.cut()
    assert found.state() == {(1,): (), (2,): ()}
    assert found.turn(rows_of(*[{"k": 3}] * 300)) == [{"k": 3}]


def test_an_unknown_function_is_refused() -> None:
    with pytest.raises(OptionError, match="computed by Percentile"):
        _ = driver(call("Percentile", "v")).spec.stores
