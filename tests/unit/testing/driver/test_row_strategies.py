"""Rows that Hypothesis draws fit their schema, and a query under test takes them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from epochal import testing
from epochal.errors import OptionError

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


@given(rows=testing.rows(ORDERS, nulls=False, columns={"user": st.sampled_from("ab")}))
@settings(max_examples=50)
def test_totals_are_the_sums_of_what_was_fed(rows: list[dict[str, Any]]) -> None:
    small = [{**row, "amount": row["amount"] % 1000} for row in rows]
    totals = testing.stream(ORDERS).group_by("user").agg(total=("sum", "amount"))
    driver = testing.Driver(totals)
    driver.feed(small)
    driver.run()
    assert {row["user"]: row["total"] for row in driver.output} == {
        user: sum(row["amount"] for row in small if row["user"] == user)
        for user in {row["user"] for row in small}
    }


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
