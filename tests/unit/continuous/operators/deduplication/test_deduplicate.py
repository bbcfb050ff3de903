"""Deduplication: against a set of all keys, with a watermark, and over restarts."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, at_ms, columns, in_any_order, table

from epochal.continuous.operators.deduplication.deduplicate import DropDuplicatesSpec
from epochal.errors import OptionError

pytestmark = pytest.mark.usefixtures("state_in")

INPUT = columns(k=pa.string(), ts=pa.timestamp("us", tz="UTC"), v=pa.int64())


def unique(*on: str, partitions: int = 1, **options: Any) -> Driver:
    return Driver(DropDuplicatesSpec.plan(columns=on, input_schema=INPUT, **options), partitions)


def events(*rows: tuple[Any, int, int]) -> pa.RecordBatch:
    return table(INPUT, [(k, at_ms(ms), v) for k, ms, v in rows])


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["v"] for row in rows]


def test_of_a_window_the_end_counts() -> None:
    stamp = pa.timestamp("us", tz="UTC")
    schema = columns(w=pa.struct([("start", stamp), ("end", stamp)]), v=pa.int64())
    spec = DropDuplicatesSpec.plan(columns=["w"], input_schema=schema, event_time="w")
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
