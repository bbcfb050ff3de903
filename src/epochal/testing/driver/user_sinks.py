"""Sinks that run a user's code, under a driver: `foreach` and `foreach_batch`.

The rows also go to the driver's own sink, so that a test can read them. The code runs as early as
it may run on a cluster: a function of a row when the row arrives, a function of a batch just before
the epoch is prepared or, for DataFrames, committed. A crash after that moment makes it run again,
as on a cluster. It runs in the thread of the test, so a test is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from epochal.connectors.contract import Prepare, SinkWriter, WriterContext
from epochal.connectors.foreach import BatchTaskWriter, ForeachSink, ForeachWriters, OpenEpoch
from epochal.epoch.contract import CommittedSink
from epochal.testing.driver.staged_sink import StagedSink
from epochal.testing.driver.under_test import FOREACH_BATCH, UserSink


def calls_in_tasks(sink: UserSink | None) -> ForeachWriters | None:
    """Return the code that tasks call; None if they call none. OptionError if it cannot be called.

    A function of a batch of a DataFrame is called on the driver instead.
    """
    if sink is None or is_called_on_driver(sink):
        return None
    schema = None if sink.frame is None else sink.frame.schema
    found = ForeachSink(sink.function, by_batch=sink.kind == FOREACH_BATCH, schema=schema)
    writers = found.writers
    assert isinstance(writers, ForeachWriters)
    return writers


def is_called_on_driver(sink: UserSink | None) -> bool:
    """Whether it is `foreachBatch` of a DataFrame."""
    return sink is not None and sink.frame is not None and sink.kind == FOREACH_BATCH


class CallingWriter(SinkWriter):
    """Writes rows to the driver's own sink, and calls the user's code with them."""

    def __init__(self, staged: SinkWriter, code: ForeachWriters, context: WriterContext) -> None:
        self._staged, self._code, self._context = staged, code, context
        self._epoch = context.epoch
        self._batches = BatchTaskWriter(code.user, context) if code.by_batch else None
        self._open: OpenEpoch | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._staged.write(batch)
        if self._batches is not None:
            self._batches.write(batch)
            return
        if not batch.num_rows:
            return
        if self._open is None:
            task, schema = self._context.task, self._code.schema
            self._open = OpenEpoch(self._code.user, task, self._epoch, schema)
        self._open.process(batch)

    def cut(self, epoch: int) -> Prepare:
        self._epoch = epoch + 1
        opened, self._open = self._open, None
        if opened is not None:
            opened.close(None)
        staged = self._staged.cut(epoch)
        if self._batches is None:
            return staged
        called = self._batches.cut(epoch)

        def prepare() -> bytes:
            called()
            return staged()

        return prepare

    def close(self) -> None:
        self._staged.close()


class CallingSink(CommittedSink):
    """Calls a function with an epoch's rows before the driver's own sink shows them.

    As on a cluster, epochs without rows are left out, or in output mode complete those without
    input.
    """

    decides = False

    def __init__(
        self, staged: StagedSink, deliver: Callable[[pa.Table, int], None], *, complete: bool
    ) -> None:
        self._staged, self._deliver, self._complete = staged, deliver, complete

    def fence(self, attempt: int) -> None:
        self._staged.fence(attempt)

    def decided(self, epoch: int) -> bool:
        return self._staged.decided(epoch)

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        rows = self._staged.rows_of(messages)
        if rows is not None and (
            self._staged.had_input(messages) if self._complete else rows.num_rows
        ):
            self._deliver(rows, epoch)
        self._staged.commit(epoch, messages)


def delivery(sink: UserSink) -> Callable[[pa.Table, int], None]:
    """Return what calls the function of a DataFrame's `foreachBatch` with an epoch's rows."""
    frame: Any = sink.frame

    def deliver(rows: pa.Table, epoch: int) -> None:
        table = rows.combine_chunks().rename_columns(frame.columns)
        sink.function(frame.sparkSession.createDataFrame(table, frame.schema), epoch)

    return deliver
