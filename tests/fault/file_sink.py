"""A sink of plain files. Tasks stage them; a file counts only if a commit message names it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from epochal.connectors.contract import Prepare, SinkWriter, WriterContext
from epochal.continuous.operators.contract import Row


@dataclass(frozen=True, slots=True)
class FileWriters:
    folder: str

    def open(self, context: WriterContext) -> FileWriter:
        return FileWriter(Path(self.folder), context)


@dataclass(slots=True)
class FileWriter(SinkWriter):
    folder: Path
    context: WriterContext
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def cut(self, epoch: int) -> Prepare:
        batches, self.batches = self.batches, []
        name = f"{epoch}-{self.context.task}-{self.context.attempt}.json"

        def prepare() -> bytes:
            rows = [list(row.values()) for batch in batches for row in batch.to_pylist()]
            (self.folder / name).write_text(json.dumps(rows))
            return name.encode()

        return prepare

    def close(self) -> None:
        pass


def staged_rows(folder: Path, messages: tuple[bytes, ...]) -> list[Row]:
    """Return the rows of the files that an epoch's commit messages name."""
    return [
        tuple(row)
        for message in messages
        for row in json.loads((folder / message.decode()).read_text())
    ]
