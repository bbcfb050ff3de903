"""Reads the live entries of a single log directory of any kind.

Spark gives three logs fixed names: `offsets`, `commits` and `_spark_metadata`. The kind of every
other log is inferred from the content of its newest file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.layout import COMMITS, COMPACT_SUFFIX, OFFSETS, SINK_LOG
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.errors import CheckpointError, EpochalError, MissingBatchError
from epochal.files import Files, join_url
from epochal.tools.inspect.listing import Directory, LogListing, read_log, require_directory
from epochal.tools.inspect.view_models import offsets_json


class LogKind(StrEnum):
    OFFSETS = "offsets"
    COMMITS = "commits"
    FILE_SOURCE = "file source"
    FILE_SINK = "file sink"
    KAFKA = "kafka source"
    RATE = "rate source"

    @property
    def is_of_files(self) -> bool:
        return self in (LogKind.FILE_SOURCE, LogKind.FILE_SINK)

    @property
    def is_of_a_source(self) -> bool:
        return self in (LogKind.KAFKA, LogKind.RATE)


Line = tuple[int, object]
"""A batch id, and the entry as JSON."""


def read_lines(files: Files) -> tuple[LogKind, list[Line], list[EpochalError]]:
    """Return the kind of a log, its live entries in order, and the errors of the others."""
    require_directory(files)
    infos = files.list()
    directory = Directory(
        tuple(info.name for info in infos if info.is_dir),
        tuple(info.name for info in infos if not info.is_dir),
    )
    kind = kind_of(files, directory)
    decoders: dict[LogKind, tuple[Any, Callable[[Any], object]]] = {
        LogKind.OFFSETS: (OFFSET_FORMAT.deserialize, _offset_json),
        LogKind.COMMITS: (COMMIT_FORMAT.deserialize, _commit_json),
    }
    if kind not in decoders:
        return kind, list(_source_lines(files, kind)), []
    decode, shown = decoders[kind]
    log: LogListing[Any] = read_log(files, "", directory, decode)
    lines = [(batch_id, shown(entry)) for batch_id, entry in sorted(log.entries.items())]
    return kind, lines, list(log.broken.values())


def kind_of(files: Files, directory: Directory) -> LogKind:
    """Return the kind of the log in a directory; CheckpointError if it contains no log."""
    name = files.url.rstrip("/").rpartition("/")[2]
    if name == OFFSETS:
        return LogKind.OFFSETS
    if name == COMMITS:
        return LogKind.COMMITS
    if name == SINK_LOG:
        return LogKind.FILE_SINK
    batches = [
        (batch_id, file)
        for file in directory.files
        if (batch_id := parse_batch_id(file.removesuffix(COMPACT_SUFFIX))) is not None
    ]
    if not batches:
        raise CheckpointError(
            f"{files.url} is not a log: no file in it has a batch id as its name. Pass one "
            f"directory of a checkpoint, such as offsets, commits or sources/0, or the "
            f"{SINK_LOG} directory of a file sink's output."
        )
    newest = files.read(max(batches)[1])
    if len(batches) == 1 and not newest.startswith(b"v"):
        return LogKind.KAFKA
    for mark, kind in (
        (b'"batchWatermarkMs"', LogKind.OFFSETS),
        (b'"nextBatchWatermarkMs"', LogKind.COMMITS),
        (b'"modificationTime"', LogKind.FILE_SINK),
    ):
        if mark in newest:
            return kind
    if parse_batch_id(newest.partition(b"\n")[2].decode(errors="replace").strip()) is not None:
        return LogKind.RATE
    return LogKind.FILE_SOURCE


def _source_lines(files: Files, kind: LogKind) -> Iterator[Line]:
    from msgspec import to_builtins

    from epochal.checkpoint.file_log import (
        FileSinkLog,
        FileSourceLog,
        KafkaInitialOffsetLog,
        RateLog,
        live_batches,
    )

    if kind is LogKind.KAFKA:
        for batch_id, initial in KafkaInitialOffsetLog(files, read_only=True).get_range():
            yield batch_id, initial.offsets
        return
    if kind is LogKind.RATE:
        yield from RateLog(files, read_only=True).get_range()
        return
    log: FileSinkLog | FileSourceLog = FileSourceLog(files, read_only=True)
    if kind is LogKind.FILE_SINK:
        log = FileSinkLog(files, read_only=True)
    newest = log.latest_batch_id()
    if newest is None:
        return
    for batch_id in live_batches(newest, log.compact_interval):
        entries = log.get(batch_id)
        if entries is None:
            name = log.path_of(batch_id)
            raise MissingBatchError(
                join_url(files.url, name),
                (batch_id,),
                f"it does not exist, but the live entries up to batch {newest} depend on it. Run "
                f"`epochal checkpoint verify` to see how to repair the log.",
            )
        for entry in entries:
            own = getattr(entry, "batch_id", batch_id)
            yield own, to_builtins(entry)


def _offset_json(entry: OffsetEntry) -> dict[str, object]:
    return {
        "version": entry.version,
        "offsets": offsets_json(entry),
        "watermark_ms": entry.watermark_ms,
        "timestamp_ms": entry.timestamp_ms,
        "conf": dict(entry.conf),
        **dict(entry.extra),
    }


def _commit_json(entry: CommitEntry) -> dict[str, object]:
    fields: dict[str, object] = {
        "version": entry.version,
        "next_watermark_ms": entry.next_watermark_ms,
    }
    if entry.state_unique_ids is not None:
        fields["state_unique_ids"] = {
            str(operator): [list(stores) for stores in partitions]
            for operator, partitions in entry.state_unique_ids.items()
        }
    if entry.sink_metadata:
        fields["sinks"] = {
            name: {
                "commit_offset": sink.commit_offset,
                "provider": sink.provider_name,
                "api_version": sink.api_version,
                "is_active": sink.is_active,
            }
            for name, sink in entry.sink_metadata.items()
        }
    return {**fields, **dict(entry.extra)}
