"""The storage of checkpoints: one interface to local disks, object stores and HDFS.

This module defines the interface and what every implementation guarantees. Each other module
implements one storage.

A `Files` is rooted at a URL and takes paths relative to it, with `/` between names. `create` is
atomic: readers never see a half-written file, and of several writers exactly one succeeds. Every
log in a checkpoint relies on this, because creating the file is what decides a batch or an epoch.

Note: On local disks Hadoop may keep the checksum of a file in a hidden `.NAME.crc` beside it. If
the file is gone but its crc is still there, Spark's next start fails. Every operation that deletes
or replaces a file therefore deletes its crc too. No operation writes a crc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit

from epochal.errors import OptionError, StorageError

SILENCE_SECONDS = 30.0
"""Storage that sends nothing for so long has failed."""
MOST_NESTED = 64
"""How deep directories may be nested. Those of a checkpoint are nested less than ten deep."""
OBJECT_STORE_SCHEMES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "az", "azure", "abfs", "abfss"})
_WITH_PASSWORD = re.compile(r"[^/]+://[^/@]*:(?!\d+(?:[,/]|$))[^@]*@")
"""A colon before an @ that does not start a port."""
HDFS_SCHEMES = frozenset({"hdfs", "webhdfs", "swebhdfs"})


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One name in a directory."""

    name: str
    is_dir: bool
    size: int
    modified_ms: int

    @property
    def hidden(self) -> bool:
        """Whether Spark's logs ignore this name: temporary files and crc files."""
        return self.name.startswith(".")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many bytes one read may bring into memory.

    The tools open checkpoints that anybody may have prepared, with bounds. A query opens its own
    checkpoint without: a log of very many files is large, and right.
    """

    entry_bytes: int | None = 64 << 20
    """Of log entries, schemas, metadata and journals."""

    state_bytes: int | None = 8 << 30
    """Of files that are large by nature: state, backups, data."""

    unpacked_bytes: int | None = 256 << 20
    """Of what a compressed file unpacks to. Some kilobytes can unpack to gigabytes."""

    def most(self, *, large: bool) -> int | None:
        """The largest size of a file that may be read; None if there is no bound."""
        return self.state_bytes if large else self.entry_bytes

    def check(self, url: str, size: int, *, large: bool) -> None:
        """Raise StorageError if a file is too large to be read."""
        option = "--most-state-bytes" if large else "--most-entry-bytes"
        _check(url, "is larger than", size, self.most(large=large), option)

    def room(self, url: str) -> Room:
        """The room for what one compressed file unpacks to."""
        return Room(url, self.unpacked_bytes)


class Room:
    """Counts what is unpacked of one file. `left` is None if there is no bound."""

    def __init__(self, url: str, most: int | None) -> None:
        self._url, self._most, self.left = url, most, most

    def take(self, size: int) -> None:
        """Count bytes before or as they are unpacked; StorageError if there is no room for them."""
        if self.left is None or self._most is None:
            return
        self.left -= size
        used = self._most - self.left
        _check(self._url, "unpacks to more than", used, self._most, "--most-unpacked-bytes")


def _check(url: str, what: str, size: int, most: int | None, option: str) -> None:
    if most is not None and size > most:
        raise StorageError(
            url,
            f"{what} {most} bytes, which is the most that is read of such a file. If the file is "
            f"right, raise the bound: `epochal {option} BYTES COMMAND`.",
        )


UNBOUNDED = Bounds(None, None, None)


class AtomicFile(Protocol):
    """A file being written. It becomes visible on `close`; `cancel` discards it.

    As a context manager it is closed on success and cancelled on an exception.
    """

    def write(self, data: bytes | bytearray | memoryview) -> object:
        """Append `data`."""
        ...

    def close(self) -> None:
        """Publish under the final name; FileExistsError if it must not be replaced."""
        ...

    def cancel(self) -> None:
        """Discard what was written; an existing target is unchanged."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.cancel()


class Files(Protocol):
    """A directory tree; Spark calls it a CheckpointFileManager.

    If a path does not exist, `read` raises FileNotFoundError, `info` returns None, `list` and
    `walk` return nothing, and the deletes do nothing. If a path is a file, `list` and `walk` raise
    NotADirectoryError. If a path is a directory, `read` raises IsADirectoryError, or
    FileNotFoundError where the storage cannot tell the difference. A failure that is not about one
    path, such as storage that does not answer, is a StorageError.
    """

    @property
    def url(self) -> str:
        """The root, for use in messages; without a trailing slash."""
        ...

    @property
    def bounds(self) -> Bounds:
        """How much may be read of a file. Readers of compressed files must keep to it, too."""
        ...

    def at(self, path: str) -> Files:
        """The same storage, rooted at `path` below this root."""
        ...

    def create_atomic(self, path: str, *, overwrite: bool = False) -> AtomicFile:
        """Start writing `path`; missing directories are created."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a whole file that must not exist yet; FileExistsError if it does."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a whole file, replacing an existing one."""
        ...

    def read(self, path: str, *, large: bool = False) -> bytes:
        """The whole content of a file; StorageError if it exceeds the bounds of this storage.

        `large` is for files that are large by nature: state, backups and data.
        """
        ...

    def info(self, path: str) -> FileInfo | None:
        """Describe the file or directory at `path`."""
        ...

    def list(self, path: str = "") -> list[FileInfo]:
        """The entries of a directory, including hidden ones, sorted by name."""
        ...

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        """Every file below `path`, with its path relative to this root, sorted by path."""
        ...

    def make_dirs(self, path: str = "") -> None:
        """Create a directory and its parents; does nothing on storage without directories."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file together with its hidden crc."""
        ...

    def delete_tree(self, path: str = "") -> None:
        """Delete a directory and everything in it, or a file of that name."""
        ...


def scheme_of(location: str) -> str:
    """The URL scheme of a location in lower case; empty for a plain path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", location)
    return match[1].lower() if match else ""


def local_path(location: str) -> str:
    """The local path of a plain path or a `file:` URL; URL escapes are decoded in the latter."""
    if scheme_of(location) == "file":
        return unquote(urlsplit(location).path) or "/"
    return location


def checked_path(root: str, path: str) -> str:
    """Return `path` if it stays below `root` and is valid on every storage."""
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise OptionError(
            f"{path!r} is not a path below {root}: it must be relative, without empty, `.` or `..` "
            f"parts."
        )
    return path


def check_depth(root: str, path: str) -> None:
    """Refuse a directory that lies deeper than any query's.

    Each level costs a look at all levels above it, and a call within a call. So a prepared tree
    that is as deep as a path can be would keep a walk busy for minutes, and then end it.
    """
    if path.count("/") >= MOST_NESTED:
        raise StorageError(
            join_url(root, "/".join(path.split("/")[:3])),
            f"directories are nested more than {MOST_NESTED} deep below it, which no query does. "
            f"Remove them.",
        )


def open_files(
    location: str, *, existing: bool = False, links: bool = False, bounds: Bounds = UNBOUNDED
) -> Files:
    """Open a local path or a `file:`, S3, GCS, Azure or HDFS URL.

    With `existing`, a local directory that is deleted later is not created again by a write. With
    `links`, symbolic links below a local directory are followed: for data, not for checkpoints.

    Note: `location` must come from a command line or from code, never from what a checkpoint says.
    Otherwise a prepared checkpoint decides which files are opened and which hosts are contacted.
    """
    scheme = scheme_of(location)
    if _WITH_PASSWORD.match(location):
        raise OptionError(
            f"The {scheme}:// address has a password in it, which would appear in messages and "
            f"logs. Remove it: credentials are taken from where the storage's own tools find them."
        )
    if scheme in ("", "file"):
        from epochal.files.local import LocalFiles

        path = local_path(location)
        return LocalFiles(path, existing=path if existing else None, links=links, bounds=bounds)
    if scheme in OBJECT_STORE_SCHEMES:
        from epochal.files.objects import open_object_store

        return open_object_store(location, bounds)
    if scheme in HDFS_SCHEMES:
        from epochal.files.webhdfs import open_webhdfs

        return open_webhdfs(location, bounds)
    schemes = ", ".join(sorted({"file", *OBJECT_STORE_SCHEMES, *HDFS_SCHEMES}))
    raise OptionError(f"{location}: the scheme {scheme!r} is not supported. Use one of {schemes}.")


def walked(files: Files, path: str) -> Iterator[tuple[str, FileInfo]]:
    """What `Files.walk` returns, on storage that has directories."""
    check_depth(files.url, path)
    # Directories sort with their slash, so that the paths below them come out in order.
    for info in sorted(files.list(path), key=lambda info: info.name + "/" * info.is_dir):
        below = f"{path}/{info.name}" if path else info.name
        if info.is_dir:
            yield from walked(files, below)
        else:
            yield below, info


def join_url(url: str, path: str) -> str:
    """`url` with `path` below it."""
    return f"{url.rstrip('/')}/{path}" if path else url


class BufferedAtomicFile(AtomicFile):
    """Passes everything that was written to `publish`, once, on close."""

    def __init__(self, publish: Callable[[bytes], None]) -> None:
        self._publish: Callable[[bytes], None] | None = publish
        self._content = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._publish is None:
            raise ValueError("write to a closed file")
        self._content += data

    def close(self) -> None:
        publish, self._publish = self._publish, None
        if publish is not None:
            publish(bytes(self._content))

    def cancel(self) -> None:
        self._publish = None
        self._content.clear()
