from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from epochal.connectors.delta.delta_types import (
    check_required,
    delta_type,
    in_microseconds,
    query_columns,
    schema_json,
    type_text,
)
from epochal.errors import TableMismatchError, TableRowError


def test_a_null_in_a_column_that_takes_none_is_an_error() -> None:
    rows = pa.table({"k": [1, None]})
    check_required("t", rows, [])
    with pytest.raises(TableRowError, match="column k takes no nulls, but is null in 1 of 2 rows"):
        check_required("t", rows, ["k"])


def test_times_of_other_units_become_microseconds_unless_digits_would_get_lost() -> None:
    rows = pa.table({"t": pa.array([1], pa.timestamp("ms", "UTC")), "n": [1]})
    found = in_microseconds(rows)
    assert found.schema.field("t").type == pa.timestamp("us", "UTC")
    assert found["t"].to_pylist() == [dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC)]
    with pytest.raises(pa.ArrowInvalid):
        in_microseconds(pa.table({"t": pa.array([1], pa.timestamp("ns"))}))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "byte"),
        (pa.large_string(), "string"),
        (pa.decimal128(10, 2), "decimal(10,2)"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("ms"), "timestamp_ntz"),
        (pa.list_(pa.struct([("a", pa.int64())])), "array<struct<a: long>>"),
        (pa.map_(pa.string(), pa.bool_()), "map<string, boolean>"),
    ],
)
def test_types_have_the_names_that_users_of_delta_know(kind: pa.DataType, text: str) -> None:
    found = delta_type(kind)
    assert found is not None
    assert type_text(found) == text


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.uint8(), pa.time64("us"), pa.duration("s"), pa.float16(), pa.null()),
        *(pa.decimal256(50, 2), pa.list_(pa.uint64()), pa.dictionary(pa.int8(), pa.string())),
    ],
)
def test_a_type_that_delta_could_not_keep_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(TableMismatchError, match="Delta has no such type"):
        query_columns("t", pa.schema([("c", kind)]))


def test_a_table_that_forbids_nulls_inside_has_another_type() -> None:
    kind = {"type": "array", "elementType": "long", "containsNull": False}
    assert type_text(kind) == "array<long not null>"
    assert schema_json(pa.schema([pa.field("c", pa.int64(), nullable=False)])) == {
        "type": "struct",
        "fields": [{"name": "c", "type": "long", "nullable": True, "metadata": {}}],
    }
