"""User code as a sink: PySpark's ForeachWriter objects, functions of a row, functions of a batch.

The code runs in tasks, on a separate thread, as soon as rows arrive, so before their epoch is
decided. After a crash rows are processed again, possibly in other epochs than before. Delivery is
therefore at least once, and epoch numbers cannot be used to remove duplicates.

A ForeachWriter is opened at the first row of an epoch and closed at its end. Epochs without rows
do not open it, because there may be ten of them per second.

Note: code that falls behind blocks its task once `WAITING_BATCHES` batches are queued. This is the
only limit on the queue.
"""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.contract import Prepare, SinkWriter, WriterContext
from epochal.connectors.row_collector import RowCollector
from epochal.connectors.user_code import USER_CODE
from epochal.errors import OptionError

logger = logging.getLogger(__name__)

WAITING_BATCHES = 64


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Marks the end of an epoch in the queue, behind its rows."""

    epoch: int
    done: Future[bytes]


class ForeachEpoch:
    """A ForeachWriter during one epoch. If its `open` returns False, the rows are skipped."""

    def __init__(self, user: Any, task: int, epoch: int, schema: Any = None) -> None:
        self._user, self._schema = user, schema
        with USER_CODE:
            self._wanted = not hasattr(user, "open") or user.open(task, epoch) is not False

    def process(self, batch: pa.RecordBatch) -> None:
        if self._wanted:
            rows = _rows(batch, self._schema)
            with USER_CODE:
                for row in rows:
                    self._user.process(row)

    def close(self, error: Exception | None) -> None:
        if hasattr(self._user, "close"):
            with USER_CODE:
                self._user.close(error)


class ForeachTaskWriter(SinkWriter):
    """Passes batches to the user's code in order, on its own thread.

    The prepare function of an epoch waits until all rows before the cut are processed.
    """

    def __init__(self, user: Any, context: WriterContext, schema: Any = None) -> None:
        self._user, self._task, self._schema = user, context.task, schema
        self._inbox: queue.Queue[pa.RecordBatch | EpochEnd | None] = queue.Queue(WAITING_BATCHES)
        self._error: Exception | None = None
        self._epoch = context.epoch
        self._open: ForeachEpoch | None = None
        self._thread = threading.Thread(target=self._run, name="epochal-foreach", daemon=True)
        self._thread.start()

    def write(self, batch: pa.RecordBatch) -> None:
        if self._error is not None:
            raise self._error
        self._inbox.put(batch)

    def cut(self, epoch: int) -> Prepare:
        done: Future[bytes] = Future()
        self._inbox.put(EpochEnd(epoch, done))
        return done.result

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None:
            if self._error is None:
                try:
                    self._take(item)
                except Exception as error:  # noqa: BLE001  user code may raise anything
                    self._error = error
                    self._end(error)
            # After an error the queue is still drained, so that every waiting prepare fails.
            if isinstance(item, EpochEnd):
                if self._error is None:
                    item.done.set_result(b"")
                else:
                    item.done.set_exception(self._error)
        self._end(None)

    def _take(self, item: pa.RecordBatch | EpochEnd) -> None:
        if isinstance(item, EpochEnd):
            opened, self._open = self._open, None
            if opened is not None:
                opened.close(None)
            self._epoch = item.epoch + 1
            return
        if self._open is None:
            self._open = ForeachEpoch(self._user, self._task, self._epoch, self._schema)
        self._open.process(item)

    def _end(self, error: Exception | None) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            try:
                opened.close(error)
            except Exception:
                logger.warning("the close method of a ForeachWriter failed", exc_info=True)


class BatchTaskWriter(RowCollector):
    """Passes all rows of an epoch to a function at once."""

    def __init__(self, function: Any, context: WriterContext) -> None:
        super().__init__(partial(_called, function, context.schema))


def _called(function: Any, schema: pa.Schema, epoch: int, rows: list[pa.RecordBatch]) -> bytes:
    for batch in pa.Table.from_batches(rows, schema).combine_chunks().to_batches():
        if batch.num_rows:
            with USER_CODE:
                function(batch, epoch)
    return b""


@dataclass(frozen=True, slots=True)
class ForeachWriters:
    """Opens writers in tasks; carries the user's code there."""

    user: Any
    by_batch: bool
    schema: Any = None
    """Spark's schema, for rows as PySpark makes them; None for values as Arrow makes them."""

    def open(self, context: WriterContext) -> ForeachTaskWriter | BatchTaskWriter:
        if self.by_batch:
            return BatchTaskWriter(self.user, context)
        return ForeachTaskWriter(self.user, context, self.schema)


class ForeachSink(AtLeastOnceSink):
    """The driver's side. Checks the user's code before any task runs it."""

    def __init__(self, user: Any, *, by_batch: bool = False, schema: Any = None) -> None:
        """`user` is a ForeachWriter or a function of a row.

        With `by_batch`, it takes a task's rows of one epoch, and the epoch's number.
        """
        if by_batch or not hasattr(user, "process"):
            if not callable(user):
                raise OptionError(
                    f"foreach takes a function or an object with a method process, not {user!r}."
                )
            user = user if by_batch else SimpleNamespace(process=user)
        for name in ("open", "process", "close"):
            if hasattr(user, name) and not callable(getattr(user, name)):
                raise OptionError(f"foreach: attribute {name} of {user!r} must be a method.")
        super().__init__(ForeachWriters(user, by_batch, schema))


def _rows(batch: pa.RecordBatch, schema: Any) -> list[Any]:
    from pyspark.sql import Row

    if schema is not None:
        return _spark_rows(batch, schema)
    if not batch.num_columns:
        return [Row()] * batch.num_rows
    make = Row(*batch.schema.names)
    columns = [column.to_pylist() for column in batch.columns]
    return [make(*values) for values in zip(*columns, strict=True)]


def _spark_rows(batch: pa.RecordBatch, schema: Any) -> list[Any]:
    try:
        from pyspark.sql.conversion import ArrowTableToRowsConversion
    except ImportError:  # Spark 4.0
        from pyspark.sql.connect.conversion import ArrowTableToRowsConversion
    table = pa.Table.from_batches([batch]).rename_columns(schema.names)
    return list(ArrowTableToRowsConversion.convert(table, schema))
