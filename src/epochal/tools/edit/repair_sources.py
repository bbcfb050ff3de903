"""Mends the log of a file source from what its other batches say. Pure, given their entries.

Each entry names the source's own batch that took the file in, and a compact file repeats all of
them; so a batch can be written again as long as one later compact file can be read. A batch that
no offsets reach yet may simply go: its files are found again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from epochal.checkpoint.file_log import (
    DEFAULT_COMPACT_INTERVAL,
    FileEntry,
    FileLogFormat,
    batch_id_of_file_name,
    derive_compact_interval,
    is_compaction_batch,
)
from epochal.checkpoint.layout import COMPACT_SUFFIX
from epochal.errors import EpochalError
from epochal.files import join_url

if TYPE_CHECKING:
    from epochal.tools.edit.repair import Mender

SOURCE_FORMAT: FileLogFormat[FileEntry] = FileLogFormat(FileEntry)

UNKNOWN = (
    "which files the batch took in is recorded nowhere else; restore it from a backup, or rewind "
    "to a batch whose offsets do not reach it"
)


def mend_source_batch(mender: Mender, directory: str, batch_id: int) -> str | None:
    """Replace one unreadable batch of the log in `directory`, or remove it if nobody needs it."""
    names = _names(mender, directory)
    entries = _entries(mender, directory, names)
    path = f"{directory}/{_name(names, batch_id)}"
    if batch_id > _reached(mender, directory) and batch_id == max(names.values()):
        mender.remove(path, "unreadable, and no offsets reach it: its files are found again")
        return None
    if batch_id < max(_compacts(names, readable=entries), default=-1):
        known = _known(entries)
        if batch_id not in known:
            return UNKNOWN
        content = SOURCE_FORMAT.serialize(_due(known, batch_id, names))
        mender.add(mender.surveyed.tree.write(path, content, "as a later compact file tells"))
        return None
    return UNKNOWN


def mend_file_log(mender: Mender, directory: str) -> str | None:
    """Write missing batches, and those under the wrong name, as the log's interval demands."""
    names = _names(mender, directory)
    entries = _entries(mender, directory, names)
    if len(entries) < len(names):
        return "some of its batches cannot be read: mend those first"
    known = _known(entries)
    compacts = _compacts(names, readable=entries)
    tree = mender.surveyed.tree
    for batch_id in range(max(compacts, default=0), max(names.values()) + 1):
        if batch_id not in known and batch_id not in names.values():
            return UNKNOWN
        due = is_compaction_batch(batch_id, _interval(names))
        wanted = f"{batch_id}{COMPACT_SUFFIX}" if due else str(batch_id)
        if wanted not in names:
            content = SOURCE_FORMAT.serialize(_due(known, batch_id, names))
            mender.add(tree.write(f"{directory}/{wanted}", content, "as the interval demands"))
            for name, other in names.items():
                if other == batch_id:
                    mender.remove(f"{directory}/{name}", f"is {wanted} now")
    return None


def _names(mender: Mender, directory: str) -> dict[str, int]:
    found = {name: batch_id_of_file_name(name) for name in mender.surveyed.tree.names(directory)}
    return {name: batch_id for name, batch_id in found.items() if batch_id is not None}


def _name(names: dict[str, int], batch_id: int) -> str:
    return next(name for name, other in names.items() if other == batch_id)


def _entries(
    mender: Mender, directory: str, names: dict[str, int]
) -> dict[str, tuple[FileEntry, ...]]:
    found = {}
    for name in names:
        path = f"{directory}/{name}"
        try:
            raw = mender.surveyed.files.read(path)
            found[name] = SOURCE_FORMAT.deserialize(raw, join_url(mender.surveyed.url, path))
        except (EpochalError, OSError):
            continue
    return found


def _known(entries: dict[str, tuple[FileEntry, ...]]) -> dict[int, dict[str, FileEntry]]:
    """Every file by the batch that took it in, in the order of the log."""
    known: dict[int, dict[str, FileEntry]] = {}
    for listed in entries.values():
        for entry in listed:
            known.setdefault(entry.batch_id, {})[entry.path] = entry
    return known


def _due(
    known: dict[int, dict[str, FileEntry]], batch_id: int, names: dict[str, int]
) -> list[FileEntry]:
    """What the file of `batch_id` must hold: its own entries, or all up to it if it compacts."""
    if not is_compaction_batch(batch_id, _interval(names)):
        return list(known.get(batch_id, {}).values())
    return [entry for each in sorted(known) if each <= batch_id for entry in known[each].values()]


def _compacts(names: dict[str, int], readable: dict[str, tuple[FileEntry, ...]]) -> list[int]:
    return sorted(names[name] for name in readable if name.endswith(COMPACT_SUFFIX))


def _interval(names: dict[str, int]) -> int:
    compacts = sorted(batch_id for name, batch_id in names.items() if name.endswith(COMPACT_SUFFIX))
    return derive_compact_interval(DEFAULT_COMPACT_INTERVAL, compacts)


def _reached(mender: Mender, directory: str) -> int:
    """The last batch of the log that any offsets name."""
    source = directory.rpartition("/")[2]
    reached = -1
    for entry in mender.surveyed.offsets.values():
        offset = entry.by_source.get(source)
        if offset is not None and "logOffset" in offset:
            found = json.loads(offset).get("logOffset")
            reached = max(reached, found if isinstance(found, int) else -1)
    return reached
