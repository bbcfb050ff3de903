"""An edit as the journal keeps it, and how a file stands to it: as before, as after, or neither.

What a reader would get wrong: size and time of a file prove that nobody touched it, not that we
did. Only its bytes tell a change already made from one made by somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from epochal.checkpoint.layout import METADATA
from epochal.errors import EditError
from epochal.files import Files, join_url
from epochal.tools.edit.backup_packs import Blob
from epochal.tools.edit.edit_plan import Elsewhere, Stamp, Watch, crc_of, is_crc, read_tree

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}-[0-9a-f-]{27}\.tmp")


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change with the bytes on both sides of it, as digests and places in the packs."""

    root: str
    path: str
    before: Blob | None
    modified_ms: int
    crc: Blob | None
    after: Blob | None
    source: Elsewhere | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The content of `plan.json`."""

    version: int
    command: str
    arguments: dict[str, str]
    summary: str
    started_ms: int
    roots: dict[str, str]
    watches: list[Watch]
    made_directories: list[tuple[str, str]]
    emptied: list[str]
    changes: list[RecordedChange]
    gate: RecordedChange | None
    """The step of `metadata`, taken last; None if there is only one change."""


def stands_after(files: Files, change: RecordedChange, *, trust_stamp: bool = True) -> bool:
    """Whether a change has been made already; EditError if the file is neither."""
    stamp = stamp_of(files, change.path)
    if stamp is None:
        if change.after is None:
            return True
        if change.before is None:
            return False
        raise changed(files, change.path, f"{change.before.size} bytes", "absent")
    before, after = change.before, change.after
    if trust_stamp and before and stamp == Stamp(before.size, change.modified_ms):
        return False
    content = files.read(change.path)
    if after is not None and after.matches(content):
        return True
    if before is not None and before.matches(content):
        return False
    expected = " or ".join(f"{blob.size} bytes" for blob in (before, after) if blob) or "absent"
    raise changed(files, change.path, expected, f"{stamp.size} bytes of other content")


def stamp_of(files: Files, path: str) -> Stamp | None:
    """What a listing says of a file now."""
    info = files.info(path)
    if info is None:
        return None
    if info.is_dir:
        raise EditError(join_url(files.url, path), "is a directory where a file is expected.")
    return Stamp(info.size, info.modified_ms)


def crc_bytes(files: Files, path: str) -> bytes | None:
    """The content of a file's hidden crc; None if there is none."""
    if is_crc(path):
        return None
    try:
        return files.read(crc_of(path))
    except FileNotFoundError:
        return None


def worded(stamp: Stamp | None) -> str:
    """A stamp as messages name it."""
    return f"{stamp.size} bytes of {stamp.modified_ms} ms" if stamp else "absent"


def changed(files: Files, path: str, expected: str, found: str) -> EditError:
    """The error of a file that somebody else has changed."""
    return EditError(
        join_url(files.url, path),
        f"expected {expected}, found {found}: something else changed it since this edit was "
        f"planned. To go on would lose what it wrote. Make sure that no query runs on the "
        f"checkpoint, look at the file, and plan again.",
    )


def touched_names(record: Record) -> dict[tuple[str, str], set[str]]:
    """Root and directory to the names in it that an edit writes, their crcs and the gate too."""
    touched = {("", ""): {METADATA, crc_of(METADATA)}}
    for change in record.changes:
        folder, _, name = change.path.rpartition("/")
        touched.setdefault((change.root, folder), set()).update({name, crc_of(name)})
    return touched


def temporaries(names: Collection[str], listed: Iterable[str]) -> Iterator[str]:
    """Of the names in a directory, those under which one of `names` was being written."""
    for name in listed:
        found = _TEMPORARY.fullmatch(name)
        if found and found[1] in names:
            yield name


def check_watches(record: Record, root_of: Callable[[Record, str], Files]) -> None:
    """EditError if names came or went, beside those of the edit, since it was planned."""
    for watch in record.watches:
        prefix = f"{watch.directory}/" if watch.directory else ""
        touched = {
            change.path[len(prefix) :].partition("/")[0]
            for change in record.changes
            if change.root == watch.root and change.path.startswith(prefix)
        }
        files = root_of(record, watch.root)
        there = set(read_tree(files, watch.directory).names(watch.directory))
        for name in sorted((there ^ set(watch.names)) - touched):
            event = "appeared" if name in there else "vanished"
            raise EditError(
                join_url(files.url, f"{prefix}{name}"),
                f"{event} since this {record.command} was planned: a query, or something else, has "
                f"gone on with the checkpoint. To change it now would mix two histories. Make sure "
                f"that nothing runs on it, and plan again.",
            )
