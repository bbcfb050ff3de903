"""Aggregates that are compared with Spark: each of our own over every type, and random rows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

NAN, INF = math.nan, math.inf
EXACT = Context(prec=50)

COLUMNS: dict[str, pa.DataType] = {
    "tiny": pa.int8(),
    "small": pa.int16(),
    "i": pa.int32(),
    "l": pa.int64(),
    "f": pa.float32(),
    "x": pa.float64(),
    "y": pa.float64(),
    "d12": pa.decimal128(12, 2),
    "d20": pa.decimal128(20, 5),
    "d38": pa.decimal128(38, 10),
    "s": pa.string(),
    "bin": pa.binary(),
    "b": pa.bool_(),
    "day": pa.date32(),
    "ts": pa.timestamp("us", tz="UTC"),
    "ntz": pa.timestamp("us"),
    "dur": pa.duration("us"),
    "arr": pa.list_(pa.field("element", pa.float64())),
    "st": pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.float64())]),
}
DDL = (
    "k int, tiny tinyint, small smallint, i int, l bigint, f float, x double, y double, "
    "d12 decimal(12,2), d20 decimal(20,5), d38 decimal(38,10), s string, bin binary, b boolean, "
    "day date, ts timestamp, ntz timestamp_ntz, dur interval day to second, arr array<double>, "
    "st struct<a:int,b:double>"
)
NUMBERS = ("tiny", "small", "i", "l", "f", "x", "d12", "d20", "d38")
ORDERED = (*NUMBERS, "s", "bin", "b", "day", "ts", "ntz")
ONLY_B = "FILTER (WHERE b)"


def some_aggregates() -> list[str]:
    """One aggregate of each function."""
    found: dict[str, list[str]] = {}
    for text in all_aggregates():
        found.setdefault(text.partition("(")[0], []).append(text)
    rng = random.Random(4)
    return [rng.choice(texts) for texts in found.values()]


def all_aggregates() -> Iterator[str]:
    """Every aggregate of our own, of every type, some with filters."""
    yield from ("count(*)", f"count(*) {ONLY_B}", "count(i, s)")
    yield "count(i, s) FILTER (WHERE x > 0)"
    for name in COLUMNS:
        yield f"count({name})"
        for function in ("first", "last"):
            for ignores in ("false", "true"):
                yield f"{function}({name}, {ignores})"
                if name in ("i", "x", "arr"):
                    yield f"{function}({name}, {ignores}) {ONLY_B}"
    for only in ("", f" {ONLY_B}"):
        for name in ORDERED:
            yield from (f"min({name}){only}", f"max({name}){only}")
        for name in NUMBERS:
            if name not in ("l", "d38"):
                yield f"sum({name}){only}"
            if name != "d38":
                yield f"avg({name}){only}"
    yield "sum(l) FILTER (WHERE l BETWEEN -1000 AND 1000)"
    yield from ("try_sum(d12)", "try_avg(d12)", "try_avg(x)")


def random_table(seed: int, rows: int) -> pa.Table:
    """Rows of some groups: with nulls, NaN, zeros of both signs and extremes.

    Group 0 has nulls only, group 1 a single row.
    """
    rng = random.Random(seed)
    schema = pa.schema([("k", pa.int32()), *COLUMNS.items()])

    def row(number: int) -> list[Any]:
        group = 1 if number == 3 else rng.choice((0, 2, 3, 4, 5))
        cells = [random_value(rng, name) for name in COLUMNS]
        nulls = 1.0 if group == 0 else 0.0 if group in (1, 2) else 0.3
        return [group, *(None if rng.random() < nulls else each for each in cells)]

    found = [row(number) for number in range(rows)]
    columns = zip(*found, strict=True)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def random_value(rng: random.Random, name: str) -> Any:
    small = rng.randrange(-40, 40)
    doubles = [small / 8, rng.gauss(0, 3), NAN, INF, -INF, 0.0, -0.0, 1e300]
    match name:
        case "tiny":
            return rng.choice([small, -128, 127])
        case "small":
            return rng.choice([small, -32768, 32767])
        case "i":
            return rng.choice([small, -(2**31), 2**31 - 1])
        case "l":
            return rng.choice([small, -(2**63), 2**63 - 1])
        case "f":
            return rng.choice([small / 4, NAN, INF, 0.0, -0.0])
        case "x":
            return rng.choice(doubles)
        case "y":
            return rng.choice(doubles[:2])
        case "d12":
            return Decimal(rng.choice([small, 10**9 - 1])).scaleb(-2, EXACT)
        case "d20":
            return Decimal(rng.choice([small, 10**20 - 1, 1 - 10**20])).scaleb(-5, EXACT)
        case "d38":
            return Decimal(rng.choice([small, 10**38 - 1])).scaleb(-10, EXACT)
        case "s":
            return rng.choice(["", "a", "ab", "ü", "\U0001f600", "\ue000", "x" * rng.randrange(99)])
        case "bin":
            return rng.choice([b"", b"\x00", b"\xff\x80", b"ab"])
        case "b":
            return rng.random() < 0.5
        case "day":
            return date(1970, 1, 1) + timedelta(days=small * 100)
        case "ts":
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=small * 10**9 + 1)
        case "ntz":
            return datetime(1970, 1, 1) + timedelta(microseconds=small * 10**9 + 7)  # noqa: DTZ001
        case "dur":
            return timedelta(microseconds=small * 10**7 + 3)
        case "arr":
            return [rng.choice([None, *doubles]) for _ in range(rng.randrange(3))]
        case "st":
            return {"a": rng.choice([None, small]), "b": rng.choice([None, *doubles])}
    raise AssertionError(name)
