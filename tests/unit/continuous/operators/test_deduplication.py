"""Deduplication: against a set of all keys, with a watermark, by clock time, and over restarts."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, at_ms, columns, in_any_order, table

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.deduplication import (
    DropDuplicatesSpec,
    DropRepeats,
    DropRepeatsSpec,
)
from epochal.errors import OptionError

pytestmark = pytest.mark.usefixtures("state_in")

INPUT = columns(k=pa.string(), ts=pa.timestamp("us", tz="UTC"), v=pa.int64())


def unique(*on: str, partitions: int = 1, **options: Any) -> Driver:
    return Driver(DropDuplicatesSpec(on, INPUT, **options), partitions)


def events(*rows: tuple[Any, int, int]) -> pa.RecordBatch:
    return table(INPUT, [(k, at_ms(ms), v) for k, ms, v in rows])


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


@pytest.mark.parametrize("seed", range(10), ids=lambda seed: f"seed{seed}")
def test_deduplication_agrees_with_a_plain_set(seed: int) -> None:
    rng = random.Random(seed)
    within = rng.random() < 0.5
    on = ("k",) if within else rng.choice([("k",), ("k", "ts")])
    options = {"event_time": "ts", "delay_ms": 50, "within_watermark": within}
    driver = unique(*on, partitions=3, **options)
    seen: dict[Any, int] = {}
    watermark = late = -1
    for turn in range(60):
        base = turn * 20
        rows = [
            (rng.choice("abcdef"), max(0, base + rng.randrange(-60, 20)), rng.randrange(10**6))
            for _ in range(rng.randrange(12))
        ]
        wanted = []
        for k, ms, v in rows:
            key = k if on == ("k",) else (k, ms)
            if ms > late and key not in seen:
                seen[key] = ms + 50 if within else (10**9 if on == ("k",) else ms)
                wanted.append({"k": k, "ts": at_ms(ms), "v": v})
        watermark = max(watermark, base - 50)
        got = driver.turn(events(*rows), watermark_ms=watermark)
        assert in_any_order(got) == in_any_order(wanted)
        late = watermark
        seen = {key: end for key, end in seen.items() if watermark < 0 or end > watermark}
        if rng.random() < 0.3:
            driver.cut()
            assert len(driver.state()) == len(seen)
            driver.restart()


def test_an_impossible_plan_is_rejected() -> None:
    with pytest.raises(OptionError, match="at least one"):
        unique("nope")
    with pytest.raises(OptionError, match="needs a watermark"):
        unique("k", within_watermark=True)


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


def test_a_row_passes_once_in_a_window() -> None:
    operator = SPEC.open([0], 1)
    assert turn(operator, 0, "a", "b", "a") == ["a", "b"]
    assert turn(operator, 30, "b", "c") == ["c"]
    assert turn(operator, 59, "a", "c") == []


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
