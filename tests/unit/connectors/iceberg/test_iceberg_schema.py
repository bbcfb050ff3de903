"""A query's types in Iceberg's words, and rows split as the specification has it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
    parse_transform,
)
from pyiceberg.types import (
    DateType,
    DecimalType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from epochal.connectors.iceberg.iceberg_schema import (
    Partitioning,
    arrow_type_text,
    decode_values,
    encode_values,
    partitioning_of,
    query_columns,
    split,
    type_fits,
    type_text,
)
from epochal.errors import OptionError, TableMismatchError

SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "s", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "d", DecimalType(9, 2)),
    NestedField(6, "inner", StructType(NestedField(7, "k", LongType()))),
)
AT = [dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=dt.UTC), None]
AT += [dt.datetime(1969, 12, 31, 23, 0, tzinfo=dt.UTC)]
ROWS = pa.table(
    {
        "n": pa.array([34, None, -1], pa.int64()),
        "s": pa.array(["iceberg", None, "ice"], pa.string()),
        "at": pa.array(AT, pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(2017, 11, 16), None, dt.date(1969, 12, 31)], pa.date32()),
        "d": pa.array([Decimal("14.20"), None, Decimal("-0.05")], pa.decimal128(9, 2)),
        "inner": pa.array([{"k": 1}, None, {"k": 1}], pa.struct([("k", pa.int64())])),
    }
)


def by(*fields: tuple[int, Any]) -> Partitioning:
    spec = [
        PartitionField(source, 1000 + n, how, f"p{n}") for n, (source, how) in enumerate(fields)
    ]
    return partitioning_of("db.t", SCHEMA, PartitionSpec(*spec))


# The values of bucket are the hashes in the specification: 34 is 2017239379, "iceberg" 1210000089,
# 2017-11-16T22:31:08 -2047944441, 14.20 -500754589; all without their sign, modulo the width.
@pytest.mark.parametrize(
    ("source", "how", "first", "last"),
    [
        (1, IdentityTransform(), 34, -1),
        (2, IdentityTransform(), "iceberg", "ice"),
        (4, IdentityTransform(), 17486, -1),
        (1, BucketTransform(100), 2017239379 % 100, None),
        (2, BucketTransform(100), 1210000089 % 100, None),
        (3, BucketTransform(100), (-2047944441 & 0x7FFFFFFF) % 100, None),
        (5, BucketTransform(100), (-500754589 & 0x7FFFFFFF) % 100, None),
        (1, TruncateTransform(10), 30, -10),
        (2, TruncateTransform(3), "ice", "ice"),
        (5, TruncateTransform(50), Decimal("14.00"), Decimal("-0.50")),
        (3, YearTransform(), 47, -1),
        (3, MonthTransform(), 574, -1),
        (3, DayTransform(), 17486, -1),
        (4, DayTransform(), 17486, -1),
        (3, HourTransform(), 419686, -1),
        (3, VoidTransform(), None, None),
    ],
)
def test_each_row_goes_to_the_partition_of_its_transformed_value(
    source: int, how: Any, first: Any, last: Any
) -> None:
    fields = by((source, how))
    found = {
        row: values[0] for values, part in split(ROWS, fields) for row in part["n"].to_pylist()
    }
    assert found[34] == first
    assert found[None] is None
    if last is not None:
        assert found[-1] == last
    for value in found.values():
        assert decode_values(encode_values((value,), fields), fields) == (value,)


def test_rows_are_split_by_all_fields_together_and_keep_their_order() -> None:
    rows = pa.table({"n": [1, 2, 1, 2, 1], "s": ["a", "a", "b", "a", "a"], "x": [1, 2, 3, 4, 5]})
    found = split(rows, by((1, IdentityTransform()), (2, IdentityTransform())))
    assert [(values, part["x"].to_pylist()) for values, part in found] == [
        ((1, "a"), [1, 5]),
        ((1, "b"), [3]),
        ((2, "a"), [2, 4]),
    ]


def test_a_field_of_a_struct_may_be_the_source() -> None:
    found = split(ROWS, by((7, IdentityTransform())))
    assert {values: part.num_rows for values, part in found} == {(1,): 2, (None,): 1}


def test_a_table_without_partitions_has_one_part_and_no_rows_have_none() -> None:
    assert split(ROWS, by()) == [((), ROWS)]
    assert split(ROWS.slice(0, 0), by((1, IdentityTransform()))) == []


def test_an_unknown_transform_is_refused() -> None:
    with pytest.raises(OptionError, match=r"partitioned by p0, with a transform of column n that"):
        by((1, parse_transform("zorder")))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "int"),
        (pa.int64(), "long"),
        (pa.large_string(), "string"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("us", "Europe/Berlin"), "timestamptz"),
        (pa.decimal128(10, 2), "decimal(10, 2)"),
        (pa.list_(pa.struct([("a", pa.int64())])), "list<struct<a: long>>"),
        (pa.map_(pa.string(), pa.float64()), "map<string, double>"),
        (pa.duration("us"), None),
        (pa.list_(pa.null()), None),
    ],
)
def test_arrow_types_have_icebergs_names(kind: Any, text: str | None) -> None:
    assert arrow_type_text(kind) == text


def test_types_of_a_table_are_told_without_ids() -> None:
    inner = StructType(NestedField(5, "a", LongType()))
    assert type_text(ListType(4, inner)) == "list<struct<a: long>>"
    assert type_text(MapType(6, StringType(), 7, LongType())) == "map<string, long>"


@pytest.mark.parametrize(
    ("query", "table", "fits"),
    [
        ("int", "long", True),
        ("long", "int", False),
        ("float", "double", True),
        ("decimal(9, 2)", "decimal(10, 2)", True),
        ("decimal(9, 2)", "decimal(9, 3)", False),
        ("decimal(11, 2)", "decimal(10, 2)", False),
        ("timestamp", "timestamptz", False),
        ("string", "string", True),
    ],
)
def test_a_column_takes_the_same_type_and_narrower_ones(query: str, table: str, fits: bool) -> None:
    assert type_fits(query, table) is fits


def test_a_column_without_a_type_in_iceberg_is_named() -> None:
    with pytest.raises(TableMismatchError, match=r"column d is duration\[us\], and Iceberg has no"):
        query_columns("db.t", pa.schema([("d", pa.duration("us"))]))
