"""Repairs the logs of file sources and file sinks from their other entries. It reads, but never
writes.

Each entry of a source's log records the batch that added the file, and a compact file repeats all
earlier entries. So a batch can be written again as long as a later compact file can be read. A
batch that no offsets name yet can be removed: the source finds its files again.

In a sink's log, a batch that an edit added wrote no files, so its entry is empty, or, if it is due
for a compaction, repeats the entries before it. The entry of any other batch lists files that are
recorded nowhere else. Such an entry is not invented: the query must go back and write the batch
again.

Note: an edit copies the timestamp of the batch before. Spark takes a new one for each batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from epochal.checkpoint.file_log import (
    DEFAULT_COMPACT_INTERVAL,
    FileEntry,
    SinkFileStatus,
    derive_compact_interval,
    is_compaction_batch,
)
from epochal.checkpoint.layout import COMPACT_SUFFIX, SINK_LOG
from epochal.checkpoint.metadata_log import missing_runs
from epochal.checkpoint.spark_json import parse_object
from epochal.errors import EpochalError
from epochal.files import join_url
from epochal.tools.edit.edit_file_log import (
    SinkSurvey,
    log_batches,
    obsolete_compacts,
    readable_entries,
)
from epochal.tools.edit.repair_draft import RepairDraft
from epochal.tools.inspect.source_listing import SINK_FORMAT, SOURCE_FORMAT
from epochal.tools.verify.check_files import contradictions
from epochal.tools.verify.check_logs import added_by_edit

UNKNOWN = (
    "the files of the batch are recorded nowhere else; restore it from a backup, or rewind to a "
    "batch whose offsets do not include it"
)


def mend_source_batch(draft: RepairDraft, directory: str, batch_id: int) -> str | None:
    """Write one unreadable batch of the log in `directory` again, or remove it if not needed."""
    names = log_batches(draft.surveyed.tree, directory)
    entries = _entries(draft, directory, names)
    path = next(f"{directory}/{name}" for name, number in names.items() if number == batch_id)
    if batch_id > _reached(draft, directory) and batch_id == max(names.values()):
        draft.remove(path, "unreadable, and no offsets name it: its files are found again")
        return None
    by_batch = _by_batch(entries)
    if batch_id >= max(_compacts(names, entries), default=-1) or batch_id not in by_batch:
        return UNKNOWN
    content = SOURCE_FORMAT.serialize(_due(by_batch, batch_id, names))
    draft.add(draft.surveyed.tree.write(path, content, "from a later compact file"))
    return None


def mend_file_log(draft: RepairDraft, directory: str) -> str | None:
    """Write the batches that are missing, or have the wrong name for the compaction interval."""
    names = log_batches(draft.surveyed.tree, directory)
    entries = _entries(draft, directory, names)
    if len(entries) < len(names):
        return "some of its batches cannot be read: repair those first"
    reached = _reached(draft, directory)
    copies = [
        name
        for name, batch_id in names.items()
        if batch_id > reached >= 0 and batch_id not in {each.batch_id for each in entries[name]}
    ]
    if copies:
        for name in copies:
            draft.remove(f"{directory}/{name}", "a copy of an earlier file: no offsets name it")
        return None
    if hiding := obsolete_compacts(entries):
        for name in hiding:
            draft.remove(f"{directory}/{name}", "a later compact file has its files")
        return None
    by_batch = _by_batch(entries)
    torn = dict(contradictions(entries))
    if any(missing_runs(by_batch, 0, names[name]) for name in torn):
        return UNKNOWN
    tree = draft.surveyed.tree
    for batch_id in range(max(_compacts(names, entries), default=0), max(names.values()) + 1):
        if batch_id not in by_batch and batch_id not in names.values():
            return UNKNOWN
        due = is_compaction_batch(batch_id, _interval(names))
        wanted = f"{batch_id}{COMPACT_SUFFIX}" if due else str(batch_id)
        if wanted not in names or wanted in torn:
            content = SOURCE_FORMAT.serialize(_due(by_batch, batch_id, names))
            draft.add(tree.write(f"{directory}/{wanted}", content, "required by the interval"))
        for name, other in names.items():
            if other == batch_id and name != wanted:
                draft.remove(f"{directory}/{name}", f"replaced by {wanted}")
    return None


def _entries(
    draft: RepairDraft, directory: str, names: dict[str, int]
) -> dict[str, tuple[FileEntry, ...]]:
    """The entries of the files that can be read."""
    entries = {}
    for name in names:
        path = f"{directory}/{name}"
        with suppress(EpochalError, OSError):
            raw = draft.surveyed.files.read(path)
            entries[name] = SOURCE_FORMAT.deserialize(raw, join_url(draft.surveyed.url, path))
    return entries


def _by_batch(entries: dict[str, tuple[FileEntry, ...]]) -> dict[int, dict[str, FileEntry]]:
    """Group all files by the batch that added them, in the order of the log."""
    by_batch: dict[int, dict[str, FileEntry]] = {}
    for listed in entries.values():
        for entry in listed:
            by_batch.setdefault(entry.batch_id, {})[entry.path] = entry
    return by_batch


def _due(
    by_batch: dict[int, dict[str, FileEntry]], batch_id: int, names: dict[str, int]
) -> list[FileEntry]:
    """Return the entries of a batch's file: its own, or all up to it if it is a compact file."""
    due = [batch_id]
    if is_compaction_batch(batch_id, _interval(names)):
        due = sorted(number for number in by_batch if number <= batch_id)
    return [entry for number in due for entry in by_batch.get(number, {}).values()]


def _compacts(names: dict[str, int], chosen: Iterable[str]) -> list[int]:
    return sorted(names[name] for name in chosen if name.endswith(COMPACT_SUFFIX))


def _interval(names: dict[str, int]) -> int:
    return derive_compact_interval(DEFAULT_COMPACT_INTERVAL, _compacts(names, names))


def _reached(draft: RepairDraft, directory: str) -> int:
    """Return the last batch of the log that any offsets name."""
    source = directory.rpartition("/")[2]
    reached = -1
    for entry in draft.surveyed.offsets.values():
        offset = entry.by_source.get(source)
        if offset is not None and "logOffset" in offset:
            named = parse_object(offset, directory).get("logOffset")
            reached = max(reached, named if isinstance(named, int) else -1)
    return reached


def _can_be_read(sink: SinkSurvey, name: str) -> bool:
    try:
        sink.entries(name)
    except (EpochalError, OSError):
        return False
    return True


def mend_sink_log(draft: RepairDraft, sink: SinkSurvey) -> str | None:
    """Write the batches that are missing, or have the wrong name for the compaction interval."""
    entries = {name: readable_entries(sink, name) for name in sink.names}
    if damaged := next(contradictions(entries), None):
        return f"{SINK_LOG}/{damaged[0]} cannot be trusted: {damaged[1]}"
    if hiding := obsolete_compacts(entries):
        for hidden in hiding:
            draft.remove(f"{SINK_LOG}/{hidden}", "a later compact file has its files")
        return None
    names = {batch_id: name for name, batch_id in sink.names.items()}
    compacts = [each for each, name in names.items() if name.endswith(COMPACT_SUFFIX)]
    committed = max(draft.surveyed.commits, default=-1)
    first, last = max(compacts, default=0), max([*names, committed])
    # The first is enough: a name in the directory may claim any number, up to 2**63.
    lost = next(
        (
            batch_id
            for batch_id in range(first, last + 1)
            if batch_id not in names and not added_by_edit(draft.surveyed.offsets, batch_id)
        ),
        None,
    )
    if lost is not None:
        return (
            f"batch {lost} was not added by an edit, and the files that it wrote are recorded "
            f"nowhere else: restore {SINK_LOG}/{lost} from a backup, or run `epochal "
            f"checkpoint rewind CHECKPOINT --to-batch {lost - 1} --sink OUTPUT`"
        )
    for other, batch_id in sink.names.items():
        if other != (wanted := sink.log.path_of(batch_id)) and wanted in sink.names:
            if batch_id >= first and not _can_be_read(sink, other):
                return (
                    f"{SINK_LOG}/{other} cannot be read: it may be the right one, and not {wanted}"
                )
            draft.remove(f"{SINK_LOG}/{other}", f"there is {wanted}")
            names[batch_id] = wanted
    live: list[SinkFileStatus] = []
    for batch_id in range(first, last + 1):
        name = names.get(batch_id)
        try:
            own = [] if name is None else list(sink.entries(name))
        except (EpochalError, OSError):
            return f"{SINK_LOG}/{name} cannot be read: repair that first"
        if name is not None and name.endswith(COMPACT_SUFFIX):
            earlier = set(live)
            own = [entry for entry in own if entry not in earlier]
        live += own
        # Write the batch under the name that the interval requires, unless it is there.
        if name == (wanted := sink.log.path_of(batch_id)):
            continue
        due = is_compaction_batch(batch_id, sink.log.compact_interval)
        content = SINK_FORMAT.serialize(live if due else own)
        why = "the batch was added by an edit" if name is None else f"was named {name}"
        draft.add(sink.tree.write(f"{SINK_LOG}/{wanted}", content, why))
        if name is not None:
            draft.remove(f"{SINK_LOG}/{name}", f"replaced by {wanted}")
    return None
