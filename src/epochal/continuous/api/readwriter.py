"""Where a continuous query reads and where it writes: `epochal.read_stream(spark)`, `.start()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochal.connectors.contract import Sink, Source
from epochal.connectors.registry import open_sink, open_source, source_identity, source_schema
from epochal.continuous.api.step_names import ARROW, options_of, steps_of
from epochal.continuous.api.stream import APPEND, Input, Stream, checked_mode
from epochal.continuous.operators.deduplication.repeats import DropRepeatsSpec
from epochal.continuous.operators.stateless.spark_columns import arrow_schema
from epochal.continuous.run.query_settings import split_options
from epochal.continuous.run.query_spec import QueryDefinition, SinkDefinition, SourceDefinition
from epochal.errors import OptionError
from epochal.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochal.continuous.api.query_handle import StreamingQuery


@dataclass(frozen=True, slots=True)
class StreamReader:
    """Where rows come from: a format, its options, a schema where the format has none."""

    spark: SparkSession
    source: Any = None
    given: Mapping[str, str] | None = None
    columns: pa.Schema | None = None

    def __repr__(self) -> str:
        return f"StreamReader({_format_name(self.source)}{options_of(list(self.given or ()))})"

    def format(self, source: Any) -> StreamReader:
        """A format's name, or a source of your own that keeps `connectors.contract.Source`."""
        return replace(self, source=source)

    def option(self, key: str, value: Any) -> StreamReader:
        """Set an option; names are case-insensitive."""
        return replace(self, given={**(self.given or {}), key: _text(value)})

    def options(self, **options: Any) -> StreamReader:
        """Set several options."""
        return replace(
            self, given={**(self.given or {}), **{key: _text(v) for key, v in options.items()}}
        )

    def schema(self, schema: Any) -> StreamReader:
        """The rows' schema: DDL, Spark's type or Arrow's."""
        return replace(self, columns=arrow_schema(schema))

    def load(self, path: str | None = None) -> Stream:
        """The stream of the source's rows."""
        source, columns = self.source, self.columns
        if source is None:
            raise OptionError("Say .format(...) before .load().")
        options = dict(self.given or {}) | ({} if path is None else {"path": path})
        schema = source_schema(source, options, columns)

        parallelism = self.spark.sparkContext.defaultParallelism

        def opened(checkpoint: Files, index: int) -> Source:
            return open_source(source, options, columns, checkpoint, index, parallelism=parallelism)

        name = _format_name(source)
        described = f"{name}[{options.get('path', '')}]" if "path" in options else name
        stream = Stream(self.spark, schema, (Input(SourceDefinition(described, opened), schema),))
        identity = source_identity(source, options)
        if identity is None:
            return stream
        return stream.stage(DropRepeatsSpec(identity.columns, schema, identity.window_ms))


@dataclass(frozen=True, slots=True)
class StreamWriter:
    """Where rows go, and how the query runs."""

    stream: Stream
    sink: Any = None
    given: Mapping[str, str] | None = None
    mode: str = APPEND
    partitioned: tuple[str, ...] = ()

    def __repr__(self) -> str:
        steps, given = steps_of(self.stream), options_of(list(self.given or ()))
        return f"StreamWriter({steps}{ARROW}{_format_name(self.sink)}, {self.mode}{given})"

    def format(self, sink: Any) -> StreamWriter:
        """A format's name, or a sink of your own that keeps `connectors.contract.Sink`."""
        return replace(self, sink=sink)

    def foreach(self, function: Any) -> StreamWriter:
        """Call a function, or a PySpark ForeachWriter, for every row. At least once."""
        return replace(self, sink=("foreach", function))

    def foreach_batch(self, function: Callable[[pa.RecordBatch, int], None]) -> StreamWriter:
        """Call `function(batch, epoch)` in the tasks for every batch of rows. At least once."""
        return replace(self, sink=("foreachBatch", function))

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set an option of the query or of the sink; names are case-insensitive."""
        return replace(self, given={**(self.given or {}), key: _text(value)})

    def options(self, **options: Any) -> StreamWriter:
        """Set several options."""
        return replace(
            self, given={**(self.given or {}), **{key: _text(v) for key, v in options.items()}}
        )

    def output_mode(self, mode: str) -> StreamWriter:
        """append, update or complete: handed to sinks that can replace rows."""
        return replace(self, mode=checked_mode(mode))

    def query_name(self, name: str) -> StreamWriter:
        """How the query is called in `epochal.streams(spark)`, in progress and in logs."""
        return self.option("queryName", name)

    def partition_by(self, *columns: str) -> StreamWriter:
        """Divide files into directories by these columns."""
        return replace(self, partitioned=columns)

    def trigger(self, *, epoch: str) -> StreamWriter:
        """How long an epoch is, as in '100 milliseconds'."""
        return self.option("epoch", epoch)

    def start(self, path: str | None = None) -> StreamingQuery:
        """Begin, and return the handle of the running query."""
        from epochal.continuous.api.query_manager import streams

        return streams(self.stream.spark).start(self.definition(path))

    def definition(self, path: str | None = None) -> QueryDefinition:
        """The query as the engine takes it."""
        if self.sink is None:
            raise OptionError("Say .format(...) or .foreach(...) before .start().")
        given = dict(self.given or {}) | ({} if path is None else {"path": path})
        engine, rest = split_options(given)
        sink, mode, partitioned = self.sink, self.mode, self.partitioned
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
            tuple(each.definition for each in self.stream.inputs),
            SinkDefinition(str(name), opened),
            self.stream.plan,
            engine,
        )


def _format_name(found: Any) -> str:
    """Return the name of a format: as given, or of the class of a user's own source or sink."""
    match found:
        case None:
            return "no format"
        case str():
            return found
        case (str(kind), _):
            return kind
        case type():
            return found.__name__
    return type(found).__name__


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
