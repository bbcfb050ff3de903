"""Random calls on a processor's state and timers, cuts and restarts, against plain dicts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.unit.continuous.operators.driving import Driver, columns, in_any_order, table

from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec

pytestmark = pytest.mark.usefixtures("state_in")

INPUT = columns(id=pa.int32(), seed=pa.int64())
OUTPUT = columns(id=pa.int32(), out=pa.string())
TTL_MS = 40


class Naive:
    """A simple model of the state of all keys: it stores every value with its expiry."""

    def __init__(self) -> None:
        self.values: dict[Any, tuple[Any, int]] = {}
        self.lists: dict[Any, list[tuple[Any, int]]] = {}
        self.maps: dict[Any, dict[Any, tuple[Any, int]]] = {}
        self.plain: dict[Any, list[Any]] = {}
        self.timers: set[tuple[int, Any]] = set()

    def alive(self, key: Any, now: int) -> list[Any]:
        value = self.values.get(key)
        return [
            value[0] if value and value[1] > now else None,
            [v for v, expires in self.lists.get(key, []) if expires > now],
            sorted((k, v) for k, (v, e) in self.maps.get(key, {}).items() if e > now),
            self.plain.get(key, []),
            sorted(at for at, owner in self.timers if owner == key),
        ]

    def act(self, key: Any, seed: int, now: int) -> list[Any]:
        rng = random.Random(seed)
        for _ in range(rng.randrange(4)):
            n, expires = rng.randrange(100), now + TTL_MS
            match rng.randrange(12):
                case 0 | 1:
                    self.values[key] = ((n,), expires)
                case 2:
                    self.values.pop(key, None)
                case 3 | 4:
                    self.lists.setdefault(key, []).append(((n,), expires))
                case 5:
                    self.lists[key] = [((n,), expires), ((n + 1,), expires)]
                case 6 | 7:
                    self.maps.setdefault(key, {})[n % 5,] = ((n,), expires)
                case 8:
                    self.maps.get(key, {}).pop((n % 5,), None)
                case 9:
                    self.timers.add((now + n % 30, key))
                case 10:
                    first = min((at for at, owner in self.timers if owner == key), default=-1)
                    self.timers.discard((first, key))
                case 11:
                    if n % 3:
                        self.plain.setdefault(key, []).append((n,))
                    else:
                        self.plain.pop(key, None)
        return self.alive(key, now)


class Real(StatefulProcessor):  # type: ignore[misc]
    """The same operations through PySpark's API."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n int", TTL_MS)
        self.list = handle.getListState("list", "n int", TTL_MS)
        self.map = handle.getMapState("map", "k int", "n int", TTL_MS)
        self.plain = handle.getListState("plain", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            rng = random.Random(row.seed)
            for _ in range(rng.randrange(4)):
                self.act(rng.randrange(100), rng.randrange(12), now)
            yield Row(id=key[0], out=repr(self.alive()))

    def act(self, n: int, choice: int, now: int) -> None:
        match choice:
            case 0 | 1:
                self.value.update((n,))
            case 2:
                self.value.clear()
            case 3 | 4:
                self.list.appendValue((n,))
            case 5:
                self.list.put([(n,), (n + 1,)])
            case 6 | 7:
                self.map.updateValue((n % 5,), (n,))
            case 8:
                self.map.removeKey((n % 5,))
            case 9:
                self.handle.registerTimer(now + n % 30)
            case 10:
                for at in sorted(self.handle.listTimers())[:1]:
                    self.handle.deleteTimer(at)
            case 11:
                if n % 3:
                    self.plain.appendValue((n,))
                else:
                    self.plain.clear()

    def alive(self) -> list[Any]:
        return [
            self.value.get(),
            list(self.list.get()),
            sorted(self.map.iterator()),
            list(self.plain.get()),
            sorted(self.handle.listTimers()),
        ]

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(id=key[0], out=f"fired {expiredTimerInfo.getExpiryTimeInMs()}")


def expected(naive: Naive, rows: list[tuple[int | None, int]], now: int) -> list[dict[str, Any]]:
    found = []
    for key, seed in sorted(rows, key=lambda each: (each[0] is not None, each[0] or 0)):
        found.append({"id": key, "out": repr(naive.act(key, seed, now))})
    due = sorted(
        (each for each in naive.timers if each[0] <= now),
        key=lambda each: (each[0], each[1] is not None, each[1] or 0),
    )
    naive.timers -= set(due)
    return found + [{"id": key, "out": f"fired {at}"} for at, key in due]


@pytest.mark.parametrize("seed", range(25), ids=lambda seed: f"seed{seed}")
def test_state_and_timers_agree_with_plain_dicts(seed: int) -> None:
    rng = random.Random(seed)
    partitions = rng.choice([1, 1, 3])
    made = TransformWithStateSpec.plan(Real(), ["id"], INPUT, OUTPUT, time_mode="ProcessingTime")
    driver, naive, now = Driver(made, partitions), Naive(), 1000
    for _ in range(120):
        now += rng.randrange(15)
        keys = [None, *range(5)]
        rows = [(rng.choice(keys), rng.randrange(10**6)) for _ in range(rng.randrange(6))]
        got = driver.turn(table(INPUT, rows), now_ms=now)
        wanted = expected(naive, rows, now)
        assert got == wanted if partitions == 1 else in_any_order(got) == in_any_order(wanted)
        first_ms = min((at for at, _ in naive.timers), default=None)
        due_ms = driver.operator.due_ms()
        assert first_ms is None or (due_ms is not None and due_ms <= first_ms)
        if rng.random() < 0.2:
            driver.cut()
            if rng.random() < 0.4:
                driver.restart()
    driver.turn(None, now_ms=now + 10_000)
    driver.cut()
    assert [driver.state(each) for each in ("value", "list", "map")] == [{}, {}, {}]
    held = sum(len(each) for each in naive.plain.values())
    assert len(driver.state("plain")) == held
