"""The driver's side of sinks that write their rows immediately, at least once; and one for nothing.

Rows are visible as soon as a task has prepared its epoch, so the driver has nothing left to
commit. After a crash the query reads and writes the rows of an undecided epoch again.

Note: `decided` answers False for every epoch, even for one whose rows are all written. Such a sink
keeps no record of epochs, so recovery relies on the checkpoint's logs alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from epochal.connectors.contract import Prepare, Sink, SinkWriter, WriterContext, WriterFactory
from epochal.connectors.formats import SinkRequest


class AtLeastOnceSink(Sink):
    """Opens writers; every other method of the sink contract does nothing."""

    exactly_once = False

    def __init__(self, writers: WriterFactory) -> None:
        self._writers = writers

    @property
    def writers(self) -> WriterFactory:
        return self._writers

    def decided(self, epoch: int) -> bool:
        del epoch
        return False

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        del epoch, messages


class NoopWriter(SinkWriter):
    """Discards every batch."""

    def open(self, context: WriterContext) -> NoopWriter:
        del context
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        del batch

    def cut(self, epoch: int) -> Prepare:
        del epoch
        return bytes


class NoopSink(AtLeastOnceSink):
    """Discards all rows, like Spark's noop: for measuring everything before the sink."""

    def __init__(self) -> None:
        super().__init__(NoopWriter())


def open_noop(request: SinkRequest) -> NoopSink:
    request.check_no_options()
    return NoopSink()
