"""Rows on their way from tasks to the driver: in the message, or in a file of the checkpoint."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.contract import WriterContext
from epochal.connectors.staging.epoch_marker import Staged, unpack
from epochal.connectors.staging.staged_rows import (
    ArrowRows,
    StagedWriters,
    delete_stale,
    staged_bytes,
    staged_table,
)
from epochal.errors import StorageError
from epochal.files.local import LocalFiles

SCHEMA = pa.schema([("n", pa.int64())])
MAGIC = b"TEST"


def writers(place: Path, inline_bytes: int = 1_000) -> StagedWriters:
    found = StagedWriters(ArrowRows(SCHEMA), str(place), ".epochal/x", MAGIC, inline_bytes)
    copy: StagedWriters = pickle.loads(pickle.dumps(found))
    return copy


def staged(found: StagedWriters, rows: int, epoch: int = 4, attempt: int = 2) -> Staged:
    writer = found.open(WriterContext(1, attempt, "run", SCHEMA))
    for number in range(rows):
        writer.write(pa.record_batch([[number]], schema=SCHEMA))
    told = unpack(writer.cut(epoch)(), MAGIC)
    assert told is not None
    return told


def numbers(place: Path, told: Staged) -> list[int]:
    files = LocalFiles(place, durable=False).at(".epochal/x")
    found: list[Any] = staged_table(files, told, SCHEMA)["n"].to_pylist()
    return found


def test_few_rows_are_in_the_message(tmp_path: Path) -> None:
    told = staged(writers(tmp_path), 2)
    assert (told.epoch, told.attempt, told.task, told.rows, told.name) == (4, 2, 1, 2, "")
    assert numbers(tmp_path, told) == [0, 1]
    assert list(tmp_path.iterdir()) == []


def test_many_rows_are_in_a_file(tmp_path: Path) -> None:
    told = staged(writers(tmp_path, inline_bytes=10), 3)
    assert told.inline == b""
    assert [path.name for path in (tmp_path / ".epochal/x").iterdir()] == [told.name]
    assert told.name.startswith("e4-a2-t1-")
    assert told.name.endswith(".arrow")
    assert numbers(tmp_path, told) == [0, 1, 2]


def test_no_rows_are_neither(tmp_path: Path) -> None:
    told = staged(writers(tmp_path), 0)
    assert told == Staged(4, 2, 1, 0)
    assert numbers(tmp_path, told) == []
    assert staged_bytes(LocalFiles(tmp_path, durable=False), told) == b""


def test_rows_after_a_cut_belong_to_the_next_epoch(tmp_path: Path) -> None:
    writer = writers(tmp_path).open(WriterContext(0, 1, "run", SCHEMA))
    writer.write(pa.record_batch([[1]], schema=SCHEMA))
    first = writer.cut(0)
    writer.write(pa.record_batch([[2]], schema=SCHEMA))
    told = [unpack(prepare(), MAGIC) for prepare in (first, writer.cut(1))]
    assert [numbers(tmp_path, each) for each in told if each] == [[1], [2]]


def test_a_file_that_is_missing_or_damaged_is_an_error(tmp_path: Path) -> None:
    told = staged(writers(tmp_path, inline_bytes=10), 3)
    file = tmp_path / ".epochal/x" / told.name
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(StorageError, match="checksum differs"):
        numbers(tmp_path, told)
    file.unlink()
    with pytest.raises(StorageError, match="the driver cannot see it"):
        numbers(tmp_path, told)


def test_files_of_earlier_attempts_are_deleted(tmp_path: Path) -> None:
    found = writers(tmp_path, inline_bytes=10)
    names = [staged(found, 1, attempt=attempt).name for attempt in (1, 2, 3)]
    files = LocalFiles(tmp_path, durable=False).at(".epochal/x")
    files.create("other.arrow", b"")
    assert delete_stale(files, before=3) == 2
    assert sorted(info.name for info in files.list()) == sorted([names[2], "other.arrow"])
