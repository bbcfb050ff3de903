"""Aggregation over windows against brute force, late rows, output modes, restarts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, at_ms, columns, in_any_order, table

from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.aggregation.named import Aggregate, planned
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.windows import (
    AssignWindowsSpec,
    Window,
    session,
    sliding,
    tumbling,
)
from epochal.errors import OptionError

pytestmark = pytest.mark.usefixtures("state_in")

INPUT = columns(k=pa.string(), ts=pa.timestamp("us", tz="UTC"), v=pa.int64(), x=pa.float64())
AGGREGATES = (
    Aggregate("count", None, "n"),
    Aggregate("count", "v", "known"),
    Aggregate("sum", "v", "total"),
    Aggregate("min", "v", "least"),
    Aggregate("max", "x", "most"),
    Aggregate("avg", "v", "mean"),
)


class Grouped(Driver):
    """A driver that assigns windows first, as the plan does before the exchange."""

    def __init__(
        self, plan: tuple[AssignWindowsSpec | None, AggregateSpec], partitions: int = 1
    ) -> None:
        self.before, spec = plan
        super().__init__(spec, partitions)

    def turn(self, batch: pa.RecordBatch | None, *rest: Any, **times: Any) -> Any:
        if batch is not None and self.before is not None:
            made = list(self.before.open().process(batch, Moment(0, -1, 0, -1)))
            batch = made[0] if made else None
        return super().turn(batch, *rest, **times)


def grouped(
    window: Window | None,
    keys: Sequence[str] = ("k",),
    aggregates: Sequence[Aggregate] = AGGREGATES,
    partitions: int = 1,
    **options: Any,
) -> Grouped:
    options = {"event_time": "ts", "input_schema": INPUT, **options}
    plan = planned(keys=keys, window=window, aggregates=aggregates, **options)
    return Grouped(plan, partitions)


def events(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    return table(INPUT, [(k, None if ms is None else at_ms(ms), v, x) for k, ms, v, x in rows])


def folded(rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """The aggregates of some rows, computed by definition."""
    v = [row[2] for row in rows if row[2] is not None]
    x = [row[3] for row in rows if row[3] is not None]
    return {
        "n": len(rows),
        "known": len(v),
        "total": sum(v) if v else None,
        "least": min(v, default=None),
        "most": max(x, default=None),
        "mean": sum(v) / len(v) if v else None,
    }


def bounds(start: int, end: int) -> dict[str, Any]:
    return {"start": at_ms(start), "end": at_ms(end)}


def window_starts(ms: int, size: int, slide: int, start: int) -> list[int]:
    first = ms - (ms - start) % slide
    return [s for s in range(first, first - size, -slide) if s <= ms < s + size]


def random_rows(rng: random.Random, base: int, count: int) -> list[tuple[Any, ...]]:
    return [
        (
            rng.choice(["a", "b", None]),
            rng.choice([None, *[base + rng.randrange(-400, 300) for _ in range(20)]]),
            rng.choice([None, rng.randrange(-50, 50)]),
            rng.choice([None, rng.randrange(100) / 4]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(16), ids=lambda seed: f"seed{seed}")
def test_windows_agree_with_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    size, slide, start = rng.choice([(100, 100, 0), (100, 30, 0), (90, 40, 10), (60, 60, 25)])
    mode = rng.choice(["update", "append"])
    window = sliding("ts", f"{size} ms", f"{slide} ms", f"{start} ms")
    driver = grouped(window, partitions=rng.choice([1, 3]), output_mode=mode)
    seen: dict[tuple[Any, int], list[Any]] = {}
    watermark, late = -1, -1
    for turn in range(30):
        base = turn * 60
        rows = random_rows(rng, base, rng.choice([3, 20, 200]))
        changed = set()
        for row in rows:
            for s in [] if row[1] is None else window_starts(row[1], size, slide, start):
                if late < 0 or s + size > late:
                    seen.setdefault((row[0], s), []).append(row)
                    changed.add((row[0], s))
        late, watermark = watermark, max(watermark, base - 200)
        got = driver.turn(events(*rows), watermark_ms=watermark)
        late = watermark
        closed = {each for each in seen if watermark >= 0 and each[1] + size <= watermark}
        shown = closed if mode == "append" else changed
        wanted = [{"window": bounds(s, s + size), "k": k, **folded(seen[k, s])} for k, s in shown]
        assert in_any_order(got) == in_any_order(wanted)
        for each in closed:
            del seen[each]
        if rng.random() < 0.3:
            driver.cut()
            assert len(driver.state()) == len(seen)
            if rng.random() < 0.5:
                driver.restart()


def test_a_row_between_two_sessions_merges_them() -> None:
    driver = grouped(session("ts", "10 ms"), output_mode="append", aggregates=AGGREGATES[:1])
    driver.turn(events(("a", 100, 1, 1.0), ("a", 120, 1, 1.0)))
    driver.cut()
    assert len(driver.state()) == 2
    driver.turn(events(("a", 110, 1, 1.0)))
    driver.cut()
    assert driver.state() == {("a", 100_000): ((100_000, 130_000), "a", 3)}
    assert driver.turn(None, watermark_ms=129) == []
    assert driver.turn(None, watermark_ms=130) == [
        {"session_window": bounds(100, 130), "k": "a", "n": 3}
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"window": None, "output_mode": "append"}, "without event time in the key"),
        ({"window": session("ts", "1 s")}, "use append or complete"),
        ({"window": session("ts", "1 s"), "keys": (), "output_mode": "append"}, "needs a key"),
        ({"window": tumbling("v", "1 s")}, "is not a timestamp column"),
        ({"window": None, "aggregates": [Aggregate("sum", "k", "x")]}, "needs a numeric column"),
        ({"window": None, "aggregates": [Aggregate("sum", "v", "k")]}, "more than one column"),
        ({"window": None, "aggregates": []}, "at least one aggregate"),
    ],
)
def test_an_impossible_plan_is_rejected(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        grouped(**options)


def test_windows_that_leave_gaps_are_rejected() -> None:
    with pytest.raises(OptionError, match="not longer than the window"):
        sliding("ts", "1 s", "2 s")
