"""Histories are drawn with all rows, and shortened to what is needed to fail."""

from __future__ import annotations

import random

import pytest

from epochal.testing.driver.histories import (
    CrashAndRestart,
    Disturb,
    EndEpoch,
    Feed,
    History,
    Trouble,
    Wait,
    calm,
    draw_history,
    is_possible,
    shrunk,
)

FEED = {"orders": ["a", "b", "c", "d"], "users": ["x", "y"], "none": []}


@pytest.mark.parametrize("late_rows", [0, 2])
def test_each_row_is_fed_once(late_rows: int) -> None:
    for seed in range(50):
        trouble = Trouble(steps=("log",), duplicates=True, late_rows=late_rows, delays=True)
        history = draw_history(random.Random(seed), FEED, trouble)
        assert is_possible(history)
        assert calm(history) == (
            Feed("orders", ("a", "b", "c", "d"), (0, 1, 2, 3)),
            Feed("users", ("x", "y"), (0, 1)),
        )


def places(history: History) -> list[int]:
    return [
        place
        for each in history
        if isinstance(each, Feed) and not each.again and each.source == "orders"
        for place in each.places
    ]


def test_rows_come_in_their_order_or_a_little_later() -> None:
    orders = [
        places(draw_history(random.Random(seed), FEED, Trouble(late_rows=late)))
        for late in (0, 1)
        for seed in range(40)
    ]
    assert all(each == [0, 1, 2, 3] for each in orders[:40])
    assert [1, 0, 2, 3] in orders[40:]
    assert all(sorted(each) == [0, 1, 2, 3] and each.index(3) >= 2 for each in orders)


def test_what_is_not_asked_for_does_not_happen() -> None:
    kinds = {
        type(each)
        for seed in range(50)
        for each in draw_history(random.Random(seed), FEED, Trouble(disturbances=False))
    }
    assert kinds == {Feed, EndEpoch}


def test_everything_that_is_asked_for_happens() -> None:
    trouble = Trouble(steps=("log",), duplicates=True, delays=True)
    actions = [
        each for seed in range(50) for each in draw_history(random.Random(seed), FEED, trouble)
    ]
    assert {type(each) for each in actions} == {Feed, EndEpoch, CrashAndRestart, Wait, Disturb}
    assert any(isinstance(each, Feed) and each.again for each in actions)


def test_only_what_is_needed_to_fail_is_left() -> None:
    crash = CrashAndRestart("log")
    history: History = (
        Feed("s", (0, 1), (0, 1)),
        EndEpoch(),
        Feed("s", (2, 3, 4), (2, 3, 4)),
        Wait("1 h"),
        EndEpoch(),
        crash,
    )

    def fails(each: History) -> bool:
        rows = [row for one in each if isinstance(one, Feed) for row in one.rows]
        return {2, 4} <= set(rows) and crash in each

    assert shrunk(history, fails) == (Feed("s", (2, 4), (2, 4)), crash)


def test_rows_cannot_come_again_before_they_came() -> None:
    first, again = Feed("s", ("a",), (0,)), Feed("s", ("a",), (0,), again=True)
    assert is_possible((first, again))
    assert not is_possible((again, first))
