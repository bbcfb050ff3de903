"""Defines what the journal stores of an edit, and finds out whether a change has been made.

Deleting forty thousand deltas must not create forty thousand backup files, each with a sync or a
request. So contents are concatenated into packs of bounded size. A `Blob` records where a content
is and its hash. At most one pack is in memory, or one file if it is larger than a pack.

Note: an unchanged size and time show that a file was not touched since the plan. Other values do
not show that this edit changed it: only the file's bytes distinguish our change from another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from epochal.errors import EditError, MalformedFileError
from epochal.files import AtomicFile, Files, join_url
from epochal.tools.edit.edit_plan import FileRef, Stamp, Watch, crc_of, is_crc, read_tree
from epochal.wording import counted, time_text

PACK_BYTES: Final = 16 * 1024 * 1024
NOWHERE: Final = -1


@dataclass(frozen=True, slots=True)
class Blob:
    """The digest of some bytes, and their place in a pack; NOWHERE if they are in none."""

    size: int
    sha256: str
    pack: int = NOWHERE
    offset: int = 0

    def matches(self, content: bytes) -> bool:
        return len(content) == self.size and digest(content).sha256 == self.sha256

    def matches_blob(self, other: Blob | None) -> bool:
        return other is not None and (self.size, self.sha256) == (other.size, other.sha256)


def digest(content: bytes) -> Blob:
    """Return the blob of a content that is in no pack, to recognize it later."""
    return Blob(len(content), hashlib.sha256(content).hexdigest())


class PackWriter:
    """Concatenates contents into `PREFIX-00000.pack`, `PREFIX-00001.pack` and so on."""

    def __init__(self, files: Files, prefix: str, *, pack_bytes: int = PACK_BYTES) -> None:
        self._files, self._prefix, self._pack_bytes = files, prefix, pack_bytes
        self._pack, self._offset = 0, 0
        self._out: AtomicFile | None = None

    def add(self, content: bytes) -> Blob:
        if self._out is not None and self._offset + len(content) > self._pack_bytes:
            self._out.close()
            self._out, self._offset, self._pack = None, 0, self._pack + 1
        if self._out is None:
            self._out = self._files.create_atomic(pack_name(self._prefix, self._pack))
        self._out.write(content)
        blob = replace(digest(content), pack=self._pack, offset=self._offset)
        self._offset += len(content)
        return blob

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._out is None:
            return
        if kind is None:
            self._out.close()
        else:
            self._out.cancel()


class PackReader:
    """Reads and verifies blobs. It reads each pack once if they are read in writing order."""

    def __init__(self, files: Files, prefix: str) -> None:
        self._files, self._prefix = files, prefix
        self._pack, self._content = NOWHERE, b""

    def get(self, blob: Blob) -> bytes:
        if blob.pack != self._pack:
            self._content = self._files.read(pack_name(self._prefix, blob.pack), large=True)
            self._pack = blob.pack
        content = self._content[blob.offset : blob.offset + blob.size]
        if not blob.matches(content):
            raise MalformedFileError(
                join_url(self._files.url, pack_name(self._prefix, blob.pack)),
                f"the {blob.size} bytes at {blob.offset} do not have the recorded checksum",
            )
        return content


def pack_name(prefix: str, pack: int) -> str:
    return f"{prefix}-{pack:05d}.pack"


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change, with the digests of the bytes before and after it and their places in packs."""

    root: str
    path: str
    before: Blob | None
    modified_ms: int
    crc: Blob | None
    after: Blob | None
    source: FileRef | None = None


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
    """The change of `metadata`, made last; None if the plan has only one change."""


def change_is_made(files: Files, change: RecordedChange, *, trust_stamp: bool = True) -> bool:
    """Whether a change has already been made; EditError if the file has other content.

    With `trust_stamp`, a file with its old size and time counts as unchanged without reading it.
    """
    stamp = stamp_of(files, change.path)
    if stamp is None:
        if change.after is None:
            return True
        if change.before is None:
            return False
        raise changed(files, change.path, counted(change.before.size, "byte"), "no file")
    before, after = change.before, change.after
    if trust_stamp and before and stamp == Stamp(before.size, change.modified_ms):
        return False
    content = files.read(change.path, large=True)
    if after is not None and after.matches(content):
        return True
    if before is not None and before.matches(content):
        return False
    sizes = [counted(blob.size, "byte") for blob in (before, after) if blob]
    expected = " or ".join(sizes) or "no file"
    raise changed(files, change.path, expected, f"{counted(stamp.size, 'byte')} of other content")


def stamp_of(files: Files, path: str) -> Stamp | None:
    info = files.info(path)
    if info is None:
        return None
    if info.is_dir:
        raise EditError(
            join_url(files.url, path),
            "is a directory, but the edit needs a file of this name. Move the directory away, and "
            "plan the edit again.",
        )
    return Stamp(info.size, info.modified_ms)


def crc_bytes(files: Files, path: str) -> bytes | None:
    """Return the content of a file's hidden crc; None if there is none."""
    if is_crc(path):
        return None
    try:
        return files.read(crc_of(path))
    except FileNotFoundError:
        return None


def describe(stamp: Stamp | None) -> str:
    if stamp is None:
        return "no file"
    return f"{counted(stamp.size, 'byte')}, modified at {time_text(stamp.modified_ms)}"


def changed(files: Files, path: str, expected: str, found: str) -> EditError:
    """Return the error for a file that something else has changed."""
    return EditError(
        join_url(files.url, path),
        f"expected {expected}, found {found}: something else changed the file since this edit was "
        f"planned. Continuing would overwrite that change. Make sure that no query runs on the "
        f"checkpoint, look at the file, and plan the edit again.",
    )


def check_watches(record: Record, root_of: Callable[[Record, str], Files]) -> None:
    """Raise EditError if files other than those of the edit appeared or vanished."""
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
                f"{event} since this {record.command} was planned: a query or another program has "
                f"used the checkpoint. Changing it now would mix two histories. Make sure that "
                f"nothing uses the checkpoint, and plan the edit again.",
            )
