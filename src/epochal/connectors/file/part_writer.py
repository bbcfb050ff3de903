"""Collects a task's rows and has them written as files: when the epoch ends, or when they are many.

The thread that adds rows never waits for a file. A sink passes the two functions that make it
special: one that writes rows as files and describes them, one that makes the task's message.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import pyarrow as pa

from epochal.connectors.contract import BadRows, Prepare, SinkWriter

T = TypeVar("T")


class PartWriter(SinkWriter, Generic[T]):
    """A `SinkWriter` of files; `T` describes a file."""

    def __init__(
        self,
        schema: pa.Schema,
        max_file_bytes: int,
        write_files: Callable[[int, pa.Table], list[T]],
        message: Callable[[int, list[T]], bytes],
        bad_rows: Callable[[pa.RecordBatch], BadRows] | None = None,
        *,
        epoch: int = 0,
    ) -> None:
        """`write_files(epoch, rows)` writes rows of an epoch; the first ones are of `epoch`.
        `message(epoch, files)` returns what the task reports about an epoch.
        """
        self._schema, self._max_file_bytes = schema, max_file_bytes
        self._write_files, self._message = write_files, message
        self._bad_rows, self.checks_rows = bad_rows, bad_rows is not None
        self._epoch = epoch
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._early: list[Future[list[T]]] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="epochal-part-files")

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        return {} if self._bad_rows is None else self._bad_rows(batch)

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._max_file_bytes:
            rows = self._take_rows()
            self._early.append(self._pool.submit(self._write_files, self._epoch, rows))

    def cut(self, epoch: int) -> Prepare:
        rows, early = self._take_rows(), self._early
        self._early, self._epoch = [], epoch + 1

        def prepare() -> bytes:
            written = [file for future in early for file in future.result()]
            return self._message(epoch, written + self._write_files(epoch, rows))

        return prepare

    def close(self) -> None:
        self._rows.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take_rows(self) -> pa.Table:
        rows, self._rows, self._bytes = self._rows, [], 0
        return pa.Table.from_batches(rows, self._schema)
