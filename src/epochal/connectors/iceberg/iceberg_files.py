"""Writes Iceberg data files: Parquet with field ids, one partition per file.

Tasks write an epoch's files under their final names. A file is not part of the table until the
driver commits it. Its description, with the statistics that readers use to skip files, travels to
the driver in the task's message, and from there into the offset log, which decides the epoch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import Record

from epochal.checkpoint.layout import EPOCHAL
from epochal.connectors.contract import WriterContext
from epochal.connectors.file.part_files import PartNames
from epochal.connectors.iceberg.iceberg_schema import (
    Partitioning,
    Values,
    decode_values,
    encode_values,
    partitioning_of,
    split,
)
from epochal.connectors.iceberg.iceberg_snapshots import ICEBERG_OUTPUT
from epochal.connectors.tables.table_epochs import TableFormat, WriteMode
from epochal.errors import StorageError, TableRowError
from epochal.files import local_path, scheme_of
from epochal.record_batches import table_of


class WrittenFile(msgspec.Struct, frozen=True):
    """A data file as its writer describes it."""

    path: str
    size: int
    rows: int
    spec: int
    """The partition spec that the file was written for."""
    partition: list[str | None]
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_counts: dict[int, int]
    nan_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: list[int]


ICEBERG = TableFormat(
    ICEBERG_OUTPUT,
    f"{EPOCHAL}/iceberg",
    WrittenFile,
    dict.fromkeys((WriteMode.APPEND, WriteMode.OVERWRITE), "files"),
    says_none=False,
)


@dataclass(frozen=True, slots=True)
class IcebergFilePlan:
    """How files of a table are written. Travels to tasks."""

    table: str
    metadata: str
    """The table's metadata as JSON, without its history."""
    io: tuple[tuple[str, str], ...]
    """The settings of its storage."""
    mark: bytes
    """Identifies the query in names of files."""
    columns: tuple[str, ...]
    """The columns of the query."""

    def open(self, context: WriterContext) -> Callable[[pa.Table], list[WrittenFile]]:
        return IcebergFiles(self, context.attempt, context.task).write


def plan_of(table: Table, name: str, mark: bytes, columns: Sequence[str]) -> IcebergFilePlan:
    """How files of a table are written as it is now, for a query with these columns."""
    # Snapshots can be many, and writers do not need them.
    lists = "snapshots", "snapshot_log", "metadata_log", "statistics", "partition_statistics"
    nothing: dict[str, Any] = {name: [] for name in lists}
    nothing |= {"refs": {}, "current_snapshot_id": None}
    return IcebergFilePlan(
        table=name,
        metadata=table.metadata.model_copy(update=nothing).model_dump_json(),
        io=tuple((key, str(value)) for key, value in table.io.properties.items()),
        mark=mark,
        columns=tuple(columns),
    )


def required_columns(table: Table, columns: Sequence[str]) -> tuple[str, ...]:
    """Those of the columns in which the table takes no nulls."""
    fields = table.schema().fields
    return tuple(field.name for field in fields if field.required and field.name in columns)


class IcebergFiles:
    """Writes rows of a query as data files of a table."""

    def __init__(self, plan: IcebergFilePlan, attempt: int, task: int) -> None:
        self._plan, self._names = plan, PartNames(plan.mark, attempt, task)
        self._metadata = TableMetadataUtil.parse_raw(plan.metadata)
        self._schema = self._metadata.schema()
        self._spec = self._metadata.spec()
        self._by = partitioning_of(plan.table, self._schema, self._spec)
        self._arrow = schema_to_pyarrow(self._schema)
        self._places = load_location_provider(self._metadata.location, self._metadata.properties)
        self._io: FileIO = load_file_io(dict(plan.io), self._metadata.location)

    def write(self, rows: pa.Table) -> list[WrittenFile]:
        """Write rows of the query, a file per partition."""
        return self.write_fitted(self.fitted(rows))

    def write_fitted(self, rows: pa.Table) -> list[WrittenFile]:
        """Write rows that have the table's columns already."""
        rows = rows.select(self._arrow.names).cast(self._arrow)
        return [self._write_file(values, part) for values, part in split(rows, self._by)]

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Rows of the query with the table's columns and types. Missing columns are null."""
        columns: list[Any] = []
        for field in self._arrow:
            if field.name in self._plan.columns:
                column: Any = rows.column(field.name).cast(field.type)
            else:
                column = pa.nulls(rows.num_rows, field.type)
            if not field.nullable and column.null_count:
                raise TableRowError(
                    self._plan.table,
                    f"column {field.name} is required, but it is null in a row of the query",
                )
            columns.append(column)
        return table_of(columns, self._arrow, rows.num_rows)

    def _write_file(self, values: Values, rows: pa.Table) -> WrittenFile:
        directory = self._spec.partition_to_path(Record(*values), self._schema)
        place: Any = SimpleNamespace(to_path=lambda: directory) if values else None
        name = self._names.draw(".parquet")
        path = self._places.new_data_location(name, place)
        form = FileFormatFactory.get(FileFormat.PARQUET)
        output = self._io.new_output(path)
        try:
            writer = form.create_writer(output, self._schema, self._metadata.properties)
            writer.write(rows)
            described = writer.close().to_serialized_dict()
            _sync(path)
            size = len(output)
        except OSError as error:
            raise StorageError.of(path, error) from error
        return WrittenFile(
            path=path,
            size=size,
            rows=described["record_count"],
            spec=self._metadata.default_spec_id,
            partition=encode_values(values, self._by),
            column_sizes=described["column_sizes"],
            value_counts=described["value_counts"],
            null_counts=described["null_value_counts"],
            nan_counts=described["nan_value_counts"],
            lower_bounds=described["lower_bounds"],
            upper_bounds=described["upper_bounds"],
            split_offsets=described["split_offsets"],
        )


def _sync(path: str) -> None:
    """Make a file on a local disk survive a power failure."""
    if scheme_of(path) not in ("", "file"):
        return
    for place in (local_path(path), os.path.dirname(local_path(path))):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def data_file(written: WrittenFile, by: Partitioning) -> DataFile:
    """The file in the form that pyiceberg commits."""
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=written.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*decode_values(written.partition, by)),
        file_size_in_bytes=written.size,
        sort_order_id=None,
        spec_id=written.spec,
        equality_ids=None,
        key_metadata=None,
        record_count=written.rows,
        column_sizes=written.column_sizes,
        value_counts=written.value_counts,
        null_value_counts=written.null_counts,
        nan_value_counts=written.nan_counts,
        lower_bounds=written.lower_bounds,
        upper_bounds=written.upper_bounds,
        split_offsets=written.split_offsets,
    )
