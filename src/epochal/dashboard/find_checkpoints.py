"""Finds the checkpoints below a directory, so that one argument can name dozens of them."""

from __future__ import annotations

from collections.abc import Iterator

from epochal.checkpoint.layout import COMMITS, METADATA, OFFSETS
from epochal.errors import EpochalError
from epochal.files import FileInfo, Files

MAX_DEPTH = 3
MAX_DIRECTORIES = 2_000
"""Directories to list at most. Tables and output next to checkpoints may have very many."""
_NEVER = frozenset({"_spark_metadata", "_delta_log", "_temporary"})


def find_checkpoints(files: Files) -> list[str]:
    """The URLs of the checkpoints at or below a directory.

    The directory itself if nothing is found, so that the page can say what is wrong with it.
    """
    found = list(_below(files, [MAX_DIRECTORIES], 0))
    return found or [files.url]


def _below(files: Files, left: list[int], depth: int) -> Iterator[str]:
    if left[0] <= 0:
        return
    left[0] -= 1
    try:
        names = files.list()
    except (EpochalError, OSError):
        return
    if _is_checkpoint(names):
        yield files.url
        return
    if depth == MAX_DEPTH:
        return
    for info in names:
        if info.is_dir and not info.hidden and info.name not in _NEVER and "=" not in info.name:
            yield from _below(files.at(info.name), left, depth + 1)


def _is_checkpoint(names: list[FileInfo]) -> bool:
    # Tables of Iceberg have a directory `metadata`; a checkpoint has a file of that name.
    return any(
        info.name in (OFFSETS, COMMITS) if info.is_dir else info.name == METADATA for info in names
    )
