"""Where the demo's totals go: Parquet files, or a Delta table. Neither is read by the engine."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from epochal.checkpoint import FileSinkLog
from epochal.connectors.file.file_names import spark_pattern
from epochal.files import local_path


class Output(Protocol):
    """The output of the demo's query."""

    format: str
    counted_by: str
    """What reads the output at the end, for people."""

    def files(self) -> list[str]:
        """The Parquet files that are visible now."""
        ...

    def read(self, spark: Any, columns: list[str]) -> pa.Table:
        """Read all rows."""
        ...


class ParquetOutput:
    format = "parquet"
    counted_by = "counted by Spark in the Parquet files"

    def __init__(self, path: str) -> None:
        self._path = path

    def files(self) -> list[str]:
        log = FileSinkLog(f"{self._path}/_spark_metadata", read_only=True)
        return [local_path(each.path) for each in log.all_files()]

    def read(self, spark: Any, columns: list[str]) -> pa.Table:
        paths = map(spark_pattern, self.files())
        table: pa.Table = spark.read.parquet(*paths).select(*columns).toArrow()
        return table


class DeltaOutput:
    format = "delta"
    counted_by = "counted in the files that the Delta table names"

    def __init__(self, path: str) -> None:
        self._path = path

    def files(self) -> list[str]:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._path):
            return []
        return [local_path(each) for each in DeltaTable(self._path).file_uris()]

    def read(self, spark: Any, columns: list[str]) -> pa.Table:
        # Read without deltalake: its own reader now and then aborts the process at its end.
        del spark
        return pa.concat_tables([pq.read_table(path, columns=columns) for path in self.files()])


OUTPUTS: dict[str, type[ParquetOutput] | type[DeltaOutput]] = {
    each.format: each for each in (ParquetOutput, DeltaOutput)
}
