"""A join that gets the rows of an epoch in any order does what a Spark batch does.

The model below is Spark's algorithm, row by row: all left rows, then all right rows (in a semi join
the other way round), then eviction.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import Driver, at_ms, table
from tests.unit.continuous.operators.joins.test_stream_join import BUYS, CLICKS, join

from epochal.continuous.operators.joins.stream_join import Kind

pytestmark = pytest.mark.usefixtures("state_in")

Row = tuple[Any, ...]
LEFT, RIGHT = 0, 1
EPOCHS = 8


class Model:
    """Joins clicks and buys of the same user within two seconds, as Spark's operator does."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.state: tuple[dict[Any, list[list[Any]]], ...] = ({}, {})
        self.output: list[Row] = []

    def batch(self, rows: tuple[list[Row], list[Row]], late_ms: int, watermark_ms: int) -> None:
        bounds = (watermark_ms - 2001, watermark_ms - 1)
        order = (RIGHT, LEFT) if self.kind == "left_semi" else (LEFT, RIGHT)
        for side in order:
            for row in rows[side]:
                if row[1] > late_ms:
                    self._add(side, row, bounds[RIGHT])
        for side in (LEFT, RIGHT):
            self._evict(side, bounds[side])

    def _add(self, side: int, row: Row, right_bound: int) -> None:
        found = self._probe(side, row)
        if self.kind == "left_semi" and side == LEFT and found:
            return
        outer = self.kind in ("right_outer", "full_outer")
        if side == RIGHT and row[1] <= right_bound and (found or not outer):
            return
        self.state[side].setdefault(row[0], []).append([row, found])

    def _probe(self, side: int, row: Row) -> bool:
        others = self.state[1 - side].get(row[0], [])
        index, matched = 0, False
        while index < len(others):
            other = others[index]
            left, right = (row, other[0]) if side == LEFT else (other[0], row)
            index += 1
            if not left[1] <= right[1] <= left[1] + 2000:
                continue
            matched = True
            if self.kind != "left_semi":
                self.output.append((*left, *right))
                other[1] = True
                continue
            self.output.append(left)
            if side == LEFT:
                other[1] = True
                break
            index -= 1
            self._remove(side=LEFT, key=row[0], index=index)
        return matched

    def _evict(self, side: int, bound: int) -> None:
        outer = self.kind in (("left_outer", "full_outer"), ("right_outer", "full_outer"))[side]
        nulls = (None, None, None)
        for key in list(self.state[side]):
            index = 0
            while index < len(self.state[side].get(key, [])):
                row, matched = self.state[side][key][index]
                if row[1] > bound:
                    index += 1
                    continue
                if outer and not matched:
                    self.output.append((*row, *nulls) if side == LEFT else (*nulls, *row))
                self._remove(side, key, index)

    def _remove(self, side: int, key: Any, index: int) -> None:
        rows = self.state[side][key]
        rows[index] = rows[-1]
        rows.pop()
        if not rows:
            del self.state[side][key]

    def stored(self, side: int) -> dict[Any, Any]:
        return {
            (key, index): (row[0], row[1] * 1000, row[2], matched)
            for key, rows in self.state[side].items()
            for index, (row, matched) in enumerate(rows)
        }


@pytest.mark.parametrize("kind", ["inner", "left_outer", "right_outer", "full_outer", "left_semi"])
@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_rows_gives_the_output_and_state_of_a_batch(kind: Kind, seed: int) -> None:
    rng = random.Random(seed)
    driver, model = Driver(join(kind)), Model(kind)
    late_ms = watermark_ms = 0
    for epoch in range(EPOCHS):
        rows = tuple(
            [random_row(rng, epoch) for _ in range(rng.randrange(14))] for _ in (LEFT, RIGHT)
        )
        model.output.clear()
        model.batch((rows[LEFT], rows[RIGHT]), late_ms, watermark_ms)
        found = driver.turn_of_sides(shuffled(rng, rows), 0, watermark_ms, late_ms)
        driver.cut()
        names = CLICKS.names if kind == "left_semi" else [*CLICKS.names, *BUYS.names]
        assert sorted(map(repr, (tuple(row[name] for name in names) for row in found))) == sorted(
            repr(tuple(at_ms(each) if is_time(each) else each for each in row))
            for row in model.output
        )
        for side, name in enumerate(("left", "right")):
            assert driver.state(f"{name}-keyWithIndexToValue") == model.stored(side), epoch
        if epoch % 2:
            driver.restart()
        late_ms, watermark_ms = watermark_ms, max(watermark_ms, epoch * 2000 - rng.randrange(3000))


def random_row(rng: random.Random, epoch: int) -> Row:
    at = max(100, epoch * 2000 + rng.randrange(-4000, 3000))
    return (rng.choice("aab"), at, rng.randrange(50))


def is_time(value: Any) -> bool:
    return isinstance(value, int) and value >= 100


def shuffled(rng: random.Random, rows: tuple[list[Row], ...]) -> list[tuple[int, pa.RecordBatch]]:
    """The rows in batches of both sides, in random turns; each side keeps its order."""
    waiting = [list(rows[LEFT]), list(rows[RIGHT])]
    found = []
    while any(waiting):
        side = rng.choice([side for side in (LEFT, RIGHT) if waiting[side]])
        count = rng.randrange(1, 5)
        given, waiting[side] = waiting[side][:count], waiting[side][count:]
        schema = (CLICKS, BUYS)[side]
        found.append((side, table(schema, [(key, at_ms(at), v) for key, at, v in given])))
    return found
