"""Files for the rows of a reservoir that do not fit into memory: Arrow, one per piece.

They are of use to one process only, which may be killed at any time: whoever starts it next removes
the directory (see `sidecar`). So nothing is synced and nothing is written atomically.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa


class SpillFiles:
    """A store of rows below a directory of one's own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()

    def write(self, rows: pa.RecordBatch) -> str:
        """Keep some rows; returns their name."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = str(self._directory / f"{next(self._numbers)}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_batch(rows)
        return path

    def read(self, stored: str) -> pa.RecordBatch:
        """The rows of that name; mapped, so that memory is only borrowed."""
        return pa.ipc.open_file(pa.memory_map(stored)).get_batch(0)

    def drop(self, stored: str) -> None:
        """Keep them no longer. Rows that were read of them stay readable."""
        Path(stored).unlink(missing_ok=True)
