from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

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
