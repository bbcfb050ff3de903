"""Sources that a test feeds, and how a pipeline begins with one: `stream` and `frame`.

Rows are kept in memory in the order in which they were fed. A position is the number of rows before
it in its partition, so every row can be read again after a crash. On the copy of a checkpoint, rows
that are fed come after all that the checkpoint has read.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa

from epochal.connectors.contract import Offset, Positions, ReaderFactory, Source, SourceReader
from epochal.connectors.file.file_reader import is_metadata
from epochal.continuous.api.stream import Stream
from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.plan.logical import StreamSource
from epochal.errors import OptionError
from epochal.record_batches import batch_of_dicts, cast_table, joined_tables, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Rows: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any] | Sequence[Any]]
"""Rows of a test: dicts by column, tuples in the order of the columns, or Arrow data."""


NO_FILE = {
    **dict.fromkeys(("file_path", "file_name"), ""),
    **dict.fromkeys(("file_size", "file_block_start", "file_block_length", "row_index"), -1),
    "file_modification_time": datetime(1970, 1, 1, tzinfo=UTC),
}
"""What `_metadata` says of a row that a test feeds: Spark's functions say so where no file is."""


@dataclass(slots=True)
class FedSource(Source):
    """The rows that a test has fed to one source."""

    name: str
    schema: pa.Schema = field()
    origin: str
    """Of which driver it is. Positions of other origins mean nothing here."""
    partitions: int = 1
    on_acknowledge: Any = None
    """Called with the epoch, before it is noted as acknowledged."""
    acknowledged: int = -1
    """The newest epoch that was acknowledged."""
    fed: dict[str, pa.Table] = field(init=False)
    """By partition."""
    _turn: int = 0

    acknowledges_in_tasks = False
    tells_waiting = True

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        empty = pa.Table.from_batches([], schema=self.schema)
        self.fed = {str(number): empty for number in range(self.partitions)}

    def feed(self, rows: Rows, partition: int | None = None) -> None:
        """Append rows to a partition, or to the next one in turn."""
        if partition is None:
            partition, self._turn = self._turn, (self._turn + 1) % self.partitions
        if str(partition) not in self.fed:
            raise OptionError(
                f"Source {self.name!r} has {self.partitions} partitions, numbered from 0, so "
                f"nothing can be fed to partition {partition}. Set Driver(partitions=...)."
            )
        table = fit_table(rows, self.schema)
        self.fed[str(partition)] = joined_tables([self.fed[str(partition)], table], self.schema)

    def with_schema(self, schema: pa.Schema) -> FedSource:
        """Return the source with other columns: its rows get nulls in those that are new."""
        if schema == self.schema:
            return self
        source = FedSource(self.name, schema, self.origin, self.partitions, self.on_acknowledge)
        source.acknowledged, source._turn = self.acknowledged, self._turn
        source.fed = {name: _with_columns(table, schema) for name, table in self.fed.items()}
        return source

    @property
    def readers(self) -> FedReaders:
        return FedReaders(self)

    def initial(self) -> Positions:
        return dict.fromkeys(self.fed, "0")

    def resume(self, offset: Offset) -> Positions:
        saved = json.loads(offset)
        if not isinstance(saved, dict) or saved.get("origin") != self.origin:
            return self.initial()  # of a copied checkpoint: what is fed comes after it
        positions: dict[str, str] = saved["positions"]
        return positions

    def discover(self, known: Positions) -> Positions:
        return {name: "0" for name in self.fed if name not in known}

    def offset(self, positions: Positions) -> Offset:
        return json.dumps({"origin": self.origin, "positions": dict(positions)})

    def boundary(self, positions: Positions) -> Positions:
        return positions

    def latest(self) -> Positions:
        return {name: str(table.num_rows) for name, table in self.fed.items()}

    def lag(self, positions: Positions, latest: Positions) -> int:
        return sum(int(end) - int(positions.get(name, "0")) for name, end in latest.items())

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        del positions
        if self.on_acknowledge is not None:
            self.on_acknowledge(epoch)
        self.acknowledged = epoch

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class FedReaders(ReaderFactory):
    """Opens readers of what is fed, before and after."""

    source: FedSource

    def open(self, partitions: Positions) -> FedReader:
        return FedReader(self.source, {name: int(at) for name, at in partitions.items()})


class FedReader(SourceReader):
    """Reads partitions one after the other, each as far as it is fed."""

    def __init__(self, source: FedSource, positions: dict[str, int]) -> None:
        self._source, self._positions = source, positions
        self._ends: dict[str, int] = {}
        self.last_read: tuple[str, ...] = ()

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        for name, start in sorted(self._positions.items()):
            table = self._source.fed[name]
            end = min(start + max_rows, self._ends.get(name, table.num_rows), table.num_rows)
            if start < end:
                self._positions[name], self.last_read = end, (name,)
                (batch,) = table.slice(start, end - start).combine_chunks().to_batches()
                return batch
        return None

    def positions(self) -> Positions:
        return {name: str(at) for name, at in self._positions.items()}

    def waiting(self) -> Positions:
        ends = {name: self._source.fed[name].num_rows for name in self._positions}
        return {name: str(end) for name, end in ends.items() if self._positions[name] < end}

    def limit(self, ends: Positions) -> None:
        self._ends.update({name: int(end) for name, end in ends.items()})

    def close(self) -> None:
        """Nothing is open."""


def chosen(
    sources: Sequence[FedSource], source: str | int | Rows, rows: Rows | None
) -> tuple[FedSource, Rows]:
    """Return the source that a call of `feed` means, and its rows. A source that is the only one
    can be left out."""
    names = [source.name for source in sources]
    if rows is None:
        if len(sources) != 1 or isinstance(source, str | int):
            raise OptionError(
                f"Nothing was fed: call feed(source, rows). The query has the sources {names}."
            )
        return sources[0], source
    matching = [
        source_fed
        for number, source_fed in enumerate(sources)
        if source in (number, source_fed.name)
    ]
    if len(matching) != 1:
        raise OptionError(
            f"{source!r} names {len(matching)} sources of the query; its sources are {names}. Use "
            f"a name that occurs once, or the number."
        )
    return matching[0], rows


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table[field.name] if field.name in table.schema.names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    try:
        return cast_table(table_of(columns, schema.names, len(table)), schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(
            f"Rows that were fed before do not fit the source's new columns "
            f"({_describe(schema)}): {error}."
        ) from None


def fit_table(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Return rows as a table of this schema; OptionError if they do not fit it.

    Rows without `_metadata` are of no file.
    """
    own = pa.schema([column for column in schema if not is_metadata(column)])
    if len(own) < len(schema) and not _have_metadata(rows, schema):
        table = fit_table(rows, own)
        repeat: Any = pa.repeat
        columns = [
            table[column.name]
            if column.name in own.names
            else repeat(pa.scalar(NO_FILE, column.type), len(table))
            for column in schema
        ]
        return table_of(columns, schema, len(table))
    try:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(rows, pa.Table):
            return cast_table(rows.select(schema.names), schema)
        batch = batch_of_dicts([_as_dict(row, schema) for row in rows], schema)
        return pa.Table.from_batches([batch])
    except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError) as error:
        raise OptionError(
            f"The rows do not fit the source's columns ({_describe(schema)}): {error}."
        ) from None


def _have_metadata(rows: Rows, schema: pa.Schema) -> bool:
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return set(schema.names) <= set(rows.schema.names)
    return any(
        set(schema.names) <= set(row) if isinstance(row, Mapping) else len(row) == len(schema)
        for row in rows
    )


def _as_dict(row: Mapping[str, Any] | Sequence[Any], schema: pa.Schema) -> dict[str, Any]:
    if isinstance(row, Mapping):
        if unknown := sorted(set(row) - set(schema.names)):
            raise OptionError(
                f"{dict(row)} has the columns {unknown}, which the source does not have; it has "
                f"({_describe(schema)})."
            )
        return dict(row)
    if len(row) != len(schema):
        raise OptionError(
            f"{tuple(row)} has {len(row)} values, but the source has {len(schema)} columns "
            f"({_describe(schema)})."
        )
    return dict(zip(schema.names, row, strict=True))


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


DEFAULTS = {"spark.sql.session.timeZone": "UTC"}

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    **DEFAULTS,
}
"""Settings of a session that is started for tests."""


class LaterSession:
    """Stands for a session. A local one is started when it is needed first: for SQL expressions."""

    @property
    def conf(self) -> Any:
        active = active_session()
        return DEFAULTS if active is None else active.conf

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(local_session(), name)


def active_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def local_session() -> SparkSession:
    """Return the session of this process. If there is none, a local one is started."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("epochal-testing")
    return cast("SparkSession", builder.config(map=LOCAL).getOrCreate())


def stream(schema: Any, name: str = "source") -> Stream:
    """Return a stream of this schema (Arrow's, Spark's or DDL text) that `Driver.feed` fills."""
    columns = arrow_schema(schema)
    source = StreamSource(0, name, {}, columns, columns, name)
    return Stream(cast("SparkSession", LaterSession()), source)


def frame(schema: Any, name: str = "source", *, spark: SparkSession | None = None) -> DataFrame:
    """Return a streaming DataFrame of this schema (Spark's or DDL text) that `Driver.feed` fills.

    Without `spark` it is of the active session, or of a local one that is started.
    """
    session = local_session() if spark is None else spark
    place = os.path.join(tempfile.mkdtemp(prefix="epochal-frame-"), name)
    os.mkdir(place)
    atexit.register(shutil.rmtree, os.path.dirname(place), ignore_errors=True)
    return session.readStream.schema(schema).parquet(place)
