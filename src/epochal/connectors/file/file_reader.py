"""Files that a source's log names, read in tasks: positions, and a thread that reads ahead.

A position is a batch of the source's log, a file among those of that batch that fall to the
partition, and a row in that file. Files of a batch are dealt out in turn, beginning with another
partition each batch, so that batches of one file do not all fall to the first. After the last
file of a batch a position is the start of the next batch, whether that exists yet or not.

What a reader would get wrong: `read` opens nothing. A thread per reader follows the log, reads
and decodes; `read` takes from what it has ready, in the order of each partition's files.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from epochal.checkpoint.file_log import FileEntry, FileSourceLog
from epochal.checkpoint.spark_json import parse_object
from epochal.connectors.contract import Positions
from epochal.connectors.file.file_formats import Csv, FileFormat, decode
from epochal.connectors.file.file_names import partition_values, path_below
from epochal.errors import EpochalError, MalformedFileError, StorageError
from epochal.files import Files, open_files

READY_BATCHES = 4
"""How many decoded batches a partition holds ready."""
LIST_EVERY = 50
"""Of so many polls of the log one is a listing, which finds batches whose own file has expired."""


@dataclass(frozen=True, slots=True, order=True)
class FilePosition:
    """Where a partition goes on: log batch, own file in it, row in that."""

    batch: int
    file: int
    row: int

    def text(self, partitions: int) -> str:
        return f'{{"batch":{self.batch},"file":{self.file},"row":{self.row},"of":{partitions}}}'


def parse_position(text: str) -> tuple[FilePosition, int]:
    """A position, and over how many partitions files are dealt out."""
    match parse_object(text, "file position"):
        case {"batch": int(batch), "file": int(file), "row": int(row), "of": int(of)} if (
            min(batch, file, row) >= 0 and of > 0
        ):
            return FilePosition(batch, file, row), of
    raise MalformedFileError("file position", f"{text[:80]!r} is none")


def own_files(
    batch: int, files: Sequence[FileEntry], partition: int, partitions: int
) -> list[FileEntry]:
    """The files of a log batch that fall to a partition."""
    return [each for n, each in enumerate(files) if (batch + n) % partitions == partition]


@dataclass(frozen=True, slots=True)
class Ready:
    """Rows from a place, and where the partition stands once all of them are taken."""

    start: FilePosition
    rows: pa.RecordBatch | None
    after: FilePosition


@dataclass(frozen=True, slots=True)
class FileReaders:
    """Opens readers in tasks."""

    root: str
    log: str
    form: FileFormat
    schema: pa.Schema
    csv: Csv
    poll_seconds: float

    def open(self, partitions: Positions) -> FileReader:
        return FileReader(self, partitions)


class FileReader:
    """Hands out what its thread has ready."""

    def __init__(self, plan: FileReaders, partitions: Positions) -> None:
        parsed = {name: parse_position(text) for name, text in partitions.items()}
        self._at = {name: at for name, (at, _) in parsed.items()}
        self._of = {name: of for name, (_, of) in parsed.items()}
        self._ends: dict[str, FilePosition] = {}
        self._ready: dict[str, deque[Ready]] = {name: deque() for name in parsed}
        self._ask_at = dict.fromkeys(parsed, 0.0)
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

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _take(self, name: str, max_rows: int) -> pa.RecordBatch | None:
        """The next rows of a partition; steps over files without any."""
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
                ready[0] = Ready(at, item.rows.slice(taken.num_rows), item.after)
                self._at[name] = at
            return taken
        return None

    def _room(self, name: str, item: Ready) -> int:
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

    def _advance(self, name: str, feed: Iterator[Ready | None]) -> bool:
        # Whoever takes rows wakes this thread; the log is still asked no more often than said.
        if len(self._ready[name]) >= READY_BATCHES or time.monotonic() < self._ask_at[name]:
            return False
        item = next(feed)
        if item is None:
            self._ask_at[name] = time.monotonic() + self._poll_seconds
            return False
        with self._changed:
            self._ready[name].append(item)
        return True


def _feed(
    plan: FileReaders, partition: int, partitions: int, at: FilePosition
) -> Iterator[Ready | None]:
    """Everything of one partition from a position on; None while the log has no more."""
    log = FileSourceLog(open_files(plan.log), read_only=True)
    files = open_files(plan.root)
    misses = 0
    while True:
        if not _is_logged(log, at.batch, look_around=misses % LIST_EVERY == 0):
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
            yield Ready(at, None, following)
        at = following


def _is_logged(log: FileSourceLog, batch: int, *, look_around: bool) -> bool:
    """Whether the log has come to a batch; looking around finds one whose own file has expired."""
    if log.files.info(log.path_of(batch)) is not None:
        return True
    newest = log.latest_batch_id() if look_around else None
    return newest is not None and newest >= batch


def _rows_of(
    plan: FileReaders, files: Files, entry: FileEntry, start: FilePosition, after: FilePosition
) -> Iterator[Ready]:
    skip, row = start.row, start.row
    held: tuple[FilePosition, pa.RecordBatch] | None = None
    for batch in _decoded(plan, files, entry):
        dropped = min(skip, batch.num_rows)
        skip -= dropped
        rows = batch.slice(dropped)
        if not rows.num_rows:
            continue
        if held is not None:
            yield Ready(*held, FilePosition(start.batch, start.file, row))
        held = (FilePosition(start.batch, start.file, row), rows)
        row += rows.num_rows
    if held is None:
        yield Ready(start, None, after)
    else:
        yield Ready(*held, after)


def _decoded(plan: FileReaders, files: Files, entry: FileEntry) -> Iterator[pa.RecordBatch]:
    below = path_below(plan.root, entry.path)
    if below is None:
        raise StorageError(
            entry.path, f"the source's log names this file, which is not below {plan.root}"
        )
    try:
        data = files.read(below)
    except FileNotFoundError:
        raise StorageError(
            entry.path,
            "the source's log names this file, and it is gone. Put it back, or move the query's "
            "offset past it with `epochal checkpoint set-offsets`",
        ) from None
    carried = partition_values(below)
    inside = [field for field in plan.schema if field.name not in carried]
    try:
        for batch in decode(plan.form, data, below, pa.schema(inside), plan.csv):
            yield _with_partitions(batch, plan.schema, carried)
    except (ValueError, pa.ArrowException) as error:
        raise StorageError(
            entry.path, f"not {plan.form.value} of the schema that was given: {error}"
        ) from error


def _with_partitions(
    batch: pa.RecordBatch, schema: pa.Schema, carried: Mapping[str, str | None]
) -> pa.RecordBatch:
    if not carried:
        return batch
    columns = [
        pa.array([carried[field.name]] * batch.num_rows, pa.string()).cast(field.type)
        if field.name in carried
        else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
