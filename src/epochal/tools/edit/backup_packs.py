"""Stores the contents of many files in a few packs: the backups of a journal.

Deleting forty thousand deltas must not create forty thousand backup files, each with a sync or a
request. So contents are concatenated into packs of bounded size. A `Blob` records where a content
is and its hash. At most one pack is in memory, or one file if it is larger than a pack.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

from epochal.errors import MalformedFileError
from epochal.files import AtomicFile, Files, join_url
from epochal.tools.edit.edit_plan import STAGE_DIRECTORY, FileRef

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
        return len(content) == self.size and _sha256(content) == self.sha256

    def matches_blob(self, other: Blob | None) -> bool:
        """Whether both have the same bytes."""
        return other is not None and (self.size, self.sha256) == (other.size, other.sha256)


def digest(content: bytes) -> Blob:
    """Return the blob of a content that is in no pack, to recognize it later."""
    return Blob(len(content), _sha256(content))


class Stage:
    """A directory for content that is too large for a plan; removed when the edit is done."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._count = 0

    def put(self, content: bytes) -> FileRef:
        """Store `content` beside the checkpoint until the plan that refers to it is done."""
        path = f"{STAGE_DIRECTORY}/{self._count:06d}"
        self._count += 1
        self._files.create(path, content)
        return FileRef("", path, len(content))


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
        blob = Blob(len(content), _sha256(content), self._pack, self._offset)
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
    """The file name of a pack."""
    return f"{prefix}-{pack:05d}.pack"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
