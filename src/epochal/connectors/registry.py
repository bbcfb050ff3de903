"""Opens sources and sinks by the name of their format. Each connector is imported when needed.

A format may also be an object: an instance of a class that implements `contract.Source` or
`contract.Sink`, or the class itself, which is then called with the options.

Note: the engine needs a source's schema while the user still builds the query, before there is a
checkpoint. It opens the source later, and again at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias, cast

import pyarrow as pa

from epochal.connectors.contract import Sink, Source
from epochal.connectors.dead_letters.dead_letter_rules import BadRowOptions, split_bad_row_options
from epochal.connectors.dead_letters.dead_letter_sink import Checking, open_checked
from epochal.errors import OptionError
from epochal.files import Files
from epochal.options import read_options, suggestion

APPEND, COMPLETE = "append", "complete"


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """Everything needed to open a source."""

    format: str
    options: Mapping[str, str] = field(repr=False)
    schema: pa.Schema | None
    checkpoint: Files
    index: int
    parallelism: int
    spark: Any = None
    """The user's session, whose settings decide how files are read."""


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """Everything needed to open a sink."""

    format: str
    options: Mapping[str, str] = field(repr=False)
    schema: pa.Schema
    output_mode: str
    partition_by: tuple[str, ...]
    checkpoint: Files
    query_id: str
    bad_rows: BadRowOptions = field(default_factory=BadRowOptions)


SchemaOf: TypeAlias = Callable[[str, Mapping[str, str], pa.Schema | None], pa.Schema]
"""Returns a source's schema for its name, its options and the user's schema, if there is one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The columns that identify a row of a source that may redeliver, and how long to keep them.

    `version` is the column, if any, that tells apart rows with the same values in `columns`.
    """

    columns: tuple[str, ...]
    version: str | None
    window_ms: int


@dataclass(frozen=True, slots=True)
class SourceFormat:
    schema: SchemaOf
    open: Callable[[SourceRequest], Source]
    identity: Callable[[Mapping[str, str]], Identity | None] = lambda _: None
    """How the query recognises redelivered rows, if the source's options ask for that."""
    pin: Callable[[Mapping[str, str]], dict[str, str]] = dict
    """Fixes what the options leave to the moment, such as the latest version of a schema."""


def pinned_options(format: Any, options: Mapping[str, str]) -> dict[str, str]:
    """The options to define a query with, so that a source opened later has the same schema."""
    return _source_format(format).pin(options) if isinstance(format, str) else dict(options)


def source_schema(format: Any, options: Mapping[str, str], schema: pa.Schema | None) -> pa.Schema:
    """The schema of a source's rows, before the source is opened. Checks its options too."""
    if not isinstance(format, str):
        return _custom_source(format, options).schema
    return _source_format(format).schema(format.lower(), options, schema)


def source_identity(format: Any, options: Mapping[str, str]) -> Identity | None:
    """How the query recognises rows that it has already seen; None if it need not."""
    return _source_format(format).identity(options) if isinstance(format, str) else None


def open_source(
    format: Any,
    options: Mapping[str, str],
    schema: pa.Schema | None,
    checkpoint: Files,
    index: int,
    *,
    parallelism: int = 1,
    spark: Any = None,
) -> Source:
    """Open a source. `parallelism` is the number of partitions unless the source determines it."""
    if not isinstance(format, str):
        return _custom_source(format, options)
    request = SourceRequest(format.lower(), options, schema, checkpoint, index, parallelism, spark)
    return _source_format(format).open(request)


def open_sink(
    format: Any,
    options: Mapping[str, str],
    schema: pa.Schema,
    *,
    output_mode: str = APPEND,
    partition_by: Sequence[str] = (),
    checkpoint: Files,
    query_id: str,
) -> Sink:
    """Open a sink. `format` is a name, an object, `("foreach", f)` or `("foreachBatch", f)`."""
    if not isinstance(format, str):
        return _custom_sink(format, options, schema, output_mode, checkpoint)
    opener = SINKS.get(format.lower())
    if opener is None:
        raise OptionError(f"There is no sink {format!r}.{suggestion(format, SINKS)}")
    check_partitioned(format, partition_by)
    if not len(schema) and format.lower() not in COUNTING_SINKS:
        raise OptionError(
            f"{format}: the rows have no columns, so none would be written. Select a column."
        )
    bad_rows, rest = split_bad_row_options(options, format)
    request = SinkRequest(
        format.lower(),
        rest,
        schema,
        output_mode,
        tuple(partition_by),
        checkpoint,
        query_id,
        bad_rows,
    )
    return open_checked(
        lambda written: opener(replace(request, schema=written)),
        Checking(request.format, query_id, bad_rows, format.lower() in LASTING_SINKS),
        schema,
        checkpoint,
    )


def check_whole_result(format: Any, mode: str) -> None:
    """Raise OptionError if a sink would replace its rows by a part of the result."""
    if mode == COMPLETE and isinstance(format, str) and format.lower() in REPLACED_SINKS:
        raise OptionError(
            f"{format}: output mode complete replaces all rows, but a stream of read_stream emits "
            f"only groups of partitions that got rows. Use update with mergeKeys, or write a "
            f"DataFrame with epochal.write_stream."
        )


def check_partitioned(format: str, partition_by: Sequence[str]) -> None:
    """Raise OptionError if a sink that has no partitions was given partition columns."""
    if partition_by and format.lower() not in PARTITIONED_SINKS:
        known = ", ".join(PARTITIONED_SINKS)
        raise OptionError(f"{format} does not take partitionBy. Sinks that do are {known}.")


def _source_format(name: str) -> SourceFormat:
    found = SOURCES.get(name.lower())
    if found is None:
        raise OptionError(f"There is no source {name!r}.{suggestion(name, SOURCES)}")
    return found


SOURCE_METHODS = (
    "schema",
    "readers",
    "acknowledges_in_tasks",
    "initial",
    "resume",
    "discover",
    "offset",
    "boundary",
    "latest",
    "lag",
    "acknowledge",
    "close",
)
SINK_METHODS = ("exactly_once", "decides", "writers", "fence", "decided", "commit", "close")


def _custom_source(given: Any, options: Mapping[str, str]) -> Source:
    return cast(Source, _custom("source", given, options, SOURCE_METHODS))


def _custom_sink(
    given: Any, options: Mapping[str, str], schema: pa.Schema, mode: str, checkpoint: Files
) -> Sink:
    from epochal.connectors.foreach import ForeachSink
    from epochal.connectors.memory import MemoryOutput, MemorySink

    match given:
        case ("foreach" | "foreachBatch" as kind, function):
            _no_options(kind, options)
            return ForeachSink(function, by_batch=kind == "foreachBatch")
        case MemoryOutput():
            _no_options("memory", options)
            return MemorySink(given, checkpoint, schema, complete=mode == COMPLETE)
    return cast(Sink, _custom("sink", given, options, SINK_METHODS))


def _custom(kind: str, given: Any, options: Mapping[str, str], methods: Sequence[str]) -> Any:
    if isinstance(given, type):
        connector = given(dict(options))
    else:
        _no_options(type(given).__name__, options)
        connector = given
    missing = [name for name in methods if not hasattr(connector, name)]
    if missing:
        raise OptionError(
            f"{type(connector).__name__} cannot be a {kind}: it has no {', '.join(missing)}. "
            f"Implement everything in epochal.connectors.contract.{kind.capitalize()}."
        )
    return connector


def _no_options(name: str, options: Mapping[str, str]) -> None:
    if options:
        raise OptionError(
            f"{name} takes no options, but was given {', '.join(sorted(options))}. Remove them."
        )


def _append_only(request: SinkRequest) -> None:
    if request.output_mode != APPEND:
        raise OptionError(
            f"{request.format}: output mode {request.output_mode} is not possible, because a file "
            f"sink only adds files. Use append, or another sink."
        )


def _rate_schema(name: str, options: Mapping[str, str], schema: pa.Schema | None) -> pa.Schema:
    from epochal.connectors.rate import RATE_SCHEMA, RateOptions

    read_options(RateOptions, options, of=name)
    if schema is not None:
        raise OptionError(
            "rate: the columns are always timestamp and value. Remove the schema from the query."
        )
    return RATE_SCHEMA


def _open_rate(request: SourceRequest) -> Source:
    from epochal.connectors.rate import RateOptions, RateSource

    options = read_options(RateOptions, request.options, of="rate")
    return RateSource(options, request.checkpoint, request.index, parallelism=request.parallelism)


def _files_schema(name: str, options: Mapping[str, str], schema: pa.Schema | None) -> pa.Schema:
    from epochal.connectors.file.file_source import FileSourceOptions, checked_schema

    read_options(FileSourceOptions, options, of=name)
    return checked_schema(name, schema)


def _open_files(request: SourceRequest) -> Source:
    from epochal.connectors.file.file_source import FileSource, FileSourceOptions

    return FileSource(
        request.format,
        read_options(FileSourceOptions, request.options, of=request.format),
        request.schema,
        request.checkpoint,
        request.index,
        spark=request.spark,
        parallelism=request.parallelism,
    )


def _open_file_sink(request: SinkRequest) -> Sink:
    from epochal.connectors.file.file_formats import FileFormat
    from epochal.connectors.file.file_sink import FileSink, FileSinkOptions

    _append_only(request)
    return FileSink(
        FileFormat(request.format),
        read_options(FileSinkOptions, request.options, of=request.format),
        request.schema,
        request.query_id,
        partition_by=request.partition_by,
    )


def _open_delta_sink(request: SinkRequest) -> Sink:
    from epochal.connectors.delta.delta_options import DeltaSinkOptions
    from epochal.connectors.delta.delta_sink import DeltaSink

    return DeltaSink(
        read_options(DeltaSinkOptions, request.options, of="delta"),
        request.schema,
        request.checkpoint,
        request.query_id,
        output_mode=request.output_mode,
        partition_by=request.partition_by,
    )


def _open_console(request: SinkRequest) -> Sink:
    from epochal.connectors.console import ConsoleOptions, ConsoleSink

    return ConsoleSink(read_options(ConsoleOptions, request.options, of="console"))


def _open_kafka_sink(request: SinkRequest) -> Sink:
    from epochal.connectors.kafka.sink.kafka_sink import KafkaSinkOptions, open_kafka_sink
    from epochal.connectors.schema_registry.registry_options import split_registry_options
    from epochal.connectors.schema_registry.value_schemas import writing_spec

    about_values, rest = split_registry_options(request.options)
    options = read_options(KafkaSinkOptions, rest, of="kafka")
    values = None
    if "value" in request.schema.names:
        kind = request.schema.field("value").type
        values = writing_spec(about_values, options.topic, kind)
    return open_kafka_sink(
        options,
        request.schema,
        request.checkpoint,
        request.query_id,
        dead_letter_topic=request.bad_rows.dead_letter_topic,
        values=values,
    )


def _open_postgres_sink(request: SinkRequest) -> Sink:
    from epochal.connectors.postgres.postgres_options import PostgresSinkOptions
    from epochal.connectors.postgres.postgres_sink import open_postgres_sink

    options = read_options(PostgresSinkOptions, request.options, of="postgres")
    mode, checkpoint = request.output_mode, request.checkpoint
    return open_postgres_sink(options, request.schema, mode, checkpoint, request.query_id)


def _open_iceberg_sink(request: SinkRequest) -> Sink:
    from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions

    try:
        from epochal.connectors.iceberg.iceberg_sink import IcebergSink
    except ModuleNotFoundError as error:
        raise OptionError(
            f"iceberg: the package {error.name} is not installed. Run `pip install "
            f"'epochal[iceberg]'`."
        ) from error
    return IcebergSink(
        read_options(IcebergSinkOptions, request.options, of="iceberg"),
        request.schema,
        request.checkpoint,
        request.query_id,
        output_mode=request.output_mode,
        partition_by=request.partition_by,
    )


def _open_noop(request: SinkRequest) -> Sink:
    from epochal.connectors.noop import NoopSink

    _no_options("noop", request.options)
    return NoopSink()


def _kafka_schema(name: str, options: Mapping[str, str], schema: pa.Schema | None) -> pa.Schema:
    from epochal.connectors.kafka.source.parsed_values import parsed_schema, read_with_values
    from epochal.connectors.kafka.source.reader_rows import kafka_schema

    if schema is not None:
        raise OptionError(
            f"{name}: the columns are always those of a Kafka record. Remove the schema from the "
            f"query."
        )
    found, values = read_with_values(options)
    columns = kafka_schema(found.include_headers)
    return columns if values is None else parsed_schema(columns, values)


def _pin_kafka(options: Mapping[str, str]) -> dict[str, str]:
    from epochal.connectors.kafka.source.parsed_values import pin_values

    return pin_values(options)


def _open_kafka(request: SourceRequest) -> Source:
    from epochal.connectors.kafka.source.kafka_source import KafkaSource
    from epochal.connectors.kafka.source.parsed_values import read_with_values

    found, values = read_with_values(request.options)
    return KafkaSource(found, request.checkpoint, request.index, values=values)


def _memory_source(name: str, options: Mapping[str, str], schema: pa.Schema | None) -> pa.Schema:
    del name, options, schema
    raise OptionError(
        "memory: the source is an object to which your code adds rows, not a name. Use "
        "format(epochal.connectors.memory.MemoryStream(schema))."
    )


def _memory_sink(request: SinkRequest) -> Sink:
    del request
    raise OptionError(
        "memory: the sink is an object from which your code reads rows, not a name. Use "
        "format(epochal.connectors.memory.MemoryOutput())."
    )


def _no_memory_source(request: SourceRequest) -> Source:
    raise AssertionError(f"{request.format} has no schema to be opened with")


def _pubsub_schema(name: str, options: Mapping[str, str], schema: pa.Schema | None) -> pa.Schema:
    from epochal.connectors.pubsub.engine.engine_source import row_schema
    from epochal.connectors.pubsub.parse.parse import parse_spec
    from epochal.connectors.pubsub.pubsub_options import source_options

    found = source_options(options)
    return row_schema(found, parse_spec(found, schema))


def _pubsub_identity(options: Mapping[str, str]) -> Identity | None:
    from epochal.connectors.pubsub.pubsub_options import Delivery, source_options

    found = source_options(options)
    if found.delivery is not Delivery.EXACTLY_ONCE:
        return None
    return Identity(
        ("message_id",), "publish_time", found.dedup_window // timedelta(milliseconds=1)
    )


def _open_pubsub(request: SourceRequest) -> Source:
    from epochal.connectors.pubsub.engine.engine_source import PubSubSource
    from epochal.connectors.pubsub.parse.parse import parse_spec
    from epochal.connectors.pubsub.pubsub_options import source_options

    found = source_options(request.options)
    parse = parse_spec(found, request.schema)
    return PubSubSource(found, parse, parallelism=request.parallelism)


def _open_pubsub_sink(request: SinkRequest) -> Sink:
    from epochal.connectors.pubsub.engine.engine_sink import PubSubSink
    from epochal.connectors.pubsub.pubsub_options import sink_options

    if request.output_mode == COMPLETE:
        raise OptionError(
            "pubsub: output mode complete would publish the whole result in every epoch. Use "
            "append or update."
        )
    return PubSubSink(sink_options(request.options), request.schema, request.query_id)


FILE_FORMATS = ("csv", "json", "parquet", "text")
FILE_SOURCES = (*FILE_FORMATS, "avro", "binaryfile", "orc", "xml")
REPLACED_SINKS = ("delta", "iceberg", "postgres")
"""In output mode complete, an epoch's output replaces all rows."""
COUNTING_SINKS = ("console", "json", "noop")
"""They take rows without columns."""
PARTITIONED_SINKS = (*FILE_FORMATS, "delta", "iceberg")
LASTING_SINKS = (*FILE_FORMATS, "delta", "iceberg", "kafka", "postgres", "pubsub")
"""Their output outlives the query, so its checkpoint must too. Others need none, as in Spark."""

SOURCES: dict[str, SourceFormat] = {
    "rate": SourceFormat(_rate_schema, _open_rate),
    "kafka": SourceFormat(_kafka_schema, _open_kafka, pin=_pin_kafka),
    "pubsub": SourceFormat(_pubsub_schema, _open_pubsub, _pubsub_identity),
    "memory": SourceFormat(_memory_source, _no_memory_source),
    **dict.fromkeys(FILE_SOURCES, SourceFormat(_files_schema, _open_files)),
}
SINKS: dict[str, Callable[[SinkRequest], Sink]] = {
    "console": _open_console,
    "delta": _open_delta_sink,
    "iceberg": _open_iceberg_sink,
    "kafka": _open_kafka_sink,
    "noop": _open_noop,
    "postgres": _open_postgres_sink,
    "pubsub": _open_pubsub_sink,
    "memory": _memory_sink,
    **dict.fromkeys(FILE_FORMATS, _open_file_sink),
}
