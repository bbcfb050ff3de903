"""Chooses which small files of a table become one. Pure.

Short epochs make many small files, and readers pay for each of them. Rewriting all files in every
round would cost more and more, so a file is only rewritten together with others that are at least
as large as it in total. Each row is then rewritten a number of times that grows with the logarithm
of the table's files, until its file has about the target size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Partition: TypeAlias = tuple[tuple[str, str | None], ...]
"""Partition columns and values, as text."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of the newest version of a table."""

    path: str
    size: int
    partition: Partition = ()


def choose_bins(files: Iterable[LiveFile], target_bytes: int) -> list[tuple[LiveFile, ...]]:
    """Return groups of files to be rewritten as one file each, at most `target_bytes` together."""
    found: list[tuple[LiveFile, ...]] = []
    partitions: dict[Partition, list[LiveFile]] = {}
    for file in files:
        partitions.setdefault(file.partition, []).append(file)
    for partition in partitions.values():
        found += _bins(sorted(partition, key=lambda each: (each.size, each.path)), target_bytes)
    return found


def _bins(files: Sequence[LiveFile], target_bytes: int) -> list[tuple[LiveFile, ...]]:
    """Group files, which are sorted by size."""
    groups: list[list[LiveFile]] = [[]]
    total = 0
    for file in files:
        if groups[-1] and (file.size > total or total + file.size > target_bytes):
            groups.append([])
            total = 0
        groups[-1].append(file)
        total += file.size
    return [tuple(group) for group in groups if len(group) > 1]
