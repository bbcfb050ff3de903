"""A metadata log: a directory with one file per batch id, each written once (HDFSMetadataLog).

The name of a file is its batch id. Creating the file adds the batch, atomically: of several writers
exactly one succeeds.

Note: A log may have holes. `batch_ids` returns the ids on disk; `get_range` returns every id of the
range or fails.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

from epochal.checkpoint.spark_json import LONG_MAX, LONG_MIN
from epochal.errors import (
    CheckpointError,
    ConcurrentUpdateError,
    EditError,
    MalformedFileError,
    MissingBatchError,
    OptionError,
    StorageError,
    UnsupportedVersionError,
)
from epochal.files import FileInfo, Files, join_url, open_files

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAMED_MISSING = 100
INT_MAX = 2**31 - 1

# Java's parser accepts any decimal digit in one UTF-16 unit, and no underscores or spaces.
_INTEGER = re.compile(r"[+-]?\d+")


def parse_version(text: str, newest: int, path: str) -> int:
    """Parse a version line: `v` and a positive number, at most `newest`."""
    number = _java_integer(text[1:], -INT_MAX - 1, INT_MAX) if text.startswith("v") else None
    if number is None or number <= 0:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise MalformedFileError(
            path, f"its first line must be a version such as v{newest}, not {shown!r}"
        )
    if number > newest:
        raise UnsupportedVersionError(path, number, newest)
    return number


def parse_batch_id(name: str) -> int | None:
    """Parse a file name as Java's long parser does; None if it is not a batch id."""
    return _java_integer(name, LONG_MIN, LONG_MAX)


def verify_batch_ids(
    batch_ids: Sequence[int], start: int | None, end: int | None, path: str = ""
) -> None:
    """Check that ascending `batch_ids` go from `start` to `end` without a hole.

    A bound that is None is not checked, but the ids must be contiguous in any case.
    """
    if start is not None and end is not None and start > end:
        raise OptionError(f"{path}: the range starts at batch {start}, after its end {end}.")
    bounds = f"(start: {start}, end: {end})"
    if not batch_ids:
        wanted = start if start is not None else end
        if wanted is None:
            return
        raise MissingBatchError(path, (wanted,), f"batch {wanted} doesn't exist {bounds}")
    first, last = batch_ids[0], batch_ids[-1]
    if (start is not None and first < start) or (end is not None and last > end):
        raise OptionError(f"{path}: batches {first} to {last} are not all in the range {bounds}.")
    if start is not None and first != start:
        _raise_missing(path, [range(start, first)], bounds)
    if end is not None and last != end:
        _raise_missing(path, [range(last + 1, end + 1)], bounds)
    if last - first + 1 != len(batch_ids):
        _raise_missing(path, missing_runs(batch_ids, first, last), bounds)


def _raise_missing(path: str, missing: Iterable[range], bounds: str) -> NoReturn:
    named = tuple(islice(chain.from_iterable(missing), NAMED_MISSING + 1))
    more = ", …" if len(named) > NAMED_MISSING else ""
    named = named[:NAMED_MISSING]
    ids = ", ".join(map(str, named))
    raise MissingBatchError(path, named, f"batches ({ids}{more}) don't exist {bounds}")


def missing_runs(present: Iterable[int], low: int, high: int) -> list[range]:
    """The ranges of ids from `low` to `high`, both included, that are not in `present`.

    Ids may be very large, so this does not iterate over a range.
    """
    inside = sorted(number for number in set(present) if low <= number <= high)
    edges = pairwise([low - 1, *inside, high + 1])
    return [range(before + 1, after) for before, after in edges if after - before > 1]


def runs_of(ids: Iterable[int]) -> list[range]:
    """Group ids, in any order, into ranges."""
    ranges: list[range] = []
    for number in sorted(ids):
        if ranges and ranges[-1].stop == number:
            ranges[-1] = range(ranges[-1].start, number + 1)
        else:
            ranges.append(range(number, number + 1))
    return ranges


def listed(ranges: list[range]) -> str:
    """Format ranges as `3`, `3, 5` or `3..9`; of more than eight, the middle is omitted."""
    words = [
        str(ids.start) if ids.stop - ids.start == 1 else f"{ids.start}..{ids.stop - 1}"
        for ids in ranges
    ]
    return ", ".join(words if len(words) <= 8 else [*words[:4], "…", *words[-3:]])


def _java_integer(text: str, low: int, high: int) -> int | None:
    if len(text) > 1000 or not _INTEGER.fullmatch(text) or not all(c <= "\uffff" for c in text):
        return None
    number = int(text)
    return number if low <= number <= high else None


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turn errors of the storage into a StorageError that names `url`.

    FileNotFoundError and FileExistsError pass through: they are normal results.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except IsADirectoryError as error:  # some storages cannot tell these two apart
        raise FileNotFoundError(error.errno, error.strerror, url) from None
    except OSError as error:
        raise StorageError.of(url, error) from error


class LogFormat(Protocol[T]):
    """Converts one kind of entry to the bytes of a file, and back."""

    def serialize(self, entry: T) -> bytes:
        """The bytes of the file of `entry`."""
        ...

    def deserialize(self, data: bytes, path: str) -> T:
        """Parse the bytes of a file; errors name `path`."""
        ...


class JsonFormat:
    """The default format: one JSON value, as HDFSMetadataLog writes a metadata class of its own."""

    def serialize(self, entry: Any) -> bytes:
        return json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()

    def deserialize(self, data: bytes, path: str) -> Any:
        try:
            return json.loads(data)
        except ValueError as error:
            raise MalformedFileError(path, f"it is not JSON: {error}") from None


class MetadataLog(Generic[T]):
    """Entries of type T by batch id in one directory.

    It has no cache, so it always sees what other processes wrote. It is thread-safe.
    """

    default_format: ClassVar[LogFormat[Any]] = JsonFormat()
    """How entries are written if no format is given."""

    def __init__(
        self, location: str | Files, format: LogFormat[T] | None = None, *, read_only: bool = False
    ) -> None:
        """Open the log, and create its directory. Without a format, entries are plain JSON."""
        self.files = open_files(location) if isinstance(location, str) else location
        self.read_only = read_only
        self._format: LogFormat[T] = self.default_format if format is None else format
        if not read_only:
            try:
                with storage_errors(self.url):
                    self.files.make_dirs()
            except FileExistsError:
                raise StorageError(self.url, "it must be a directory, but it is a file") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The log's directory, for use in messages."""
        return self.files.url

    def path_of(self, batch_id: int) -> str:
        """The name of the file of `batch_id`."""
        return str(batch_id)

    def batch_id_of(self, name: str) -> int | None:
        """The batch id in a file name; None if the file is not a batch."""
        return parse_batch_id(name)

    def is_batch_file(self, info: FileInfo) -> bool:
        """Whether a directory entry is a batch: a file whose name is a batch id."""
        return not info.is_dir and self.batch_id_of(info.name) is not None

    def add(self, batch_id: int, entry: T) -> bool:
        """Write `entry` and return True; if the batch exists already, return False.

        Raises ConcurrentUpdateError if another writer creates the file at the same time.
        """
        self._refuse_if_read_only("write to")
        name = self.path_of(batch_id)
        with storage_errors(self._url_of(name)):
            there = self.files.info(name)
        if there is None:
            # The look only tells a batch that exists already, which is normal after a restart, from
            # a race with another writer. Creating is what lets exactly one writer succeed.
            self._create(batch_id, entry)
            return True
        if there.is_dir:
            raise MalformedFileError(self._url_of(name), "a directory has the name of a batch")
        return False

    def create(self, batch_id: int, entry: T) -> None:
        """Write an entry that must not exist yet, with a single request.

        Raises ConcurrentUpdateError if it exists.
        """
        self._refuse_if_read_only("write to")
        self._create(batch_id, entry)

    def get(self, batch_id: int) -> T | None:
        """Read the entry of `batch_id`; None if there is none."""
        name = self.path_of(batch_id)
        try:
            with storage_errors(self._url_of(name)):
                data = self.files.read(name)
        except FileNotFoundError:
            return None
        return self._format.deserialize(data, self._url_of(name))

    def get_range(self, start: int | None = None, end: int | None = None) -> list[tuple[int, T]]:
        """Read all entries from `start` to `end`, both included, ascending.

        The bounds default to the first and last batch of the log. Raises MissingBatchError if any
        entry is missing.
        """
        wanted = [
            batch_id
            for batch_id in self.batch_ids()
            if (start is None or batch_id >= start) and (end is None or batch_id <= end)
        ]
        verify_batch_ids(wanted, start, end, self.url)
        return [(batch_id, self._existing(batch_id)) for batch_id in wanted]

    def get_latest(self, *, skip_unreadable: bool = False) -> tuple[int, T] | None:
        """The newest id and its entry; None for an empty log.

        An entry that cannot be read is an error: whoever continues a query must not take an older
        one for the newest. With `skip_unreadable` it is logged and the next older one is tried.
        """
        # An entry that was listed may be purged meanwhile. That is an error, too: whoever purged it
        # has written newer ones, so the next older one is not the newest.
        for batch_id in reversed(self.batch_ids()):
            try:
                return batch_id, self._existing(batch_id)
            except (CheckpointError, StorageError) as error:
                if not skip_unreadable:
                    raise
                logger.warning("skipped batch %d: %s", batch_id, error)
        return None

    def latest_batch_id(self) -> int | None:
        """The newest id, without opening its file."""
        return max(self.batch_ids(), default=None)

    def batch_ids(self) -> list[int]:
        """The ids on disk, ascending."""
        # Several names can mean one batch: `7` and `07` to Java's parser, `9` and `9.compact`.
        return sorted({batch_id for batch_id, _ in self.batch_files()})

    def batch_files(self) -> list[tuple[int, FileInfo]]:
        """Every batch file with its id, ascending."""
        with storage_errors(self.url):
            infos = self.files.list()
        files: list[tuple[int, FileInfo]] = []
        for info in infos:
            batch_id = None if info.is_dir else self.batch_id_of(info.name)
            if batch_id is not None:
                files.append((batch_id, info))
        return sorted(files, key=lambda item: (item[0], item[1].name))

    def ordered_batch_files(self) -> list[FileInfo]:
        """The batch files, newest first: Spark's getOrderedBatchFiles."""
        return [info for _, info in reversed(self.batch_files())]

    def prev_batch_id(self, batch_id: int) -> int | None:
        """The newest id below `batch_id`; as in Spark, None if all ids are below it."""
        batch_ids = self.batch_ids()
        if not batch_ids or batch_ids[-1] < batch_id:
            return None
        return max((other for other in batch_ids if other < batch_id), default=None)

    def purge(self, before: int) -> None:
        """Delete all entries below `before`, oldest first, so that a crash leaves no hole."""
        self._refuse_if_read_only("purge")
        for batch_id, info in self.batch_files():
            if batch_id < before:
                self._delete(info.name)

    def purge_after(self, batch_id: int) -> None:
        """Delete all entries above `batch_id`, newest first, so that a crash leaves no hole."""
        self._refuse_if_read_only("purge")
        for other, info in reversed(self.batch_files()):
            if other > batch_id:
                self._delete(info.name)

    def remove(self, batch_id: int) -> None:
        """Delete one entry, if there is one."""
        self._refuse_if_read_only("purge")
        self._delete(self.path_of(batch_id))

    def _existing(self, batch_id: int) -> T:
        entry = self.get(batch_id)
        if entry is None:
            raise MissingBatchError(
                self.url,
                (batch_id,),
                f"batch {batch_id} was listed, but there is no file {self.path_of(batch_id)!r}",
            )
        return entry

    def _create(self, batch_id: int, entry: T) -> None:
        name = self.path_of(batch_id)
        with storage_errors(self._url_of(name)):
            try:
                self.files.create(name, self._format.serialize(entry))
            except FileExistsError:
                raise ConcurrentUpdateError(self.url, batch_id) from None

    def _delete(self, name: str) -> None:
        with storage_errors(self._url_of(name)):
            self.files.delete(name)

    def _refuse_if_read_only(self, verb: str) -> None:
        if self.read_only:
            raise EditError(self.url, f"cannot {verb} the log: it was opened read-only")

    def _url_of(self, name: str) -> str:
        return join_url(self.url, name)
