"""The tasks' side of the Delta sink: Parquet files in the table's directory, under final names.

A file is not part of the table until a commit of the driver names it. Readers of Delta tables only
read what the table's log names. The UUID in a file's name contains the query and the attempt, so
leftovers of failed attempts can be told from the files of others.

Note: `vacuum(full=True)` with a retention of less than an epoch would delete files that were
prepared and not yet committed. The default retention is 7 days.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from epochal.connectors.contract import WriterContext
from epochal.connectors.delta.delta_rules import DataFile
from epochal.connectors.delta.delta_stats import file_stats
from epochal.connectors.delta.delta_types import check_required, in_microseconds
from epochal.connectors.file.file_formats import Csv, FileFormat, ParquetCodec, encoder
from epochal.connectors.file.file_names import partition_values, split
from epochal.connectors.file.part_files import PartNames, create_part
from epochal.files import Files, open_files


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
        self._plan, self._names = plan, PartNames(plan.mark, attempt, task)
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
        name = self._names.draw(self._suffix)
        below, info = create_part(self._files, directory, name, self._encode(rows))
        values = partition_values(f"{directory}/") if directory else {}
        return DataFile(
            below,
            info.size,
            rows.num_rows,
            info.modified_ms,
            dict(values),
            file_stats(rows, self._plan.stats_columns),
        )
