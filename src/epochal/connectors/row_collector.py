"""A sink's writer that keeps a task's rows until the epoch ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from epochal.connectors.contract import BadRows, Prepare, SinkWriter

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
