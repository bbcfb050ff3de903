"""Deduplication by the end of a window and by clock time, and over restarts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, at_ms, columns, table

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.deduplication import (
    DropDuplicatesSpec,
    DropRepeats,
    DropRepeatsSpec,
)
from epochal.errors import OptionError

pytestmark = pytest.mark.usefixtures("state_in")


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["v"] for row in rows]


def test_of_a_window_the_end_counts() -> None:
    stamp = pa.timestamp("us", tz="UTC")
    schema = columns(w=pa.struct([("start", stamp), ("end", stamp)]), v=pa.int64())
    spec = DropDuplicatesSpec(("w",), schema, event_time="w")
    driver = Driver(spec, 1)

    def windows(*ends: int) -> pa.RecordBatch:
        return table(schema, [({"start": at_ms(0), "end": at_ms(end)}, end) for end in ends])

    assert numbers(driver.turn(windows(5, 6, 6, 9), late_ms=5)) == [6, 9]
    driver.turn(None, watermark_ms=6)
    driver.cut()
    assert set(driver.state()) == {((0, 9000),)}


def test_an_impossible_plan_is_rejected() -> None:
    with pytest.raises(OptionError, match="at least one"):
        DropDuplicatesSpec(("nope",), MESSAGES)
    with pytest.raises(OptionError, match="needs a watermark"):
        DropDuplicatesSpec(("id",), MESSAGES, within_watermark=True)


MESSAGES = columns(id=pa.string(), v=pa.int64())
SPEC = DropRepeatsSpec(("id",), MESSAGES, window_ms=60_000)


def at(seconds: float) -> Moment:
    return Moment(int(seconds * 1000), -1, 0, -1)


def turn(operator: DropRepeats, seconds: float, *ids: str) -> list[str]:
    """Process rows, then expire keys, and return the rows that passed."""
    rows = table(MESSAGES, [(each, 1) for each in ids])
    passed = [each for batch in operator.process(0, rows, at(seconds)) for each in batch["id"]]
    operator.expire(at(seconds))
    return [str(each) for each in passed]


def restarted(operator: DropRepeats) -> DropRepeats:
    (changes,) = operator.cut(0)
    again = SPEC.open([0], 1)
    again.load(0, "default", changes.puts)
    return again


def test_the_window_runs_from_the_last_time_a_row_was_seen() -> None:
    operator = SPEC.open([0], 1)
    turn(operator, 0, "a", "b")
    turn(operator, 50, "a")
    turn(operator, 61)
    assert turn(operator, 62, "a", "b") == ["b"]


def test_time_in_which_the_query_did_not_run_does_not_count() -> None:
    operator = SPEC.open([0], 1)
    turn(operator, 0, "a", "b")
    again = restarted(operator)
    assert turn(again, 1_000_000, "x") == ["x"]
    assert turn(again, 1_000_030, "a") == []
    assert turn(again, 1_000_061) == []
    assert turn(again, 1_000_062, "a", "b") == ["b"]


def test_expired_keys_are_removed_from_the_state() -> None:
    operator = SPEC.open([0], 1)
    turn(operator, 0, "a")
    (first,) = operator.cut(0)
    assert (first.puts, first.removes, first.rows) == ([(("a",), (60_000_000,))], [], 1)
    turn(operator, 60)
    (second,) = operator.cut(1)
    assert (second.puts, second.removes, second.rows) == ([], [("a",)], 0)


def test_keys_are_due_only_after_the_operator_ran_for_a_whole_window() -> None:
    operator = SPEC.open([0], 1)
    assert operator.due_ms() is None
    turn(operator, 10.2, "a")
    assert operator.due_ms() == 71_000
    again = restarted(operator)
    turn(again, 500, "b")
    assert again.due_ms() == 560_000


VERSIONED = columns(id=pa.string(), sent=pa.timestamp("us", tz="UTC"))
WITH_TIME = DropRepeatsSpec(("id",), VERSIONED, window_ms=60_000, version="sent")


def passed(operator: DropRepeats, seconds: float, *rows: tuple[str, int]) -> list[tuple[str, int]]:
    """Process rows of (id, microseconds), and return those that passed."""
    batch = table(VERSIONED, list(rows))
    found = [row for part in operator.process(0, batch, at(seconds)) for row in part.to_pylist()]
    operator.expire(at(seconds))
    return [(row["id"], int(row["sent"].timestamp() * 1_000_000)) for row in found]


def test_an_id_that_is_used_again_for_a_later_message_is_another_row() -> None:
    operator = WITH_TIME.open([0], 1)
    assert passed(operator, 0, ("m0", 5), ("m1", 5), ("m0", 5)) == [("m0", 5), ("m1", 5)]
    assert passed(operator, 1, ("m0", 9), ("m0", 5)) == [("m0", 9)]
    (changes,) = operator.cut(0)
    assert sorted(key for key, _ in changes.puts) == [("m0@5",), ("m0@9",), ("m1@5",)]


def test_ids_that_release_0_1_stored_without_a_time_are_known_until_they_expire() -> None:
    operator = WITH_TIME.open([0], 1)
    operator.load(0, "default", [(("m0",), (60_000_000,)), (("m1",), (60_000_000,))])
    assert passed(operator, 0, ("m0", 5)) == []
    assert passed(operator, 61, ("m0", 5), ("m1", 5)) == []
    (changes,) = operator.cut(0)
    assert sorted(changes.removes) == [("m0",), ("m1",)]
    assert sorted(key for key, _ in changes.puts) == [("m0@5",), ("m1@5",)]
