"""Code of a user sees the time of a driver, and afterwards the real one again."""

from __future__ import annotations

import datetime as whole
import time
from datetime import UTC, date, datetime
from typing import Any

from epochal.testing.driver.wall_clock import functions_of, seen_time

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
