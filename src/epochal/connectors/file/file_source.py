"""Spark's file source: reads each file of a directory once, recorded in the log in `sources/N`.

The driver discovers files. Its thread lists the directory and logs new files in batches, by the
rules of Spark's FileStreamSource, so that either engine can continue the log of the other. The
offset is the newest log batch that was read completely. A query that stops gracefully ends at the
end of a batch. Readers follow the log themselves (`file_reader.py`).

Note: a file in the log will be read. The next run reads the files that were logged but not yet
read; they are not discovered again. The log may be ahead of the readers, but only by
`BATCHES_AHEAD` batches. With `maxFilesPerTrigger` or `maxBytesPerTrigger` an epoch is one batch of
the log, which is logged when the epoch is planned. So a batch has as many files as Spark's would
have, and Spark, which reads all that is in the log, finds no more than a batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.checkpoint.file_log import FileEntry, FileSinkLog, FileSourceLog
from epochal.checkpoint.layout import SINK_LOG, source_log_path
from epochal.checkpoint.metadata_log import storage_errors
from epochal.checkpoint.spark_json import parse_json
from epochal.connectors.contract import BoundedSource, Offset, Positions
from epochal.connectors.file.file_names import entry_path, is_hidden, partition_texts, path_below
from epochal.connectors.file.file_reader import (
    FilePosition,
    FileReaders,
    ReaderChoice,
    is_metadata,
    parse_position,
)
from epochal.connectors.file.spark_reader import make_reader
from epochal.connectors.formats import SourceRequest, check_positive
from epochal.errors import (
    ConcurrentUpdateError,
    EpochalError,
    MalformedFileError,
    OptionError,
    StorageError,
)
from epochal.files import FileInfo, Files, open_files
from epochal.options import ByteSize, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

BATCHES_AHEAD = 16
"""How many log batches may wait to be read."""

_FACTS_AND_CONTENT: dict[str, pa.DataType] = {
    "path": pa.string(),
    "modificationTime": pa.timestamp("us", "UTC"),
    "length": pa.int64(),
    "content": pa.binary(),
}
FIXED_SCHEMAS = {
    "text": pa.schema([("value", pa.string())]),
    "binaryfile": pa.schema(_FACTS_AND_CONTENT),
}


class CleanSource(StrEnum):
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSourceOptions:
    """The options of Spark's file source, plus `numPartitions` and `discoveryInterval`."""

    path: str

    max_files_per_trigger: int | None = None
    """Files per epoch, at most."""

    max_bytes_per_trigger: ByteSize | None = None
    """Size of the files of an epoch, at most, unless the first of them is larger."""

    latest_first: bool = False

    max_file_age: timedelta = timedelta(days=7)
    """Files that are older than the newest file by more than this are ignored and forgotten."""

    file_name_only: bool = False
    path_glob_filter: str | None = None
    recursive_file_lookup: bool = False
    clean_source: CleanSource = CleanSource.OFF

    num_partitions: int | None = None
    """Applies to the first run of a checkpoint, and after Spark has run on the checkpoint."""

    discovery_interval: timedelta = timedelta(milliseconds=100)
    """How often the driver lists the directory, and how often readers poll the log."""

    reader_options: Mapping[str, str] = field(default_factory=dict, metadata={"prefix": ""})
    """All other options. Spark's reader of the format gets them, and ignores what it does not
    know."""

    def __post_init__(self) -> None:
        check_positive(
            "files",
            max_files_per_trigger=self.max_files_per_trigger,
            max_bytes_per_trigger=self.max_bytes_per_trigger,
            num_partitions=self.num_partitions,
        )
        if self.max_files_per_trigger is not None and self.max_bytes_per_trigger is not None:
            raise OptionError(
                "files: maxFilesPerTrigger and maxBytesPerTrigger exclude each other, as in Spark. "
                "Remove one of them."
            )
        for name in self.reader_options:
            if name.lower() in ("modifiedbefore", "modifiedafter"):
                raise OptionError(f"files: option {name} is not allowed in a stream, as in Spark.")
        if any(c in self.path for c in "*?[{"):
            raise OptionError(
                f"files: path {self.path!r} contains a pattern, but must be a directory. Set path "
                f"to the directory and pathGlobFilter to the pattern of file names."
            )


class SeenFiles:
    """The files already logged, until they are older than `max_age_ms` (Spark's SeenFilesMap)."""

    def __init__(self, max_age_ms: int | None, *, name_only: bool) -> None:
        self._max_age_ms, self._name_only = max_age_ms, name_only
        self._files: dict[str, int] = {}
        self._newest_ms = 0
        self._purged_ms = 0

    def add(self, path: str, modified_ms: int) -> None:
        self._files[self._key(path)] = modified_ms
        self._newest_ms = max(self._newest_ms, modified_ms)

    def is_new(self, path: str, modified_ms: int) -> bool:
        # Compare with the last purge, not with the newest file, as Spark does: names are only
        # forgotten by a purge, so a later file is either remembered or really new.
        return modified_ms >= self._purged_ms and self._key(path) not in self._files

    def purge(self) -> None:
        if self._max_age_ms is None:
            return
        self._purged_ms = self._newest_ms - self._max_age_ms
        self._files = {key: at for key, at in self._files.items() if at >= self._purged_ms}

    def _key(self, path: str) -> str:
        return path.rpartition("/")[2] if self._name_only else path


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file in the directory, with its path in the form of the log."""

    path: str
    modified_ms: int
    size: int = 0


def next_files(
    files: Iterable[FoundFile], seen: SeenFiles, *, latest_first: bool
) -> list[FoundFile]:
    """Return the files that are not logged yet, in the order in which they are read."""
    ordered = sorted(files, key=lambda file: file.modified_ms, reverse=latest_first)
    return [file for file in ordered if seen.is_new(file.path, file.modified_ms)]


def file_batches(
    files: Sequence[FoundFile], max_files: int | None, max_bytes: int | None
) -> Iterator[list[FoundFile]]:
    """Divide files into batches of the log, by Spark's rules. A batch has at least one file."""
    batch: list[FoundFile] = []
    size = 0
    for file in files:
        is_full = len(batch) == max_files or (
            max_bytes is not None and size + file.size > max_bytes
        )
        if batch and is_full:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


class FileSource(BoundedSource):
    """The driver's side. Its thread discovers files until `close`."""

    lists_together = True

    def __init__(
        self,
        form: str,
        options: FileSourceOptions,
        schema: pa.Schema | None,
        checkpoint: Files,
        index: int,
        *,
        spark: SparkSession | None = None,
        parallelism: int = 1,
        watch: bool = True,
    ) -> None:
        """`spark` makes the reader of the files; None for the active session."""
        self._form, self._options, self._spark = form, options, spark
        self._schema = checked_schema(form, schema)
        self._partitions = options.num_partitions or parallelism
        self._files = open_files(options.path, links=True)
        if self._files.info("") is None:
            raise OptionError(
                f"{form}: path {self._files.url} does not exist. Create the directory, or "
                f"correct the option path."
            )
        self._log = FileSourceLog(checkpoint.at(source_log_path(index)))
        # As in Spark: with latestFirst and a limit, old files wait for their turn, however old.
        limited = options.latest_first and self.bounds_epochs
        age_ms = options.max_file_age // timedelta(milliseconds=1)
        self._seen = SeenFiles(None if limited else age_ms, name_only=options.file_name_only)
        for entry in self._log.all_files():
            self._seen.add(entry.path, entry.timestamp)
        self._seen.purge()
        newest = self._log.latest_batch_id()
        self._newest = -1 if newest is None else newest
        self._read_to = self._newest + 1
        self._waiting: list[list[FoundFile]] = []
        """With a bound: the next batches of the log."""
        self._fixed_to = 0
        """Batches of the log before this one may get no other files than those that wait now."""
        self._unsure: list[FoundFile] = []
        """The files of a batch whose entry may or may not have been written."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: EpochalError | None = None
        self._thread = threading.Thread(target=self._watch, name="epochal-file-source", daemon=True)
        if watch and not self.bounds_epochs:
            self._thread.start()

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def bounded(self) -> FileSource:
        return self

    @property
    def bounds_epochs(self) -> bool:
        options = self._options
        return (options.max_files_per_trigger or options.max_bytes_per_trigger) is not None

    @property
    def readers(self) -> ReaderChoice:
        return ReaderChoice(self._make_readers)

    def _make_readers(self, columns: frozenset[str] | None) -> FileReaders:
        from pyspark.sql import SparkSession

        spark = self._spark or SparkSession.active()
        names = [field.name for field in self._schema if not is_metadata(field)]
        with storage_errors(self._files.url):
            first = next(iter(self._found_files()), None)
        below = None if first is None else path_below(self._files.url, first.path)
        in_path = frozenset(name for name, _ in partition_texts(below or "") if name in names)
        in_file = [name for name in names if name not in in_path]
        root, given = self._files.url, self._options.reader_options
        return FileReaders(
            root=root,
            log=self._log.url,
            form=self._form,
            schema=self._schema,
            reader=make_reader(spark, self._form, given, self._schema, in_file, columns, root),
            in_path=in_path,
            poll_seconds=self._options.discovery_interval.total_seconds(),
        )

    def initial(self) -> Positions:
        return self._all_at(0, self._partitions)

    def resume(self, offset: Offset) -> Positions:
        return self._all_at(parse_log_offset(offset) + 1, self._partitions)

    def discover(self, known: Positions) -> Positions:
        self._partitions = len(known)  # the checkpoint may have others than the options say
        return {}

    def offset(self, positions: Positions) -> Offset:
        if self._error is not None:
            raise self._error
        lowest = min(at.batch for at, _ in map(parse_position, positions.values()))
        return f'{{"logOffset":{lowest - 1}}}'

    def boundary(self, positions: Positions) -> Positions:
        at = [parse_position(text)[0] for text in positions.values()]
        batch = max(place.batch + ((place.file, place.row) != (0, 0)) for place in at)
        return self._all_at(batch, len(at))

    def latest(self) -> Positions:
        """Where all files are read that are there now, however far readers are behind."""
        if self.bounds_epochs:
            with self._lock:
                self._look()
            return self._all_at(self._newest + 1 + len(self._waiting), self._partitions)
        self._log_files(as_many_as_there_are=True)
        return self._all_at(self._newest + 1, self._partitions)

    def last_end(self, at: Positions) -> Positions:
        self._fixed_to = _batch_of(self.latest())
        return self._ends(at, self._fixed_to)

    def next_end(self, at: Positions, last: Positions | None, *, bounded: bool = True) -> Positions:
        """The end of the next batch of the log, or of the batch that was begun."""
        lowest = min(parse_position(text)[0].batch for text in at.values())
        stop = None if last is None else _batch_of(last)
        if not self.bounds_epochs:
            return self._ends(at, self._newest + 1 if stop is None else stop)
        with self._lock:
            if stop is None and lowest > self._newest:
                self._look()
            while self._waiting and (not bounded or lowest > self._newest):
                if stop is not None and self._newest + 1 >= stop:
                    break
                self._log_batch(self._waiting[0])
                del self._waiting[0]
            self._seen.purge()
        return self._ends(at, min(lowest + 1, self._newest + 1) if bounded else self._newest + 1)

    def _ends(self, at: Positions, batch: int) -> Positions:
        """The start of a batch in every partition, or where it is if it has begun that batch."""
        ends = self._all_at(batch, len(at))
        return {name: max(ends[name], at[name], key=parse_position) for name in at}

    def lag(self, positions: Positions, latest: Positions) -> int:
        """The number of log batches that are not read completely."""
        lowest = min(parse_position(text)[0].batch for text in positions.values())
        return max(0, _batch_of(latest) - lowest)

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        del epoch
        self._read_to = min(at.batch for at, _ in map(parse_position, positions.values()))

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def discover_files(self) -> bool:
        """Log a batch of new files. False if there are none or the readers are too far behind."""
        return self._log_files(as_many_as_there_are=False)

    def _log_files(self, *, as_many_as_there_are: bool) -> bool:
        with self._lock:
            if not as_many_as_there_are and self._newest + 1 - self._read_to >= BATCHES_AHEAD:
                return False
            new = self._new_files()
            if new:
                self._log_batch(new)
            self._seen.purge()
            return bool(new)

    def _look(self) -> None:
        """Divide the files that are not logged into batches; those that are fixed stay."""
        options = self._options
        fixed = self._waiting[: max(0, self._fixed_to - self._newest - 1)]
        taken = {file.path for batch in fixed for file in batch}
        new = [file for file in self._new_files() if file.path not in taken]
        limits = options.max_files_per_trigger, options.max_bytes_per_trigger
        self._waiting = [*fixed, *file_batches(new, *limits)]

    def _new_files(self) -> list[FoundFile]:
        with storage_errors(self._files.url):
            there = list(self._found_files())
        return next_files(there, self._seen, latest_first=self._options.latest_first)

    def _log_batch(self, chosen: Sequence[FoundFile]) -> None:
        batch = self._newest + 1
        # If storage failed at the last try, the batch may be there nevertheless. So it stays as it
        # was, whatever has been found since.
        tried, self._unsure = self._unsure, []
        files = tried or list(chosen)
        entries = [FileEntry(file.path, file.modified_ms, batch) for file in files]
        try:
            added = self._log.add(batch, entries)
            if not added:
                there = (self._log.get(batch) or ()) if tried else ()
                if not all(entry in there for entry in entries):
                    raise ConcurrentUpdateError(self._log.url, batch)
        except (StorageError, OSError):
            self._unsure = files
            raise
        for file in files:
            self._seen.add(file.path, file.modified_ms)
        self._newest = batch
        logger.info("file source: batch %d of the log has %d files", batch, len(files))

    def _watch(self) -> None:
        while not self._stop.is_set():
            more = False
            try:
                more = self.discover_files()
                self._error = None
            except EpochalError as error:
                self._error = error
            except OSError as error:
                self._error = StorageError.of(self._files.url, error)
                self._error.__cause__ = error
            if not more:
                self._stop.wait(self._options.discovery_interval.total_seconds())

    def _found_files(self) -> Iterable[FoundFile]:
        root = self._files.url
        if self._files.info(SINK_LOG) is not None:
            # A streaming sink wrote this directory: only files in its log are output.
            for status in FileSinkLog(self._files.at(SINK_LOG), read_only=True).all_files():
                below = path_below(root, status.path)
                if below is not None:
                    at_ms, size = status.modification_time, status.size
                    yield FoundFile(entry_path(root, below), at_ms, size)
            return
        pattern = self._options.path_glob_filter or "*"
        for below, info in self._listed(""):
            if fnmatchcase(info.name, pattern):
                yield FoundFile(entry_path(root, below), info.modified_ms, info.size)

    def _listed(self, directory: str) -> Iterable[tuple[str, FileInfo]]:
        for info in self._files.list(directory):
            below = f"{directory}/{info.name}" if directory else info.name
            if is_hidden(info.name):
                continue
            if not info.is_dir:
                yield below, info
            elif self._options.recursive_file_lookup or "=" in info.name:
                yield from self._listed(below)

    def _all_at(self, batch: int, partitions: int) -> Mapping[str, str]:
        text = FilePosition(batch, 0, 0).text(partitions)
        return {str(p): text for p in range(partitions)}


def _batch_of(ends: Positions) -> int:
    return max(parse_position(text)[0].batch for text in ends.values())


def parse_log_offset(offset: Offset) -> int:
    """Parse `{"logOffset":N}`, or the plain number that early releases of Spark wrote."""
    match parse_json(offset, "file source offset"):
        case {"logOffset": int(batch)} | int(batch) if batch >= -1:
            return batch
    raise MalformedFileError(
        "file source offset", f'{offset[:80]!r} is not of the form {{"logOffset": N}}'
    )


def file_source_schema(
    name: str, options: Mapping[str, str], schema: pa.Schema | None
) -> pa.Schema:
    """The columns of a source. Checks its options too."""
    read_options(FileSourceOptions, options, of=name)
    return checked_schema(name, schema)


def open_file_source(request: SourceRequest) -> FileSource:
    options, checkpoint = request.read_options(FileSourceOptions), request.checkpoint
    return FileSource(
        *(request.format, options, request.schema, checkpoint, request.index),
        spark=request.spark,
        parallelism=request.parallelism,
    )


def checked_schema(form: str, schema: pa.Schema | None) -> pa.Schema:
    """The schema of a source's rows: the given one, or the only one that a format can have."""
    if schema is None:
        schema = FIXED_SCHEMAS.get(form)
    if schema is None:
        raise OptionError(
            f"{form}: a file source cannot infer its schema. Set it with .schema(...)."
        )
    names: Sequence[str] = schema.names
    if len(set(names)) < len(names):
        raise OptionError(
            f"{form}: column names in the schema must be unique, but are {', '.join(names)}."
        )
    return schema
