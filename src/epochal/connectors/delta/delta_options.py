"""The options of `write_stream.format("delta")`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from epochal.connectors.file.file_formats import ParquetCodec
from epochal.connectors.tables.compaction import (
    Compaction,
    check_compaction,
    check_intervals,
    check_positive,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSinkOptions(Compaction):
    """Where the table is, and how epochs change it."""

    path: str

    merge_keys: tuple[str, ...] = ()
    """The columns that identify a row. With them, a row replaces an earlier one of the same key."""

    merge_schema: bool = False
    """Whether columns of the query that the table lacks are added to it."""

    compression: ParquetCodec = ParquetCodec.SNAPPY

    max_file_bytes: int = 128 * 1024 * 1024
    """When a task holds this many bytes of rows, it writes them before the epoch ends."""

    log_cleanup_interval: timedelta = timedelta(hours=1)
    """How often the table's log is cleaned up, by the rules of the table."""

    reset_marker: int | None = None
    """Continue although the marker does not match, if this is the newest committed epoch."""

    def __post_init__(self) -> None:
        check_positive("delta", max_file_bytes=self.max_file_bytes)
        check_intervals("delta", log_cleanup_interval=self.log_cleanup_interval)
        check_compaction("delta", self)
