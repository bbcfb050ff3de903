"""Chooses which small files of a table become one, and when. Pure.

Short epochs make many small files, and readers pay for each of them. Rewriting all files in every
round would cost more and more, so a file is only rewritten together with others that are at least
half as large as it in total. Each row is then rewritten a number of times that grows with the
logarithm of the table's files, until its file has about the target size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from epochal.errors import OptionError
from epochal.options import ByteSize, option_name

Partition: TypeAlias = tuple[Any, ...]
"""The partition of a file, as its format has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The options of all sinks that write tables of files."""

    compact_interval: timedelta | None = None
    """How often small files become larger ones; without it, never."""

    target_file_bytes: ByteSize = 64 * 1024 * 1024
    """How large files become by compaction. The driver holds the rows of one such file."""

    compact_min_files: int = 2
    """Fewer small files of a partition than this are left alone."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of the newest version of a table."""

    path: str
    size: int
    partition: Partition = ()


def check_compaction(sink: str, options: Compaction) -> None:
    """Raise OptionError if the options of compaction cannot work."""
    check_positive(sink, target_file_bytes=options.target_file_bytes)
    check_intervals(sink, compact_interval=options.compact_interval)
    if options.compact_min_files < 2:
        raise OptionError(
            f"{sink}: compactMinFiles must be at least 2, not {options.compact_min_files}. A "
            f"single file cannot be compacted."
        )


def check_positive(sink: str, **numbers: int | None) -> None:
    """Raise OptionError if one of these options is not positive."""
    for name, value in numbers.items():
        if value is not None and value <= 0:
            raise OptionError(f"{sink}: {option_name(name)} must be positive, not {value}.")


def check_intervals(sink: str, **intervals: timedelta | None) -> None:
    """Raise OptionError if one of these options is no time at all."""
    for name, interval in intervals.items():
        if interval is not None and interval <= timedelta():
            raise OptionError(f"{sink}: {option_name(name)} must be longer than nothing.")


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
