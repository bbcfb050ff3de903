"""Many files' bytes in few: the backups of a journal.

Deleting forty thousand deltas must not mean forty thousand backup files, each with its own sync
or request. Contents are strung together into packs of bounded size; a `Blob` says where one lies
and what it must hash to. At most one pack, or one file if that is larger, is in memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

from epochal.checkpoint.layout import EPOCHAL
from epochal.errors import MalformedFileError
from epochal.files import AtomicFile, Files, join_url
from epochal.tools.edit.edit_plan import Elsewhere

STAGE_DIRECTORY: Final = f"{EPOCHAL}/stage"
PACK_BYTES: Final = 16 * 1024 * 1024
NOWHERE: Final = -1


@dataclass(frozen=True, slots=True)
class Blob:
    """Some bytes: their digest, and their place in a pack unless that is NOWHERE."""

    size: int
    sha256: str
    pack: int = NOWHERE
    offset: int = 0

    def matches(self, content: bytes) -> bool:
        return len(content) == self.size and _sha256(content) == self.sha256

    def matches_blob(self, other: Blob | None) -> bool:
        """Whether both are the same bytes, wherever they lie."""
        return other is not None and (self.size, self.sha256) == (other.size, other.sha256)


def digest(content: bytes) -> Blob:
    """A blob that is kept nowhere, only recognised."""
    return Blob(len(content), _sha256(content))


class Stage:
    """A place for content too large to hold in a plan; emptied when the edit is done."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._count = 0

    def put(self, content: bytes) -> Elsewhere:
        """Keep `content` on the checkpoint's storage until the plan that names it is done."""
        path = f"{STAGE_DIRECTORY}/{self._count:06d}"
        self._count += 1
        self._files.create(path, content)
        return Elsewhere("", path, len(content))


class PackWriter:
    """Strings contents together into `PREFIX-00000.pack` and its successors."""

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
    """Gives blobs back, checked; asking in the order of writing reads each pack once."""

    def __init__(self, files: Files, prefix: str) -> None:
        self._files, self._prefix = files, prefix
        self._pack, self._content = NOWHERE, b""

    def get(self, blob: Blob) -> bytes:
        if blob.pack != self._pack:
            self._content = self._files.read(pack_name(self._prefix, blob.pack))
            self._pack = blob.pack
        content = self._content[blob.offset : blob.offset + blob.size]
        if not blob.matches(content):
            raise MalformedFileError(
                join_url(self._files.url, pack_name(self._prefix, blob.pack)),
                f"{blob.size} bytes at {blob.offset} do not have the recorded checksum",
            )
        return content


def pack_name(prefix: str, pack: int) -> str:
    """How the journal names a pack."""
    return f"{prefix}-{pack:05d}.pack"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
