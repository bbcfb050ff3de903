"""Rows that go nowhere: to measure everything before the sink. Spark's noop."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

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


class NoopSink:
    """The driver's side."""

    exactly_once = False
    decides = False

    @property
    def writers(self) -> NoopWriters:
        return NoopWriters()

    def fence(self, attempt: int) -> None:
        del attempt

    def decided(self, epoch: int) -> bool:
        del epoch
        return False

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        del epoch, messages

    def close(self) -> None:
        pass
