"""A checkpoint as it lies on disk: names and log entries, gathered once. Reads, decides nothing.

Everything `show` and `verify` say is worked out from this listing, and nothing in it raises: what
cannot be read is kept beside what can, with the reason. The one thing a reader would get wrong:
names only are listed, not sizes and times. A checkpoint has tens of thousands of state files, and
asking about each would take longer than everything else together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from epochal.checkpoint.entries import (
    COMMIT_FORMAT,
    OFFSET_FORMAT,
    CommitEntry,
    OffsetEntry,
    QueryMetadata,
)
from epochal.checkpoint.layout import COMMITS, COMPACT_SUFFIX, METADATA, OFFSETS, SOURCES, STATE
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.errors import CheckpointError, EpochalError, MalformedFileError, StorageError
from epochal.files import Files, join_url
from epochal.files.local import LocalFiles

T = TypeVar("T")

SMALL_FILE_BYTES = 1 << 14
LARGE_READ_BYTES = 1 << 22
MANY_FILES = 32
WAITING_THREADS = 16

PARTS = (METADATA, OFFSETS, COMMITS, SOURCES, STATE)


@dataclass(frozen=True, slots=True)
class Directory:
    """The names in one directory; files include hidden ones."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Directories:
    """Every directory below a root by its path, and those that could not be listed."""

    by_path: dict[str, Directory] = field(default_factory=dict)
    unreadable: dict[str, StorageError] = field(default_factory=dict)

    def __getitem__(self, path: str) -> Directory:
        return self.by_path.get(path, Directory())

    def below(self, path: str) -> Iterator[tuple[str, Directory]]:
        """`path` and every directory below it."""
        for name, directory in self.by_path.items():
            if name == path or name.startswith(f"{path}/"):
                yield name, directory

    @property
    def count(self) -> int:
        """How many files there are."""
        return sum(len(directory.files) for directory in self.by_path.values())


@dataclass(frozen=True, slots=True)
class LogListing(Generic[T]):
    """A log directory: its entries by id, and the reasons why some have none."""

    path: str
    directory: Directory
    entries: dict[int, T] = field(default_factory=dict)
    broken: dict[int, EpochalError] = field(default_factory=dict)
    odd_names: dict[str, int] = field(default_factory=dict)
    """Names that Java reads as a number but would write otherwise, with that number."""
    taken: tuple[str, ...] = ()
    """Directories that have the name of a batch."""
    raw: dict[str, bytes] = field(default_factory=dict)

    def path_of(self, batch_id: int) -> str:
        """The path of a batch's file, which may be a compact one."""
        compact = f"{batch_id}{COMPACT_SUFFIX}"
        name = compact if compact in self.directory.files else str(batch_id)
        return f"{self.path}/{name}" if self.path else name

    @property
    def ids(self) -> list[int]:
        """Every id that has a file, readable or not, ascending."""
        return sorted(self.entries.keys() | self.broken.keys())

    @property
    def latest(self) -> int | None:
        """The newest id."""
        return max(self.ids, default=None)


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """What was gathered from a checkpoint."""

    files: Files
    directories: Directories
    metadata: QueryMetadata | EpochalError | None
    """None if the file is not there."""
    metadata_raw: bytes
    offsets: LogListing[OffsetEntry]
    commits: LogListing[CommitEntry]

    @property
    def url(self) -> str:
        return self.files.url

    @property
    def misplaced(self) -> list[str]:
        """Files that have the name of one of a checkpoint's directories."""
        return [part for part in PARTS if part != METADATA and part in self.directories[""].files]

    @property
    def is_stateful(self) -> bool:
        """Whether any operator has a directory below `state`."""
        return any(name.isdigit() for name in self.directories[STATE].folders)

    @property
    def restart_version(self) -> int:
        """The version of state that a restart loads: what the next batch starts from."""
        newest, committed = self.offsets.latest, self.commits.latest
        if newest is None:
            return 0
        return newest + 1 if newest == committed else newest


def gather(files: Files, directories: Directories | None = None) -> CheckpointListing:
    """Read names and logs; OSError or CheckpointError if there is no checkpoint at all."""
    if directories is None:
        require_directory(files)
        directories = list_all(files)
    root = directories[""]
    if not any(part in root.folders or part in root.files for part in PARTS):
        if "" in directories.unreadable:
            raise directories.unreadable[""]
        raise CheckpointError(
            f"{files.url} is not a checkpoint: it has none of {', '.join(PARTS)}. Give the "
            f"directory that the query has as its checkpointLocation."
        )
    metadata, raw = _read_metadata(files, root)
    return CheckpointListing(
        files,
        directories,
        metadata,
        raw,
        read_log(files, OFFSETS, directories[OFFSETS], OFFSET_FORMAT.deserialize),
        read_log(files, COMMITS, directories[COMMITS], COMMIT_FORMAT.deserialize),
    )


def require_directory(files: Files) -> None:
    """Raise if the root is not there, or is a file."""
    info = files.info("")
    if info is None:
        raise FileNotFoundError(2, "No such directory", files.url)
    if not info.is_dir:
        raise NotADirectoryError(20, "Not a directory", files.url)


def list_all(files: Files) -> Directories:
    """The names of every directory below the root."""
    return _list_local(files) if isinstance(files, LocalFiles) else _list_by_walking(files)


def read_log(
    files: Files,
    path: str,
    directory: Directory,
    deserialize: Callable[[bytes, str], T],
    *,
    suffix: str = "",
) -> LogListing[T]:
    """Read every entry of the log in `directory`, where names of entries may end in `suffix`."""

    def number_of(name: str) -> int | None:
        return parse_batch_id(name.removesuffix(suffix))

    log: LogListing[T] = LogListing(
        path,
        directory,
        taken=tuple(name for name in directory.folders if number_of(name) is not None),
    )
    batches: dict[str, int] = {}
    for name in directory.files:
        batch_id = number_of(name)
        if batch_id is None:
            continue
        if name.removesuffix(suffix) != str(batch_id) or batch_id < 0:
            log.odd_names[name] = batch_id
        else:
            batches[name] = batch_id
    _fill_log(files, log, batches, deserialize)
    return log


def _fill_log(
    files: Files,
    log: LogListing[T],
    batches: Mapping[str, int],
    deserialize: Callable[[bytes, str], T],
) -> None:
    """Read the files named in `batches` into `log`."""
    paths = [f"{log.path}/{name}" if log.path else name for name in batches]
    for (name, batch_id), path, data in zip(
        batches.items(), paths, read_many(files, paths), strict=True
    ):
        if isinstance(data, EpochalError):
            log.broken[batch_id] = data
            continue
        log.raw[name] = data
        try:
            log.entries[batch_id] = deserialize(data, join_url(files.url, path))
        except EpochalError as error:
            log.broken[batch_id] = error


def read_many(files: Files, paths: list[str]) -> list[bytes | EpochalError]:
    """As `read_bytes` for each; where reading means waiting, many at a time."""
    if isinstance(files, LocalFiles) or len(paths) < MANY_FILES:
        return [read_bytes(files, path) for path in paths]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(WAITING_THREADS) as pool:
        return list(pool.map(lambda path: read_bytes(files, path), paths))


def read_bytes(files: Files, path: str) -> bytes | EpochalError:
    """A file's content, or why there is none. `path` comes from a listing or from a constant."""
    try:
        if isinstance(files, LocalFiles):
            return _read_local(f"{files.url}/{path}")
        return files.read(path)
    except EpochalError as error:
        return error
    except OSError as error:
        return storage_error(files, path, error)


def storage_error(files: Files, path: str, error: OSError) -> StorageError:
    """An operating system's error as one of ours, naming the file."""
    return StorageError(join_url(files.url, path), error.strerror or type(error).__name__)


def _read_local(path: str) -> bytes:
    """As `LocalFiles.read`, at a third of its cost: it matters when there are 20,000 of them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, SMALL_FILE_BYTES)
        if len(data) < SMALL_FILE_BYTES:
            return data
        parts = [data]
        while part := os.read(descriptor, LARGE_READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _read_metadata(
    files: Files, root: Directory
) -> tuple[QueryMetadata | EpochalError | None, bytes]:
    url = join_url(files.url, METADATA)
    if METADATA in root.folders:
        return MalformedFileError(url, "a directory has its name"), b""
    if METADATA not in root.files:
        return None, b""
    data = read_bytes(files, METADATA)
    if isinstance(data, EpochalError):
        return data, b""
    try:
        return QueryMetadata.deserialize(data, url), data
    except EpochalError as error:
        return error, data


def _list_local(files: LocalFiles) -> Directories:
    directories = Directories()
    pending = [""]
    while pending:
        path = pending.pop()
        folders: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(os.path.join(files.url, path)) as entries:
                for entry in entries:
                    (folders if entry.is_dir() else names).append(entry.name)
        except OSError as error:
            directories.unreadable[path] = storage_error(files, path, error)
            continue
        directories.by_path[path] = Directory(tuple(sorted(folders)), tuple(sorted(names)))
        pending.extend(f"{path}/{name}" if path else name for name in sorted(folders, reverse=True))
    return directories


def _list_by_walking(files: Files) -> Directories:
    folders: dict[str, set[str]] = {"": set()}
    names: dict[str, list[str]] = {}
    directories = Directories()

    def register(folder: str) -> None:
        if folder not in folders:
            folders[folder] = set()
            parent, _, name = folder.rpartition("/")
            register(parent)
            folders[parent].add(name)

    try:
        for path, info in files.walk():
            folder = path.rpartition("/")[0]
            register(folder)
            names.setdefault(folder, []).append(info.name)
    except OSError as error:
        directories.unreadable[""] = storage_error(files, "", error)
    for path, below in sorted(folders.items()):
        directories.by_path[path] = Directory(
            tuple(sorted(below)), tuple(sorted(names.get(path, ())))
        )
    return directories
