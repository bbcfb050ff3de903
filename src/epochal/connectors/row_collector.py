"""Writers that collect a task's rows: until the epoch ends, or as files when they are many.

The thread that adds rows never waits for storage.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa

from epochal.connectors.contract import BadRows, Prepare, SinkWriter

T = TypeVar("T")

Report: TypeAlias = Callable[[int, list[pa.RecordBatch]], bytes]
"""Makes the rows of an epoch available to the driver and returns the task's message."""


class RowCollector(SinkWriter):
    """A writer that gathers a task's rows and reports them when the epoch is prepared."""

    def __init__(
        self, report: Report, bad_rows: Callable[[pa.RecordBatch], BadRows] | None = None
    ) -> None:
        self._report, self._bad_rows = report, bad_rows
        self.checks_rows = bad_rows is not None
        self._rows: list[pa.RecordBatch] = []

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        return {} if self._bad_rows is None else self._bad_rows(batch)

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.append(batch)

    def cut(self, epoch: int) -> Prepare:
        rows, self._rows = self._rows, []
        return partial(self._report, epoch, rows)

    def close(self) -> None:
        self._rows.clear()


class PartWriter(SinkWriter, Generic[T]):
    """Has rows written as files; `T` describes a file. A sink passes what makes it special."""

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


class WholeResultWriter(SinkWriter):
    """Tells the driver whether a whole result must replace the one in a table.

    In output mode complete every epoch emits the whole result, also an epoch without input. A task
    knows only of its own input, so it notes that in its message, and the driver replaces the table
    if any task had some.
    """

    def __init__(self, writer: SinkWriter, noted: Callable[[bytes, bool], bytes]) -> None:
        """`noted(message, had_input)` is the message with the note."""
        self._writer, self._noted, self._had_input = writer, noted, True
        self.checks_rows = writer.checks_rows

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        return self._writer.bad_rows(batch)

    def note_idle(self) -> None:
        self._had_input = False

    def cut(self, epoch: int) -> Prepare:
        had_input, self._had_input = self._had_input, True
        prepare = self._writer.cut(epoch)
        return lambda: self._noted(prepare(), had_input)

    def close(self) -> None:
        self._writer.close()
