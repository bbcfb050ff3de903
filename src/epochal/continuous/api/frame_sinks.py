"""The sinks of DataFrames that need Spark on the driver: foreachBatch, memory, toTable, foreach."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from epochal.connectors.file.file_names import spark_pattern
from epochal.connectors.file.staged_batches import StagedBatchSink, staged_names
from epochal.connectors.foreach import ForeachSink
from epochal.connectors.memory import MemoryOutput, MemorySink
from epochal.connectors.registry import FILE_FORMATS
from epochal.continuous.run.query_spec import SinkDefinition
from epochal.errors import ForeachBatchError, OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FrameFunction: TypeAlias = "Callable[[DataFrame, int], None]"
"""Takes the rows of an epoch and the epoch's number."""


def batch_sink(frame: DataFrame, function: FrameFunction, *, complete: bool) -> SinkDefinition:
    """Return the sink that calls `function(DataFrame, epoch)` on the driver."""
    spark, names, staged = frame.sparkSession, frame.columns, _staged(frame.schema)

    def rows_of(paths: Sequence[str]) -> DataFrame:
        if not paths:
            return spark.createDataFrame([], staged)
        # The files hold Gregorian dates, whatever the session assumes of files not from Spark.
        reader = spark.read.option("datetimeRebaseMode", "CORRECTED").schema(staged)
        return reader.parquet(*map(spark_pattern, paths))

    def deliver(paths: Sequence[str], epoch: int) -> None:
        rows = rows_of(paths).toDF(*names)
        try:
            function(rows, epoch)
        except Exception as error:
            raise ForeachBatchError(epoch, repr(error), traceback.format_exc()) from error

    return SinkDefinition(
        "foreachBatch",
        lambda checkpoint, _query, _schema: StagedBatchSink(deliver, checkpoint, complete=complete),
        slots=1,
    )


def _staged(schema: StructType) -> StructType:
    """The same columns with names of which none comes twice."""
    names = staged_names(len(schema))
    return StructType(
        [
            StructField(name, field.dataType, field.nullable)
            for name, field in zip(names, schema, strict=True)
        ]
    )


def row_sink(frame: DataFrame, function: Any) -> SinkDefinition:
    """Return the sink that calls a function, or a ForeachWriter, in the tasks for every row."""
    schema = frame.schema
    return SinkDefinition("foreach", lambda *_: ForeachSink(function, schema=schema))


class ViewedOutput(MemoryOutput):
    """The rows of committed epochs, also as a temporary view of the session."""

    whole_results = True

    def __init__(self, spark: SparkSession, schema: StructType, name: str) -> None:
        super().__init__()
        self._spark, self._name = spark, name
        self._names, self._staged = schema.names, _staged(schema)

    def begin(self, schema: pa.Schema, *, complete: bool) -> None:
        super().begin(schema, complete=complete)
        self._is_complete = complete
        self._show()

    def take(self, epoch: int, rows: pa.Table) -> None:
        super().take(epoch, rows)
        if rows.num_rows or self._is_complete:
            self._show()

    def _show(self) -> None:
        # As one chunk: PySpark loses the rows of a table whose first chunk is empty.
        frame = self._spark.createDataFrame(
            self.table().combine_chunks().rename_columns(self._staged.names), self._staged
        )
        frame.toDF(*self._names).createOrReplaceTempView(self._name)


def memory_sink(frame: DataFrame, name: str, *, complete: bool) -> SinkDefinition:
    """Return the sink whose rows are the temporary view `name`."""
    output = ViewedOutput(frame.sparkSession, frame.schema, name)
    return SinkDefinition(
        "memory",
        lambda checkpoint, _query, schema: MemorySink(
            output, checkpoint, schema, complete=complete
        ),
        slots=1,
    )


def settle_table(
    frame: DataFrame,
    name: str,
    given_format: str | None,
    partitioned: Sequence[str],
    path: str | None,
) -> tuple[str, str, tuple[str, ...]]:
    """Return format, location and partition columns of a table; create it if it is absent."""
    spark = frame.sparkSession
    state = spark._jsparkSession.sessionState()
    if len(state.sqlParser().parseMultipartIdentifier(name).mkString(".").split(".")) > 2:
        raise OptionError(
            f"{name} is a table of another catalog. Only tables of the session catalog that are "
            f"stored as files can be written: {', '.join(FILE_FORMATS)}. Use foreachBatch."
        )
    if not spark.catalog.tableExists(name):
        form = given_format or str(spark.conf.get("spark.sql.sources.default"))
        _check_form(name, form)
        spark.sql(_creation(frame, name, form, partitioned, path))
    table = state.catalog().getTableMetadata(state.sqlParser().parseTableIdentifier(name))
    if table.tableType().name() == "VIEW":
        raise OptionError(f"{name} is a view. Rows can be written to a table only.")
    form = table.provider().get() if table.provider().isDefined() else "hive"
    if given_format is not None and given_format.lower() != form.lower():
        raise OptionError(
            f"{name} is stored as {form}, but the query writes {given_format}. Readers of the "
            f"table would not understand the files: use format({form!r}), or another table."
        )
    _check_form(name, form)
    columns = tuple(table.partitionColumnNames().mkString("\n").splitlines())
    if partitioned and list(partitioned) != list(columns):
        raise OptionError(
            f"{name} is partitioned by ({', '.join(columns)}), but the query by "
            f"({', '.join(partitioned)}). Remove partitionBy, or use another table."
        )
    return form, str(table.location().toString()), columns


def _check_form(name: str, form: str) -> None:
    if form.lower() not in FILE_FORMATS:
        raise OptionError(
            f"{name} is stored as {form}, which cannot be written as a table. Formats of tables "
            f"are {', '.join(FILE_FORMATS)}. Use one of these, or write with foreachBatch."
        )


def _creation(
    frame: DataFrame, name: str, form: str, partitioned: Sequence[str], path: str | None
) -> str:
    """Return the statement that creates the table."""
    columns = frame._jdf.schema().toDDL()
    place = "" if path is None else path.replace("\\", "\\\\").replace("'", "\\'")
    by = ", ".join("`" + column.replace("`", "``") + "`" for column in partitioned)
    return (
        f"CREATE TABLE {name} ({columns}) USING {form}"
        + (f" PARTITIONED BY ({by})" if by else "")
        + (f" LOCATION '{place}'" if place else "")
    )
