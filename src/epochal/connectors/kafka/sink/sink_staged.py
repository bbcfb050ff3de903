"""Passes a task's output to the driver, which writes it to Kafka in one transaction.

A small output travels inside the task's message, a larger one through a file in the checkpoint.

Note: neither needs to survive a crash. If the transaction was committed, Kafka has the rows; if
not, the epoch is dropped and its rows are read again. So the files are not synced to disk, and
files of an earlier attempt can be deleted as soon as that attempt is fenced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import google_crc32c
import pyarrow as pa

from epochal.checkpoint.layout import EPOCHAL
from epochal.connectors.arrow_stream import decode_stream, encode_stream
from epochal.connectors.contract import BadRows, Prepare, WriterContext
from epochal.connectors.kafka.sink.row_places import RowPlaces
from epochal.connectors.kafka.sink.sink_marker import Staged, pack
from epochal.connectors.kafka.sink.sink_rows import RecordPlan
from epochal.errors import StorageError
from epochal.files import Files, join_url, open_files
from epochal.files.local import LocalFiles

STAGING = f"{EPOCHAL}/kafka"
INLINE_BYTES = 64 * 1024
_NAME = re.compile(r"\.?e(\d+)-a(\d+)-t(\d+)-[0-9a-f]{8}\.arrow")


@dataclass(frozen=True, slots=True)
class StagedWriters:
    """Opens writers in tasks."""

    plan: RecordPlan
    directory: str
    max_message_bytes: int
    inline_bytes: int = INLINE_BYTES
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of a client that asks for topics which rows name, to find bad rows."""

    def open(self, context: WriterContext) -> StagedWriter:
        return StagedWriter(self, context)


class StagedWriter:
    """Gathers a task's rows, epoch by epoch."""

    def __init__(self, options: StagedWriters, context: WriterContext) -> None:
        self._options, self._context = options, context
        self._rows: list[pa.RecordBatch] = []
        self._letters: list[bytes] = []
        self._places = RowPlaces(options.plan, options.settings)

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.append(batch)

    @property
    def max_letter_bytes(self) -> int:
        return self._options.max_message_bytes

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        return self._places.bad_rows(batch, self._options.max_message_bytes)

    def write_letters(self, letters: Sequence[bytes]) -> None:
        self._letters += letters

    def cut(self, epoch: int) -> Prepare:
        rows, self._rows = self._rows, []
        letters, self._letters = self._letters, []

        def prepare() -> bytes:
            return self._staged(epoch, rows, letters)

        return prepare

    def close(self) -> None:
        self._rows.clear()
        self._places.close()

    def _staged(self, epoch: int, rows: list[pa.RecordBatch], letters: list[bytes]) -> bytes:
        plan, context = self._options.plan, self._context
        count = sum(batch.num_rows for batch in rows) + len(letters)
        if not count:
            return pack(Staged(epoch, context.attempt, context.task, 0))
        chosen = [plan.chosen(batch) for batch in rows]
        for batch in chosen:
            plan.check(batch, self._options.max_message_bytes)
        if letters:
            chosen.append(plan.letters(letters))
        data = encode_stream(plan.schema, chosen, compression="lz4").to_pybytes()
        if len(data) <= self._options.inline_bytes:
            return pack(Staged(epoch, context.attempt, context.task, count, inline=data))
        name = f"e{epoch}-a{context.attempt}-t{context.task}-{uuid4().hex[:8]}.arrow"
        _unsynced_files(self._options.directory).create(name, data)
        checksum = google_crc32c.value(data)
        return pack(
            Staged(epoch, context.attempt, context.task, count, name=name, checksum=checksum)
        )


def staged_rows(files: Files, staged: Staged) -> Iterator[pa.RecordBatch]:
    """Read the rows that a task staged."""
    if not staged.rows:
        return iter(())
    data = staged.inline or _read(files, staged)
    table = decode_stream(data)
    if table.num_rows != staged.rows:
        raise StorageError(
            join_url(files.url, staged.name),
            f"it has {table.num_rows} rows, but task {staged.task} reported {staged.rows}",
        )
    return iter(table.to_batches())


def delete_stale(files: Files, *, before: int) -> int:
    """Delete the files of attempts before this one; return their number."""
    removed = 0
    for info in files.list():
        found = _NAME.fullmatch(info.name)
        if found and int(found[2]) < before:
            files.delete(info.name)
            removed += 1
    return removed


def _unsynced_files(url: str) -> Files:
    """Open the staged files of a checkpoint. They need not survive a power failure."""
    files = open_files(url)
    if not isinstance(files, LocalFiles):
        return files
    return LocalFiles(files.url, durable=False, existing=files.url.removesuffix(f"/{STAGING}"))


def _read(files: Files, staged: Staged) -> bytes:
    url = join_url(files.url, staged.name)
    try:
        data = files.read(staged.name)
    except FileNotFoundError:
        raise StorageError(
            url,
            "a task wrote this file, but the driver cannot see it. Put the checkpoint of a query "
            "that runs on several hosts on storage that all of them share",
        ) from None
    if google_crc32c.value(data) != staged.checksum:
        raise StorageError(url, "its checksum differs from the one that the task reported")
    return data
