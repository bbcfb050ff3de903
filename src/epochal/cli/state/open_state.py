"""Opens the state of a checkpoint for the commands that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.cli.places import open_place
from epochal.errors import EpochalError

if TYPE_CHECKING:
    from epochal.tools.read_state.read_target import StateBatch


def open_state(
    directory: str,
    batch: int | None = None,
    key_schema: str | None = None,
    value_schema: str | None = None,
) -> StateBatch:
    """Open the state as of a batch; if there is no checkpoint at all, say so as other commands do.

    Spark's own words, which the library keeps to, are that no batch has been committed.
    """
    from epochal.tools.inspect.listing import require_checkpoint
    from epochal.tools.read_state.read import open_batch

    files = open_place(directory)
    try:
        return open_batch(files, batch, key_schema, value_schema)
    except (EpochalError, OSError):
        require_checkpoint(files)
        raise
