"""Defines where the rows of a continuous query go, and how it runs: `stream.write_stream`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochal.connectors.contract import Sink
from epochal.connectors.registry import LASTING_SINKS, open_sink
from epochal.continuous.api.step_names import ARROW, format_name, options_of, steps_of
from epochal.continuous.run.query_settings import split_options
from epochal.continuous.run.query_spec import QueryDefinition, SinkDefinition
from epochal.continuous.run.state_settings import session_settings
from epochal.errors import OptionError
from epochal.files import Files

if TYPE_CHECKING:
    from epochal.continuous.api.query_handle import StreamingQuery
    from epochal.continuous.api.stream import Stream

UPDATE, APPEND, COMPLETE = "update", "append", "complete"
OUTPUT_MODES = (APPEND, UPDATE, COMPLETE)


@dataclass(frozen=True, slots=True)
class StreamWriter:
    """Defines where rows go and how the query runs."""

    stream: Stream
    sink: Any = None
    given: Mapping[str, str] | None = None
    mode: str = APPEND
    partitioned: tuple[str, ...] = ()

    def __repr__(self) -> str:
        steps, given = steps_of(self.stream), options_of(list(self.given or ()))
        return f"StreamWriter({steps}{ARROW}{format_name(self.sink)}, {self.mode}{given})"

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
        return replace(self, given={**(self.given or {}), key: option_text(value)})

    def options(self, **options: Any) -> StreamWriter:
        """Set several options."""
        texts = {key: option_text(value) for key, value in options.items()}
        return replace(self, given={**(self.given or {}), **texts})

    def output_mode(self, mode: str) -> StreamWriter:
        """Set the output mode, append, update or complete, for sinks that can replace rows."""
        return replace(self, mode=checked_mode(mode))

    def query_name(self, name: str) -> StreamWriter:
        """Name the query for `epochal.streams(spark)`, progress reports and logs."""
        return self.option("queryName", name)

    def partition_by(self, *columns: str) -> StreamWriter:
        """Write files into a directory per value of these columns."""
        return replace(self, partitioned=columns)

    def trigger(self, *, epoch: str) -> StreamWriter:
        """Set the length of an epoch, such as '100 milliseconds'."""
        return self.option("epoch", epoch)

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
        given = dict(self.given or {}) | ({} if path is None else {"path": path})
        engine, rest = split_options(given)
        sink, mode, partitioned = self.sink, self.mode, self.partitioned
        if engine.checkpoint_location is None and str(sink).lower() in LASTING_SINKS:
            raise OptionError(
                f"{sink}: the query has no checkpointLocation. Without it the next start would "
                f"process all input again and write its rows a second time. Set "
                f".option('checkpointLocation', PATH)."
            )
        for column in partitioned:
            self.stream.known(column)

        def opened(checkpoint: Files, query_id: str, schema: pa.Schema) -> Sink:
            return open_sink(
                sink,
                rest,
                schema,
                output_mode=mode,
                partition_by=partitioned,
                checkpoint=checkpoint,
                query_id=query_id,
            )

        name = sink if isinstance(sink, str) else sink[0] if isinstance(sink, tuple) else "sink"
        return QueryDefinition(
            self.stream.tree,
            SinkDefinition(str(name), opened),
            engine,
            self.stream.spark.sparkContext.defaultParallelism,
            session=session_settings(self.stream.spark),
        )


def checked_mode(mode: str) -> str:
    """Return the output mode in lower case; OptionError if there is none of that name."""
    if mode.lower() not in OUTPUT_MODES:
        raise OptionError(f"Output modes are {', '.join(OUTPUT_MODES)}, not {mode!r}.")
    return mode.lower()


def option_text(value: Any) -> str:
    """Return an option's value as text, booleans as Spark spells them."""
    return str(value).lower() if isinstance(value, bool) else str(value)
