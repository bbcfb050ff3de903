"""How a task's output reaches the driver, which writes it to Kafka in one transaction.

Little goes inside the message itself, more through a file in the checkpoint. What a reader would
get wrong: neither needs to survive a crash. If the transaction was committed, Kafka has the rows;
if it was not, the epoch is dropped and cut anew. So files are not synced, and whatever an earlier
attempt left is waste as soon as it is shut out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import google_crc32c
import pyarrow as pa

from epochal.checkpoint.layout import EPOCHAL
from epochal.connectors.arrow_stream import decode_stream, encode_stream
from epochal.connectors.contract import Prepare, WriterContext
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

    def open(self, context: WriterContext) -> StagedWriter:
        return StagedWriter(self, context)


class StagedWriter:
    """Gathers a task's rows, epoch by epoch."""

    def __init__(self, how: StagedWriters, context: WriterContext) -> None:
        self._how, self._context = how, context
        self._rows: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.append(batch)

    def cut(self, epoch: int) -> Prepare:
        rows, self._rows = self._rows, []

        def prepare() -> bytes:
            return self._staged(epoch, rows)

        return prepare

    def close(self) -> None:
        self._rows.clear()

    def _staged(self, epoch: int, rows: list[pa.RecordBatch]) -> bytes:
        plan, context = self._how.plan, self._context
        count = sum(batch.num_rows for batch in rows)
        if not count:
            return pack(Staged(epoch, context.attempt, context.task, 0))
        chosen = [plan.chosen(batch) for batch in rows]
        for batch in chosen:
            plan.check(batch, self._how.max_message_bytes)
        data = encode_stream(plan.schema, chosen, compression="lz4").to_pybytes()
        if len(data) <= self._how.inline_bytes:
            return pack(Staged(epoch, context.attempt, context.task, count, inline=data))
        name = f"e{epoch}-a{context.attempt}-t{context.task}-{uuid4().hex[:8]}.arrow"
        undurable(self._how.directory).create(name, data)
        checksum = google_crc32c.value(data)
        return pack(
            Staged(epoch, context.attempt, context.task, count, name=name, checksum=checksum)
        )


def staged_rows(files: Files, staged: Staged) -> Iterator[pa.RecordBatch]:
    """The rows that a task staged."""
    if not staged.rows:
        return iter(())
    data = staged.inline or _read(files, staged)
    table = decode_stream(data)
    if table.num_rows != staged.rows:
        raise StorageError(
            join_url(files.url, staged.name),
            f"it has {table.num_rows} rows, task {staged.task} said {staged.rows}",
        )
    return iter(table.to_batches())


def sweep(files: Files, *, before: int) -> int:
    """Remove what attempts before this one staged; returns how many files."""
    removed = 0
    for info in files.list():
        found = _NAME.fullmatch(info.name)
        if found and int(found[2]) < before:
            files.delete(info.name)
            removed += 1
    return removed


def undurable(url: str) -> Files:
    """Files that need not outlive a power cut."""
    files = open_files(url)
    return LocalFiles(files.url, durable=False) if isinstance(files, LocalFiles) else files


def _read(files: Files, staged: Staged) -> bytes:
    url = join_url(files.url, staged.name)
    try:
        data = files.read(staged.name)
    except FileNotFoundError:
        raise StorageError(
            url,
            "a task wrote this, the driver cannot see it: the checkpoint of a query on several "
            "hosts must be on storage that all of them share",
        ) from None
    if google_crc32c.value(data) != staged.checksum:
        raise StorageError(url, "its checksum is not the one that the task reported")
    return data
