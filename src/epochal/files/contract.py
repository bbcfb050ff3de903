"""Where checkpoints live: one protocol over local disks, object stores and HDFS.

A `Files` is rooted at a URL and takes paths relative to it, with `/` between names. The one thing
to know: `create` never shows a half-written file and never replaces one, whoever else is writing;
that is what makes a log entry a decision. On local disks a file may have a hidden `.NAME.crc`
beside it, written by Hadoop; a crc without its file stops Spark's next start, so every operation
here that ends a file's old content ends its crc too, and none is ever written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit

from epochal.errors import OptionError


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One name in a directory."""

    name: str
    is_dir: bool
    size: int
    modified_ms: int

    @property
    def hidden(self) -> bool:
        """Whether Spark's logs pass over this name: temporary files and crc side files."""
        return self.name.startswith(".")


class AtomicFile(Protocol):
    """A file being written that nobody sees until `close`, and nobody ever sees after `cancel`.

    As a context manager: leaving normally closes, leaving by an exception cancels.
    """

    def write(self, data: bytes | bytearray | memoryview) -> object:
        """Append `data`."""
        ...

    def close(self) -> None:
        """Publish under the final name; FileExistsError if that may not be replaced."""
        ...

    def cancel(self) -> None:
        """Leave nothing behind, and the target as it was."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Files(Protocol):
    """A directory tree: what Spark calls a CheckpointFileManager.

    A path that is not there raises FileNotFoundError on `read`, is None for `info`, empty for
    `list` and `walk`, and silence for the deletes. A file where a directory is meant raises
    NotADirectoryError on `list` and `walk`; a directory where a file is meant raises
    IsADirectoryError or FileNotFoundError on `read`, whichever the storage can tell. What is not
    about one path, such as storage that does not answer, is a StorageError.
    """

    @property
    def url(self) -> str:
        """The root, as messages name it; without a trailing slash."""
        ...

    def at(self, path: str) -> Files:
        """The same storage, rooted at `path` below this root."""
        ...

    def create_atomic(self, path: str, *, overwrite: bool = False) -> AtomicFile:
        """Start writing `path`; missing directories are made."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a whole file that must not exist yet; FileExistsError if somebody was first."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a whole file, in place of any that is there."""
        ...

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        ...

    def info(self, path: str) -> FileInfo | None:
        """What is at `path`, a file or a directory."""
        ...

    def list(self, path: str = "") -> list[FileInfo]:
        """The names in a directory, hidden ones too, sorted."""
        ...

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        """Every file below `path` with its path relative to this root, sorted by that path."""
        ...

    def make_dirs(self, path: str = "") -> None:
        """Make a directory and those above it; nothing to do where storage has none."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file together with its hidden crc."""
        ...

    def delete_tree(self, path: str = "") -> None:
        """Remove a directory and everything in it, or a file of that name."""
        ...


def scheme_of(location: str) -> str:
    """The URL scheme of a location, lower case; empty for a plain path."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", location)
    return found[1].lower() if found else ""


def local_path(location: str) -> str:
    """The path a `file:` URL or a plain path names, URL escapes undone for the former."""
    if scheme_of(location) == "file":
        return unquote(urlsplit(location).path) or "/"
    return location


def checked_path(root: str, path: str) -> str:
    """`path` itself if it stays below `root` and every storage can name it."""
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise OptionError(
            f"{path!r} is not a path below {root}: it must be relative, without empty, `.` or `..` "
            f"parts."
        )
    return path


def join_url(url: str, path: str) -> str:
    """`url` with `path` below it."""
    return f"{url.rstrip('/')}/{path}" if path else url
