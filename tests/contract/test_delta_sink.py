"""What the Delta sink adds to the contract of sinks: modes, columns, markers, rivals, leftovers."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.contract.delta_rig import QUERY, ROWS, Rig, row

from epochal.connectors.delta import delta_table
from epochal.connectors.tables import table_sink
from epochal.connectors.tables.table_sink import TableSink
from epochal.errors import (
    MarkerError,
    OptionError,
    SinkConflictError,
    StorageError,
    TableConflictError,
    TableMismatchError,
    TableRowError,
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


def test_an_epoch_is_one_version_with_the_query_s_marker_and_one_without_rows_is_none(
    rig: Rig,
) -> None:
    sink = rig.open()
    first = rig.table().version()
    rig.write(sink, 0, [row(1)], [row(2)])
    rig.write(sink, 1, [], [])
    rig.write(sink, 2, [], [row(3)])
    table = rig.table()
    assert rig.rows() == [row(1), row(2), row(3)]
    assert table.version() == first + 2
    assert table.transaction_version(QUERY) == 2
    assert len(table.file_uris()) == 3


def test_partitions_are_directories_and_null_is_a_partition_of_its_own(rig: Rig) -> None:
    sink = rig.open(by=["name"])
    rows = [row(1, "a b/c%"), row(2, None), row(3, "ä"), row(4, "a b/c%")]
    rig.write(sink, 0, rows)
    assert rig.rows() == sorted(rows, key=str)
    assert rig.table().metadata().partition_columns == ["name"]
    found = rig.table().to_pyarrow_table(filters=[("name", "=", "a b/c%")])
    assert sorted(map(str, found["id"].to_pylist())) == ["1", "4"]
    sink = rig.open()
    rig.write(sink, 1, [row(5, "z")])
    assert (Path(rig.path) / "name=z").is_dir()


AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
TYPES: dict[str, tuple[Any, Any]] = {
    **{f"i{bits}": (kind, bits) for bits, kind in ((8, pa.int8()), (16, pa.int16()))},
    **{f"i{bits}": (kind, bits) for bits, kind in ((32, pa.int32()), (64, pa.int64()))},
    "f32": (pa.float32(), 0.5),
    "f64": (pa.float64(), 0.25),
    "b": (pa.bool_(), True),
    "s": (pa.string(), "x"),
    "bin": (pa.binary(), b"\0"),
    "d": (pa.date32(), AT.date()),
    "ts": (pa.timestamp("us", "UTC"), AT),
    "ntz": (pa.timestamp("us"), AT.replace(tzinfo=None)),
    "dec": (pa.decimal128(10, 2), Decimal("1.23")),
    "st": (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 1, "y": None}),
    "l": (pa.list_(pa.int64()), [1, None]),
    "m": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
}


def test_every_type_comes_back_as_it_was_and_its_bounds_let_readers_skip_files(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, pa.schema([(name, kind) for name, (kind, _) in TYPES.items()]))
    full = {name: value for name, (_, value) in TYPES.items()}
    empty = dict.fromkeys(full)
    sink = rig.open()
    rig.write(sink, 0, [full, empty])
    assert rig.rows() == sorted([full, empty], key=lambda each: str(each["i8"]))
    stats: Any
    (stats,) = pa.table(rig.table().get_add_actions()).column("min").to_pylist()
    assert (stats["i64"], stats["d"], stats["dec"]) == (64, full["d"], full["dec"])
    rig.write(sink, 1, [{**full, "i64": 640}])
    assert rig.table().to_pyarrow_dataset().filter(pa.compute.field("i64") > 64).count_rows() == 1


def test_a_large_epoch_of_updates_passes_through_files_that_are_gone_afterwards(rig: Rig) -> None:
    sink = rig.open(mode="update", mergeKeys="id")
    long = [row(n, os.urandom(4000).hex()) for n in range(30)]
    messages = rig.prepare(sink, 0, long)
    staging = Path(rig.checkpoint.url) / ".epochal" / "delta"
    assert len(list(staging.iterdir())) == 1
    sink.commit(0, messages)
    assert len(rig.rows()) == 30
    assert list(staging.iterdir()) == []
    sink.commit(0, messages)  # the table has the epoch, so its staged rows are not needed
    assert len(rig.rows()) == 30


def test_in_complete_mode_an_epoch_without_input_leaves_table_and_disk_alone(rig: Rig) -> None:
    sink = rig.open(mode="complete")
    rig.write(sink, 0, [row(1), row(2)])
    version, files = rig.table().version(), rig.data_files()
    for epoch, tasks in enumerate(([], [row(1), row(2)]), start=1):
        messages = rig.prepare(sink, epoch, tasks, idle=True)
        sink.commit(epoch, messages)
        sink.commit(epoch, messages)
    assert rig.rows() == [row(1), row(2)]
    assert (rig.table().version(), rig.data_files()) == (version, files)


def test_a_query_that_does_not_fit_is_refused_before_anything_is_written(rig: Rig) -> None:
    write_deltalake(rig.path, pa.table({"id": pa.array([9], pa.int32())}))
    with pytest.raises(TableMismatchError) as error:
        rig.open()
    assert str(error.value) == (
        f"The query cannot write to {rig.path}. Nothing was written.\n"
        f"  - column id is long in the query, but integer in the table. Cast it in the query, or "
        f"change the table.\n"
        f"  - column name (string) does not exist in the table. Set the option mergeSchema to true "
        f"to add it, or drop it in the query."
    )
    assert rig.table().version() == 0


def test_merge_schema_adds_columns_in_a_version_of_their_own(rig: Rig) -> None:
    write_deltalake(rig.path, pa.table({"id": [9]}))
    sink = rig.open(mergeSchema=True)
    rig.write(sink, 0, [row(1)])
    assert rig.rows() == [row(1), row(9, None)]
    operations = [commit["operation"] for commit in rig.table().history()]
    assert operations == ["WRITE", "WRITE", "ADD COLUMN", "WRITE"]


def altered(path: str, **metadata: Any) -> None:
    """Edit the metadata of the only version of a table, as another engine could have written it."""
    log = Path(path) / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"] |= metadata.get("configuration", {})
            schema = json.loads(line["metaData"]["schemaString"])
            schema["fields"][0]["metadata"] |= metadata.get("column", {})
            schema["fields"][0]["nullable"] = not metadata.get("required", False)
            line["metaData"]["schemaString"] = json.dumps(schema)
        if "protocol" in line and "features" in metadata:
            line["protocol"] = {
                "minReaderVersion": 1,
                "minWriterVersion": 7,
                "writerFeatures": metadata["features"],
            }
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "maps its columns"),
        ({"configuration": {"delta.constraints.positive": "id > 0"}}, "CHECK constraint positive"),
        ({"column": {"delta.invariants": "id > 0"}}, "column id has an invariant"),
        ({"column": {"delta.generationExpression": "1"}}, "column id has a generated value"),
        ({"column": {"delta.identity.start": 1}}, "column id has an identity value"),
        ({"features": ["appendOnly", "rowTracking"]}, "the feature rowTracking"),
    ],
)
def test_a_table_with_rules_that_the_sink_does_not_honour_is_refused(
    rig: Rig, metadata: dict[str, Any], words: str
) -> None:
    DeltaTable.create(rig.path, ROWS)
    altered(rig.path, **metadata)
    with pytest.raises(TableMismatchError, match=words):
        rig.open()
    assert DeltaTable(rig.path).version() == 0


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_a_table_for_new_rows_only_takes_no_other_mode(rig: Rig, mode: str) -> None:
    DeltaTable.create(rig.path, ROWS, configuration={"delta.appendOnly": "true"})
    rig.write(rig.open(), 0, [row(1)])
    with pytest.raises(TableMismatchError, match=r"delta\.appendOnly"):
        rig.open(mode=mode, options={"mergeKeys": "id"} if mode == "update" else {})


def test_a_table_is_loaded_anew_when_it_has_many_new_versions(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "RELOAD_VERSIONS", 3)
    loaded: list[int] = []
    load = delta_table.TableHandle.load

    def noted(handle: delta_table.TableHandle) -> bool:
        found = load(handle)
        loaded.append(handle.version() if found else -1)
        return found

    monkeypatch.setattr(delta_table.TableHandle, "load", noted)
    sink = rig.open()
    for epoch in range(10):
        rig.write(sink, epoch, [row(epoch)])
    # One that has advanced by three versions is loaded when the next one is there.
    assert [here - before for before, here in itertools.pairwise(loaded[-3:])] == [4, 4]
    assert rig.rows() == [row(epoch) for epoch in range(10)]


def test_a_column_that_takes_no_nulls_gets_none(rig: Rig) -> None:
    DeltaTable.create(rig.path, ROWS)
    altered(rig.path, required=True)
    sink = rig.open()
    rig.write(sink, 0, [row(1)])
    with pytest.raises(TableRowError, match="column id takes no nulls, but is null in 1 of 2 rows"):
        rig.prepare(sink, 1, [row(1), {"id": None, "name": "a"}])
    assert rig.rows() == [row(1)]


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_row_without_a_required_value_becomes_a_dead_letter(
    rig: Rig, tmp_path: Path, mode: str
) -> None:
    DeltaTable.create(rig.path, ROWS)
    altered(rig.path, required=True)
    options = {"mergeKeys": "id"} if mode == "update" else {}
    options |= {"onBadRow": "deadLetter", "deadLetterPath": str(tmp_path / "letters")}
    sink = rig.open(mode=mode, options=options)
    rig.write(sink, 0, [row(1), {"id": None, "name": "lost"}])
    assert rig.rows() == [row(1)]
    (file,) = (tmp_path / "letters").iterdir()
    letter = json.loads(file.read_text())
    assert letter["reason"] == "column id is null, which the table does not allow"
    assert letter["row"] == {"name": "lost"}


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (["name"], r"partitioned by \(id\), but the query by \(name\)"),
        (["at"], "partitionBy names column at"),
    ],
)
def test_partition_columns_must_be_those_of_the_table(rig: Rig, by: list[str], words: str) -> None:
    DeltaTable.create(rig.path, ROWS, partition_by=["id"])
    with pytest.raises(TableMismatchError, match=words):
        rig.open(by=by)
    with pytest.raises(TableMismatchError, match="partitioned by id, but the query has no such"):
        rig.open(schema=pa.schema([("name", pa.string())]))


def test_a_missing_library_is_named_with_its_extra(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(OptionError, match=r"pip install 'epochal\[delta\]'"):
        rig.open()


def test_a_table_that_lost_the_marker_is_refused_until_the_user_resets_it(rig: Rig) -> None:
    sink = rig.open()
    for epoch in range(3):
        rig.write(sink, epoch, [row(epoch)])
    shutil.rmtree(rig.path)
    with pytest.raises(MarkerError, match="it is missing, but the log has epoch 2 of this sink"):
        rig.open()
    assert not Path(rig.path).exists()
    with pytest.raises(MarkerError):
        rig.open(resetMarker=1)
    sink = rig.open(resetMarker=2)
    rig.write(sink, 3, [row(3)])
    assert rig.rows() == [row(3)]


def test_a_copy_of_the_checkpoint_cannot_pass_its_epochs_off_as_written(
    rig: Rig, tmp_path: Path
) -> None:
    rig.write(rig.open(), 0, [row(0)])
    shutil.copytree(rig.checkpoint.url, tmp_path / "copy" / "ck")
    copy = Rig(tmp_path / "copy", path=rig.path)
    other = copy.open()
    rig.write(rig.open(), 1, [row(1)])
    with pytest.raises(SinkConflictError, match="epoch 1"):
        copy.write(other, 1, [row(100)])
    assert rig.rows() == [row(0), row(1)]


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_an_epoch_that_the_table_has_is_not_committed_again(rig: Rig, mode: str) -> None:
    keys = {"mergeKeys": "id"} if mode == "update" else {}
    sink = rig.open(mode=mode, options=keys)
    rig.write(sink, 0, [row(0)])
    messages = rig.prepare(sink, 1, [row(1)])
    sink.commit(1, messages)
    rig.table().optimize.compact()  # only now would files that are added again double their rows
    rows, version = rig.rows(), rig.table().version()
    sink.commit(1, messages)
    rig.open(mode=mode, options=keys).commit(1, messages)
    assert (rig.rows(), rig.table().version()) == (rows, version)


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_other_writers_between_comparison_and_commit_do_no_harm(
    rig: Rig, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit meets a table that has changed since it was compared."""
    keys = {"mergeKeys": "id"} if mode == "update" else {}
    sink = rig.open(mode=mode, options=keys)
    rig.write(sink, 0, [row(0)])
    real = TableSink._marker
    rivals = iter([row(100), row(101)])

    def has(self: Any, epoch: int, **more: Any) -> Any:
        found = real(self, epoch, **more)
        for rival in rivals:
            write_deltalake(rig.path, pa.Table.from_pylist([rival], schema=ROWS), mode="append")
            break
        return found

    monkeypatch.setattr(TableSink, "_marker", has)
    rig.write(sink, 1, [row(1)])
    rig.write(sink, 2, [row(2)])
    everything = [row(0), row(1), row(100), row(101), row(2)]
    assert rig.rows() == ([row(2)] if mode == "complete" else everything)


def test_writers_that_never_let_us_commit_end_the_attempt_and_nothing_is_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = rig.open(mode="complete")
    real = TableSink._marker

    def has(self: Any, epoch: int, **more: Any) -> Any:
        found = real(self, epoch, **more)
        write_deltalake(rig.path, pa.Table.from_pylist([row(9)], schema=ROWS), mode="append")
        return found

    messages = rig.prepare(sink, 0, [row(1)])
    with monkeypatch.context() as patch:
        patch.setattr(TableSink, "_marker", has)
        patch.setattr(table_sink, "COMMIT_TRIES", 3)
        with pytest.raises(TableConflictError, match="epoch 0 could not be committed in 3 tries"):
            sink.commit(0, messages)
    again = rig.open(mode="complete")
    again.commit(0, messages)
    assert rig.rows() == [row(1)]


def test_leftovers_of_failed_attempts_go_when_a_new_one_has_committed(rig: Rig) -> None:
    sink = rig.open()
    rig.write(sink, 0, [row(0)])
    rig.prepare(sink, 1, [row(10)], [row(11)])
    decided = rig.prepare(sink, 1, [row(1)])
    rig.decide(1, decided)
    (Path(rig.path) / "part-of-another-writer.parquet").write_bytes(b"")
    sink = rig.open()
    sink.commit(1, decided)
    assert len(rig.data_files()) == 5
    rig.write(sink, 2, [row(2)])
    sink.close()
    assert len(rig.data_files()) == 4
    assert rig.rows() == [row(0), row(1), row(2)]


def test_files_that_the_table_keeps_for_old_readers_are_no_leftovers(rig: Rig) -> None:
    sink = rig.open()
    for epoch in range(3):
        rig.write(sink, epoch, [row(epoch)])
    rig.table().optimize.compact()
    before = rig.data_files()
    for epoch in range(2):  # the log keeps a limited number of epochs
        for log in ("offsets", "commits"):
            rig.checkpoint.delete(f"{log}/{epoch}")
    sink = rig.open()
    rig.write(sink, 3, [row(3)])
    sink.close()
    assert set(before) <= set(rig.data_files())
    assert len(DeltaTable(rig.path, version=4).to_pyarrow_table()) == 3


def test_a_table_deleted_under_a_running_query_does_not_come_back(rig: Rig) -> None:
    sink = rig.open()
    rig.write(sink, 0, [row(0)])
    messages = rig.prepare(sink, 1, [row(1)])
    shutil.rmtree(rig.path)
    with pytest.raises(StorageError, match="deleted or moved"):
        rig.prepare(sink, 2, [row(2)])
    with pytest.raises(MarkerError, match="the table was deleted while the query ran"):
        sink.commit(1, messages)
    assert not Path(rig.path).exists()


def test_a_table_replaced_under_a_running_query_is_noticed(rig: Rig) -> None:
    sink = rig.open()
    rig.write(sink, 0, [row(0)])
    messages = rig.prepare(sink, 1, [row(1)])
    shutil.rmtree(Path(rig.path) / "_delta_log")
    for number in range(5):
        write_deltalake(rig.path, pa.Table.from_pylist([row(number)], ROWS), mode="append")
    with pytest.raises(MarkerError, match="while the query ran"):
        sink.commit(1, messages)
    assert len(rig.rows()) == 5


def test_files_that_vanished_before_their_commit_are_not_committed(rig: Rig) -> None:
    sink = rig.open()
    messages = rig.prepare(sink, 0, [row(0)])
    for name in rig.data_files():
        (Path(rig.path) / name).unlink()
    with pytest.raises(StorageError, match=r"a task wrote this file .* but it is missing"):
        sink.commit(0, messages)


def test_a_schema_changed_by_another_writer_ends_the_query_if_its_files_do_not_fit(
    rig: Rig,
) -> None:
    sink = rig.open()
    rig.write(sink, 0, [row(0)])
    wider = pa.table({"id": [5], "name": ["b"], "more": [1]})
    write_deltalake(rig.path, wider, mode="append", schema_mode="merge")
    rig.write(sink, 1, [row(1)])
    assert [each["more"] for each in rig.rows()] == [None, None, 1]
    other = pa.table({"id": ["text"], "name": ["b"]})
    properties = CommitProperties(app_transactions=[Transaction(QUERY, 1)])
    write_deltalake(
        rig.path, other, mode="overwrite", schema_mode="overwrite", commit_properties=properties
    )
    with pytest.raises(TableMismatchError, match="column id is long in the query, but string in"):
        rig.write(sink, 2, [row(2)])
