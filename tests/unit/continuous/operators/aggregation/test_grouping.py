"""Aggregates over batches of any size: filters, nulls, shared buffers, sums out of range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, columns, table

from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.aggregation.functions import AggregateCall, Mode
from epochal.continuous.operators.contract import Moment
from epochal.errors import StateValueError

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


@pytest.mark.parametrize("repeat", [1, 100])
def test_a_sum_of_longs_out_of_range_raises_or_wraps(repeat: int) -> None:
    rows = [{"v": 2**63 - 1}] * 2 * repeat
    with pytest.raises(StateValueError, match="out of range"):
        result(call("Sum", "v", kind=pa.int64()), *rows)
    wrapped = (2 * repeat * (2**63 - 1) + 2**63) % 2**64 - 2**63
    assert result(call("Sum", "v", kind=pa.int64(), mode="legacy"), *rows) == wrapped


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
