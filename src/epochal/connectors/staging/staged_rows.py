"""Passes a task's output to the driver, which writes it in one transaction or commit.

A small output travels inside the task's message, a larger one through a file in the checkpoint.
`StagedWriters.durable` says whether the files must survive a power failure. They need not if the
sink decides: if its transaction was committed, the sink has the rows; if not, the epoch is dropped
and its rows are read again. Files of an earlier attempt can then be deleted as soon as that attempt
is fenced. If the offset log decides, they must: the epoch is finished from them after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import uuid4

import google_crc32c
import pyarrow as pa

from epochal.connectors.arrow_stream import decode_stream, encode_stream, joined
from epochal.connectors.contract import BadRows, WriterContext
from epochal.connectors.row_collector import RowCollector, WholeResultWriter
from epochal.connectors.staging.epoch_marker import Staged, pack, with_input
from epochal.connectors.table_columns import rows_without_values
from epochal.errors import StorageError
from epochal.files import Files, join_url, open_files
from epochal.files.local import LocalFiles

INLINE_BYTES = 64 * 1024
_NAME = re.compile(r"\.?e(\d+)-a(\d+)-t(\d+)-[0-9a-f]{8}\.\w+")


class RowEncoder(Protocol):
    """Turns a task's rows into the bytes that the driver gets; picklable."""

    @property
    def suffix(self) -> str:
        """The suffix of files with such bytes, without the dot."""
        ...

    def encode(self, rows: Sequence[pa.RecordBatch]) -> bytes:
        """Encode rows. Raises an error for rows that the sink cannot write."""
        ...

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        """Why rows cannot be written, as `SinkWriter.bad_rows`."""
        del batch
        return {}


@dataclass(frozen=True, slots=True)
class ArrowRows(RowEncoder):
    """Encodes rows as a compressed Arrow stream; `staged_table` reads it."""

    schema: pa.Schema
    required: tuple[str, ...] = ()
    """Columns in which the sink takes no nulls."""
    suffix: str = "arrow"

    def encode(self, rows: Sequence[pa.RecordBatch]) -> bytes:
        return encode_stream(self.schema, rows, compression="lz4").to_pybytes()

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        return rows_without_values(batch, self.required)


@dataclass(frozen=True, slots=True)
class StagedWriters:
    encoder: RowEncoder
    checkpoint: str
    """The directory of the checkpoint, which exists."""
    staging: str
    """The place of the files in it."""
    magic: bytes
    """How the messages begin."""
    inline_bytes: int = INLINE_BYTES
    durable: bool = False
    replaces: bool = False
    """Whether each epoch's rows replace all others."""

    def open(self, context: WriterContext) -> RowCollector | WholeResultWriter:
        writer = RowCollector(partial(self._staged, context), self.encoder.bad_rows)
        if self.replaces:
            return WholeResultWriter(writer, partial(with_input, self.magic))
        return writer

    def _staged(self, context: WriterContext, epoch: int, rows: list[pa.RecordBatch]) -> bytes:
        task, attempt = context.task, context.attempt
        count = sum(batch.num_rows for batch in rows)
        if not count:
            return pack(Staged(epoch, attempt, task, 0), self.magic)
        data = self.encoder.encode(list(joined(rows)))
        if len(data) <= self.inline_bytes:
            return pack(Staged(epoch, attempt, task, count, inline=data), self.magic)
        # Another try of the task has another name, so no file is ever replaced while it is read.
        name = f"e{epoch}-a{attempt}-t{task}-{uuid4().hex[:8]}.{self.encoder.suffix}"
        files = open_files(join_url(self.checkpoint, self.staging))
        if not self.durable and isinstance(files, LocalFiles):
            existing = open_files(self.checkpoint).url
            files = LocalFiles(files.url, durable=False, existing=existing)
        files.create(name, data)
        checksum = google_crc32c.value(data)
        staged = Staged(epoch, attempt, task, count, name=name, checksum=checksum)
        return pack(staged, self.magic)


def staged_bytes(files: Files, staged: Staged) -> bytes:
    """Read what a task staged. `files` is the staging directory."""
    if not staged.rows:
        return b""
    return staged.inline or read_staged(files, staged.name, staged.checksum)


def staged_table(files: Files, staged: Staged, schema: pa.Schema) -> pa.Table:
    """Read the rows that a task staged with `ArrowRows`."""
    if not staged.rows:
        return schema.empty_table()
    table = decode_stream(staged_bytes(files, staged))
    if table.num_rows != staged.rows:
        raise StorageError(
            join_url(files.url, staged.name),
            f"it has {table.num_rows} rows, but task {staged.task} reported {staged.rows}",
        )
    return table


def delete_staged(files: Files, staged: Iterable[Staged]) -> None:
    """Delete the files of an epoch that the sink has."""
    for report in staged:
        if report.name:
            with suppress(OSError):
                files.delete(report.name)


def delete_stale(files: Files, *, before: int) -> int:
    """Delete the files of attempts before this one; return their number."""
    removed = 0
    for info in files.list():
        name = _NAME.fullmatch(info.name)
        if name and int(name[2]) < before:
            files.delete(info.name)
            removed += 1
    return removed


def read_staged(files: Files, name: str, checksum: int) -> bytes:
    """Read a file that a task wrote for the driver."""
    url = join_url(files.url, name)
    try:
        data = files.read(name)
    except FileNotFoundError:
        raise StorageError(
            url,
            "a task wrote this file, but the driver cannot see it. Put the checkpoint of a query "
            "that runs on several hosts on storage that all of them share",
        ) from None
    if google_crc32c.value(data) != checksum:
        raise StorageError(url, "its checksum differs from the one that the task reported")
    return data
