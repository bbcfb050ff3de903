"""Runs a streaming DataFrame of Spark's: `epochal.write_stream(df)` instead of `df.writeStream`.

The writer has the names and the behaviour of PySpark's: a call changes the writer and returns it.
Names in Python's spelling are accepted as well.

The plan is read when the query starts, with the settings that its checkpoint pins. What cannot run,
or cannot go on from the checkpoint, is refused before anything is written.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from epochal.connectors.formats import SinkFormat
from epochal.connectors.registry import SINKS, check_partitioned
from epochal.continuous.api.frame_sinks import (
    FrameFunction,
    batch_sink,
    memory_sink,
    row_sink,
    settle_table,
)
from epochal.continuous.api.outputs import (
    APPEND,
    COMPLETE,
    check_mode,
    option_text,
    output_options,
    sink_definition,
    trigger_options,
)
from epochal.continuous.api.step_names import format_name
from epochal.continuous.catalyst.translation import Translation, explain_plan, read_plan
from epochal.continuous.run.query_settings import EngineOptions
from epochal.continuous.run.query_spec import QueryDefinition, SinkDefinition
from epochal.continuous.run.state_settings import FRAME_KEYS, session_settings
from epochal.continuous.run.take_over import find_checkpoint, operators_of
from epochal.errors import OptionError
from epochal.options import suggestion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from epochal.continuous.api.query_handle import StreamingQuery

FUNCTION_TIMEOUT = timedelta(days=1)
"""How long a function of foreachBatch may take, unless `stallTimeout` says otherwise."""


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
        from epochal.continuous.api.query_manager import streams

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
                return row_sink(self._frame, self._function[1] if self._function else None)
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
