from __future__ import annotations

import pytest

from epochal.connectors.delta.delta_rules import TableShape, check_new_table, check_table
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
