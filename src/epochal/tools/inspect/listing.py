"""Lists a checkpoint: the names of its files and the entries of its logs, read once.

`show` and `verify` work from this listing only. A file that cannot be read does not raise: the
listing keeps the error in place of the content.

Note: only names are listed, not sizes and times. A checkpoint has tens of thousands of state files,
and asking for the status of each one would take longer than all other work together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from epochal.checkpoint.entries import (
    COMMIT_FORMAT,
    OFFSET_FORMAT,
    CommitEntry,
    OffsetEntry,
    OffsetLog,
    QueryMetadata,
)
from epochal.checkpoint.layout import (
    COMMITS,
    COMPACT_SUFFIX,
    METADATA,
    OFFSETS,
    OWN_KEY,
    SOURCES,
    STATE,
    operator_metadata_log_path,
    operator_metadata_path,
)
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.checkpoint.operator_metadata import OPERATOR_FORMAT, OperatorMetadata, newest_at
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.errors import CheckpointError, EpochalError, MalformedFileError, StorageError
from epochal.files import Files, join_url
from epochal.files.local import LocalFiles, special_file_error
from epochal.tools.inspect.pinned_settings import is_usable

T = TypeVar("T")

MANY_FILES = 32
WAITING_THREADS = 16

PARTS = (METADATA, OFFSETS, COMMITS, SOURCES, STATE)


@dataclass(frozen=True, slots=True)
class Directory:
    """The names in one directory, hidden files included."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Directories:
    """Every directory below a root, by its path, and those that could not be listed."""

    by_path: dict[str, Directory] = field(default_factory=dict)
    unreadable: dict[str, StorageError] = field(default_factory=dict)

    def __getitem__(self, path: str) -> Directory:
        return self.by_path.get(path, Directory())

    def below(self, path: str) -> Iterator[tuple[str, Directory]]:
        """Yield `path` and every directory below it."""
        for name, directory in self.by_path.items():
            if name == path or name.startswith(f"{path}/"):
                yield name, directory

    @property
    def file_count(self) -> int:
        return sum(len(directory.files) for directory in self.by_path.values())


@dataclass(frozen=True, slots=True)
class LogListing(Generic[T]):
    """A log directory: the entries by batch id, and the errors of those that cannot be read."""

    path: str
    directory: Directory
    entries: dict[int, T] = field(default_factory=dict)
    broken: dict[int, EpochalError] = field(default_factory=dict)
    odd_names: dict[str, int] = field(default_factory=dict)
    """Names such as `007` that Java parses as a number but would not write, with that number."""
    taken: tuple[str, ...] = ()
    """Directories whose name is a batch id, so that no file can have it."""
    raw: dict[str, bytes] = field(default_factory=dict)
    by_name: dict[str, T] = field(default_factory=dict)
    """The entries by file name: a damaged log may have both `N` and `N.compact`."""
    unreadable: dict[str, EpochalError] = field(default_factory=dict)
    """The errors by file name."""

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
        return max(self.ids, default=None)


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """A checkpoint's directories, query metadata and logs."""

    files: Files
    directories: Directories
    metadata: QueryMetadata | EpochalError | None
    """None if the file does not exist; the error if it cannot be read."""
    metadata_raw: bytes
    offsets: LogListing[OffsetEntry]
    commits: LogListing[CommitEntry]

    @property
    def url(self) -> str:
        return self.files.url

    @property
    def misplaced(self) -> list[str]:
        """Files that have the name of one of the checkpoint's directories."""
        return [part for part in PARTS if part != METADATA and part in self.directories[""].files]

    @property
    def is_stateful(self) -> bool:
        """Whether any operator has a directory below `state`."""
        return any(name.isdigit() for name in self.directories[STATE].folders)

    @property
    def is_continuous(self) -> bool:
        """Whether a continuous query wrote the newest batch, so that it is an epoch."""
        newest = self.offsets.entries.get(max(self.offsets.entries, default=-1))
        return newest is not None and OWN_KEY in newest.extra

    @property
    def restart_version(self) -> int:
        """The version of the state that a restart loads.

        Batch N reads version N and writes version N + 1. A restart runs the newest batch again if
        it is not committed, otherwise the batch after it.
        """
        newest, committed = self.offsets.latest, self.commits.latest
        if newest is None:
            return 0
        return newest + 1 if newest == committed else newest

    def partitions_at(self, batch_id: int) -> int | None:
        """The number of state partitions that a batch pins; None if it pins no valid number."""
        entry = self.offsets.entries.get(batch_id)
        text = "" if entry is None else entry.conf.get(SHUFFLE_PARTITIONS, "")
        return int(text) if is_usable(SHUFFLE_PARTITIONS, text) else None

    @property
    def partition_counts(self) -> dict[int, int]:
        """The number of partitions of each version of the state that the offsets still cover."""
        counts = ((batch_id, self.partitions_at(batch_id)) for batch_id in self.offsets.entries)
        return {batch_id + 1: count for batch_id, count in counts if count is not None}


def is_continuous(files: Files) -> bool:
    """Whether a continuous query wrote the newest batch; reads nothing else of the checkpoint."""
    try:
        log = OffsetLog(files.at(OFFSETS), read_only=True)
        newest = log.latest_batch_id()
        entry = None if newest is None else log.get(newest)
    except (EpochalError, OSError):
        return False  # the logs cannot be read, which others report
    return entry is not None and OWN_KEY in entry.extra


def gather(files: Files, directories: Directories | None = None) -> CheckpointListing:
    """List a checkpoint and read its logs.

    Raises OSError or CheckpointError if there is no checkpoint at all.
    """
    if directories is None:
        require_directory(files)
        directories = list_all(files)
    root = directories[""]
    if not any(part in root.folders or part in root.files for part in PARTS):
        if "" in directories.unreadable:
            raise directories.unreadable[""]
        raise _no_checkpoint(files)
    metadata, raw = _read_metadata(files, root)
    return CheckpointListing(
        files,
        directories,
        metadata,
        raw,
        read_log(files, OFFSETS, directories[OFFSETS], OFFSET_FORMAT.deserialize),
        read_log(files, COMMITS, directories[COMMITS], _commit),
    )


def _commit(data: bytes, path: str) -> CommitEntry:
    entry = COMMIT_FORMAT.deserialize(data, path)
    if not entry.has_metadata:
        raise MalformedFileError(
            path,
            "it ends after its first line. Spark takes that for a commit with the watermark 0, and "
            "accepts late rows again",
        )
    return entry


def require_directory(files: Files) -> None:
    """Raise OSError if the root does not exist or is a file."""
    info = files.info("")
    if info is None:
        raise FileNotFoundError(2, "No such directory", files.url)
    if not info.is_dir:
        files.list()  # an error that says so, if it is a link below a root
        raise NotADirectoryError(20, "Not a directory", files.url)


def require_checkpoint(files: Files) -> None:
    """Raise OSError or CheckpointError if there is no checkpoint at all, with few requests."""
    require_directory(files)
    if not {info.name for info in files.list()}.intersection(PARTS):
        raise _no_checkpoint(files)


def _no_checkpoint(files: Files) -> CheckpointError:
    return CheckpointError(
        f"{files.url} is not a checkpoint: it contains none of {', '.join(PARTS)}. Pass the "
        f"directory that the query uses as its checkpointLocation."
    )


def list_all(files: Files) -> Directories:
    """List the names in every directory below the root."""
    return _list_local(files) if isinstance(files, LocalFiles) else _list_by_walking(files)


def read_log(
    files: Files,
    path: str,
    directory: Directory,
    deserialize: Callable[[bytes, str], T],
    *,
    suffix: str = "",
) -> LogListing[T]:
    """Read every entry of the log in `directory`. File names may end in `suffix`."""

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
    paths = [f"{path}/{name}" if path else name for name in batches]
    contents = zip(batches.items(), paths, read_many(files, paths), strict=True)
    for (name, batch_id), file_path, data in contents:
        if isinstance(data, EpochalError):
            log.broken[batch_id] = log.unreadable[name] = data
            continue
        log.raw[name] = data
        try:
            entry = deserialize(data, join_url(files.url, file_path))
        except EpochalError as error:
            log.broken[batch_id] = log.unreadable[name] = error
            continue
        log.by_name[name] = entry
        if file_path == log.path_of(batch_id) or batch_id not in log.entries:
            log.entries[batch_id] = entry
    return log


def read_many(files: Files, paths: list[str]) -> list[bytes | EpochalError]:
    """Call `read_bytes` for each path: one by one on a local disk, in threads elsewhere."""
    if isinstance(files, LocalFiles) or len(paths) < MANY_FILES:
        return [read_bytes(files, path) for path in paths]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(WAITING_THREADS) as pool:
        return list(pool.map(lambda path: read_bytes(files, path), paths))


def read_bytes(files: Files, path: str, *, large: bool = False) -> bytes | EpochalError:
    """Return a file's content, or the error that reading it raised."""
    try:
        return files.read(path, large=large)
    except EpochalError as error:
        return error
    except OSError as error:
        return storage_error(files, path, error)


def read_entry(files: Files, path: str, decode: Callable[[bytes, str], T]) -> T | EpochalError:
    data = read_bytes(files, path)
    if isinstance(data, EpochalError):
        return data
    try:
        return decode(data, path)
    except EpochalError as error:
        return error


def read_operator_log(
    listing: CheckpointListing, operator: int
) -> tuple[LogListing[OperatorMetadata], OperatorMetadata | EpochalError | None]:
    """The log of an operator's metadata, and the newest entry, or else the single file."""
    path = operator_metadata_log_path(operator)
    log = read_log(listing.files, path, listing.directories[path], OPERATOR_FORMAT.deserialize)
    newest = newest_at(log.entries, None)
    if newest is not None:
        return log, log.entries[newest]
    path = operator_metadata_path(operator)
    folder, _, name = path.rpartition("/")
    if name not in listing.directories[folder].files:
        return log, None
    return log, read_entry(listing.files, path, OPERATOR_FORMAT.deserialize)


def storage_error(files: Files, path: str, error: OSError) -> StorageError:
    return StorageError(join_url(files.url, path), error.strerror or type(error).__name__)


def _read_metadata(
    files: Files, root: Directory
) -> tuple[QueryMetadata | EpochalError | None, bytes]:
    url = join_url(files.url, METADATA)
    if METADATA in root.folders:
        return MalformedFileError(url, "it is a directory, not a file"), b""
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
                    is_dir = entry.is_dir(follow_symlinks=False)
                    (folders if is_dir else names).append(entry.name)
                    if not is_dir and not entry.is_file(follow_symlinks=False):
                        below = f"{path}/{entry.name}" if path else entry.name
                        directories.unreadable[below] = special_file_error(entry.path)
        except OSError as error:
            directories.unreadable[path] = storage_error(files, path, error)
            continue
        directories.by_path[path] = Directory(tuple(sorted(folders)), tuple(sorted(names)))
        pending.extend(f"{path}/{name}" if path else name for name in sorted(folders, reverse=True))
    return directories


def _list_by_walking(files: Files) -> Directories:
    """Build the directories from the files' paths: object stores have no directories."""
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
