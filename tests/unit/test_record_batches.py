"""Batches and tables without columns keep their rows: in every function, frame, file and store."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.continuous.operators.driving import columns

from epochal.connectors.arrow_stream import decode_stream, encode_stream, joined
from epochal.connectors.console import ConsoleOptions, render
from epochal.connectors.contract import WriterContext
from epochal.connectors.file.plain_parquet import plain_batches
from epochal.connectors.file.staged_batches import StagedBatchSink
from epochal.connectors.memory import MemoryOutput, MemoryStream
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.joins.static_join import StaticJoinSpec
from epochal.continuous.operators.stateless.row_operators import (
    MapInArrowSpec,
    MapInPandasSpec,
    ProjectSpec,
)
from epochal.continuous.tasks.frames import Frame, FrameKind, decode_frame, encode_frame
from epochal.continuous.tasks.key_split import KeySplit
from epochal.files import open_files
from epochal.record_batches import (
    batch_of,
    batch_of_dicts,
    batch_of_frame,
    cast_table,
    joined_tables,
    struct_of,
    table_of,
    with_a_column,
    without_columns,
)
from epochal.state.files.rocksdb_entries import KeyForm
from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.unsafe_row import encode_row

NOTHING = pa.schema([])
AT = Moment(0, -1, 0, -1)


def test_every_constructor_has_the_rows_that_it_was_given() -> None:
    made: list[Any] = [
        batch_of([], NOTHING, 5),
        batch_of([], [], 5),
        batch_of_dicts([{}] * 5, NOTHING),
        batch_of_frame(pd.DataFrame({"a": range(5)}), NOTHING),
        pa.RecordBatch.from_struct_array(struct_of([], [], 5)),
        table_of([], NOTHING, 5),
        table_of([], [], 5),
        joined_tables([table_of([], [], 2), table_of([], [], 3)], NOTHING),
        cast_table(table_of([], [], 5), NOTHING),
        with_a_column(table_of([], [], 5)),
        pickle.loads(pickle.dumps(with_a_column(table_of([], [], 5)))),
    ]
    assert [each.num_rows for each in made] == [5] * len(made)


def test_rows_with_columns_are_what_arrow_makes_of_them() -> None:
    schema = columns(a=pa.int64(), b=pa.string())
    rows: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    plain = pa.RecordBatch.from_pylist(rows, schema=schema)
    table = pa.Table.from_batches([plain])
    assert batch_of(plain.columns, schema, 2) == plain
    assert batch_of(plain.columns, ["a", "b"], 2) == plain
    assert batch_of_dicts(rows, schema) == plain
    assert batch_of_frame(plain.to_pandas(), schema) == plain
    assert table_of(plain.columns, schema, 2) == table
    assert joined_tables([table.slice(0, 1), table.slice(1)], schema) == table
    assert joined_tables([], schema) == schema.empty_table()
    assert with_a_column(table) is table


def test_a_wrong_number_of_rows_is_an_error() -> None:
    with pytest.raises(AssertionError, match="2 rows, not 3"):
        batch_of([pa.array([1, 2])], ["a"], 3)


def test_what_arrow_does_to_batches_keeps_the_rows() -> None:
    batch = without_columns(5)
    assert batch.slice(1, 3).num_rows == 3
    assert batch.take(pa.array([0, 4])).num_rows == 2
    assert batch.filter(pa.array([True, False, True, True, None])).num_rows == 3
    assert decode_stream(encode_stream(NOTHING, [batch, batch]).to_pybytes()).num_rows == 10
    assert [each.num_rows for each in joined([batch, batch])] == [10]
    assert pa.Table.from_batches([batch]).combine_chunks().to_batches()[0].num_rows == 5


def test_rows_cross_the_exchange() -> None:
    ((task, rows, runs),) = KeySplit(NOTHING, (), 4, 2).split(without_columns(5))
    sent = Frame(FrameKind.DATA, 1, 0, 0, 7, 1, runs=runs)
    found = decode_frame(encode_frame(sent, rows.serialize()), [NOTHING])
    assert found.batch is not None
    assert (task, found.batch.num_rows, found.runs) == (0, 5, ((0, 5),))
    assert KeySplit(NOTHING, (), 4, 2).size(rows) == 0


def test_a_projection_to_nothing_and_functions_of_nothing_keep_rows() -> None:
    batch = batch_of_dicts([{"a": n} for n in range(5)], columns(a=pa.int64()))
    (bare,) = ProjectSpec((), NOTHING).open().process(batch, AT)
    for spec in (
        MapInArrowSpec(lambda batches: batches, NOTHING),
        MapInPandasSpec(lambda frames: frames, NOTHING),
    ):
        assert [made.num_rows for made in spec.open().process(bare, AT)] == [5]
        assert [made.num_rows for made in spec.open().process(batch, AT)] == [5]


def test_a_table_without_columns_is_joined_after_a_journey_to_a_task() -> None:
    spec = StaticJoinSpec(table_of([], [], 3), "left", "inner", (), (), None, columns(a=pa.int64()))
    batch = batch_of_dicts([{"a": 1}, {"a": 2}], columns(a=pa.int64()))
    (made,) = pickle.loads(pickle.dumps(spec)).open().process(batch, AT)
    assert made.column("a").to_pylist() == [1, 1, 1, 2, 2, 2]


def test_parquet_files_of_which_no_column_is_read_have_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "f.parquet")
    found = list(plain_batches((tmp_path / "f.parquet").read_bytes(), [], []))
    assert [batch.num_rows for batch in found] == [3]


def test_a_memory_stream_and_its_output_count_rows(tmp_path: Path) -> None:
    source = MemoryStream(NOTHING, directory=str(tmp_path))
    source.add([{}, {}])
    source.add(without_columns(3))
    reader = source.readers.open(source.initial())
    batches = [reader.read(10), reader.read(10)]
    assert [None if each is None else each.num_rows for each in batches] == [2, 3]
    output = MemoryOutput()
    output.begin(NOTHING, complete=False)
    for epoch, batch in enumerate(batches):
        assert batch is not None
        output.take(epoch, pa.Table.from_batches([batch]))
    assert output.table().num_rows == 5


def test_staged_files_have_the_rows(tmp_path: Path) -> None:
    delivered: list[int] = []

    def deliver(paths: Any, epoch: int) -> None:
        delivered.extend(pq.ParquetFile(path).metadata.num_rows for path in paths)

    sink = StagedBatchSink(deliver, open_files(str(tmp_path)))
    writer = sink.writers.open(WriterContext(0, 0, "run", NOTHING))
    writer.write(without_columns(5))
    sink.commit(0, [writer.cut(0)()])
    assert delivered == [5]


def test_the_console_draws_a_line_per_row() -> None:
    assert render(table_of([], [], 2), ConsoleOptions()) == "++\n||\n++\n||\n||\n++\n"


def test_keys_of_which_every_column_is_in_the_prefix_are_stored() -> None:
    schema = parse_ddl("a bigint, b int")
    rows = [encode_row((n, n), schema) for n in range(3)]
    form = KeyForm(schema, prefix_columns=2)
    assert form.rows(form.stored(rows), "keys") == rows
