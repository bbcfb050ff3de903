from __future__ import annotations

import pytest

from epochal.connectors.delta.delta_rules import (
    DataFile,
    FilesOutput,
    RowsOutput,
    TableShape,
    WriteMode,
    attempts_of,
    check_new_table,
    check_table,
    epoch_output,
    files_message,
    is_committed,
    leftovers,
    write_mode,
)
from epochal.connectors.staging.epoch_marker import Staged, logged_epoch, pack, token_of
from epochal.connectors.table_columns import TableColumn
from epochal.errors import SinkConflictError, TableMismatchError

FILE = DataFile("a=1/part.parquet", 10, 3, 1700, {"a": "1"}, "{}")
EMPTY = files_message(WriteMode.APPEND, 7, 2, 1, [])
FULL = files_message(WriteMode.APPEND, 7, 2, 0, [FILE])
FIELD = {"name": "id", "type": "long", "nullable": True, "metadata": {}}


def reasons(shape: TableShape, mode: WriteMode = WriteMode.APPEND, *by: str) -> int:
    try:
        check_table("t", shape, mode, by, {"id"})
    except TableMismatchError as error:
        return len(error.reasons)
    return 0


@pytest.mark.parametrize(
    ("output_mode", "keys", "mode"),
    [
        ("append", (), WriteMode.APPEND),
        ("append", ("id",), WriteMode.MERGE),
        ("update", ("id",), WriteMode.MERGE),
        ("complete", (), WriteMode.OVERWRITE),
    ],
)
def test_output_mode_and_keys_choose_how_the_table_changes(
    output_mode: str, keys: tuple[str, ...], mode: WriteMode
) -> None:
    assert write_mode(output_mode, keys) is mode


def test_an_epoch_is_the_files_of_all_tasks_in_the_mode_that_they_were_written_for() -> None:
    assert epoch_output("t", 7, [EMPTY, FULL]) == FilesOutput(WriteMode.APPEND, (FILE,))
    replacing = files_message(WriteMode.OVERWRITE, 7, 2, 0, [FILE])
    assert epoch_output("t", 7, [replacing]) == FilesOutput(WriteMode.OVERWRITE, (FILE,))
    staged = Staged(7, 2, 0, 5, b"rows")
    assert epoch_output("t", 7, [pack(staged, b"EDT1")]) == RowsOutput((staged,))
    assert epoch_output("t", 7, [EMPTY, EMPTY]) is None
    assert attempts_of([EMPTY, FULL]) == {2}


def test_the_rules_of_markers_understand_the_messages() -> None:
    found = logged_epoch(7, [EMPTY, FULL], b"EDT1")
    assert found is not None
    assert (found.writes, found.token) == (True, token_of([EMPTY, FULL]))


def test_messages_of_another_sink_are_a_conflict() -> None:
    with pytest.raises(SinkConflictError):
        epoch_output("t", 7, [b"[]"])


def test_a_marker_at_or_beyond_the_epoch_means_that_the_table_has_it() -> None:
    messages = [FULL]
    known = [
        is_committed("t", marker, token, 7, messages)
        for marker, token in ((None, ""), (6, ""), (7, ""), (7, token_of(messages)), (8, "other"))
    ]
    assert known == [False, False, True, True, True]
    with pytest.raises(SinkConflictError):
        is_committed("t", 7, "other", 7, messages)


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


def test_only_unknown_files_of_earlier_attempts_are_leftovers() -> None:
    found = [("p/old", 1), ("p/known", 1), ("p/new", 2), ("foreign", None)]
    assert leftovers(found, attempt=2, known={"known"}) == ["p/old"]
