"""Runs a streaming DataFrame of Spark's: `epochal.write_stream(df)` instead of `df.writeStream`.

The writer has the names and the behaviour of PySpark's: a call changes the writer and returns it.
Names in Python's spelling are accepted as well.

The plan is read when the query starts, with the settings that its checkpoint pins. What cannot run,
or cannot go on from the checkpoint, is refused before anything is written.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from epochal.connectors.file.file_names import spark_pattern
from epochal.connectors.file.staged_batches import StagedBatchSink, staged_names
from epochal.connectors.foreach import ForeachSink
from epochal.connectors.formats import SinkFormat
from epochal.connectors.memory import MemoryOutput, MemorySink
from epochal.connectors.registry import FILE_FORMATS, SINKS, check_partitioned
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.continuous.api.query_manager import streams
from epochal.continuous.api.step_names import format_name
from epochal.continuous.api.stream_writer import (
    APPEND,
    COMPLETE,
    check_mode,
    option_text,
    output_options,
    sink_definition,
    trigger_options,
)
from epochal.continuous.catalyst.translation import Translation, explain_plan, read_plan
from epochal.continuous.run.query_settings import EngineOptions
from epochal.continuous.run.query_spec import QueryDefinition, SinkDefinition
from epochal.continuous.run.take_over import (
    FRAME_KEYS,
    find_checkpoint,
    operators_of,
    session_settings,
)
from epochal.errors import ForeachBatchError, OptionError
from epochal.options import suggestion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FUNCTION_TIMEOUT = timedelta(days=1)
"""How long a function of foreachBatch may take, unless `stallTimeout` says otherwise."""

FrameFunction: TypeAlias = "Callable[[DataFrame, int], None]"
"""Takes the rows of an epoch and the epoch's number."""


class DataFrameWriter:
    """Defines where the rows of a streaming DataFrame go and how its query runs.

    Each method has PySpark's name, `outputMode`, and Python's spelling, `output_mode`. A call
    changes the writer and returns it.
    """

    def __init__(self, frame: DataFrame) -> None:
        if not getattr(frame, "isStreaming", False):
            raise OptionError(
                "The DataFrame is not a stream, so there is nothing to run continuously. Read it "
                "with spark.readStream, or write it with df.write."
            )
        self._frame = frame
        self._format: str | SinkFormat | None = None
        self._function: tuple[str, Any] | None = None
        self._options: dict[str, str] = {}
        self._mode = APPEND
        self._partitioned: tuple[str, ...] = ()

    def __repr__(self) -> str:
        sink = format_name(self._function or self._format or "default format")
        return f"DataFrameWriter({', '.join(self._frame.columns)} → {sink}, {self._mode})"

    def format(self, source: str | SinkFormat) -> DataFrameWriter:
        """Set the format by name; without it, `spark.sql.sources.default` counts.

        Or pass the `SinkFormat` of a sink of your own.
        """
        self._format, self._function = source, None
        return self

    def outputMode(self, outputMode: str) -> DataFrameWriter:
        """Set the output mode: append, update or complete."""
        self._mode = check_mode(outputMode)
        return self

    def option(self, key: str, value: Any) -> DataFrameWriter:
        """Set an option of the query or of the sink; names are case-insensitive."""
        self._options = {n: text for n, text in self._options.items() if n.lower() != key.lower()}
        self._options[key] = option_text(value)
        return self

    def options(self, **options: Any) -> DataFrameWriter:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def queryName(self, queryName: str) -> DataFrameWriter:
        """Name the query for `epochal.streams(spark)`, progress reports and the memory sink."""
        return self.option("queryName", queryName)

    def partitionBy(self, *cols: str | Sequence[str]) -> DataFrameWriter:
        """Write files into a directory per value of these columns."""
        names = [name for col in cols for name in ([col] if isinstance(col, str) else col)]
        self._partitioned = tuple(self._known(name) for name in names)
        return self

    def trigger(
        self,
        *,
        epoch: str | None = None,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> DataFrameWriter:
        """Set the length of an epoch, such as '100 milliseconds', or read what there is and end.

        `processingTime` and `continuous` also set the length of an epoch. `once` is `availableNow`
        in one epoch, whatever bounds the sources have.
        """
        triggers = {"epoch": epoch, "processingTime": processingTime, "continuous": continuous}
        more = {"availableNow": availableNow, "once": once, "realTime": realTime}
        return self.options(**trigger_options({**triggers, **more}))

    def foreach(self, f: Any) -> DataFrameWriter:
        """Call a function, or a ForeachWriter, in the tasks for every row. At least once."""
        self._function = ("foreach", f)
        return self

    def foreachBatch(self, func: FrameFunction) -> DataFrameWriter:
        """Call `func(DataFrame, epoch)` on the driver for every epoch with rows. At least once.

        In output mode complete it is called for every epoch with input, also if the result is
        empty. After a crash the last epoch may come again, with the same number and the same rows.
        Jobs of the function run beside the query's tasks, which leave a slot free for them.
        """
        if not callable(func):
            raise OptionError(f"foreachBatch takes a function of a DataFrame, not {func!r}.")
        self._function = ("foreachBatch", func)
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | Sequence[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start the query and return its handle."""
        chosen = {"format": format, "outputMode": outputMode, "queryName": queryName}
        self._apply(options, **chosen, partitionBy=partitionBy)
        return streams(self._frame.sparkSession).start(self.definition(path))

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | Sequence[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start the query with a table of the session catalog as its sink; create it if absent.

        Tables that are stored as files can be written: parquet, json, csv and text.
        """
        chosen = {"format": format, "outputMode": outputMode, "queryName": queryName}
        self._apply(options, **chosen, partitionBy=partitionBy)
        lower = {key.lower(): value for key, value in self._options.items()}
        form, location, partitioned = settle_table(
            *(self._frame, tableName, format_name(self._format) if self._format else None),
            *(self._partitioned, lower.get("path")),
        )
        self.format(form)
        self._partitioned = partitioned
        return self.start(location)

    output_mode = outputMode
    query_name = queryName
    partition_by = partitionBy
    foreach_batch = foreachBatch
    to_table = toTable

    def definition(self, path: str | None = None) -> QueryDefinition:
        """Return the query as the engine takes it."""
        options = dict(self._options)
        if path is not None:
            options = {key: value for key, value in options.items() if key.lower() != "path"}
            options["path"] = path
        sink = self._sink_chosen()
        spark = self._frame.sparkSession
        engine, rest = output_options(spark, sink, _patient(options) if self._function else options)
        session = session_settings(spark, FRAME_KEYS)
        checkpoint = find_checkpoint(engine.checkpoint_location)

        def read() -> Translation:
            return read_plan(self._frame, output_mode=self._mode, pinned=checkpoint.pinned)

        translation = read()
        checkpoint.check(operators_of(translation.tree), session)
        return QueryDefinition(
            translation.tree,
            self._sink(sink, engine, rest),
            engine,
            session=session,
            state_partitions=checkpoint.partitions(session),
            parallelism=spark.sparkContext.defaultParallelism,
            watermarks_move="epoch",
            offset_lines=translation.occurrences,
            refreshed=lambda: read().tree,
            needs_evaluator=translation.needs_evaluator,
        )

    def _apply(self, options: Mapping[str, Any], **chosen: Any) -> None:
        self.options(**options)
        for name, value in chosen.items():
            if value is not None:
                getattr(self, name)(value)

    def _sink_chosen(self) -> str | SinkFormat:
        if self._function is not None:
            return self._function[0]
        if isinstance(self._format, SinkFormat):
            return self._format
        default = self._frame.sparkSession.conf.get("spark.sql.sources.default")
        name = self._format or str(default)
        if name.lower() not in SINKS:
            raise OptionError(
                f"There is no sink {name!r}.{suggestion(name, SINKS)} If Spark can write it, use "
                f"foreachBatch with df.write.format({name!r})."
            )
        return name

    def _sink(
        self, sink: str | SinkFormat, engine: EngineOptions, options: dict[str, str]
    ) -> SinkDefinition:
        check_partitioned(sink, self._partitioned)
        name = format_name(sink)
        if options and (self._function is not None or name.lower() == "memory"):
            listed = ", ".join(sorted(options))
            raise OptionError(f"{name} takes no option {listed}. Remove it.")
        match name:
            case "foreach":
                function, schema = self._function and self._function[1], self._frame.schema
                return SinkDefinition("foreach", lambda *_: ForeachSink(function, schema=schema))
            case "foreachBatch" if self._function is not None:
                return batch_sink(self._frame, self._function[1], complete=self._mode == COMPLETE)
        if name.lower() != "memory":
            _check_names(name, self._frame.columns)
            return sink_definition(sink, options, self._mode, self._partitioned)
        if not engine.query_name:
            raise OptionError(
                "memory: the query has no name, and its rows become a temporary view of that name. "
                "Set .queryName(NAME)."
            )
        return memory_sink(self._frame, engine.query_name, complete=self._mode == COMPLETE)

    def _known(self, name: str) -> str:
        columns: list[str] = self._frame.columns
        matching = [column for column in columns if column.lower() == name.lower()]
        if not matching:
            raise OptionError(f"There is no column {name!r}; the columns are {columns}.")
        return name if name in matching else matching[0]


def explain(frame: DataFrame, output_mode: str = APPEND) -> None:
    """Print what of a DataFrame runs where, and all that cannot run. Nothing is started."""
    sys.stdout.write(explain_plan(frame, output_mode=check_mode(output_mode)) + "\n")


def _patient(options: dict[str, str]) -> dict[str, str]:
    """Return the options with a limit for epochs that a user's function on the driver can keep."""
    if any(key.lower() == "stalltimeout" for key in options):
        return options
    return {**options, "stallTimeout": f"{FUNCTION_TIMEOUT // timedelta(seconds=1)} seconds"}


def _check_names(sink: str, names: Sequence[str]) -> None:
    """Refuse columns with the same name: only functions and views can have them."""
    for name in names:
        if names.count(name) > 1:
            raise OptionError(
                f"{sink}: {names.count(name)} columns of the result have the name {name!r}. Rename "
                f"them with alias or toDF, or drop one."
            )


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
