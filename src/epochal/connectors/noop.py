"""Rows that go nowhere: to measure everything before the sink. Spark's noop."""

from __future__ import annotations

import pyarrow as pa

from epochal.connectors.at_once import AtOnceSink
from epochal.connectors.contract import Prepare, WriterContext


class NoopWriter:
    """Drops what it is given."""

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


class NoopSink(AtOnceSink):
    """The driver's side."""

    def __init__(self) -> None:
        super().__init__(NoopWriters())
