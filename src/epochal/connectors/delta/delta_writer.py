"""The tasks' side of the Delta sink: Parquet files in the table's directory, under final names.

A file is not part of the table until a commit of the driver names it. Readers of Delta tables only
read what the table's log names. The UUID in a file's name contains the query and the attempt, so
leftovers of failed attempts can be told from the files of others.

Note: `vacuum(full=True)` with a retention of less than an epoch would delete files that were
prepared and not yet committed. The default retention is 7 days.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa

from epochal.checkpoint.metadata_log import storage_errors
from epochal.connectors.contract import WriterContext
from epochal.connectors.delta.delta_rules import DataFile
from epochal.connectors.delta.delta_stats import file_stats
from epochal.connectors.delta.delta_types import check_required, in_microseconds
from epochal.connectors.file.file_formats import Csv, FileFormat, ParquetCodec, encoder
from epochal.connectors.file.file_names import partition_values, split
from epochal.connectors.file.part_names import checked_attempt, file_uuid, part_name
from epochal.errors import StorageError
from epochal.files import Files, join_url, open_files


@dataclass(frozen=True, slots=True)
class DeltaFilePlan:
    """How files of a table are written. Travels to tasks."""

    root: str
    mark: bytes
    partition_by: tuple[str, ...]
    required: tuple[str, ...]
    """Columns in which the table takes no nulls."""
    compression: ParquetCodec
    stats_columns: int

    def open(self, context: WriterContext) -> DeltaFiles:
        return DeltaFiles(self, context.task, context.attempt, context.schema)


class DeltaFiles:
    """Writes rows as data files of a table and describes them."""

    def __init__(self, plan: DeltaFilePlan, task: int, attempt: int, schema: pa.Schema) -> None:
        self._plan, self._task, self._attempt = plan, task, checked_attempt(attempt)
        # With `existing`: a table that was deleted must not come back as a directory of files.
        self._files: Files = open_files(plan.root, existing=True, links=True)
        in_file = [field for field in schema if field.name not in plan.partition_by]
        self._suffix, self._encode = encoder(
            FileFormat.PARQUET, pa.schema(in_file), Csv(), plan.compression
        )

    def write(self, table: pa.Table) -> list[DataFile]:
        """Write a file per partition that has rows."""
        check_required(self._plan.root, table, self._plan.required)
        return [
            self.write_one(directory, rows)
            for directory, rows in split(in_microseconds(table), self._plan.partition_by)
            if rows.num_rows
        ]

    def write_one(self, directory: str, rows: pa.Table) -> DataFile:
        """Write rows of one partition, without its columns, as one file in its directory."""
        data = self._encode(rows)
        uuid = file_uuid(self._plan.mark, self._attempt, os.urandom(7))
        name = part_name(self._task, uuid, self._suffix)
        below = f"{directory}/{name}" if directory else name
        url = join_url(self._files.url, below)
        try:
            with storage_errors(url):
                self._files.create(below, data)
                info = self._files.info(below)
        except FileNotFoundError:
            raise StorageError(
                url, "the table's directory does not exist: it was deleted or moved"
            ) from None
        assert info is not None, f"{below} disappeared right after it was written"
        values = partition_values(f"{directory}/") if directory else {}
        return DataFile(
            below,
            info.size,
            rows.num_rows,
            info.modified_ms,
            dict(values),
            file_stats(rows, self._plan.stats_columns),
        )
