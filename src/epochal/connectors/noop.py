"""Discards all rows, like Spark's noop: for measuring everything before the sink."""

from __future__ import annotations

import pyarrow as pa

from epochal.connectors.at_least_once import AtLeastOnceSink
from epochal.connectors.contract import Prepare, WriterContext


class NoopWriter:
    """Discards every batch."""

    def write(self, batch: pa.RecordBatch) -> None:
        del batch

    def cut(self, epoch: int) -> Prepare:
        del epoch
        return bytes

    def close(self) -> None:
        pass


class NoopWriters:
    """Opens writers in tasks."""

    def open(self, context: WriterContext) -> NoopWriter:
        del context
        return NoopWriter()


class NoopSink(AtLeastOnceSink):
    """The driver's side."""

    def __init__(self) -> None:
        super().__init__(NoopWriters())
