"""Chooses which small files of a table become one, and when. Pure.

Short epochs make many small files, and readers pay for each of them. Rewriting all files in every
round would cost more and more, so a file is only rewritten together with others that are at least
half as large as it in total. Each row is then rewritten a number of times that grows with the
logarithm of the table's files, until its file has about the target size.

Which files may be rewritten at all, a format says: `MaintainedTable.live_files`. In a Delta table
they are those that the query itself has written. In an Iceberg table they are all files of the
branch, whoever wrote them, with the present partition spec. The options of all table sinks are
here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from epochal.connectors.formats import check_intervals, check_positive
from epochal.errors import OptionError
from epochal.options import ByteSize

Partition: TypeAlias = tuple[Any, ...]
"""The partition of a file, as its format has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When small files of a table become larger ones."""

    compact_interval: timedelta | None = None
    """How often small files become larger ones; without it, never."""

    target_file_bytes: ByteSize = 64 * 1024 * 1024
    """How large files become by compaction. The driver holds the rows of one such file."""

    compact_min_files: int = 2
    """Fewer small files of a partition than this are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriting(Compaction):
    """The options of all sinks that write tables of files."""

    merge_keys: tuple[str, ...] = ()
    """The columns that identify a row. With them, a row replaces an earlier one of the same key."""

    merge_schema: bool = False
    """Whether columns of the query that the table lacks are added to it."""

    max_file_bytes: ByteSize = 128 * 1024 * 1024
    """When a task holds this many bytes of rows, it writes them before the epoch ends."""

    reset_marker: int | None = None
    """Continue although the marker does not match, if this is the newest committed epoch."""

    def check_table_options(self, sink: str) -> None:
        """Raise OptionError if one of these options cannot work."""
        check_positive(
            sink, max_file_bytes=self.max_file_bytes, target_file_bytes=self.target_file_bytes
        )
        check_intervals(sink, compact_interval=self.compact_interval)
        if self.compact_min_files < 2:
            raise OptionError(
                f"{sink}: compactMinFiles must be at least 2, not {self.compact_min_files}. A "
                f"single file cannot be compacted."
            )

    @property
    def compaction(self) -> Compaction:
        return self


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of the newest version of a table."""

    path: str
    size: int
    partition: Partition = ()


def choose_groups(
    files: Iterable[LiveFile], target_bytes: int, min_files: int = 2
) -> list[tuple[LiveFile, ...]]:
    """Return groups of files to be rewritten as one file each, at most `target_bytes` together."""
    partitions: dict[Partition, list[LiveFile]] = {}
    for file in files:
        partitions.setdefault(file.partition, []).append(file)
    return [
        tuple(group)
        for partition in partitions.values()
        for group in _groups(partition, target_bytes)
        if len(group) >= min_files
    ]


def _groups(files: Sequence[LiveFile], target_bytes: int) -> list[list[LiveFile]]:
    groups: list[list[LiveFile]] = [[]]
    total = 0
    for file in sorted(files, key=lambda file: (file.size, file.path)):
        if groups[-1] and (file.size > 2 * total or total + file.size > target_bytes):
            groups.append([])
            total = 0
        groups[-1].append(file)
        total += file.size
    return groups
