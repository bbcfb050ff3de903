"""Tells the driver whether a whole result must replace the one in a table.

In output mode complete every epoch emits the whole result, also an epoch without input. A task
knows only of its own input, so it notes that in its message, and the driver replaces the table if
any task had some.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from epochal.connectors.contract import BadRows, CheckingWriter, Prepare
from epochal.connectors.staging.epoch_marker import pack, unpack


class WholeResultWriter:
    """A writer that notes in its messages whether the task had input."""

    def __init__(self, writer: CheckingWriter, magic: bytes) -> None:
        self._writer, self._magic = writer, magic
        self._had_input = True

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        return self._writer.bad_rows(batch)

    def note_idle(self) -> None:
        self._had_input = False

    def cut(self, epoch: int) -> Prepare:
        had_input, self._had_input = self._had_input, True
        prepare = self._writer.cut(epoch)
        return lambda: self._noted(prepare(), had_input=had_input)

    def close(self) -> None:
        self._writer.close()

    def _noted(self, message: bytes, *, had_input: bool) -> bytes:
        staged = unpack(message, self._magic)
        assert staged is not None, "the message of another sink"
        return pack(msgspec.structs.replace(staged, replaces=had_input), self._magic)
