"""The sink of a simulated world: writers stage files, and a commit shows those of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from epochal.connectors.contract import Prepare, SinkWriter, WriterContext
from epochal.epoch.contract import CommittedSink
from epochal.files import Files
from epochal.record_batches import batch_of, joined_tables
from epochal.testing.files import MemoryFiles

OUTPUT, STAGED, FENCE = "out", "staged", "fence"
IDLE = "-idle"
"""The end of a staged file's name, if the task had no input in the epoch."""


@dataclass(slots=True)
class StagedSink(CommittedSink):
    """Output is a file per epoch that names staged ones: it is there, or it is not."""

    files: Files
    truth: MemoryFiles
    attempt: int = -1

    decides = False

    def fence(self, attempt: int) -> None:
        self.attempt = attempt
        if attempt > self.fenced():
            self.truth.replace(FENCE, str(attempt).encode())

    def decided(self, epoch: int) -> bool:
        return self.files.info(f"{OUTPUT}/{epoch}") is not None

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        with suppress(FileExistsError):
            self.files.create(f"{OUTPUT}/{epoch}", b"\n".join(messages))

    def rows_of(self, messages: Sequence[bytes]) -> pa.Table | None:
        """The rows that the writers of these messages have staged; None if there are none."""
        return _staged(self.truth, [message.decode() for message in messages])

    def had_input(self, messages: Sequence[bytes]) -> bool:
        """Whether the task of any of these messages had input."""
        return any(message and not message.decode().endswith(IDLE) for message in messages)

    def fenced(self) -> int:
        """The newest attempt that has fenced off others."""
        return -1 if self.truth.info(FENCE) is None else int(self.truth.read(FENCE))


@dataclass(slots=True)
class StagingWriter(SinkWriter):
    files: Files
    context: WriterContext
    batches: list[pa.RecordBatch] = field(default_factory=list)
    idle: bool = False

    def open(self, context: WriterContext) -> StagingWriter:
        return StagingWriter(self.files, context)

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def note_idle(self) -> None:
        self.idle = True

    def cut(self, epoch: int) -> Prepare:
        batches, self.batches = self.batches, []
        idle, self.idle = self.idle, False
        name = f"{epoch}-{self.context.task}-a{self.context.attempt}{IDLE * idle}"

        def prepare() -> bytes:
            self.files.replace(f"{STAGED}/{name}", _as_bytes(batches, self.context.schema))
            return name.encode()

        return prepare

    def close(self) -> None:
        pass


def visible_tables(truth: MemoryFiles, since: int = 0) -> dict[int, pa.Table]:
    tables: dict[int, pa.Table] = {}
    for info in truth.list(OUTPUT):
        if int(info.name) < since:
            continue
        names = truth.read(f"{OUTPUT}/{info.name}").decode().split("\n")
        table = _staged(truth, names)
        if table is not None:
            tables[int(info.name)] = table
    return dict(sorted(tables.items()))


def _staged(truth: MemoryFiles, names: Sequence[str]) -> pa.Table | None:
    parts = [truth.read(f"{STAGED}/{name}") for name in names if name]
    tables = [pa.ipc.open_stream(part).read_all() for part in parts]
    return joined_tables(tables, tables[0].schema) if tables else None


def _as_bytes(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as stream:
        for batch in batches:
            stream.write_batch(batch_of(batch.columns, schema, batch.num_rows))
    return out.getvalue().to_pybytes()
