from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa

from epochal.connectors.delta.delta_files import file_stats, indexed_columns


def stats(values: list[Any], kind: pa.DataType) -> tuple[Any, Any, Any]:
    found = json.loads(file_stats(pa.table({"c": pa.array(values, kind)})), parse_float=Decimal)
    least, most, nulls = (found[name].get("c") for name in ("minValues", "maxValues", "nullCount"))
    return least, most, nulls


def test_numbers_dates_and_decimals_have_exact_bounds() -> None:
    assert stats([3, None, 1], pa.int64()) == (1, 3, 1)
    assert stats([0.5, 2.0], pa.float64()) == (Decimal("0.5"), Decimal("2.0"), 0)
    day = dt.date(2026, 1, 2)
    assert stats([day], pa.date32()) == ("2026-01-02", "2026-01-02", 0)
    wide = Decimal("12345678901234567890.123456")
    assert stats([wide], pa.decimal128(38, 6)) == (wide, wide, 0)


def test_a_column_of_nulls_has_no_bounds() -> None:
    assert stats([None, None], pa.int64()) == (None, None, 2)
    assert stats([], pa.string()) == (None, None, 0)


def test_times_have_milliseconds_and_the_upper_bound_is_rounded_up() -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678001, dt.UTC)
    bounds = ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.679Z", 0)
    assert stats([at], pa.timestamp("us", "UTC")) == bounds
    assert stats([at], pa.timestamp("us", "Europe/Berlin")) == bounds
    exact = at.replace(microsecond=678000, tzinfo=None)
    local = "2026-01-02T03:04:05.678"
    assert stats([exact], pa.timestamp("us")) == (local, local, 0)


def test_long_texts_are_cut_outwards() -> None:
    text = "x" * 40
    assert stats([text], pa.string()) == ("x" * 32, "x" * 32 + "\U0010ffff", 0)
    assert stats(["x" * 32], pa.string()) == ("x" * 32, "x" * 32, 0)
    assert stats(["x" * 32 + "\U0010ffff" * 2], pa.string()) == ("x" * 32, None, 0)


def test_values_that_json_has_no_number_for_leave_a_column_without_bounds() -> None:
    for odd in (float("nan"), float("inf"), float("-inf")):
        assert stats([1.0, odd], pa.float64()) == (None, None, 0)


def test_days_beyond_python_s_calendar_leave_a_column_without_bounds() -> None:
    far = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    found = json.loads(file_stats(pa.table({"c": far})))
    assert (found["minValues"], found["nullCount"]) == ({}, {"c": 0})


def test_fields_of_structs_are_columns_and_lists_and_bytes_have_no_bounds() -> None:
    rows = pa.table(
        {
            "s": pa.array(
                [{"x": 1, "y": None}, None], pa.struct([("x", pa.int32()), ("y", pa.int8())])
            ),
            "l": pa.array([[1], None], pa.list_(pa.int64())),
            "b": pa.array([b"a", None]),
        }
    )
    assert json.loads(file_stats(rows)) == {
        "numRecords": 2,
        "minValues": {"s": {"x": 1}},
        "maxValues": {"s": {"x": 1}},
        "nullCount": {"s": {"x": 1, "y": 2}, "b": 1},
    }


def test_only_so_many_leading_columns_have_statistics() -> None:
    rows = pa.table({f"c{n}": [n] for n in range(40)})
    assert len(json.loads(file_stats(rows))["minValues"]) == 32
    assert list(json.loads(file_stats(rows, 2))["nullCount"]) == ["c0", "c1"]
    assert len(json.loads(file_stats(rows, -1))["minValues"]) == 40
    assert indexed_columns({"delta.dataSkippingNumIndexedCols": "3"}) == 3
    assert indexed_columns({}) == 32
