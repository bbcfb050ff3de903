"""A query's checkpoint: the files in it, what a restart does with them, and who owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.metadata_log import MetadataLog

if TYPE_CHECKING:
    from epochal.checkpoint.file_log import FileSinkLog, FileSourceLog

__all__ = ["Checkpoint", "CommitLog", "FileSinkLog", "FileSourceLog", "MetadataLog", "OffsetLog"]


def __getattr__(name: str) -> Any:
    # The file logs import msgspec, which takes longer than most commands take to run.
    if name in ("FileSinkLog", "FileSourceLog"):
        from epochal.checkpoint import file_log

        return getattr(file_log, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, not the helpers of this module."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
