"""Rules about Hadoop's hidden checksums, and about the logs of files: sources and sink. Pure.

A hidden `.NAME.crc` harms in two ways only. Alone, it stops Spark when that name must be written,
unless the file is one that Spark writes over. Stale, it stops Spark where the file is read through
the checking file system, which are the files of RocksDB; elsewhere it tells us, but not Spark,
that the file was changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from epochal.checkpoint.entries import OffsetEntry
from epochal.checkpoint.file_log import (
    FileEntry,
    SinkFileStatus,
    batch_id_of_file_name,
    is_compaction_batch,
)
from epochal.checkpoint.id_ranges import listed, missing_runs
from epochal.checkpoint.layout import COMPACT_SUFFIX, SOURCES, crc_target, is_temp_file
from epochal.checkpoint.pinned import SOURCE_EVOLUTION
from epochal.checkpoint.spark_json import parse_json
from epochal.errors import MalformedFileError
from epochal.tools.inspect.listing import CheckpointListing, Directory, LogListing
from epochal.tools.inspect.source_listing import FILE, SourceListing
from epochal.tools.verify.findings import Finding, Severity, finding

CRC_MAGIC = b"crc\0"
CRC_HEADER_BYTES = 8


def crc_agrees(data: bytes, crc: bytes) -> bool | None:
    """Whether a Hadoop checksum file fits its file; None if Hadoop would not check at all."""
    chunk_bytes = int.from_bytes(crc[4:CRC_HEADER_BYTES], "big", signed=True)
    if not crc.startswith(CRC_MAGIC) or len(crc) < CRC_HEADER_BYTES or chunk_bytes <= 0:
        return None
    held = crc[CRC_HEADER_BYTES:]
    chunks = range(0, len(data), chunk_bytes)
    if len(held) != 4 * len(chunks):
        return False
    view = memoryview(data)
    return all(
        zlib.crc32(view[start : start + chunk_bytes]).to_bytes(4, "big") == held[4 * n : 4 * n + 4]
        for n, start in enumerate(chunks)
    )


def orphan_rules(path: str, directory: Directory, newest: int | None = None) -> Iterator[Finding]:
    """Checksums without their file, where Spark creates and never writes over.

    With `newest`, the names are batch ids: those up to it are not written again, unless the
    query is rewound.
    """
    names = set(directory.files)
    for name in directory.files:
        target = crc_target(name)
        if target is None or target in names or is_temp_file(name):
            continue
        batch_id = batch_id_of_file_name(target)
        passed = newest is not None and batch_id is not None and batch_id <= newest
        yield finding(
            "CRC_ORPHAN",
            f"{path}/{name}" if path else name,
            f"{target} is not there" + (", nor will it be, unless rewound" if passed else ""),
            severity=Severity.WARNING if passed else Severity.ERROR,
        )


def stale_rules(
    path: str,
    directory: Directory,
    raw: Mapping[str, bytes],
    read: Callable[[str], bytes | None],
) -> Iterator[Finding]:
    """Files that are not what their hidden checksum was written for."""
    names = set(directory.files)
    for name, data in raw.items():
        crc_name = f".{name}.crc"
        if crc_name not in names:
            continue
        full = f"{path}/{crc_name}" if path else crc_name
        crc = read(full)
        if crc is not None and crc_agrees(data, crc) is False:
            yield finding(
                "CRC_STALE",
                f"{path}/{name}" if path else name,
                f"its {len(data)} bytes are not those that {crc_name} was written for",
            )


def file_log_rules(log: LogListing[tuple[object, ...]]) -> Iterator[Finding]:
    """Names and completeness of a compactible log."""
    ids = log.ids
    if not ids:
        return
    compact = _compact_ids(log)
    if len(compact) > 1:
        yield from _compact_name_rules(log, compact)
    start = compact[-1] if compact else 0
    gone = missing_runs(ids, start, ids[-1])
    if gone:
        yield finding(
            "FILE_LOG_HOLE",
            f"{log.path}/{gone[0].start}",
            f"batch {listed(gone)} is not there; the log needs all from {start} to {ids[-1]}",
        )


def _compact_name_rules(
    log: LogListing[tuple[object, ...]], compact: list[int]
) -> Iterator[Finding]:
    interval = compact[-1] - compact[-2]
    for name in log.directory.files:
        batch_id = batch_id_of_file_name(name)
        if batch_id is None or batch_id <= compact[-2]:
            continue
        due = is_compaction_batch(batch_id, interval)
        if due != name.endswith(COMPACT_SUFFIX):
            wanted = f"{batch_id}{COMPACT_SUFFIX}" if due else str(batch_id)
            yield finding(
                "FILE_LOG_COMPACT_NAME",
                f"{log.path}/{name}",
                f"with an interval of {interval} the batch is looked for as {wanted}",
            )


def source_rules(
    listing: CheckpointListing, sources: Mapping[str, SourceListing]
) -> Iterator[Finding]:
    """File sources: their log, and whether it holds what the offsets promise."""
    for source in sources.values():
        if source.kind == FILE:
            yield from file_log_rules(source.log)
            yield from _entry_rules(source.log)
    newest = listing.offsets.latest
    entry = None if newest is None else listing.offsets.entries.get(newest)
    if entry is None or _are_named_elsewhere(entry):
        return
    for name, offset in entry.by_source.items():
        promised = _log_offset(offset)
        if promised is None or promised < 0:
            continue
        known = sources.get(name)
        latest = None if known is None else known.log.latest
        if latest is None or latest < promised:
            yield finding(
                "SOURCE_LOG_BEHIND",
                f"{SOURCES}/{name}",
                f"offsets/{newest} reaches its entry {promised}, the log "
                + ("has none" if latest is None else f"ends at {latest}"),
            )


def _are_named_elsewhere(entry: OffsetEntry) -> bool:
    """Spark 4.2 names the sources' directories but may still log their offsets by position."""
    by_position = not isinstance(entry.offsets, dict)
    return by_position and entry.conf.get(SOURCE_EVOLUTION) == "true"


def _entry_rules(log: LogListing[tuple[FileEntry, ...]]) -> Iterator[Finding]:
    compact = {name for name in log.directory.files if name.endswith(COMPACT_SUFFIX)}
    for batch_id, entries in log.entries.items():
        is_compact = f"{batch_id}{COMPACT_SUFFIX}" in compact
        for entry in entries:
            fits = entry.batch_id <= batch_id if is_compact else entry.batch_id == batch_id
            if not fits or entry.batch_id < 0:
                yield finding(
                    "FILE_LOG_BATCH_MISMATCH",
                    log.path_of(batch_id),
                    f"{entry.path} says it belongs to batch {entry.batch_id}",
                )
                break


def _log_offset(offset: str | None) -> int | None:
    """What a file source's offset points at; None for the offset of any other source."""
    if offset is None or "logOffset" not in offset:
        return None
    try:
        found = parse_json(offset, "")
    except MalformedFileError:
        return None
    value = found.get("logOffset") if isinstance(found, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def sink_rules(
    log: LogListing[tuple[SinkFileStatus, ...]], output: Iterable[str], newest: int | None
) -> Iterator[Finding]:
    """The sink's log against the names in its output directory and the checkpoint's offsets."""
    there = set(output)
    newest_compact = max(_compact_ids(log), default=0)
    for batch_id, entries in sorted(log.entries.items()):
        if batch_id < newest_compact:
            continue
        for entry in entries:
            # By its last part: a moved output directory keeps its log, whose paths are absolute.
            name = unquote(entry.path).rstrip("/").rpartition("/")[2]
            if entry.action == "add" and name not in there:
                yield finding(
                    "SINK_FILE_MISSING",
                    log.path_of(batch_id),
                    f"{entry.path} is not in the output directory",
                )
    if newest is not None and log.latest is not None and log.latest > newest:
        yield finding(
            "SINK_AHEAD",
            log.path,
            f"the sink has written batch {log.latest}, the newest offsets are {newest}",
        )


def _compact_ids(log: LogListing[Any]) -> list[int]:
    return sorted(
        batch_id
        for name in log.directory.files
        if name.endswith(COMPACT_SUFFIX) and (batch_id := batch_id_of_file_name(name)) is not None
    )
