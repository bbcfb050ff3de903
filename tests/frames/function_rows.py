"""Random rows with a column or two of each type, for comparing functions with Spark's."""

from __future__ import annotations

import decimal
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

EXACT = decimal.Context(prec=60)
NAN, INF = float("nan"), float("inf")
DOUBLES = [0.0, -0.0, NAN, INF, -INF, 1.5, -1.5, 0.5, 2.5, 1e19, 1e300, -2.5, 0.285]
WORDS = ["", "a", "A", "ab", "abc", "Abc dEf", "hello world", "ünï çödé", " x ", "  ", "50%", "a_b"]
WORDS += [
    "a\\b",
    "日本語",
    "😀b",
    "a.b.c",
    "a,b,c",
    "1",
    "12",
    "-5",
    "aaa",
    "ABAB",
    "straße",
    "xyz\n",
]
WORDS += ["xyz\n", "a\tb", "a1b22c333", "http://u@h.example:80/p/q?x=1&y=a%20b#f", "a+b c"]


class Rows:
    """Makes columns of `count` values from one seed."""

    def __init__(self, seed: int, count: int) -> None:
        self.random, self.count = random.Random(seed), count

    def table(self) -> pa.Table:
        """All columns. Two of one type have one length, but are shuffled differently."""
        return pa.table(
            {
                "by": self.integers(8), "by2": self.integers(8), "sh": self.integers(16),
                "i": self.integers(32), "j": self.integers(32), "k": self.small(),
                "l": self.integers(64), "l2": self.integers(64),
                "d": self.doubles(), "e": self.doubles(),
                "f": self.doubles().cast(pa.float32(), safe=False),
                "g": self.doubles().cast(pa.float32(), safe=False),
                "bo": self.of([True, False, None], pa.bool_()),
                "bp": self.of([True, False, None], pa.bool_()),
                "p": self.decimals(10, 2), "q": self.decimals(12, 4),
                "x": self.decimals(38, 10), "y": self.decimals(38, 18), "z": self.decimals(38, 0),
                "s": self.texts(), "t": self.texts(),
                "b": self.texts().cast(pa.binary()), "c": self.texts().cast(pa.binary()),
                "dt": self.numbers(-700_000, 2_900_000, pa.int32()).cast(pa.date32()),
                "ts": self.times().cast(pa.timestamp("us", "UTC")),
                "tn": self.times().cast(pa.timestamp("us")),
                "arr": self.of([None, [], [1, None, 3], [1, 2]], pa.list_(pa.int32())),
                "brr": self.of([None, [], [1, None, 3], [1, 2, 0]], pa.list_(pa.int32())),
                "sarr": self.of([None, [], ["a", None, "b"], ["x"]], pa.list_(pa.string())),
                "m": self.of([None, [], [("1", None), ("2", 3)]], pa.map_(pa.string(), pa.int32())),
                "st": self.structs(), "su": self.structs(),
            }
        )  # fmt: skip

    def of(self, values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
        return pa.array([self.random.choice(values) for _ in range(self.count)], kind)

    def structs(self) -> pa.Array[Any]:
        kind = pa.struct([("a", pa.float64()), ("b", pa.string())])
        members = [{"a": a, "b": b} for a in (None, 1.5, NAN, -0.0) for b in (None, "x", "1")]
        return self.of([None, *members], kind)

    def integers(self, bits: int) -> pa.Array[Any]:
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        rest = [
            self.random.randint(*self.random.choice([(low, high), (-100, 100), (-5, 5)]))
            for _ in range(self.count)
        ]
        return self._mixed([None, 0, 1, -1, low, high, low + 1], rest, pa.int64()).cast(
            f"int{bits}"
        )

    def small(self) -> pa.Array[Any]:
        return self.of([None, *range(-3, 12)], pa.int32())

    def numbers(self, low: int, high: int, kind: pa.DataType) -> pa.Array[Any]:
        rest = [self.random.randint(low, high) for _ in range(self.count)]
        return self._mixed([None, 0, -1], rest, kind)

    def times(self) -> pa.Array[Any]:
        return self.numbers(-60 * 10**15, 250 * 10**15, pa.int64())

    def doubles(self) -> pa.Array[Any]:
        # Few digits: Java 17 prints some doubles of many digits with one digit more than Java 21.
        def one() -> float:
            pick = self.random.random()
            if pick < 0.3:
                return round(self.random.uniform(-1e3, 1e3), 3)
            if pick < 0.6:
                return round(self.random.uniform(-1e9, 1e9), 2)
            return (
                float(self.random.randint(-5, 5))
                if pick < 0.8
                else 2.0 ** self.random.randint(-20, 20)
            )

        return self._mixed([None, *DOUBLES], [one() for _ in range(self.count)], pa.float64())

    def decimals(self, precision: int, scale: int) -> pa.Array[Any]:
        largest = 10**precision - 1
        sizes = [10 ** self.random.randint(1, precision) - 1 for _ in range(self.count)]
        rest = [self.random.randint(-size, size) for size in sizes]
        special = [Decimal(each).scaleb(-scale, EXACT) for each in (0, largest, -largest)]
        mixed = [Decimal(each).scaleb(-scale, EXACT) for each in rest]
        return self._mixed([None, *special], mixed, pa.decimal128(precision, scale))

    def texts(self) -> pa.Array[Any]:
        def one() -> str:
            if self.random.random() < 0.6:
                return self.random.choice(WORDS)
            return "".join(self.random.choices("abAB .,%_1é", k=self.random.randint(0, 8)))

        return self._mixed([None, *WORDS], [one() for _ in range(self.count)], pa.string())

    def _mixed(self, special: list[Any], rest: list[Any], kind: pa.DataType) -> pa.Array[Any]:
        """Special values in at most a third of the rows, in random places."""
        kept = self.random.sample(special, min(len(special), max(self.count // 3, 1)))
        values = (kept + rest)[: self.count]
        self.random.shuffle(values)
        return pa.array(values, kind)
