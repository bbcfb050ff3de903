"""Reads, in tasks, the files that the file source's log names.

A position consists of a batch of the source's log, the index of a file among the partition's files
in that batch, and a row in that file. The files of a batch are assigned to partitions round-robin.
Each batch starts with another partition; otherwise batches of one file would all go to the first.
After the last file of a batch, the position is the start of the next batch, even if that does not
exist yet.

Note: `read` never opens a file. One thread per reader follows the log, reads ahead and decodes.
`read` only takes decoded batches, in the order of each partition's files.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochal.checkpoint.file_log import FileEntry, FileSourceLog
from epochal.checkpoint.spark_json import parse_object
from epochal.connectors.contract import Positions, ReaderFactory, SourceReader
from epochal.connectors.file.file_names import entry_path, partition_texts, path_below
from epochal.connectors.file.plain_parquet import NotPlain, plain_batches
from epochal.connectors.file.spark_reader import SparkReader
from epochal.errors import EpochalError, ExpressionError, MalformedFileError, StorageError
from epochal.evaluator.evaluator_client import CLIENT
from epochal.files import Files, open_files
from epochal.record_batches import batch_of, struct_of

READY_BATCHES = 4
"""How many decoded batches are kept ready per partition."""
METADATA = b"__file_source_metadata_col"
"""The key in the metadata of the column `_metadata`, by which Spark too tells it from others."""
METADATA_FIELDS = (
    *("file_path", "file_name", "file_size", "file_block_start", "file_block_length"),
    *("file_modification_time", "row_index"),
)
LIST_EVERY = 50
"""One of this many polls lists the whole log. This finds batches that compaction has merged into
another file and whose own file has expired."""


def is_metadata(field: pa.Field[Any]) -> bool:
    """Whether a column is Spark's `_metadata`: what is known of the file that a row is from."""
    return METADATA in (field.metadata or {})


@dataclass(frozen=True, slots=True, order=True)
class FilePosition:
    """Where a partition continues: batch of the log, index among its own files, row in the file."""

    batch: int
    file: int
    row: int

    def text(self, partitions: int) -> str:
        return f'{{"batch":{self.batch},"file":{self.file},"row":{self.row},"of":{partitions}}}'


def parse_position(text: str) -> tuple[FilePosition, int]:
    """Parse a position, and the number of partitions among which files are divided."""
    match parse_object(text, "file position"):
        case {"batch": int(batch), "file": int(file), "row": int(row), "of": int(of)} if (
            min(batch, file, row) >= 0 and of > 0
        ):
            return FilePosition(batch, file, row), of
    raise MalformedFileError(
        "file position",
        f'{text[:80]!r} is not of the form {{"batch": N, "file": N, "row": N, "of": N}}',
    )


def own_files(
    batch: int, files: Sequence[FileEntry], partition: int, partitions: int
) -> list[FileEntry]:
    """The files of a log batch that belong to a partition."""
    return [file for n, file in enumerate(files) if (batch + n) % partitions == partition]


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Decoded rows, their position, and the partition's position after all of them are taken.

    `rows` is None if there is nothing to read between both positions.
    """

    start: FilePosition
    rows: pa.RecordBatch | None
    after: FilePosition


@dataclass(frozen=True, slots=True)
class FileReaders(ReaderFactory):
    root: str
    log: str
    form: str
    schema: pa.Schema
    reader: SparkReader
    in_path: frozenset[str]
    """The partition columns in the paths of files when the query started."""
    poll_seconds: float

    def open(self, partitions: Positions) -> FileReader:
        return FileReader(self, partitions)


class ReaderChoice:
    """The readers of all columns, or of those that a query uses. Spark makes them when asked."""

    def __init__(self, make: Callable[[frozenset[str] | None], FileReaders]) -> None:
        self._make = make

    def only(self, columns: frozenset[str]) -> FileReaders:
        return self._make(columns)

    def open(self, partitions: Positions) -> FileReader:
        return self._make(None).open(partitions)

    def __reduce__(self) -> tuple[Any, ...]:
        return replace, (self._make(None),)  # a task gets what was made


class FileReader(SourceReader):
    """Returns the batches that its thread has decoded."""

    def __init__(self, plan: FileReaders, partitions: Positions) -> None:
        parsed = {name: parse_position(text) for name, text in partitions.items()}
        self._at = {name: at for name, (at, _) in parsed.items()}
        self._of = {name: of for name, (_, of) in parsed.items()}
        self._ends: dict[str, FilePosition] = {}
        self._ready: dict[str, deque[DecodedRows]] = {name: deque() for name in parsed}
        self._next_poll = dict.fromkeys(parsed, 0.0)
        self._names = deque(parsed)
        self._changed = threading.Condition()
        self._closed = False
        self._error: Exception | None = None
        self._poll_seconds = plan.poll_seconds
        self._thread = threading.Thread(
            target=self._run, args=(plan,), name="epochal-file-reader", daemon=True
        )
        self._thread.start()

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        with self._changed:
            if self._error is not None:
                raise self._error
            self._names.rotate(-1)
            for name in self._names:
                batch = self._take(name, max_rows)
                if batch is not None:
                    self._changed.notify_all()
                    return batch
        return None

    def positions(self) -> Positions:
        return {name: at.text(self._of[name]) for name, at in self._at.items()}

    def limit(self, ends: Positions) -> None:
        self._ends = {name: parse_position(text)[0] for name, text in ends.items()}
        with self._changed:  # the batch up to the end may have been logged just now
            self._next_poll = dict.fromkeys(self._next_poll, 0.0)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _take(self, name: str, max_rows: int) -> pa.RecordBatch | None:
        """The next rows of a partition. Skips files without rows."""
        ready = self._ready[name]
        while ready and self._at[name] != self._ends.get(name):
            item = ready[0]
            if item.rows is None:
                self._at[name] = ready.popleft().after
                self._changed.notify_all()
                continue
            taken = item.rows.slice(0, min(max_rows, self._room(name, item)))
            if taken.num_rows == item.rows.num_rows:
                self._at[name] = ready.popleft().after
            else:
                start = item.start
                at = FilePosition(start.batch, start.file, start.row + taken.num_rows)
                ready[0] = DecodedRows(at, item.rows.slice(taken.num_rows), item.after)
                self._at[name] = at
            return taken
        return None

    def _room(self, name: str, item: DecodedRows) -> int:
        end, start = self._ends.get(name), item.start
        assert item.rows is not None
        if end is not None and (end.batch, end.file) == (start.batch, start.file):
            return end.row - start.row
        return int(item.rows.num_rows)

    def _run(self, plan: FileReaders) -> None:
        try:
            feeds = {
                name: _feed(plan, int(name), self._of[name], at)
                for name, at in list(self._at.items())
            }
            while not self._closed:
                moved = [self._advance(name, feed) for name, feed in feeds.items()]
                if not any(moved):
                    with self._changed:
                        if not self._closed:
                            self._changed.wait(self._poll_seconds)
        except EpochalError as error:
            self._error = error
        except (OSError, ValueError, pa.ArrowException) as error:
            self._error = StorageError(plan.root, f"a file cannot be read: {error}")
            self._error.__cause__ = error
        finally:
            CLIENT.close()  # it may hold open files

    def _advance(self, name: str, feed: Iterator[DecodedRows | None]) -> bool:
        # `read` wakes this thread whenever it takes rows. The deadline keeps these wake-ups from
        # polling the log more often than once per `poll_seconds`.
        if len(self._ready[name]) >= READY_BATCHES or time.monotonic() < self._next_poll[name]:
            return False
        item = next(feed)
        if item is None:
            self._next_poll[name] = time.monotonic() + self._poll_seconds
            return False
        with self._changed:
            self._ready[name].append(item)
        return True


def _feed(
    plan: FileReaders, partition: int, partitions: int, at: FilePosition
) -> Iterator[DecodedRows | None]:
    """Yield all rows of one partition from a position on; None while the log has no new batch."""
    log = FileSourceLog(open_files(plan.log), read_only=True)
    files = open_files(plan.root, links=True)
    misses = 0
    while True:
        if not _is_logged(log, at.batch, list_log=misses % LIST_EVERY == 0):
            misses += 1
            yield None
            continue
        misses = 0
        ((_, entries),) = log.get_range(at.batch, at.batch)
        mine = own_files(at.batch, entries, partition, partitions)
        following = FilePosition(at.batch + 1, 0, 0)
        for index in range(at.file, len(mine)):
            row = at.row if index == at.file else 0
            after = FilePosition(at.batch, index + 1, 0) if index + 1 < len(mine) else following
            start = FilePosition(at.batch, index, row)
            yield from _rows_of(plan, files, mine[index], start, after)
        if not mine:
            yield DecodedRows(at, None, following)
        at = following


def _is_logged(log: FileSourceLog, batch: int, *, list_log: bool) -> bool:
    """Whether the log has a batch. A batch whose own file has expired is only found by listing."""
    if log.files.info(log.path_of(batch)) is not None:
        return True
    newest = log.latest_batch_id() if list_log else None
    return newest is not None and newest >= batch


def _rows_of(
    plan: FileReaders, files: Files, entry: FileEntry, start: FilePosition, after: FilePosition
) -> Iterator[DecodedRows]:
    row = start.row
    # One batch is held back: only after the file's last batch is the next position `after`.
    held: tuple[FilePosition, pa.RecordBatch] | None = None
    for rows in _decoded(plan, files, entry, row):
        if not rows.num_rows:
            continue
        if held is not None:
            yield DecodedRows(*held, FilePosition(start.batch, start.file, row))
        held = (FilePosition(start.batch, start.file, row), rows)
        row += rows.num_rows
    if held is None:
        yield DecodedRows(start, None, after)
    else:
        yield DecodedRows(*held, after)


def _decoded(
    plan: FileReaders, files: Files, entry: FileEntry, row: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file from `row` on."""
    below = path_below(plan.root, entry.path)
    if below is None:
        raise StorageError(
            entry.path,
            f"the file source's log names this file, but it is not below the path {plan.root}. "
            f"Set path to the directory that the checkpoint was created with",
        )
    in_path = {name: text for name, text in partition_texts(below) if name in plan.schema.names}
    if plan.form == "csv" and plan.in_path != in_path.keys():
        raise StorageError(
            entry.path,
            f"the partition columns in the path are ({', '.join(in_path)}), but were "
            f"({', '.join(sorted(plan.in_path))}) when the query started. Start it again",
        )
    info = files.info(below)
    size = 0 if info is None else info.size
    if info is not None and not size:
        return  # Spark passes over empty files, also where they would have a row

    def completed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal row
        for batch in batches:
            yield _complete(batch, plan, tuple(in_path), _facts(entry, size, row))
            row += batch.num_rows

    if plan.reader.plain:
        try:
            yield from completed(_plain(plan, files, below, row, in_path))
        except (NotPlain, pa.ArrowException, OSError):
            pass  # Spark's reader goes on from here, or has Spark's error
        else:
            return
    try:
        with _reachable(plan, files, below) as url:
            rows = plan.reader.rows(url, size, entry.timestamp, row, in_path)
            yield from completed(rows)
    except ExpressionError as error:
        raise StorageError(entry.path, _why(plan, str(error))) from error


def _plain(
    plan: FileReaders, files: Files, below: str, row: int, in_path: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    fields = [plan.schema.field(name) for name in plan.reader.columns]
    partitions = [(plan.schema.field(name), text) for name, text in in_path.items()]
    for batch in plain_batches(files.read(below), fields, partitions):
        dropped = min(row, batch.num_rows)
        row -= dropped
        yield batch.slice(dropped)


@contextmanager
def _reachable(plan: FileReaders, files: Files, below: str) -> Iterator[str]:
    """The URL by which Spark's reader finds a file, or a copy of it."""
    if not plan.reader.copies:
        yield entry_path(plan.root, below)
        return
    with tempfile.TemporaryDirectory() as folder:
        name = below.rpartition("/")[2]  # its ending says how it is compressed
        Path(folder, name).write_bytes(files.read(below))
        yield entry_path(folder, name)


def _why(plan: FileReaders, message: str) -> str:
    if "FAILED_READ_FILE.FILE_NOT_EXIST" in message:
        return (
            "the file source's log names this file, but it no longer exists. Restore it, set "
            "ignoreMissingFiles, or move the query's offset past it with `epochal checkpoint "
            "set-offsets`"
        )
    if plan.form == "avro" and "ClassNotFoundException" in message:
        return (
            "Spark's reader of Avro is not on the executors' class path. Add the package "
            "spark-avro, and start the query again"
        )
    return f"cannot be read as {plan.form}: {message}"


def _facts(entry: FileEntry, size: int, row: int) -> dict[str, Any]:
    """What `_metadata` says of rows from `row` on. A file is one block; its name is escaped.

    Spark's streams write one slash after `file:`, although the log has three.
    """
    path = entry.path.replace("file:///", "file:/", 1)
    name, modified = path.rpartition("/")[2], entry.timestamp * 1000
    return dict(zip(METADATA_FIELDS, (path, name, size, 0, size, modified, row), strict=True))


def _complete(
    batch: pa.RecordBatch, plan: FileReaders, in_path: tuple[str, ...], facts: Mapping[str, Any]
) -> pa.RecordBatch:
    """Add the columns that the reader does not fill: `_metadata`, and those that nobody uses."""
    rows = batch.num_rows
    places = {name: place for place, name in enumerate((*plan.reader.columns, *in_path))}

    def column(field: pa.Field[Any]) -> Any:
        if is_metadata(field):
            kinds: list[pa.Field[Any]] = list(field.type)
            return struct_of([_fact(kind, facts[kind.name], rows) for kind in kinds], kinds, rows)
        if field.name not in places:
            return pa.nulls(rows, field.type)
        values = batch.column(places[field.name])
        return values if values.type == field.type else values.cast(field.type)

    return batch_of([column(field) for field in plan.schema], plan.schema, rows)


def _fact(kind: pa.Field[Any], value: Any, rows: int) -> Any:
    if kind.name == "row_index":
        return pa.array(range(value, value + rows), kind.type)
    return pa.repeat(pa.scalar(value, kind.type), rows)
