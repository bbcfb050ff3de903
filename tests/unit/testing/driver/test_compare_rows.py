"""Rows of output are compared with expected ones, and differences are told row by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

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
