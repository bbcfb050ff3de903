"""The options of `write_stream.format("delta")`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from epochal.connectors.file.file_formats import ParquetCodec
from epochal.errors import OptionError
from epochal.options import ByteSize


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSinkOptions:
    """Where the table is, and how epochs change it."""

    path: str

    merge_keys: tuple[str, ...] = ()
    """The columns that identify a row. With them, a row replaces an earlier one of the same key."""

    merge_schema: bool = False
    """Whether columns of the query that the table lacks are added to it."""

    compression: ParquetCodec = ParquetCodec.SNAPPY

    max_file_bytes: int = 128 * 1024 * 1024
    """When a task holds this many bytes of rows, it writes them before the epoch ends."""

    compact_interval: timedelta | None = None
    """How often small files of this query become larger ones; without it, never."""

    target_file_bytes: ByteSize = 64 * 1024 * 1024
    """How large files become by compaction. The driver holds the rows of one such file."""

    log_cleanup_interval: timedelta = timedelta(hours=1)
    """How often the table's log is cleaned up, by the rules of the table."""

    reset_marker: int | None = None
    """Continue although the marker does not match, if this is the newest committed epoch."""

    def __post_init__(self) -> None:
        for name, value in (
            ("maxFileBytes", self.max_file_bytes),
            ("targetFileBytes", self.target_file_bytes),
        ):
            if value <= 0:
                raise OptionError(f"delta: {name} must be positive, not {value}.")
        for name, interval in (
            ("compactInterval", self.compact_interval),
            ("logCleanupInterval", self.log_cleanup_interval),
        ):
            if interval is not None and interval <= timedelta():
                raise OptionError(f"delta: {name} must be longer than nothing.")
