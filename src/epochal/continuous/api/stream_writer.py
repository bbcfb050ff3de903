"""Defines where the rows of a continuous query go, and how it runs: `stream.write_stream`.

The functions below are those that the writer of DataFrames shares: output modes, triggers, options,
the checkpoint's place, the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from epochal.connectors.contract import Sink
from epochal.connectors.formats import SinkFormat
from epochal.connectors.registry import check_whole_result, open_sink, outlives_query
from epochal.continuous.api.step_names import ARROW, format_name, options_of, steps_of
from epochal.continuous.run.query_settings import EngineOptions, split_options
from epochal.continuous.run.query_spec import QueryDefinition, SinkDefinition
from epochal.continuous.run.take_over import session_settings
from epochal.errors import OptionError
from epochal.files import Files, join_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochal.continuous.api.query_handle import StreamingQuery
    from epochal.continuous.api.stream import Stream

UPDATE, APPEND, COMPLETE = "update", "append", "complete"
OUTPUT_MODES = (APPEND, UPDATE, COMPLETE)

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""The session's directory for the checkpoints of queries that name none."""


@dataclass(frozen=True, slots=True)
class StreamWriter:
    """Defines where rows go and how the query runs."""

    stream: Stream
    sink: Any = None
    option_texts: Mapping[str, str] | None = None
    mode: str = APPEND
    partitioned: tuple[str, ...] = ()

    def __repr__(self) -> str:
        steps, options = steps_of(self.stream), options_of(list(self.option_texts or ()))
        return f"StreamWriter({steps}{ARROW}{format_name(self.sink)}, {self.mode}{options})"

    def format(self, sink: Any) -> StreamWriter:
        """Set the format by name, or pass a sink that implements `connectors.contract.Sink`."""
        return replace(self, sink=sink)

    def foreach(self, function: Any) -> StreamWriter:
        """Call a function, or a PySpark ForeachWriter, for every row. At least once."""
        return replace(self, sink=("foreach", function))

    def foreach_batch(self, function: Callable[[pa.RecordBatch, int], None]) -> StreamWriter:
        """Call `function(batch, epoch)` in the tasks for every batch of rows. At least once."""
        return replace(self, sink=("foreachBatch", function))

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set an option of the query or of the sink; names are case-insensitive."""
        return replace(self, option_texts={**(self.option_texts or {}), key: option_text(value)})

    def options(self, **options: Any) -> StreamWriter:
        """Set several options."""
        texts = {key: option_text(value) for key, value in options.items()}
        return replace(self, option_texts={**(self.option_texts or {}), **texts})

    def output_mode(self, mode: str) -> StreamWriter:
        """Set the output mode, append, update or complete, for sinks that can replace rows."""
        return replace(self, mode=check_mode(mode))

    def query_name(self, name: str) -> StreamWriter:
        """Name the query for `epochal.streams(spark)`, progress reports and logs."""
        return self.option("queryName", name)

    def partition_by(self, *columns: str) -> StreamWriter:
        """Write files into a directory per value of these columns."""
        return replace(self, partitioned=columns)

    def trigger(
        self,
        *,
        epoch: str | None = None,
        processingTime: str | None = None,
        availableNow: bool | None = None,
        once: bool | None = None,
        continuous: str | None = None,
    ) -> StreamWriter:
        """Set the length of an epoch, such as '100 milliseconds', or read what there is and end.

        `processingTime` and `continuous` also set the length of an epoch. `once` is `availableNow`
        in one epoch, whatever bounds the sources have.
        """
        triggers = {"epoch": epoch, "processingTime": processingTime, "continuous": continuous}
        asked = trigger_options({**triggers, "availableNow": availableNow, "once": once})
        return self.options(**asked)

    def start(self, path: str | None = None) -> StreamingQuery:
        """Start the query and return its handle."""
        from epochal.continuous.api.query_manager import streams

        return streams(self.stream.spark).start(self.definition(path))

    def definition(self, path: str | None = None) -> QueryDefinition:
        """Return the query as the engine takes it."""
        if self.sink is None:
            raise OptionError(
                "The query has no sink: call .format(...) or .foreach(...) before .start()."
            )
        check_whole_result(self.sink, self.mode)
        options = dict(self.option_texts or {}) | ({} if path is None else {"path": path})
        engine, rest = output_options(self.stream.spark, self.sink, options)
        for column in self.partitioned:
            self.stream.known(column)
        return QueryDefinition(
            self.stream.tree,
            sink_definition(self.sink, rest, self.mode, self.partitioned),
            engine,
            parallelism=self.stream.spark.sparkContext.defaultParallelism,
            session=session_settings(self.stream.spark),
        )


def check_mode(mode: str) -> str:
    """Return the output mode in lower case; OptionError if there is none of that name."""
    if mode.lower() not in OUTPUT_MODES:
        raise OptionError(f"Output modes are {', '.join(OUTPUT_MODES)}, not {mode!r}.")
    return mode.lower()


def option_text(value: Any) -> str:
    """Return an option's value as text, booleans as Spark spells them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def trigger_options(triggers: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that a trigger stands for. Exactly one kind of trigger must be given."""
    chosen = {name: value for name, value in triggers.items() if value is not None}
    if len(chosen) != 1:
        kinds = ", ".join(chosen) or "none"
        raise OptionError(
            f"A query has exactly one trigger, but {kinds} were given. Use trigger(epoch='100 "
            f"milliseconds'), or trigger(availableNow=True) to stop when all input is read."
        )
    ((name, value),) = chosen.items()
    match name:
        case "availableNow" | "once":
            if value is not True:
                raise OptionError(f"trigger({name}=...) must be True, not {value!r}.")
            return {name: "true"}
        case "realTime":
            raise OptionError(
                f"trigger(realTime={value!r}) is the length of a batch of Spark's real-time mode, "
                f"and an epoch is much shorter. Use trigger(epoch='100 milliseconds')."
            )
        case "processingTime" if str(value).split()[0] == "0":
            return {}  # as often as possible: the usual length of an epoch
    return {"epoch": str(value)}


def output_options(
    spark: SparkSession, sink: Any, options: Mapping[str, str]
) -> tuple[EngineOptions, dict[str, str]]:
    """Split options into the engine's, with a checkpoint if there is one, and the sink's."""
    from epochal.continuous.catalyst.spark_objects import absolute_paths

    engine, rest = split_options(absolute_paths(options))
    if engine.checkpoint_location is None:
        shared = spark.conf.get(CHECKPOINTS, None)
        if shared:
            place = join_url(shared, engine.query_name or str(uuid4()))
            place = absolute_paths({"path": place})["path"]
            engine = replace(engine, checkpoint_location=place)
    if engine.checkpoint_location is None and outlives_query(sink):
        raise OptionError(
            f"{format_name(sink)}: the query has no checkpointLocation. Without it the next start "
            f"would process all input again and write its rows a second time. Set "
            f".option('checkpointLocation', PATH)."
        )
    return engine, rest


def sink_definition(
    sink: Any, options: Mapping[str, str], mode: str, partitioned: tuple[str, ...]
) -> SinkDefinition:
    """Return the sink as the engine opens it."""

    def opened(checkpoint: Files, query_id: str, schema: pa.Schema) -> Sink:
        return open_sink(
            sink,
            options,
            schema,
            output_mode=mode,
            partition_by=partitioned,
            checkpoint=checkpoint,
            query_id=query_id,
        )

    is_named = isinstance(sink, str | tuple | SinkFormat)
    return SinkDefinition(format_name(sink) if is_named else "sink", opened)
