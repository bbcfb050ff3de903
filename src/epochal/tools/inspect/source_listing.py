"""Reads the logs that sources keep below `sources`, and recognizes the kind of each source.

Nothing in a checkpoint records the kind, so it is inferred from the content. A file source's log
has one JSON object per line; a Kafka source's log is a single file that does not begin with `v`; a
rate source's log contains a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from epochal.checkpoint.file_log import (
    KAFKA_INITIAL_OFFSET_FORMAT,
    RATE_FORMAT,
    FileEntry,
    FileLogFormat,
    SinkFileStatus,
    batch_id_of_file_name,
)
from epochal.checkpoint.layout import COMPACT_SUFFIX, SINK_LOG, SOURCES
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.errors import EpochalError
from epochal.files import Files
from epochal.tools.inspect.listing import Directories, Directory, LogListing, read_bytes, read_log

FILE, KAFKA, RATE, EMPTY = "file", "kafka", "rate", "empty"

SOURCE_FORMAT = FileLogFormat(FileEntry)
SINK_FORMAT = FileLogFormat(SinkFileStatus)


@dataclass(frozen=True, slots=True)
class SourceListing:
    name: str
    kind: str
    log: LogListing[Any]


def read_sources(files: Files, directories: Directories) -> dict[str, SourceListing]:
    """Read the log of every source that has a directory, by the source's position or name."""
    return {
        name: _read_source(files, name, f"{SOURCES}/{name}", directories[f"{SOURCES}/{name}"])
        for name in directories[SOURCES].folders
        if not name.startswith(".")
    }


def read_sink_log(files: Files, directories: Directories, path: str = SINK_LOG) -> LogListing[Any]:
    """Read the log of a file sink, in `path` below its output directory."""
    return read_log(files, path, directories[path], SINK_FORMAT.deserialize, suffix=COMPACT_SUFFIX)


def _read_source(files: Files, name: str, path: str, directory: Directory) -> SourceListing:
    batches = [file for file in directory.files if batch_id_of_file_name(file) is not None]
    if not batches:
        return SourceListing(name, EMPTY, LogListing(path, directory))
    only = read_bytes(files, f"{path}/0") if batches == ["0"] else b""
    kind, deserialize = _kind_of(only)
    log = read_log(files, path, directory, deserialize, suffix=COMPACT_SUFFIX)
    return SourceListing(name, kind, log)


def _kind_of(data: bytes | EpochalError) -> tuple[str, Callable[[bytes, str], Any]]:
    if isinstance(data, bytes):
        if data.startswith(b"\0") or data[1:2] == b"{":
            return KAFKA, KAFKA_INITIAL_OFFSET_FORMAT.deserialize
        lines = data[:100].splitlines()
        if len(lines) == 2 and parse_batch_id(lines[1].decode(errors="replace")) is not None:
            return RATE, RATE_FORMAT.deserialize
    return FILE, SOURCE_FORMAT.deserialize
