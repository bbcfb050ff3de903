"""Epochs of tables: messages, markers, keys, and which files are compacted."""

from __future__ import annotations

import pickle
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from epochal.checkpoint.entries import OffsetEntry, OffsetLog
from epochal.connectors.contract import WriterContext
from epochal.connectors.delta.delta_rules import DELTA, DataFile
from epochal.connectors.file.part_files import PartNames, mark_of
from epochal.connectors.iceberg.iceberg_files import ICEBERG, WrittenFile
from epochal.connectors.staging.epoch_marker import (
    NO_EPOCH,
    Marker,
    Staged,
    StagedDeadLetters,
    logged_epoch,
    pack,
    token_of,
    unpack,
    with_input,
    wrap_letters,
)
from epochal.connectors.table_columns import ColumnMatch, TableColumn, match_columns
from epochal.connectors.tables.compaction import Compaction, LiveFile, choose_groups
from epochal.connectors.tables.table_epochs import (
    FilesOutput,
    RowsOutput,
    WriteMode,
    attempts_of,
    choose_write_mode,
    is_committed,
    last_per_key,
    pack_files,
    read_output,
    without_keys,
)
from epochal.connectors.tables.table_maintenance import TableMaintenance
from epochal.epoch.manifest import MANIFEST_KEY, Manifest, manifest_to_json
from epochal.errors import OptionError, SinkConflictError, TableMismatchError
from epochal.testing.files import MemoryFiles

DELTA_FILE = DataFile("a=1/part.parquet", 10, 3, 1700, {"a": "1"}, "{}")
ICEBERG_FILE = WrittenFile("p", 9, 3, 0, [], {}, {}, {}, {}, {}, {}, [])
FORMATS: list[Any] = [(DELTA, DELTA_FILE), (ICEBERG, ICEBERG_FILE)]


def message(form: Any, *files: Any, mode: WriteMode = WriteMode.APPEND, task: int = 0) -> bytes:
    return pack_files(form, mode, WriterContext(task, 2, "run", pa.schema([])), 7, files)


def whole(form: Any, *files: Any, had_input: bool) -> bytes:
    """The message of a task in output mode complete."""
    written = message(form, *files, mode=WriteMode.OVERWRITE)
    return with_input(form.output.magic, written, had_input)


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
    assert choose_write_mode("s", output_mode, keys) is mode


@pytest.mark.parametrize(("output_mode", "keys"), [("update", ()), ("complete", ("id",))])
def test_a_mode_that_clashes_with_the_keys_is_refused(
    output_mode: str, keys: tuple[str, ...]
) -> None:
    with pytest.raises(OptionError, match=f"^s: output mode {output_mode} .* mergeKeys"):
        choose_write_mode("s", output_mode, keys)


@pytest.mark.parametrize(("form", "file"), FORMATS)
def test_an_epoch_is_the_files_of_all_tasks_in_the_mode_that_they_were_written_for(
    form: Any, file: Any
) -> None:
    empty, full = message(form, task=1), message(form, file)
    assert read_output("t", form, 7, [empty, full]) == FilesOutput(WriteMode.APPEND, (file,))
    assert read_output("t", form, 7, [empty, empty]) is None
    replacing = [whole(form, had_input=True), whole(form, file, had_input=False)]
    assert read_output("t", form, 7, replacing) == FilesOutput(WriteMode.OVERWRITE, (file,))
    staged = Staged(7, 2, 0, 5, b"rows")
    merging = [empty, pack(staged, form.output.magic)]
    assert read_output("t", form, 7, merging) == RowsOutput((staged,))
    assert attempts_of([empty, full], form.output.magic) == {2}


@pytest.mark.parametrize(("form", "file"), FORMATS)
def test_a_whole_result_without_rows_empties_the_table_if_a_task_had_input(
    form: Any, file: Any
) -> None:
    emptied = [whole(form, had_input=False), whole(form, had_input=True)]
    assert read_output("t", form, 7, emptied) == FilesOutput(WriteMode.OVERWRITE, ())
    idle = [whole(form, had_input=False), whole(form, file, had_input=False)]
    assert read_output("t", form, 7, idle) == FilesOutput(WriteMode.OVERWRITE, (file,), False)


def test_the_words_for_data_files_are_those_in_the_log() -> None:
    empty, full = (unpack(message(DELTA, *files), b"EDT1") for files in ((), (DELTA_FILE,)))
    assert [staged and staged.name for staged in (empty, full)] == ["append", "append"]
    empty, full = (unpack(message(ICEBERG, *files), b"EIF1") for files in ((), (ICEBERG_FILE,)))
    assert [staged and staged.name for staged in (empty, full)] == ["", "files"]


def test_the_rules_of_markers_understand_the_messages() -> None:
    messages = [message(DELTA), message(DELTA, DELTA_FILE)]
    found = logged_epoch(7, messages, b"EDT1")
    assert found is not None
    assert (found.writes, found.token) == (True, token_of(messages))


@pytest.mark.parametrize(("form", "file"), FORMATS)
def test_messages_of_another_sink_are_a_conflict(form: Any, file: Any) -> None:
    del file
    with pytest.raises(SinkConflictError):
        read_output("t", form, 7, [b"[]"])


def test_a_marker_at_or_beyond_the_epoch_means_that_the_table_has_it() -> None:
    messages = [message(DELTA, DELTA_FILE)]
    markers = (
        *(Marker(NO_EPOCH), Marker(6), Marker(7)),
        *(Marker(7, token_of(messages)), Marker(8, "other")),
    )
    known = [is_committed("t", marker, 7, messages) for marker in markers]
    assert known == [False, False, True, True, True]
    with pytest.raises(SinkConflictError):
        is_committed("t", Marker(7, "other"), 7, messages)


class SweptTable:
    """A table whose directory has these files, none of which is in a version."""

    name = "t"

    def __init__(self, *files: str) -> None:
        self.files, self.deleted = files, list[str]()

    def jobs(self) -> tuple[Any, ...]:
        return ()

    def data_files(self) -> tuple[str, ...]:
        return self.files

    def known_files(self) -> set[str]:
        return set()

    def delete(self, paths: list[str]) -> None:
        self.deleted += paths


def test_the_sweep_keeps_what_a_logged_epoch_names_also_beside_dead_letters() -> None:
    names = PartNames(mark_of("q"), attempt=1, task=0)
    logged, left = names.draw(".parquet"), names.draw(".parquet")
    file = DataFile(logged, 10, 3, 1700, {}, "{}")
    wrapped = wrap_letters(message(DELTA, file), StagedDeadLetters("e0-a1-t0.json", 7, 1))
    checkpoint = MemoryFiles()
    manifest = manifest_to_json(Manifest(0, 1, "run", (), (wrapped,), ()))
    offsets = OffsetLog(checkpoint.at("offsets"))
    offsets.add(0, OffsetEntry(1, (), extra={MANIFEST_KEY: manifest}))
    table: Any = SweptTable(logged, left)
    TableMaintenance(table, DELTA, Compaction(), checkpoint, "q", 2).sweep()
    assert table.deleted == [left]


def table(*rows: tuple[Any, Any, Any]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = (pa.int64(), pa.string(), pa.int64())
    arrays: list[Any] = [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)]
    return pa.table(arrays, names=["a", "b", "x"])


def xs(found: pa.Table) -> list[Any]:
    return found["x"].to_pylist()


@pytest.mark.parametrize(
    ("keys", "kept"), [(["a"], [3, 5]), (["a", "b"], [2, 3, 5]), (["b"], [3, 5])]
)
def test_the_last_row_of_each_key_stays_in_its_place(keys: list[str], kept: list[int]) -> None:
    rows = table((1, "p", 1), (1, "q", 2), (1, "p", 3), (None, "q", 4), (None, "q", 5))
    assert xs(last_per_key(rows, keys)) == kept


def test_rows_whose_key_is_replaced_go_and_others_stay() -> None:
    rows = table((1, "p", 1), (1, "q", 2), (2, "p", 3), (None, "p", 4), (None, None, 5))
    new = table((1, "q", 9), (None, "p", 9), (3, "p", 9))
    assert xs(without_keys(rows, new, ["a", "b"])) == [1, 3, 5]
    assert xs(without_keys(rows, new, ["a"])) == [3]


def test_keys_of_different_widths_are_compared_by_value() -> None:
    kinds: list[tuple[str, Any]] = [("a", pa.int32()), ("b", pa.large_string()), ("x", pa.int64())]
    new = table((1, "q", 9)).cast(pa.schema(kinds))
    assert xs(without_keys(table((1, "q", 1), (2, "q", 2)), new, ["a", "b"])) == [2]


def test_tables_without_rows_are_merged_too() -> None:
    assert xs(without_keys(table((1, "p", 1)), table(), ["a"])) == [1]
    assert xs(without_keys(table(), table((1, "p", 1)), ["a"])) == []
    assert xs(last_per_key(table(), ["a"])) == []


def test_many_key_columns_do_not_overflow() -> None:
    names = [f"k{n}" for n in range(12)]
    columns = {name: list(range(2000)) for name in names}
    rows = pa.table(columns)
    assert last_per_key(rows, names).num_rows == 2000
    assert without_keys(rows, rows.slice(0, 1999), names).num_rows == 1


def files(*sizes: int, part: str = "") -> list[LiveFile]:
    partition = (("p", part),) if part else ()
    return [LiveFile(f"{part}{number}", size, partition) for number, size in enumerate(sizes)]


def sizes(target: int, *given: int, min_files: int = 2) -> list[list[int]]:
    groups = choose_groups(files(*given), target, min_files)
    return [[file.size for file in group] for group in groups]


def test_small_files_become_one_up_to_the_target() -> None:
    assert sizes(100, 10, 10, 10) == [[10, 10, 10]]
    assert sizes(100, *[30] * 7) == [[30, 30, 30], [30, 30, 30]]
    assert sizes(100, 60, 60) == []


def test_a_file_is_rewritten_only_with_others_that_are_half_as_large_in_total() -> None:
    assert sizes(1000, 1, 1, 1, 500) == [[1, 1, 1]]
    assert sizes(1000, 1, 1, 2, 4, 8) == [[1, 1, 2, 4, 8]]
    assert sizes(1000, 100, 100, 1, 1) == [[1, 1], [100, 100]]
    assert sizes(1000, 10, 11, 12) == [[10, 11, 12]]
    assert sizes(1000, 10, 21) == []


def test_few_files_are_left_alone() -> None:
    assert sizes(100, 1, 1, min_files=3) == []
    assert sizes(100, 1, 1, 1, min_files=3) == [[1, 1, 1]]


def test_partitions_stay_apart() -> None:
    found = choose_groups([*files(1, 1, part="a"), *files(1, part="b"), *files(2, 2, part="c")], 9)
    assert [[file.path for file in group] for group in found] == [["a0", "a1"], ["c0", "c1"]]


def test_files_stay_few_and_each_byte_is_rewritten_a_few_times_only() -> None:
    rng, live, written, added = Random(5), [], 0, 0
    for number in range(300):
        fresh = [rng.randrange(80, 120) for _ in range(8)]
        added += sum(fresh)
        live += fresh
        while groups := sizes(100_000, *live):
            for group in groups:
                for size in group:
                    live.remove(size)
                live.append(sum(group))
                written += sum(group)
        assert len(live) < 40, f"round {number}"
    assert sum(live) == added
    assert written < 12 * added


def test_an_hour_of_many_rows_leaves_at_most_a_file_of_half_the_target_per_target() -> None:
    """120 files of 2 MB per minute are more than one compacted file can hold."""
    names, live, megabyte = count(), list[LiveFile](), 1 << 20
    for _ in range(60):
        live += [LiveFile(f"f{next(names)}", 2 * megabyte) for _ in range(120)]
        for group in choose_groups(live, 64 * megabyte, 10):
            live = [file for file in live if file not in group]
            live.append(LiveFile(f"f{next(names)}", sum(file.size for file in group)))
    total = sum(file.size for file in live)
    assert total == 60 * 120 * 2 * megabyte
    assert len(live) <= total // (32 * megabyte) + 10


ID, NAME = TableColumn("id", "long"), TableColumn("name", "string")


def matched(*query: TableColumn, table: list[TableColumn], may_add: bool = False) -> ColumnMatch:
    return match_columns("t", query, table, may_add=may_add, to_add="Set mergeSchema.")


def refused(*query: TableColumn, table: list[TableColumn], may_add: bool = False) -> list[str]:
    with pytest.raises(TableMismatchError) as error:
        matched(*query, table=table, may_add=may_add)
    return list(error.value.reasons)


def test_columns_may_have_another_order_than_in_the_table() -> None:
    assert matched(NAME, ID, table=[ID, NAME]) == ColumnMatch((), ())


def test_a_column_of_the_table_only_stays_null() -> None:
    assert matched(ID, table=[ID, NAME]) == ColumnMatch((), ())


def test_a_column_that_takes_no_nulls_must_be_in_the_query_or_have_a_default() -> None:
    needed = TableColumn("name", "string", required=True)
    assert refused(ID, table=[ID, needed]) == [
        "column name (string) must have a value in the table, but the query has no such column. "
        "Add it to the query, or let the table take nulls."
    ]
    filled = TableColumn("name", "string", required=True, has_default=True)
    assert matched(ID, table=[ID, filled]) == ColumnMatch((), ())
    assert matched(ID, NAME, table=[ID, needed]).required == ("name",)


def test_a_column_of_the_query_only_is_refused_unless_columns_may_be_added() -> None:
    assert refused(ID, NAME, table=[ID]) == [
        "column name (string) does not exist in the table. Set mergeSchema."
    ]
    assert matched(ID, NAME, table=[ID], may_add=True) == ColumnMatch((NAME,), ())


def test_a_refusal_names_both_types_of_every_column_that_differs() -> None:
    found = refused(ID, NAME, table=[TableColumn("id", "integer"), TableColumn("name", "date")])
    assert found == [
        "column id is long in the query, but integer in the table. Cast it in the query, or "
        "change the table.",
        "column name is string in the query, but date in the table. Cast it in the query, or "
        "change the table.",
    ]


def test_a_format_can_take_values_of_other_types() -> None:
    def fits(query: str, table: str) -> bool:
        return (query, table) == ("integer", "long") or query == table

    small, large = TableColumn("id", "integer"), TableColumn("id", "long")
    match_columns("t", [small], [large], may_add=False, to_add="", fits=fits)
    with pytest.raises(TableMismatchError, match="is long in the query, but integer in the table"):
        match_columns("t", [large], [small], may_add=False, to_add="", fits=fits)


def test_names_that_differ_in_case_only_are_refused_and_never_added() -> None:
    found = refused(TableColumn("ID", "long"), table=[ID], may_add=True)
    assert found == ["column ID of the query is id in the table. Rename it in the query."]
    assert refused(ID, TableColumn("Id", "long"), table=[ID], may_add=True)[0] == (
        "the query has columns with the same name, apart from upper and lower case: id, Id. "
        "Rename them."
    )


def test_a_refusal_survives_the_way_from_a_worker() -> None:
    error = TableMismatchError("t", ("a", "b"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error) == "The query cannot write to t. Nothing was written.\n  - a\n  - b"
