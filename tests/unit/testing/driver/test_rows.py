"""Rows that Hypothesis draws fit their schema, and differences of rows are told row by row."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from epochal import testing
from epochal.errors import OptionError
from epochal.testing import rows_equal

ADA, BOB = {"user": "ada", "n": 1}, {"user": "bob", "n": 2}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], []),
        ([ADA, BOB], [BOB, ADA]),
        ([ADA, BOB], [("ada", 1), ("bob", 2)]),
        ([{"tags": [{"a": 1}, None]}], [{"tags": [{"a": 1}, None]}]),
        ([{"x": float("nan")}], [{"x": float("nan")}]),
        (
            [{"at": datetime(2026, 1, 1, tzinfo=UTC)}],
            [{"at": datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}],
        ),
    ],
)
def test_the_same_rows_are_equal_in_any_order(found: list[Any], expected: list[Any]) -> None:
    assert rows_equal(found, expected)


def difference(found: list[Any], expected: list[Any], *, ordered: bool = False) -> list[str]:
    with pytest.raises(AssertionError) as error:
        rows_equal(found, expected, ordered=ordered)
    return str(error.value).splitlines()


def test_missing_and_unexpected_rows_are_told() -> None:
    assert difference([ADA, ADA], [ADA, BOB]) == [
        "found 2 rows, expected 2:",
        "  missing    {'user': 'bob', 'n': 2}",
        "  unexpected {'user': 'ada', 'n': 1}",
    ]


def test_a_row_that_comes_too_often_is_told() -> None:
    assert difference([ADA, ADA, ADA], [ADA])[1:] == 2 * ["  unexpected {'user': 'ada', 'n': 1}"]


def test_an_expected_tuple_is_told_by_column() -> None:
    assert difference([ADA], [("ada", 1), ("eve", 3)])[1:] == [
        "  missing    {'user': 'eve', 'n': 3}"
    ]


def test_another_order_is_told_if_it_matters() -> None:
    assert difference([BOB, ADA], [ADA, BOB], ordered=True) == [
        "the rows are the expected ones, but in another order, from row 0 on:",
        "  expected   {'user': 'ada', 'n': 1}",
        "  found      {'user': 'bob', 'n': 2}",
    ]


def test_of_many_rows_some_are_told() -> None:
    lines = difference([], [{"n": n} for n in range(100)])
    assert (len(lines), lines[-1]) == (22, "  missing    … and 80 more")


EVERYTHING = (
    "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h decimal(10,2), "
    "i string, j binary, k date, l timestamp, m array<int>, n map<string,int>, "
    "o struct<x: int, y: array<string>>, p bigint not null"
)
ORDERS = "user string, amount bigint"


@given(rows=testing.rows(EVERYTHING, max_size=3))
@settings(max_examples=50)
def test_rows_of_all_types_can_be_fed(rows: list[dict[str, Any]]) -> None:
    driver = testing.Driver(testing.stream(EVERYTHING))
    driver.feed(rows)
    found = driver.run()
    assert len(found) == len(rows)
    assert testing.rows_equal([_as_arrow(row) for row in found], map(_as_arrow, rows))


def test_nulls_are_drawn_where_they_are_allowed() -> None:
    found = find(testing.rows("a int", min_size=1), lambda rows: rows[0]["a"] is None)
    assert found == [{"a": None}]


@pytest.mark.parametrize(("schema", "nulls"), [("a int not null", True), ("a int", False)])
@given(data=st.data())
@settings(max_examples=30)
def test_no_nulls_are_drawn_elsewhere(schema: str, nulls: bool, data: st.DataObject) -> None:
    rows = data.draw(testing.rows(schema, nulls=nulls))
    assert all(isinstance(row["a"], int) for row in rows)


def test_a_strategy_for_an_unknown_column_is_refused() -> None:
    with pytest.raises(OptionError, match=r"\['name'\].*\['user', 'amount'\]"):
        testing.rows(ORDERS, columns={"name": st.text()})


def test_a_type_without_a_strategy_is_refused() -> None:
    with pytest.raises(OptionError, match="month_day_nano_interval"):
        testing.rows(pa.schema([("a", pa.month_day_nano_interval())]))


def test_without_hypothesis_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["hypothesis"] = None
from epochal import errors, testing
try:
    testing.rows("a int")
except errors.OptionError as error:
    assert "pip install hypothesis" in str(error), error
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def _as_arrow(row: dict[str, Any]) -> dict[str, Any]:
    """Floats are rounded to their width, and maps are lists of pairs."""
    rounded = row["f"] if row["f"] is None else pa.scalar(row["f"], pa.float32()).as_py()
    pairs = None if row["n"] is None else dict(row["n"])
    return {**row, "f": rounded, "n": pairs}
