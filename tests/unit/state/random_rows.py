"""Random schemas and values that fit them, for the property tests of the state formats."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from epochal.state.types import (
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
from epochal.state.values import CalendarInterval, TimestampNanos, Variant, decimal_of

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
    "time(6)",
    "timestamp_ltz(9)",
    "timestamp_ntz(7)",
    "variant",
)


def int_of(bits: int) -> st.SearchStrategy[int]:
    edge = 1 << (bits - 1)
    return st.one_of(
        st.integers(-edge, edge - 1), st.sampled_from([0, 1, -1, -edge, edge - 1, 256, 65536])
    ).filter(lambda value: -edge <= value < edge)


def decimals() -> st.SearchStrategy[DataType]:
    precisions = st.integers(1, 38)
    return precisions.flatmap(
        lambda precision: st.integers(0, precision).map(lambda scale: DecimalType(precision, scale))
    )


def leaf_types() -> st.SearchStrategy[DataType]:
    return st.one_of(
        st.sampled_from(ATOMIC_NAMES).map(AtomicType),
        st.sampled_from([StringType(), StringType("varchar(9)"), StringType("char(3)")]),
        decimals(),
        st.just(SpatialType("geometry(OGC:CRS84)")),
    )


def _nested(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    keys = inner.filter(lambda data_type: data_type != AtomicType("void"))
    return st.one_of(
        inner.map(ArrayType),
        st.builds(MapType, keys, inner),
        st.lists(inner, max_size=4).map(struct_of),
    )


def data_types(max_leaves: int = 5) -> st.SearchStrategy[DataType]:
    return st.recursive(leaf_types(), _nested, max_leaves=max_leaves)


def struct_of(types: list[DataType]) -> StructType:
    return StructType(tuple(StructField(f"c{i}", each) for i, each in enumerate(types)))


def schemas(max_fields: int = 6) -> st.SearchStrategy[StructType]:
    return st.lists(data_types(), max_size=max_fields).map(struct_of)


def values_of(layout: Layout) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), present(layout)) if layout.kind is not Kind.VOID else st.none()


def present(layout: Layout) -> st.SearchStrategy[Any]:
    """Values of the layout that are not null."""
    match layout.kind:
        case Kind.BOOLEAN:
            return st.booleans()
        case Kind.BYTE:
            return int_of(8)
        case Kind.SHORT:
            return int_of(16)
        case Kind.INT:
            return int_of(32)
        case Kind.LONG:
            return int_of(64)
        case Kind.FLOAT:
            return st.floats(width=32, allow_nan=False)
        case Kind.DOUBLE:
            return st.floats(allow_nan=False)
        case Kind.SMALL_DECIMAL | Kind.BIG_DECIMAL:
            bound = 10**layout.precision - 1
            edges = st.sampled_from([0, 1, -1, bound, -bound, bound // 2])
            return st.one_of(st.integers(-bound, bound), edges).map(
                lambda unscaled: decimal_of(unscaled, layout.scale)
            )
        case Kind.STRING:
            return st.text(st.characters(codec="utf-8"), max_size=20)
        case Kind.BINARY:
            return st.binary(max_size=20)
        case Kind.INTERVAL:
            return st.builds(CalendarInterval, int_of(32), int_of(32), int_of(64))
        case Kind.NANOS:
            return st.builds(TimestampNanos, int_of(64), st.integers(0, 999))
        case Kind.VARIANT:
            return st.builds(Variant, st.binary(max_size=9), st.binary(max_size=9))
        case Kind.ARRAY:
            return st.lists(values_of(layout.children[0]), max_size=5)
        case Kind.MAP:
            key, value = layout.children
            return st.lists(st.tuples(present(key), values_of(value)), max_size=4)
        case Kind.STRUCT:
            return st.tuples(*(values_of(child) for child in layout.children))
    raise AssertionError(layout.kind)


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 6) -> tuple[StructType, list[tuple[Any, ...]]]:
    """A schema and a few rows of it."""
    schema = draw(schemas())
    rows = draw(st.lists(present(schema.layout), min_size=1, max_size=max_rows))
    return schema, rows
