"""A source to which driver code adds rows and a sink that it reads: for tests and notebooks.

Readers and writers live in other processes, so both pass their rows through small Arrow files.
The source uses the given directory, or a temporary one. The sink uses `.epochal/memory` in the
checkpoint.

The sink's rows survive a restart of the query, but not of the driver process. Each epoch number is
accepted once, so a restarted query adds no duplicates to an existing `MemoryOutput`.

Note: "memory" means the driver's memory. On a cluster, pass the source a directory that all hosts
share.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa

from epochal.checkpoint.layout import EPOCHAL
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.checkpoint.spark_json import parse_object, to_json
from epochal.connectors.arrow_stream import decode_stream, encode_stream
from epochal.connectors.contract import (
    FunctionReaders,
    FunctionWriters,
    Offset,
    Positions,
    Sink,
    Source,
    SourceReader,
    WriterContext,
)
from epochal.connectors.row_collector import RowCollector
from epochal.errors import MalformedFileError, OptionError, StorageError
from epochal.files import Files, join_url, open_files
from epochal.record_batches import batch_of_dicts, cast_table, joined_tables

MEMORY_OUTPUT = f"{EPOCHAL}/memory"


@dataclass(frozen=True, slots=True)
class MemoryPosition:
    """The number of an added batch, and a row in it."""

    batch: int
    row: int

    def text(self) -> str:
        return f'{{"batch":{self.batch},"row":{self.row}}}'


def parse_position(text: str) -> MemoryPosition:
    match parse_object(text, "memory position"):
        case {"batch": int(batch), "row": int(row)} if batch >= 0 and row >= 0:
            return MemoryPosition(batch, row)
    raise MalformedFileError(
        "memory position", f'{text[:80]!r} is not of the form {{"batch": N, "row": N}}'
    )


class MemoryReader(SourceReader):
    """Reads the files of some partitions in the order in which they were added."""

    def __init__(self, directory: str, partitions: Positions) -> None:
        self._files = open_files(directory)
        self._at = {name: parse_position(text) for name, text in partitions.items()}
        self._ends: dict[str, MemoryPosition] = {}
        self._open: dict[str, pa.RecordBatch] = {}
        self._names = deque(self._at)
        self.last_read: tuple[str, ...] = ()

    def waiting(self) -> Positions:
        return {name: "" for name, at in self._at.items() if self._batch(name, at) is not None}

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        self._names.rotate(-1)
        for name in self._names:
            at, end = self._at[name], self._ends.get(name)
            batch = self._batch(name, at)
            if batch is None or (end is not None and at == end):
                continue
            room = batch.num_rows - at.row
            if end is not None and end.batch == at.batch:
                room = min(room, end.row - at.row)
            taken, self.last_read = batch.slice(at.row, min(max_rows, room)), (name,)
            done = at.row + taken.num_rows
            if done == batch.num_rows:
                del self._open[name]
                self._at[name] = MemoryPosition(at.batch + 1, 0)
            else:
                self._at[name] = MemoryPosition(at.batch, done)
            return taken
        return None

    def positions(self) -> Positions:
        return {name: at.text() for name, at in self._at.items()}

    def limit(self, ends: Positions) -> None:
        self._ends = {name: parse_position(text) for name, text in ends.items()}

    def close(self) -> None:
        self._open.clear()

    def _batch(self, name: str, at: MemoryPosition) -> pa.RecordBatch | None:
        if name not in self._open:
            try:
                data = self._files.read(f"{name}/{at.batch}")
            except FileNotFoundError:
                return None
            (self._open[name],) = decode_stream(data).to_batches()
        return self._open[name]


class MemoryStream(Source):
    """A source to which driver code adds rows; pass it to `format(...)`."""

    tells_waiting = True

    def __init__(
        self, schema: pa.Schema, *, partitions: int = 1, directory: str | None = None
    ) -> None:
        if partitions <= 0:
            raise OptionError(f"A memory stream needs at least one partition, not {partitions}.")
        self._schema, self._partitions = schema, partitions
        self._directory = directory or tempfile.mkdtemp(prefix="epochal-memory-")
        self._files = open_files(self._directory)
        self._lock = threading.Lock()
        self._added = [
            sum(not info.hidden for info in self._files.list(str(p))) for p in range(partitions)
        ]
        self._turn = 0

    def add(
        self,
        rows: pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]],
        *,
        partition: int | None = None,
    ) -> None:
        """Add rows to `partition`, or to the next one in turn."""
        if not isinstance(rows, pa.Table | pa.RecordBatch):
            rows = batch_of_dicts(rows, self._schema)
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        fitting = cast_table(table.select(self._schema.names), self._schema)
        batches = fitting.combine_chunks().to_batches()
        with self._lock:
            for batch in filter(len, batches):
                chosen = self._turn if partition is None else partition
                name = f"{chosen}/{self._added[chosen]}"
                self._files.create(name, encode_stream(self._schema, [batch]).to_pybytes())
                self._added[chosen] += 1
                if partition is None:
                    self._turn = (self._turn + 1) % self._partitions

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def readers(self) -> FunctionReaders:
        return FunctionReaders(partial(MemoryReader, self._directory))

    def initial(self) -> Positions:
        return {str(p): MemoryPosition(0, 0).text() for p in range(self._partitions)}

    def resume(self, offset: Offset) -> Positions:
        by_name = parse_object(offset, "memory offset")
        return {name: parse_position(to_json(at)).text() for name, at in by_name.items()}

    def offset(self, positions: Positions) -> Offset:
        inner = ",".join(f"{to_json(name)}:{at}" for name, at in sorted(positions.items()))
        return f"{{{inner}}}"

    def latest(self) -> Positions:
        with self._lock:
            return {str(p): MemoryPosition(n, 0).text() for p, n in enumerate(self._added)}

    def lag(self, positions: Positions, latest: Positions) -> int:
        at = {name: parse_position(text).batch for name, text in positions.items()}
        return sum(
            max(0, parse_position(text).batch - at.get(name, 0)) for name, text in latest.items()
        )

    def close(self) -> None:
        """Keep the files: a restarted query continues to read them."""


def _open_writer(directory: str, context: WriterContext) -> RowCollector:
    """Open a writer in a task. It writes one file per epoch that has any rows."""

    def write(epoch: int, rows: list[pa.RecordBatch]) -> bytes:
        if not rows:
            return b""
        name = f"{epoch}-a{context.attempt}-t{context.task}-{uuid4().hex[:8]}.arrow"
        data = encode_stream(context.schema, rows).to_pybytes()
        open_files(directory).create(name, data)
        return name.encode()

    return RowCollector(write)


class MemoryOutput:
    """The rows of committed epochs. To keep them over restarts, pass the same object again."""

    whole_results = False
    """Whether an epoch in complete mode has all groups, so that no rows are an empty result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[int, pa.Table] = {}
        self._complete = False
        self._schema: pa.Schema | None = None

    def begin(self, schema: pa.Schema, *, complete: bool) -> None:
        """Set the schema; in complete mode each epoch's rows replace all earlier ones."""
        with self._lock:
            self._schema, self._complete = schema, complete

    def take(self, epoch: int, rows: pa.Table) -> None:
        """Add an epoch, unless it was added before."""
        with self._lock:
            replaces = self._complete and (self.whole_results or rows.num_rows > 0)
            if replaces and epoch not in self._epochs:
                self._epochs = dict.fromkeys(self._epochs, rows.slice(0, 0))
            self._epochs.setdefault(epoch, rows)

    def newest(self) -> int:
        """The newest epoch that was added; -1 if there is none."""
        with self._lock:
            return max(self._epochs, default=-1)

    def table(self) -> pa.Table:
        """All rows of committed epochs, in the order of epochs."""
        with self._lock:
            if self._schema is None:
                raise OptionError(
                    "This MemoryOutput has no rows: no query was started with it yet. Pass it to "
                    "format(...) and start the query first."
                )
            tables = [self._epochs[epoch] for epoch in sorted(self._epochs)]
            return joined_tables(tables, self._schema)

    def to_spark(self, spark: Any) -> Any:
        """The same rows as a Spark DataFrame."""
        return spark.createDataFrame(self.table().combine_chunks())


class MemorySink(Sink):
    """The driver's side: moves committed epochs from files into a `MemoryOutput`."""

    exactly_once = True

    def __init__(
        self, output: MemoryOutput, checkpoint: Files, schema: pa.Schema, *, complete: bool = False
    ) -> None:
        self.output = output
        self._files, self._schema = checkpoint.at(MEMORY_OUTPUT), schema
        output.begin(schema, complete=complete)

    @property
    def writers(self) -> FunctionWriters:
        return FunctionWriters(partial(_open_writer, self._files.url))

    def decided(self, epoch: int) -> bool:
        return self.output.newest() >= epoch

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        names = [message.decode() for message in messages if message]
        if epoch > self.output.newest():
            self.output.take(epoch, joined_tables(map(self._read, names), self._schema))
        # All files of this epoch and of earlier ones can go: they are either in the output now,
        # or belong to attempts that failed and will never be committed.
        for info in self._files.list():
            written_in = parse_batch_id(info.name.removeprefix(".").partition("-")[0])
            if written_in is not None and written_in <= epoch:
                self._files.delete(info.name)

    def _read(self, name: str) -> pa.Table:
        try:
            return decode_stream(self._files.read(name))
        except FileNotFoundError:
            raise StorageError(
                join_url(self._files.url, name),
                "a task wrote this file, but the driver cannot see it: the checkpoint of a query "
                "on several hosts must be on storage that all of them share",
            ) from None
