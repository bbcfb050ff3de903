"""Defines where the rows of a continuous query go, and how it runs: `stream.write_stream`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochal.connectors.registry import check_whole_result
from epochal.continuous.api.outputs import (
    APPEND,
    check_mode,
    option_text,
    output_options,
    sink_definition,
    trigger_options,
)
from epochal.continuous.api.step_names import ARROW, format_name, options_of, steps_of
from epochal.continuous.run.query_spec import QueryDefinition
from epochal.continuous.run.take_over import session_settings
from epochal.errors import OptionError

if TYPE_CHECKING:
    from epochal.continuous.api.query_handle import StreamingQuery
    from epochal.continuous.api.stream import Stream


@dataclass(frozen=True, slots=True)
class StreamWriter:
    """Defines where rows go and how the query runs."""

    stream: Stream
    sink: Any = None
    given: Mapping[str, str] | None = None
    mode: str = APPEND
    partitioned: tuple[str, ...] = ()

    def __repr__(self) -> str:
        steps, options = steps_of(self.stream), options_of(list(self.given or ()))
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
        return replace(self, given={**(self.given or {}), key: option_text(value)})

    def options(self, **options: Any) -> StreamWriter:
        """Set several options."""
        texts = {key: option_text(value) for key, value in options.items()}
        return replace(self, given={**(self.given or {}), **texts})

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
        options = dict(self.given or {}) | ({} if path is None else {"path": path})
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
