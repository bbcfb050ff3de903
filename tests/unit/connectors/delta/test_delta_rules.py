"""Which tables and columns the Delta sink takes, and the statistics of its files."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.delta.delta_files import file_stats, indexed_columns
from epochal.connectors.delta.delta_rules import (
    TableShape,
    check_new_table,
    check_table,
    delta_type,
    in_microseconds,
    query_columns,
    schema_json,
    type_text,
)
from epochal.connectors.table_columns import TableColumn
from epochal.connectors.tables.table_epochs import WriteMode
from epochal.errors import TableMismatchError

FIELD = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


def reasons(shape: TableShape, mode: WriteMode = WriteMode.APPEND, *by: str) -> int:
    try:
        check_table("t", shape, mode, by, {"id"})
    except TableMismatchError as error:
        return len(error.reasons)
    return 0


def test_features_are_accepted_as_long_as_nothing_uses_them() -> None:
    features = ("appendOnly", "invariants", "checkConstraints", "columnMapping", "generatedColumns")
    assert reasons(TableShape("i", (FIELD,), (), {}, features)) == 0
    none = {"delta.columnMapping.mode": "none", "delta.appendOnly": "true"}
    assert reasons(TableShape("i", (FIELD,), (), none, features)) == 0


def test_all_reasons_are_given_at_once() -> None:
    ruled = {**FIELD, "metadata": {"delta.invariants": "x", "delta.identity.start": 1}}
    configuration = {
        "delta.columnMapping.mode": "id",
        "delta.constraints.a": "id > 0",
        "delta.constraints.b": "id < 9",
    }
    shape = TableShape("i", (ruled,), ("at",), configuration, ("icebergCompatV2",))
    assert reasons(shape) == 7


def test_tables_with_deletion_vectors_take_new_rows_only() -> None:
    shape = TableShape("i", (FIELD,), (), {"delta.enableDeletionVectors": "true"})
    assert [reasons(shape, mode) for mode in WriteMode] == [0, 1, 1]


def test_partitions_and_keys_must_be_columns_of_simple_types() -> None:
    columns = [TableColumn("id", "long"), TableColumn("s", "struct<a: long>")]
    check_new_table("t", columns, ["id"], ["id"])
    for by, keys in ((["s"], []), (["x"], []), (["id", "s"], []), ([], ["s"]), ([], ["x"])):
        with pytest.raises(TableMismatchError):
            check_new_table("t", columns, by, keys)


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


def stats(values: list[Any], kind: pa.DataType) -> tuple[Any, Any, Any]:
    found = json.loads(file_stats(pa.table({"c": pa.array(values, kind)})), parse_float=Decimal)
    least, most, nulls = (found[name].get("c") for name in ("minValues", "maxValues", "nullCount"))
    return least, most, nulls


def test_numbers_dates_and_decimals_have_exact_bounds() -> None:
    assert stats([3, None, 1], pa.int64()) == (1, 3, 1)
    assert stats([0.5, 2.0], pa.float64()) == (Decimal("0.5"), Decimal("2.0"), 0)
    day = dt.date(2026, 1, 2)
    assert stats([day], pa.date32()) == ("2026-01-02", "2026-01-02", 0)
    wide = Decimal("12345678901234567890.123456")
    assert stats([wide], pa.decimal128(38, 6)) == (wide, wide, 0)


def test_a_column_of_nulls_has_no_bounds() -> None:
    assert stats([None, None], pa.int64()) == (None, None, 2)
    assert stats([], pa.string()) == (None, None, 0)


def test_times_have_milliseconds_and_the_upper_bound_is_rounded_up() -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678001, dt.UTC)
    bounds = ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.679Z", 0)
    assert stats([at], pa.timestamp("us", "UTC")) == bounds
    assert stats([at], pa.timestamp("us", "Europe/Berlin")) == bounds
    exact = at.replace(microsecond=678000, tzinfo=None)
    local = "2026-01-02T03:04:05.678"
    assert stats([exact], pa.timestamp("us")) == (local, local, 0)


def test_long_texts_are_cut_outwards() -> None:
    text = "x" * 40
    assert stats([text], pa.string()) == ("x" * 32, "x" * 32 + "\U0010ffff", 0)
    assert stats(["x" * 32], pa.string()) == ("x" * 32, "x" * 32, 0)
    assert stats(["x" * 32 + "\U0010ffff" * 2], pa.string()) == ("x" * 32, None, 0)


def test_values_that_json_has_no_number_for_leave_a_column_without_bounds() -> None:
    for odd in (float("nan"), float("inf"), float("-inf")):
        assert stats([1.0, odd], pa.float64()) == (None, None, 0)


def test_days_beyond_python_s_calendar_leave_a_column_without_bounds() -> None:
    far = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    found = json.loads(file_stats(pa.table({"c": far})))
    assert (found["minValues"], found["nullCount"]) == ({}, {"c": 0})


def test_fields_of_structs_are_columns_and_lists_and_bytes_have_no_bounds() -> None:
    rows = pa.table(
        {
            "s": pa.array(
                [{"x": 1, "y": None}, None], pa.struct([("x", pa.int32()), ("y", pa.int8())])
            ),
            "l": pa.array([[1], None], pa.list_(pa.int64())),
            "b": pa.array([b"a", None]),
        }
    )
    assert json.loads(file_stats(rows)) == {
        "numRecords": 2,
        "minValues": {"s": {"x": 1}},
        "maxValues": {"s": {"x": 1}},
        "nullCount": {"s": {"x": 1, "y": 2}, "b": 1},
    }


def test_only_so_many_leading_columns_have_statistics() -> None:
    rows = pa.table({f"c{n}": [n] for n in range(40)})
    assert len(json.loads(file_stats(rows))["minValues"]) == 32
    assert list(json.loads(file_stats(rows, 2))["nullCount"]) == ["c0", "c1"]
    assert len(json.loads(file_stats(rows, -1))["minValues"]) == 40
    assert indexed_columns({"delta.dataSkippingNumIndexedCols": "3"}) == 3
    assert indexed_columns({}) == 32
