"""Hands each epoch's rows to a function on the driver: `foreachBatch` of DataFrames.

Tasks write an epoch's rows to files below `.epochal/batches` in the checkpoint. After the epoch was
decided, the driver calls the function with the paths of the files and the epoch's number. If the
driver dies before the epoch is committed, the next one calls the function again, with the same
number and the same rows. Delivery is therefore at least once, and the number tells repetitions
apart.

Files of an epoch are deleted when a later one is handed over: only then is the epoch committed.

In output mode complete the function is called if any task had input, also with an empty result:
see `WholeResultWriter`.

Note: columns are named by their position in the files. Two columns of a query may have the same
name, or names that differ in case only, and readers of files take neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias
from urllib.parse import unquote
from uuid import uuid4

import msgspec
import pyarrow as pa

from epochal.checkpoint.layout import EPOCHAL
from epochal.checkpoint.metadata_log import parse_batch_id, storage_errors
from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.contract import FunctionWriters, SinkWriter, WriterContext
from epochal.connectors.file.file_formats import Csv, FileFormat, ParquetCodec, encoder
from epochal.connectors.file.file_names import entry_path
from epochal.connectors.row_collector import PartWriter, WholeResultWriter
from epochal.files import Files, join_url, open_files
from epochal.record_batches import with_a_column

STAGED = f"{EPOCHAL}/batches"

MAX_PART_BYTES = 64 * 1024 * 1024
"""How many bytes of rows a task keeps before it writes them to a file, also within an epoch."""

Deliver: TypeAlias = Callable[[Sequence[str], int], None]
"""Takes the paths of an epoch's files, and the epoch's number."""


def staged_names(columns: int) -> list[str]:
    return [f"_{index}" for index in range(columns)]


class _Result(msgspec.Struct):
    """A task's message in output mode complete."""

    files: list[str]
    had_input: bool


_decode_files = msgspec.json.Decoder(list[str]).decode
_decode_message = msgspec.json.Decoder(_Result | list[str]).decode


def _noted(message: bytes, had_input: bool) -> bytes:
    files = _decode_files(message) if message else []
    return msgspec.json.encode(_Result(files, had_input)) if files or had_input else b""


def _message(epoch: int, parts: list[str]) -> bytes:
    del epoch
    return msgspec.json.encode(parts) if parts else b""


def _open_writer(directory: str, complete: bool, context: WriterContext) -> SinkWriter:
    """Open a writer in a task. It writes an epoch's rows to a file, or to several."""

    def write(epoch: int, table: pa.Table) -> list[str]:
        if not table.num_rows:
            return []
        table = with_a_column(table.rename_columns(staged_names(table.num_columns)))
        suffix, encode = encoder(FileFormat.PARQUET, table.schema, Csv(), ParquetCodec.SNAPPY)
        part = f"{epoch}-a{context.attempt}-t{context.task}-{uuid4().hex[:8]}{suffix}"
        with storage_errors(join_url(directory, part)):
            open_files(directory).create(part, encode(table))
        return [part]

    rows = PartWriter(context.schema, MAX_PART_BYTES, write, _message, epoch=context.epoch)
    return WholeResultWriter(rows, _noted) if complete else rows


class StagedBatchSink(AtLeastOnceSink):
    """The driver's side: hands committed epochs to `deliver`.

    Epochs without rows are skipped, or in output mode complete epochs without input. Only the
    function knows what it has done with an epoch.
    """

    def __init__(self, deliver: Deliver, checkpoint: Files, *, complete: bool = False) -> None:
        self._deliver, self._files = deliver, checkpoint.at(STAGED)
        super().__init__(FunctionWriters(partial(_open_writer, self._files.url, complete)))

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        names: list[str] = []
        is_new = False
        for message in filter(None, messages):
            match _decode_message(message):
                case _Result(files, had_input):
                    is_new = is_new or had_input
                case files:
                    is_new = True
            names += files
        if not is_new:
            return
        self._forget_before(epoch)
        # Only logs have paths with escapes. Spark's readers take them as they are.
        paths = [unquote(entry_path(self._files.url, name)) for name in names]
        self._deliver(paths, epoch)

    def _forget_before(self, epoch: int) -> None:
        with storage_errors(self._files.url):
            for info in self._files.list():
                written_in = parse_batch_id(info.name.removeprefix(".").partition("-")[0])
                if written_in is not None and written_in < epoch:
                    self._files.delete(info.name)
