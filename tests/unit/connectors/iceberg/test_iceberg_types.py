"""A query's types in Iceberg's words, and which columns of a table take them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from epochal.connectors.iceberg.iceberg_types import (
    arrow_type_text,
    query_columns,
    type_fits,
    type_text,
)
from epochal.errors import TableMismatchError


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
