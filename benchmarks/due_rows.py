"""Makes rows stamped with the time they were due, and sinks that record how long each row took.

Every engine uses the same schedule and the same records: Epochal through its connector contract,
Spark through its Python data source API. A row is stamped with the time at which it was due, not
with the time at which it was made, so an engine that stalls cannot hide the rows it delayed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from epochal.connectors.contract import (
    Positions,
    Prepare,
    ReaderFactory,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    WriterContext,
)

SCHEMA = pa.schema({"key": pa.int64(), "value": pa.int64(), "due": pa.int64()}.items())
DDL = "key bigint, value bigint, due bigint"
FLAT_OUT_ROWS = 10_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Schedule:
    """Row n of a partition is due n / rate seconds after the start; rate 0 is unlimited."""

    start_ns: int
    rate: int
    keys: int
    partitions: int

    def due_by(self, now_ns: int) -> int:
        """How many rows of a partition are due; the first one is at the start itself."""
        return max(0, (now_ns - self.start_ns) * self.rate // SECOND + 1)

    def rows(self, partition: int, start: int, end: int) -> pa.RecordBatch:
        """Rows start to end of a partition."""
        values = np.arange(start, end, dtype=np.int64)
        due = self.start_ns + values * SECOND // self.rate if self.rate else np.zeros_like(values)
        numbers = values * self.partitions + partition
        return pa.record_batch([numbers % self.keys, numbers, due], schema=SCHEMA)


class DueReader(SourceReader):
    """Epochal's reader of a schedule."""

    def __init__(self, schedule: Schedule, partitions: Positions) -> None:
        self._schedule = schedule
        self._at = {int(name): int(at) for name, at in partitions.items()}
        self._ends: dict[int, int] = {}
        self._stock = schedule.rows(0, 0, FLAT_OUT_ROWS)
        self._made: dict[int, tuple[int, pa.RecordBatch]] = {}
        """By partition, rows made ahead and the number of the first."""

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        for partition, at in self._at.items():
            end = min(at + max_rows, self._ends.get(partition, at + max_rows))
            if self._schedule.rate:
                end = min(end, self._schedule.due_by(time.time_ns()))
            if end > at:
                self._at[partition] = end
                if self._schedule.rate:
                    return self._rows(partition, at, end)
                return self._stock.slice(0, end - at)
        return None

    def _rows(self, partition: int, start: int, end: int) -> pa.RecordBatch:
        """Rows start to end, cut from a larger batch: making rows is not measured."""
        first, made = self._made.get(partition, (0, self._stock.slice(0, 0)))
        if not first <= start <= end <= first + made.num_rows:
            made = self._schedule.rows(partition, start, max(end, start + FLAT_OUT_ROWS))
            first = start
            self._made[partition] = (first, made)
        return made.slice(start - first, end - start)

    def positions(self) -> Positions:
        return {str(partition): str(at) for partition, at in self._at.items()}

    def limit(self, ends: Positions) -> None:
        self._ends = {int(name): int(end) for name, end in ends.items()}

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class DueReaders(ReaderFactory):
    schedule: Schedule

    def open(self, partitions: Positions) -> DueReader:
        return DueReader(self.schedule, partitions)


class DueSource(Source):
    """Epochal's source of a schedule."""

    acknowledges_in_tasks = False
    schema = SCHEMA

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    @property
    def readers(self) -> DueReaders:
        return DueReaders(self._schedule)

    def initial(self) -> Positions:
        return {str(each): "0" for each in range(self._schedule.partitions)}

    def resume(self, offset: str) -> Positions:
        found: dict[str, str] = json.loads(offset)
        return found

    def discover(self, known: Positions) -> Positions:
        return {}

    def offset(self, positions: Positions) -> str:
        return json.dumps(dict(positions), separators=(",", ":"))

    def boundary(self, positions: Positions) -> Positions:
        return positions

    def latest(self) -> Positions | None:
        return None

    def lag(self, positions: Positions, latest: Positions) -> int:
        return 0

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        pass

    def close(self) -> None:
        pass


class Notes:
    """Records in a file how long rows took: pairs of due time and delay, in ns."""

    def __init__(self, directory: str, name: str) -> None:
        self._file = (Path(directory) / f"{name}.notes").open("ab", buffering=0)

    def take(self, due: Any, count: int) -> None:
        """Record the delays of rows that arrived just now."""
        now = time.time_ns()
        stamps = np.asarray(due)
        if not stamps[0]:  # at rate 0 rows are counted, not timed
            self._file.write(np.array([[now, count]], np.int64).tobytes())
            return
        self._file.write(np.column_stack([stamps, now - stamps]).astype(np.int64).tobytes())

    def close(self) -> None:
        self._file.close()


def read_notes(directory: str) -> Any:
    """All notes, one row each."""
    found = [np.fromfile(each, np.int64) for each in Path(directory).glob("*.notes")]
    return np.concatenate(found).reshape(-1, 2) if found else np.empty((0, 2), np.int64)


class NotingWriter(SinkWriter):
    """Epochal's writer, which records the delay as soon as rows reach it."""

    def __init__(self, directory: str, context: WriterContext) -> None:
        self._notes = Notes(directory, f"{context.task}-{context.attempt}")

    def write(self, batch: pa.RecordBatch) -> None:
        self._notes.take(batch.column("due").to_numpy(), batch.num_rows)

    def cut(self, epoch: int) -> Prepare:
        return bytes

    def close(self) -> None:
        self._notes.close()


@dataclass(frozen=True, slots=True)
class NotingWriters:
    directory: str

    def open(self, context: WriterContext) -> NotingWriter:
        return NotingWriter(self.directory, context)


class NotingSink(Sink):
    """Epochal's sink, which records delays."""

    exactly_once = False
    decides = False

    def __init__(self, directory: str) -> None:
        self._directory = directory

    @property
    def writers(self) -> NotingWriters:
        return NotingWriters(self._directory)

    def fence(self, attempt: int) -> None:
        pass

    def decided(self, epoch: int) -> bool:
        return False

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        pass

    def close(self) -> None:
        pass


class DueDataSource(DataSource):  # type: ignore[misc]
    """The same schedule and the same notes for Spark's micro-batches."""

    @classmethod
    def name(cls) -> str:
        return "due"

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        options = self.options
        schedule = Schedule(*(int(options[key]) for key in ("start", "rate", "keys", "partitions")))
        return DueStreamReader(schedule, int(options.get("batch", 0)))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return DueStreamWriter(self.options["directory"])


class DueStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Spark's reader of a schedule; at rate 0 it returns `batch` rows per partition and batch."""

    def __init__(self, schedule: Schedule, batch: int) -> None:
        self._schedule, self._batch, self._given = schedule, batch, 0

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:
        if self._schedule.rate:
            return {"rows": self._schedule.due_by(time.time_ns())}
        self._given += self._batch
        return {"rows": self._given}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [
            InputPartition((partition, start["rows"], end["rows"]))
            for partition in range(self._schedule.partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        number, start, end = partition.value
        if self._schedule.rate:
            if end > start:
                yield self._schedule.rows(number, start, end)
            return
        stock = self._schedule.rows(0, 0, FLAT_OUT_ROWS)
        for _ in range(start, end, FLAT_OUT_ROWS):
            yield stock


class DueStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Spark's sink, which records delays."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        notes = Notes(self._directory, f"{time.time_ns()}")
        for batch in batches:
            if batch.num_rows:
                notes.take(batch.column("due").to_numpy(), batch.num_rows)
        notes.close()
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        pass
