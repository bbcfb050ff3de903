"""Histories are drawn with all rows, shortened to what is needed to fail, and run at their time."""

from __future__ import annotations

import datetime as whole
import itertools
import random
import time
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.testing.driver import sample_pipeline as sample
from tests.unit.testing.driver.sample_pipeline import ORDERS, SOME_ORDERS, Accounts

from epochal import testing
from epochal.continuous.operators.windows import tumbling
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
    functions_of,
    is_possible,
    seen_time,
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


def newest(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["user"]: row["total"] for row in rows}


def orders() -> Any:
    return testing.stream(ORDERS, "orders")


def test_totals_are_right_in_every_history() -> None:
    totals = sample.accepted(orders()).group_by("user").agg(total=("sum", "amount"))
    testing.Driver(totals).fuzz(SOME_ORDERS, seeds=15, result=newest, duplicates=True)


def test_two_sources_are_fed_in_any_order() -> None:
    both = orders().union(testing.stream(ORDERS, "returns"))
    totals = both.group_by("user").agg(total=("sum", "amount"))
    feed = {"orders": SOME_ORDERS, "returns": SOME_ORDERS[:2]}
    testing.Driver(totals, partitions=2).fuzz(feed, seeds=10, result=newest)


def test_a_query_that_forgets_to_deduplicate_is_found() -> None:
    driver = testing.Driver(sample.accepted_as_they_come(orders()))
    with pytest.raises(testing.FuzzError) as found:
        driver.fuzz(SOME_ORDERS, duplicates=True)
    first, again = found.value.history
    assert isinstance(first, Feed)
    assert isinstance(again, Feed)
    assert (first.again, again.again, len(first.rows), first.rows) == (False, True, 1, again.rows)
    lines = str(found.value).splitlines()
    assert lines[0] == f"the query goes wrong in this history (seed {found.value.seed}):"
    assert lines[1].startswith("  1. feed orders: [('order-")
    assert lines[2].startswith("  2. feed orders again: [('order-")
    assert lines[3] == "found 2 rows, expected 1:"
    assert lines[4].startswith("  unexpected {'id': 'order-")
    assert lines[5] == f"To run it again: fuzz(..., seeds=[{found.value.seed}])"
    testing.Driver(sample.accepted(orders())).fuzz(SOME_ORDERS, seeds=15, duplicates=True)


@pytest.mark.parametrize("function", [sample.dated_by_the_wall_clock, sample.only_recent])
def test_a_query_that_reads_the_wall_clock_is_found(function: Any) -> None:
    driver = testing.Driver(orders().map_in_arrow(function, ORDERS))
    with pytest.raises(testing.FuzzError) as found:
        driver.fuzz(SOME_ORDERS)
    assert {type(each) for each in found.value.history} == {Feed, Wait}
    with pytest.raises(testing.FuzzError) as again:
        driver.fuzz(SOME_ORDERS, seeds=[found.value.seed])
    assert again.value.history == found.value.history
    testing.Driver(orders().map_in_arrow(sample.dated, ORDERS)).fuzz(SOME_ORDERS, seeds=15)


def test_a_function_that_cannot_be_repeated_is_found() -> None:
    accounts = Accounts()
    driver = testing.Driver(sample.booked(orders(), accounts.add))
    with pytest.raises(testing.FuzzError) as found:
        driver.fuzz(SOME_ORDERS, result=lambda _: dict(accounts.totals), reset=accounts.clear)
    fed, crash = found.value.history
    assert isinstance(fed, Feed)
    assert isinstance(crash, CrashAndRestart)
    assert len(fed.rows) == 1
    assert "the result is" in str(found.value)
    right = testing.Driver(sample.booked(orders(), accounts.put))
    right.fuzz(
        SOME_ORDERS, seeds=15, result=lambda _: dict(accounts.by_order), reset=accounts.clear
    )


def test_a_watermark_that_does_not_wait_for_late_rows_is_found() -> None:
    def counts(delay: str) -> testing.Driver:
        marked = orders().with_watermark("at", delay)
        windows = marked.group_by(window=tumbling("at", "1 minute"))
        return testing.Driver(windows.count(output_mode="append"))

    feed = [sample.order(n, "a", n) for n in range(10)]
    with pytest.raises(testing.FuzzError, match="missing"):
        counts("1 second").fuzz(feed, late_rows=3, crashes=False)
    counts("4 minutes").fuzz(feed, seeds=15, late_rows=3)


def test_a_query_that_depends_on_something_outside_is_found() -> None:
    numbers = itertools.count()

    def numbered(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            found = pa.array([next(numbers) for _ in range(len(batch))])
            yield batch.set_column(2, "amount", found)

    driver = testing.Driver(orders().map_in_arrow(numbered, ORDERS))
    with pytest.raises(testing.FuzzError) as error:
        driver.fuzz(SOME_ORDERS, seeds=5)
    assert [type(each) for each in error.value.history] == [Feed]


def test_a_query_that_counts_rows_of_a_batch_is_found() -> None:
    def sized(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            yield batch.set_column(2, "amount", pa.array([len(batch)] * len(batch), pa.int64()))

    driver = testing.Driver(orders().map_in_arrow(sized, ORDERS))
    with pytest.raises(testing.FuzzError, match="missing"):
        driver.fuzz(SOME_ORDERS, seeds=20)


def test_an_error_of_the_pipeline_is_told_with_its_history() -> None:
    def no_fives(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            if len(batch) == 1:
                raise ZeroDivisionError("one row")
            yield batch

    driver = testing.Driver(orders().map_in_arrow(no_fives, ORDERS))
    with pytest.raises(testing.FuzzError, match="it fails: ZeroDivisionError: one row"):
        driver.fuzz(SOME_ORDERS)


def test_histories_begin_with_the_state_of_the_checkpoint(tmp_path: Path) -> None:
    before = testing.Driver(sample.accepted(orders()))
    before.feed(SOME_ORDERS[:3])
    before.run()
    before.save(tmp_path)
    shown: list[list[str]] = []
    driver = testing.Driver(sample.accepted(orders()), checkpoint=tmp_path)
    driver.fuzz(
        SOME_ORDERS, seeds=5, result=lambda rows: shown.append(sorted(row["id"] for row in rows))
    )
    assert shown == 10 * [["order-3", "order-4", "order-5"]]


YEAR_2001_MS = 978_307_200_000


def seen() -> list[Any]:
    return [
        time.time(),
        time.time_ns(),
        datetime.now(UTC),
        whole.datetime.now(UTC),
        date.today().year,  # noqa: DTZ011  users do that
    ]


def test_the_usual_ways_to_ask_for_the_time_are_answered() -> None:
    began = datetime(2001, 1, 1, tzinfo=UTC)
    with seen_time(lambda: YEAR_2001_MS):
        found = seen()
        assert isinstance(whole.datetime.now(UTC), datetime)
        assert isinstance(began, datetime)
        assert not isinstance("2001", datetime)
    assert found[:4] == [YEAR_2001_MS / 1000, YEAR_2001_MS * 1_000_000, began, began]
    assert found[4] in (2000, 2001)
    assert seen()[2] > datetime(2025, 1, 1, tzinfo=UTC)
    assert (datetime, time.time.__name__) == (whole.datetime, "time")


def test_what_the_code_changes_in_its_module_stays() -> None:
    global CHANGED
    with seen_time(lambda: YEAR_2001_MS):
        CHANGED = "yes"
    assert CHANGED == "yes"


def test_functions_that_no_module_has_see_it_too() -> None:
    space: dict[str, Any] = {}
    exec("from datetime import datetime, UTC\ndef now(): return datetime.now(UTC)", space)
    (function,) = functions_of(((space["now"],), "other"))
    with seen_time(lambda: YEAR_2001_MS, [function]):
        assert function().year == 2001
    assert function().year > 2001


CHANGED = "no"
