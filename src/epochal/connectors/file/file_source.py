"""Spark's file source: files of a directory, each once, by the log in `sources/N`.

Discovery is the driver's: a thread lists the directory and logs what is new, batch by batch, as
Spark's FileStreamSource does and with its rules for what is new, so that either engine can go on
with the log of the other. The offset is the newest log batch that was read completely; a query
that stops gracefully ends at the end of a batch. Readers follow the log themselves
(`file_reader.py`).

What a reader would get wrong: a name in the log is a promise. Files logged and not yet read when
a run ends are read by the next one, and are not discovered again. So the log may run ahead of
the readers, but only by `BATCHES_AHEAD`, or `maxFilesPerTrigger` would mean nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

import pyarrow as pa

from epochal.checkpoint.file_log import FileEntry, FileSinkLog, FileSourceLog
from epochal.checkpoint.layout import SINK_LOG, source_log_path
from epochal.checkpoint.metadata_log import storage_errors
from epochal.checkpoint.spark_json import parse_json
from epochal.connectors.contract import Offset, Positions
from epochal.connectors.file.file_formats import TEXT_SCHEMA, Csv, FileFormat
from epochal.connectors.file.file_names import entry_path, is_hidden, path_below
from epochal.connectors.file.file_reader import FilePosition, FileReaders, parse_position
from epochal.errors import (
    ConcurrentUpdateError,
    EpochalError,
    MalformedFileError,
    OptionError,
    StorageError,
)
from epochal.files import FileInfo, Files, open_files

logger = logging.getLogger(__name__)

BATCHES_AHEAD = 16
"""How many log batches may wait to be read."""


class CleanSource(StrEnum):
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSourceOptions:
    """What Spark's file source takes, and `numPartitions` and `discoveryInterval`."""

    path: str

    max_files_per_trigger: int | None = None
    """Files per batch of the source's log. At most 16 batches wait to be read."""

    latest_first: bool = False

    max_file_age: timedelta = timedelta(days=7)
    """Older than the newest file by this: ignored. How long names are remembered, too."""

    file_name_only: bool = False
    path_glob_filter: str | None = None
    recursive_file_lookup: bool = False
    clean_source: CleanSource = CleanSource.OFF

    header: bool = False
    sep: str = ","
    null_value: str = ""

    num_partitions: int | None = None
    """Counts in the first run of a checkpoint, and whenever Spark has run on it since."""

    discovery_interval: timedelta = timedelta(milliseconds=100)
    """How often the directory is listed, and how often readers look into the log."""

    def __post_init__(self) -> None:
        for name, value in (
            ("maxFilesPerTrigger", self.max_files_per_trigger),
            ("numPartitions", self.num_partitions),
        ):
            if value is not None and value <= 0:
                raise OptionError(f"files: {name} must be positive, not {value}.")
        if any(c in self.path for c in "*?[{"):
            raise OptionError(
                f"files: path {self.path!r} has a pattern in it. Give the directory as path, and "
                f"the pattern of file names as pathGlobFilter."
            )


class SeenFiles:
    """The names that were taken in, as long as their age matters (SeenFilesMap)."""

    def __init__(self, max_age_ms: int | None, *, name_only: bool) -> None:
        self._max_age_ms, self._name_only = max_age_ms, name_only
        self._files: dict[str, int] = {}
        self._newest_ms = 0
        self._purged_ms = 0

    def add(self, path: str, modified_ms: int) -> None:
        self._files[self._key(path)] = modified_ms
        self._newest_ms = max(self._newest_ms, modified_ms)

    def is_new(self, path: str, modified_ms: int) -> bool:
        # Compared with the last purge, not with the newest file: what is still remembered counts.
        return modified_ms >= self._purged_ms and self._key(path) not in self._files

    def purge(self) -> None:
        if self._max_age_ms is None:
            return
        self._purged_ms = self._newest_ms - self._max_age_ms
        self._files = {key: at for key, at in self._files.items() if at >= self._purged_ms}

    def _key(self, path: str) -> str:
        return path.rpartition("/")[2] if self._name_only else path


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the directory, by the path a log would hold."""

    path: str
    modified_ms: int


def next_files(
    there: Iterable[Found], seen: SeenFiles, *, latest_first: bool, most: int | None
) -> list[Found]:
    """Which files make the next batch."""
    ordered = sorted(there, key=lambda each: each.modified_ms, reverse=latest_first)
    return [each for each in ordered if seen.is_new(each.path, each.modified_ms)][:most]


class FileSource:
    """The driver's side. Its thread runs from the start until `close`."""

    acknowledges_in_tasks = False

    def __init__(
        self,
        form: FileFormat,
        options: FileSourceOptions,
        schema: pa.Schema | None,
        checkpoint: Files,
        index: int,
        *,
        parallelism: int = 1,
        watch: bool = True,
    ) -> None:
        self._form, self._options = form, options
        self._schema = checked_schema(form, schema)
        self._partitions = options.num_partitions or parallelism
        self._files = open_files(options.path)
        if self._files.info("") is None:
            raise OptionError(f"{form.value}: path {self._files.url} does not exist.")
        self._log = FileSourceLog(checkpoint.at(source_log_path(index)))
        limited = options.latest_first and options.max_files_per_trigger is not None
        age_ms = options.max_file_age // timedelta(milliseconds=1)
        self._seen = SeenFiles(None if limited else age_ms, name_only=options.file_name_only)
        for entry in self._log.all_files():
            self._seen.add(entry.path, entry.timestamp)
        self._seen.purge()
        newest = self._log.latest_batch_id()
        self._newest = -1 if newest is None else newest
        self._read_to = self._newest + 1
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: EpochalError | None = None
        self._thread = threading.Thread(target=self._watch, name="epochal-file-source", daemon=True)
        if watch:
            self._thread.start()

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def readers(self) -> FileReaders:
        options = self._options
        return FileReaders(
            root=self._files.url,
            log=self._log.url,
            form=self._form,
            schema=self._schema,
            csv=Csv(options.header, options.sep, options.null_value),
            poll_seconds=options.discovery_interval.total_seconds(),
        )

    def initial(self) -> Positions:
        return self._all_at(0, self._partitions)

    def resume(self, offset: Offset) -> Positions:
        return self._all_at(parse_log_offset(offset) + 1, self._partitions)

    def discover(self, known: Positions) -> Positions:
        del known
        return {}

    def offset(self, positions: Positions) -> Offset:
        self._raise_if_broken()
        lowest = min(at.batch for at, _ in map(parse_position, positions.values()))
        return f'{{"logOffset":{lowest - 1}}}'

    def boundary(self, positions: Positions) -> Positions:
        at = [parse_position(text)[0] for text in positions.values()]
        batch = max(each.batch + ((each.file, each.row) != (0, 0)) for each in at)
        return self._all_at(batch, len(at))

    def latest(self) -> Positions:
        """The end of the log, after a look into the directory."""
        self.look()
        return self._all_at(self._newest + 1, self._partitions)

    def lag(self, positions: Positions, latest: Positions) -> int:
        """Batches of the log that are not read completely."""
        lowest = min(parse_position(text)[0].batch for text in positions.values())
        end = max(parse_position(text)[0].batch for text in latest.values())
        return max(0, end - lowest)

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        del epoch
        self._read_to = min(at.batch for at, _ in map(parse_position, positions.values()))

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> bool:
        """Log a batch of new files, if there are any and the readers are near."""
        self._raise_if_broken()
        with self._lock:
            if self._newest + 1 - self._read_to >= BATCHES_AHEAD:
                return False
            with storage_errors(self._files.url):
                there = list(self._there())
            options = self._options
            chosen = next_files(
                there,
                self._seen,
                latest_first=options.latest_first,
                most=options.max_files_per_trigger,
            )
            for each in chosen:
                self._seen.add(each.path, each.modified_ms)
            self._seen.purge()
            if not chosen:
                return False
            batch = self._newest + 1
            entries = [FileEntry(each.path, each.modified_ms, batch) for each in chosen]
            if not self._log.add(batch, entries):
                raise ConcurrentUpdateError(self._log.url, batch)
            self._newest = batch
            logger.info("file source: batch %d of the log has %d files", batch, len(chosen))
            return True

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                more = self.look()
            except EpochalError as error:
                self._error = error
                return
            except OSError as error:
                self._error = StorageError(self._files.url, f"cannot be listed: {error}")
                return
            if not more:
                self._stop.wait(self._options.discovery_interval.total_seconds())

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise self._error

    def _there(self) -> Iterable[Found]:
        root = self._files.url
        if self._files.info(SINK_LOG) is not None:
            # A streaming sink wrote here: its log says which files count.
            for status in FileSinkLog(self._files.at(SINK_LOG), read_only=True).all_files():
                below = path_below(root, status.path)
                if below is not None:
                    yield Found(entry_path(root, below), status.modification_time)
            return
        wanted = self._options.path_glob_filter or "*"
        for below, info in self._listed(""):
            if fnmatchcase(info.name, wanted):
                yield Found(entry_path(root, below), info.modified_ms)

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


def parse_log_offset(offset: Offset) -> int:
    """The batch in `{"logOffset":N}`, or in the plain number that early releases wrote."""
    match parse_json(offset, "file source offset"):
        case {"logOffset": int(batch)} | int(batch) if batch >= -1:
            return batch
    raise MalformedFileError("file source offset", f"{offset[:80]!r} is none")


def checked_schema(form: FileFormat, schema: pa.Schema | None) -> pa.Schema:
    """The schema of a source's rows: that of lines, or the one that was given."""
    if form is FileFormat.TEXT and schema is None:
        return TEXT_SCHEMA
    if schema is None:
        raise OptionError(
            f"{form.value}: a stream of files needs its schema to be given: .schema(...)."
        )
    names: Sequence[str] = schema.names
    if len(set(names)) < len(names):
        raise OptionError(f"{form.value}: the schema has a name twice: {', '.join(names)}.")
    return schema
