"""Checks Hadoop's hidden checksum files, and the logs of file sources and file sinks.

A hidden `.NAME.crc` does harm in two cases. If its file is missing, Spark fails when it creates
the file, unless it is a file that Spark overwrites. If it does not match its file, Spark fails to
read the file through the checksumming file system, which it uses for RocksDB's files. It ignores
the checksums of other files, so there a mismatch only shows that the file was changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from epochal.checkpoint.file_log import (
    FileEntry,
    SinkFileStatus,
    batch_id_of_file_name,
    is_compaction_batch,
)
from epochal.checkpoint.layout import (
    COMPACT_SUFFIX,
    OFFSETS,
    OWN_KEY,
    SOURCES,
    crc_target,
    is_temp_file,
)
from epochal.checkpoint.metadata_log import listed, missing_runs
from epochal.checkpoint.restart import SOURCE_EVOLUTION
from epochal.checkpoint.spark_json import LONG_MAX, parse_json
from epochal.errors import MalformedFileError
from epochal.files import Files
from epochal.tools.inspect.listing import CheckpointListing, Directory, LogListing, read_bytes
from epochal.tools.inspect.source_listing import FILE, SourceListing
from epochal.tools.inspect.state_listing import OperatorListing
from epochal.tools.verify.findings import CANNOT, REPAIR, START_OVER, Finding, Severity, finding
from epochal.wording import time_text

CRC_MAGIC = b"crc\0"
CRC_HEADER_BYTES = 8
CLOCKS_MS = 10_000
"""By how much the clocks of the driver and of the storage may differ."""


def crc_agrees(data: bytes, crc: bytes) -> bool | None:
    """Whether a Hadoop checksum file matches `data`; None if Hadoop would ignore it.

    After a header come the CRC-32 values of the chunks of the file.
    """
    chunk_bytes = int.from_bytes(crc[4:CRC_HEADER_BYTES], "big", signed=True)
    if not crc.startswith(CRC_MAGIC) or len(crc) < CRC_HEADER_BYTES or chunk_bytes <= 0:
        return None
    sums = crc[CRC_HEADER_BYTES:]
    chunks = range(0, len(data), chunk_bytes)
    if len(sums) != 4 * len(chunks):
        return False
    view = memoryview(data)
    return all(
        zlib.crc32(view[start : start + chunk_bytes]).to_bytes(4, "big") == sums[4 * n : 4 * n + 4]
        for n, start in enumerate(chunks)
    )


def orphan_rules(path: str, directory: Directory, newest: int | None = None) -> Iterator[Finding]:
    """Find checksum files without their file, in a directory where Spark never overwrites files.

    With `newest`, the names are batch ids. Spark does not write ids up to `newest` again, unless
    the query is rewound.
    """
    names = set(directory.files)
    for name in directory.files:
        target = crc_target(name)
        if target is None or target in names or is_temp_file(name):
            continue
        batch_id = batch_id_of_file_name(target)
        is_past = newest is not None and batch_id is not None and batch_id <= newest
        yield finding(
            "CRC_ORPHAN",
            f"{path}/{name}" if path else name,
            f"{target} does not exist"
            + (", and will only be written after a rewind" if is_past else ""),
            severity=Severity.WARNING if is_past else Severity.ERROR,
        )


def stale_rules(
    files: Files, path: str, names: Collection[str], raw: Mapping[str, bytes], code: str
) -> Iterator[Finding]:
    """Find files that do not match their hidden checksum file, if `names` contains one."""
    for name, data in raw.items():
        crc_name = f".{name}.crc"
        if crc_name not in names:
            continue
        crc = read_bytes(files, f"{path}/{crc_name}" if path else crc_name)
        if isinstance(crc, bytes) and crc_agrees(data, crc) is False:
            yield finding(
                code,
                f"{path}/{name}" if path else name,
                f"its {len(data)} bytes do not match the checksums in {crc_name}",
            )


def crc_rules(
    files: Files,
    path: str,
    directory: Directory,
    raw: Mapping[str, bytes],
    newest: int | None = None,
) -> Iterator[Finding]:
    """Find both in a directory with the contents `raw`; `newest` is that of `orphan_rules`."""
    yield from orphan_rules(path, directory, newest)
    yield from stale_rules(files, path, frozenset(directory.files), raw, "CRC_STALE")


def file_log_rules(log: LogListing[Any]) -> Iterator[Finding]:
    ids = log.ids
    if not ids:
        return
    compact = compact_ids(log)
    # Spark too derives the interval from the newest two compact files, not from its settings.
    interval = compact[-1] - compact[-2] if len(compact) > 1 else None
    for name in log.directory.files:
        batch_id = batch_id_of_file_name(name)
        if batch_id is None or (interval is not None and batch_id <= compact[-2]):
            continue
        due = batch_id in compact if interval is None else is_compaction_batch(batch_id, interval)
        if due != name.endswith(COMPACT_SUFFIX):
            wanted = f"{batch_id}{COMPACT_SUFFIX}" if due else str(batch_id)
            yield finding(
                "FILE_LOG_COMPACT_NAME",
                f"{log.path}/{name}",
                f"{wanted} is there, too"
                if interval is None
                else f"with a compaction interval of {interval}, Spark looks for {wanted}",
            )
    for name, message in contradictions(log.by_name):
        yield finding("FILE_LOG_HOLE", f"{log.path}/{name}", message)
    start = compact[-1] if compact else 0
    missing = missing_runs(ids, start, ids[-1])
    if missing:
        yield finding(
            "FILE_LOG_HOLE",
            f"{log.path}/{missing[0].start}",
            f"batch {listed(missing)} is missing; the log needs all from {start} to {ids[-1]}",
        )


def contradictions(files: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Find the files of a log that are torn or copies of others, by the entries of all its files.

    Every file that a query reads or writes belongs to one batch, and a compact file lists those of
    all batches up to its own. A source logs no batch without files, and its entries name their
    batch. A sink may be told to forget old files, so those older than all others may be missing.
    """
    ids = {name: found for name in files if (found := batch_id_of_file_name(name)) is not None}
    newest = max((n for name, n in ids.items() if name.endswith(COMPACT_SUFFIX)), default=-1)
    compact = f"{newest}{COMPACT_SUFFIX}"
    if any(isinstance(entry, FileEntry) for entries in files.values() for entry in entries[:1]):
        lacking = missing_runs((each.batch_id for each in files.get(compact, ())), 0, newest)
        if compact in files and lacking:
            yield compact, f"it lacks the files of batch {listed(lacking)}: it is torn, or a copy"
        return
    listed_in = {entry.path: compact for entry in files.get(compact, ())}
    oldest = min((entry.modification_time for entry in files.get(compact, ())), default=LONG_MAX)
    for name in sorted(ids, key=ids.__getitem__):
        paths = [each.path for each in files[name] if each.modification_time >= oldest]
        if ids[name] <= newest and not listed_in.keys() >= set(paths):
            yield compact, f"it lacks files that {name} lists: it is torn, or a copy"
            break
    else:
        if (twin := _twin(ids, files)) is not None:
            yield compact, f"it lists the same files as {twin}: it is a copy"
    for name in sorted((name for name in ids if ids[name] > newest), key=ids.__getitem__):
        paths = [entry.path for entry in files[name]]
        if twins := [listed_in[path] for path in paths if path in listed_in]:
            yield name, f"it lists files of {twins[0]}: it is a copy"
        listed_in.update(dict.fromkeys(paths, name))


def _twin(ids: Mapping[str, int], files: Mapping[str, Sequence[Any]]) -> str | None:
    """The compact file before the newest one, if that must be a copy of it.

    Batches that write nothing make two of the same content, too, but no names that do not fit.
    """
    compacts = sorted((n for n in ids if n.endswith(COMPACT_SUFFIX)), key=ids.__getitem__)
    if len(compacts) < 2 or not files[compacts[-1]] or files[compacts[-1]] != files[compacts[-2]]:
        return None
    before = ids[compacts[-2]]
    interval = ids[compacts[-1]] - before
    misnamed = any(
        is_compaction_batch(batch_id, interval) != name.endswith(COMPACT_SUFFIX)
        for name, batch_id in ids.items()
        if batch_id > before
    )
    return compacts[-2] if misnamed else None


def source_rules(
    listing: CheckpointListing, sources: Mapping[str, SourceListing]
) -> Iterator[Finding]:
    """Check the logs of file sources, and the newest offsets: the logs have every entry that they
    name, and they are not behind those of the batch before. Spark asks for all between the two."""
    for source in sources.values():
        if source.kind == FILE:
            for found in file_log_rules(source.log):
                is_there = found.path.removeprefix(f"{source.log.path}/") in source.log.by_name
                if found.code == "FILE_LOG_HOLE" and is_there:
                    remedy = _torn_remedy(source.log, _reached(listing, source.name))
                    yield replace(found, remedy=remedy)
                else:
                    yield found
            yield from _entry_rules(source.log)
    newest = listing.offsets.latest
    entry = None if newest is None else listing.offsets.entries.get(newest)
    if entry is None:
        return
    if not isinstance(entry.offsets, dict) and entry.conf.get(SOURCE_EVOLUTION) == "true":
        return  # Spark 4.2 may name the sources' directories, and still log offsets by position
    assert newest is not None
    before = listing.offsets.entries.get(newest - 1)
    earlier = {} if before is None else before.by_source
    for name, offset in entry.by_source.items():
        promised, reached = log_offset(offset), log_offset(earlier.get(name))
        if promised is not None and reached is not None and promised < reached:
            yield finding(
                "OFFSETS_BACKWARDS",
                f"{OFFSETS}/{newest}",
                f"source {name} ends at its entry {promised}; in batch {newest - 1} it has "
                f"reached {reached}",
            )
        if promised is None or promised < 0:
            continue
        known = sources.get(name)
        latest = None if known is None else known.log.latest
        if latest is None or latest < promised:
            yield finding(
                "SOURCE_LOG_BEHIND",
                f"{SOURCES}/{name}",
                f"offsets/{newest} names its entry {promised}, but the log "
                + ("is empty" if latest is None else f"ends at {latest}"),
            )


def _reached(listing: CheckpointListing, source: str) -> int:
    """The last entry of a source's log that any offsets name; -1 if there is none."""
    offsets = (entry.by_source.get(source) for entry in listing.offsets.entries.values())
    return max((log_offset(offset) or 0 for offset in offsets if offset is not None), default=-1)


def _torn_remedy(log: LogListing[tuple[FileEntry, ...]], reached: int) -> str:
    """What to do about a compact file that lacks batches, where offsets name those to `reached`."""
    newest = compact_ids(log)[-1]
    listed_by = {name: {each.batch_id for each in log.by_name[name]} for name in log.by_name}
    own = listed_by.pop(f"{newest}{COMPACT_SUFFIX}")
    elsewhere = set[int]().union(*listed_by.values())
    if newest > reached and newest not in own and not missing_runs(elsewhere, 0, reached):
        return f"Use {REPAIR}: it removes the file, which no offsets name."
    if not missing_runs(elsewhere | own, 0, newest):
        return f"Use {REPAIR}: it writes the file again, from the other files of the log."
    return (
        f"{CANNOT}: which files the query has read is recorded nowhere else, so it would read them "
        f"again. Restore `sources` from a backup, or {START_OVER}."
    )


def _entry_rules(log: LogListing[tuple[FileEntry, ...]]) -> Iterator[Finding]:
    for batch_id, entries in log.entries.items():
        is_compact = f"{batch_id}{COMPACT_SUFFIX}" in log.directory.files
        for entry in entries:
            fits = entry.batch_id <= batch_id if is_compact else entry.batch_id == batch_id
            if not fits or entry.batch_id < 0:
                yield finding(
                    "FILE_LOG_BATCH_MISMATCH",
                    log.path_of(batch_id),
                    f"its entry for {entry.path} has the batch id {entry.batch_id}",
                )
                break


def log_offset(offset: str | None) -> int | None:
    """The log entry that a file source's offset names; None for other sources."""
    if offset is None or "logOffset" not in offset:
        return None
    try:
        found = parse_json(offset, "")
    except MalformedFileError:
        return None
    value = found.get("logOffset") if isinstance(found, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def sink_rules(
    log: LogListing[tuple[SinkFileStatus, ...]],
    output: Iterable[str],
    newest: int | None,
    committed: int | None = None,
) -> Iterator[Finding]:
    """Compare a sink's log with the files in its output directory and the checkpoint's logs.

    `newest` is the newest batch that has offsets, `committed` the newest committed one.
    """
    there = set(output)
    newest_compact = max(compact_ids(log), default=0)
    for batch_id, entries in sorted(log.entries.items()):
        if batch_id < newest_compact:
            continue
        for entry in entries:
            # Only the file name is compared: the paths are absolute, and an output directory that
            # was moved keeps its old log.
            name = unquote(entry.path).rstrip("/").rpartition("/")[2]
            if entry.action == "add" and name not in there:
                yield finding(
                    "SINK_FILE_MISSING",
                    log.path_of(batch_id),
                    f"{entry.path} is not in the output directory",
                )
    latest = -1 if log.latest is None else log.latest
    if committed is not None and latest < committed:
        yield finding(
            "FILE_LOG_HOLE",
            f"{log.path}/{latest + 1}",
            f"batch {committed} is committed, but the sink's log "
            + ("is empty" if latest < 0 else f"ends at batch {latest}"),
        )
    if newest is not None and log.latest is not None and log.latest > newest:
        yield finding(
            "SINK_AHEAD",
            log.path,
            f"the sink has written batch {log.latest}, but the newest offsets are of batch "
            f"{newest}",
        )


def foreign_rules(
    log: LogListing[tuple[SinkFileStatus, ...]], listing: CheckpointListing
) -> Iterator[Finding]:
    """Find an output that had batches before this query planned them.

    Spark skips a batch that the log has, without a word. So a new checkpoint over an old output
    loses rows, and so does a query that was rewound without its sink. A continuous query logs an
    epoch after it has written its files, and some storages do not tell times.
    """
    if log.latest is None:
        return
    if listing.offsets.latest is None and listing.commits.latest is None:
        yield finding(
            "SINK_OF_ANOTHER_QUERY",
            log.path,
            f"it ends at batch {log.latest}, but the checkpoint has no batch yet: Spark will skip "
            f"the batches up to {log.latest}",
        )
        return
    planned, compact = planned_times(listing), set(compact_ids(log))
    written = {
        batch_id: max(entry.modification_time for entry in entries)
        for batch_id, entries in sorted(log.entries.items())
        if any(entry.modification_time for entry in entries)
        and (batch_id not in compact or batch_id == log.latest)
    }
    first = min(planned.values(), default=0)
    everything = max(written.values(), default=first)
    for batch_id, at in written.items():
        is_skipped = batch_id not in compact and at + CLOCKS_MS < planned.get(batch_id, 0)
        if is_skipped or everything + CLOCKS_MS < first:
            yield finding(
                "SINK_OF_ANOTHER_QUERY",
                log.path_of(batch_id),
                f"the files of batch {batch_id} were written at {time_text(at)}, before this query "
                f"planned the batch at {time_text(planned.get(batch_id, first))}: Spark has "
                f"skipped it",
            )
            return


def planned_times(listing: CheckpointListing) -> dict[int, int]:
    """When Spark planned each batch, as far as the offsets tell."""
    return {
        batch_id: entry.timestamp_ms
        for batch_id, entry in listing.offsets.entries.items()
        if OWN_KEY not in entry.extra
    }


def own_batches(
    log: LogListing[tuple[SinkFileStatus, ...]], listing: CheckpointListing
) -> list[int]:
    """The batches that the sink surely wrote after this query planned them."""
    planned, compact = planned_times(listing), set(compact_ids(log))
    return [
        batch_id
        for batch_id, entries in log.entries.items()
        if batch_id not in compact
        and batch_id in planned
        and any(entry.modification_time for entry in entries)
        and min(entry.modification_time for entry in entries) + CLOCKS_MS >= planned[batch_id]
    ]


def skipped_rules(
    log: LogListing[Any], listing: CheckpointListing, operators: Iterable[OperatorListing]
) -> Iterator[Finding]:
    """Find a batch that Spark must run again for its state, and that its sink would skip.

    Spark does not even compute the rows of a batch that the sink's log has. So the state after the
    batch would never be written, and the next batch would fail. A continuous query finishes such a
    batch without computing it again.
    """
    batch_id = listing.restart_version
    if batch_id != listing.offsets.latest or listing.is_continuous:
        return
    count = listing.partitions_at(batch_id)
    behind = [
        store.path
        for operator in operators
        for store in operator.stores
        if (count is None or store.partition < count) and batch_id + 1 not in store.versions
    ]
    if behind and log.latest is not None and log.latest >= batch_id:
        yield finding(
            "SINK_AHEAD",
            log.path_of(batch_id),
            f"the sink has written batch {batch_id}, which is not committed, so Spark skips it and "
            f"never writes its state; {behind[0]} has no version {batch_id + 1}, so the next batch "
            f"fails",
            severity=Severity.ERROR,
        )


def compact_ids(log: LogListing[Any]) -> list[int]:
    """The batches of a log that have a compact file, ascending."""
    return sorted(
        batch_id
        for name in log.directory.files
        if name.endswith(COMPACT_SUFFIX) and (batch_id := batch_id_of_file_name(name)) is not None
    )
