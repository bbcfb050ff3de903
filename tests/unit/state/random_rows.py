"""Random schemas and values that fit them, for the property tests of the state formats.

Drawn from a seeded `random.Random` and not value by value from Hypothesis: a nested schema with its
rows takes hundreds of draws, and what matters here is to see many of them.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from hypothesis import strategies as st

from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Kind,
    Layout,
    MapType,
    SpatialType,
    StringType,
    StructField,
    StructType,
)
from epochal.state.rows.unsafe_row import CalendarInterval, TimestampNanos, Variant, decimal_of

Table = tuple[StructType, list[tuple[Any, ...]]]

ATOMIC_NAMES = (
    "void",
    "boolean",
    "byte",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "interval",
    "interval year to month",
    "interval day to second",
    "timestamp_ltz(9)",
    "timestamp_ntz(7)",
    "variant",
)
ALPHABET = "abcXYZ 09_éßλ中文🙂\x00"


def struct_of(types: list[DataType]) -> StructType:
    return StructType(tuple(StructField(f"c{i}", each) for i, each in enumerate(types)))


def tables(max_rows: int = 6) -> st.SearchStrategy[Table]:
    """A schema and a few rows of it."""
    return st.integers(0, 1 << 48).map(lambda seed: random_table(Random(seed), max_rows))


def random_table(rng: Random, max_rows: int) -> Table:
    schema = struct_of([random_type(rng, 2) for _ in range(rng.randrange(7))])
    return schema, [present(rng, schema.layout) for _ in range(rng.randint(1, max_rows))]


def random_type(rng: Random, depth: int) -> DataType:
    if depth and rng.random() < 0.35:
        match rng.randrange(3):
            case 0:
                return ArrayType(random_type(rng, depth - 1))
            case 1:
                key = random_type(rng, depth - 1)
                key = StringType() if key == AtomicType("void") else key
                return MapType(key, random_type(rng, depth - 1))
            case _:
                return struct_of([random_type(rng, depth - 1) for _ in range(rng.randrange(4))])
    precision = rng.randint(1, 38)
    others: list[DataType] = [
        StringType(),
        StringType("varchar(9)"),
        DecimalType(precision, rng.randint(0, precision)),
        SpatialType("geometry(OGC:CRS84)"),
    ]
    return rng.choice([*map(AtomicType, ATOMIC_NAMES), *others, *others])


def value_of(rng: Random, layout: Layout) -> Any:
    return None if layout.kind is Kind.VOID or rng.random() < 0.2 else present(rng, layout)


def random_int(rng: Random, bits: int) -> int:
    edge = 1 << (bits - 1)
    pick = rng.choice([0, 1, -1, -edge, edge - 1, rng.randint(-edge, edge - 1), rng.randrange(256)])
    return max(-edge, min(edge - 1, pick))


def present(rng: Random, layout: Layout) -> Any:
    """A value of the layout that is not null."""
    match layout.kind:
        case Kind.BOOLEAN:
            return rng.random() < 0.5
        case Kind.BYTE | Kind.SHORT | Kind.INT | Kind.LONG:
            bits = {Kind.BYTE: 8, Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}[layout.kind]
            return random_int(rng, bits)
        case Kind.FLOAT:
            number = rng.choice([0.0, -0.0, 1.5, float("inf"), rng.uniform(-1e30, 1e30)])
            return struct.unpack("<f", struct.pack("<f", number))[0]
        case Kind.DOUBLE:
            return rng.choice([0.0, -0.0, 2.0, float("-inf"), rng.uniform(-1e300, 1e300)])
        case Kind.SMALL_DECIMAL | Kind.BIG_DECIMAL:
            bound = 10**layout.precision - 1
            edges = [0, -1, bound, -bound, 1 << 63, rng.randint(-bound, bound), rng.randrange(1000)]
            return decimal_of(max(-bound, min(bound, rng.choice(edges))), layout.scale)
        case Kind.STRING:
            return "".join(rng.choices(ALPHABET, k=rng.randrange(20)))
        case Kind.BINARY:
            return rng.randbytes(rng.randrange(20))
        case Kind.INTERVAL:
            return CalendarInterval(random_int(rng, 32), random_int(rng, 32), random_int(rng, 64))
        case Kind.NANOS:
            return TimestampNanos(random_int(rng, 64), rng.randrange(1000))
        case Kind.VARIANT:
            return Variant(rng.randbytes(rng.randrange(9)), rng.randbytes(rng.randrange(9)))
        case Kind.ARRAY:
            count = rng.choice([0, 1, 2, 5, 5, 70])
            return [value_of(rng, layout.children[0]) for _ in range(count)]
        case Kind.MAP:
            key, value = layout.children
            return [(present(rng, key), value_of(rng, value)) for _ in range(rng.randrange(4))]
        case Kind.STRUCT:
            return tuple(value_of(rng, child) for child in layout.children)
    raise AssertionError(layout.kind)
