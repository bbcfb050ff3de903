"""Spills rows of a reservoir that do not fit into memory to Arrow files.

Only the process that wrote the files reads them. If it is killed, the next sidecar deletes the
directory (see `sidecar`). So files are neither synced nor written atomically.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa


class SpillFiles:
    """A store of rows in a private directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    def write(self, rows: pa.RecordBatch) -> str:
        """Write rows to a file; return its path."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = str(self._directory / f"{next(self._numbers)}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_batch(rows)
        return path

    def read(self, stored: str) -> pa.RecordBatch:
        """Memory-map the rows of a file, so that they take no memory of the process."""
        return pa.ipc.open_file(pa.memory_map(stored)).get_batch(0)

    def drop(self, stored: str) -> None:
        """Delete a file. Rows that were read from it stay valid, because they are mapped."""
        Path(stored).unlink(missing_ok=True)
