"""The sources and sinks by name: one record each. Each connector is imported when it is opened.

A format may also be an object: a `SinkFormat` or a `SourceFormat` of your own, an instance of a
class that implements `contract.Source` or `contract.Sink`, or such a class itself, which is then
called with the options.

Note: the engine needs a source's schema while the user still builds the query, before there is a
checkpoint. It opens the source later, and again at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import pyarrow as pa

from epochal.connectors.contract import Sink, Source
from epochal.connectors.dead_letters.dead_letter_rules import split_bad_row_options
from epochal.connectors.dead_letters.dead_letter_sink import Checking, open_checked
from epochal.connectors.formats import (
    APPEND,
    COMPLETE,
    Identity,
    SinkFormat,
    SinkRequest,
    SourceFormat,
    SourceRequest,
    open_lazily,
    refuse_options,
)
from epochal.errors import OptionError
from epochal.files import Files
from epochal.options import suggestion

F = TypeVar("F", SourceFormat, SinkFormat)


def pinned_options(format: Any, options: Mapping[str, str]) -> dict[str, str]:
    """The options to define a query with, so that a source opened later has the same schema."""
    form = find_source(format)
    return dict(options) if form is None else form.pin(options)


def source_schema(format: Any, options: Mapping[str, str], schema: pa.Schema | None) -> pa.Schema:
    """The schema of a source's rows, before the source is opened. Checks its options too."""
    form = find_source(format)
    if form is None:
        return cast(Source, _custom(Source, format, options)).schema
    return form.schema(form.name, options, schema)


def source_identity(format: Any, options: Mapping[str, str]) -> Identity | None:
    """How the query recognises rows that it has already seen; None if it need not."""
    form = find_source(format)
    return None if form is None else form.identity(options)


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
    form = find_source(format)
    if form is None:
        return cast(Source, _custom(Source, format, options))
    return form.open(
        SourceRequest(form.name, options, schema, checkpoint, index, parallelism, spark)
    )


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
    form = find_sink(format)
    if form is None:
        return _custom_sink(format, options, schema, output_mode, checkpoint)
    check_partitioned(form, partition_by)
    if not len(schema) and not form.counts:
        raise OptionError(
            f"{form.name}: the rows have no columns, so none would be written. Select a column."
        )
    bad_rows, rest = split_bad_row_options(options, form.name)
    request = SinkRequest(
        *(form.name, rest, schema, output_mode, tuple(partition_by), checkpoint, query_id),
        dead_letter_topic=bad_rows.dead_letter_topic,
    )
    return open_checked(
        lambda written: form.open(replace(request, schema=written)),
        Checking(form.name, query_id, bad_rows, form.lasts, form.has_letter_topic),
        schema,
        checkpoint,
    )


def check_whole_result(format: Any, mode: str) -> None:
    """Raise OptionError if a sink would replace its rows by a part of the result."""
    form = find_sink(format) if mode == COMPLETE else None
    if form is not None and form.replaces:
        raise OptionError(
            f"{form.name}: output mode complete replaces all rows, but a stream of read_stream "
            f"emits only groups of partitions that got rows. Use update with mergeKeys, or write a "
            f"DataFrame with epochal.write_stream."
        )


def check_partitioned(format: str | SinkFormat, partition_by: Sequence[str]) -> None:
    """Raise OptionError if a sink that has no partitions was given partition columns."""
    form = format if isinstance(format, SinkFormat) else SINKS.get(format.lower())
    if partition_by and (form is None or not form.partitions):
        name = format if form is None else form.name
        known = ", ".join(sorted(name for name, sink in SINKS.items() if sink.partitions))
        raise OptionError(f"{name} does not take partitionBy. Sinks that do are {known}.")


def outlives_query(format: Any) -> bool:
    """Whether a sink's output outlives its query, so that the query needs a checkpoint."""
    form = format if isinstance(format, SinkFormat) else SINKS.get(str(format).lower())
    return form is not None and form.lasts


def find_source(format: Any) -> SourceFormat | None:
    """The record of a source, by its name; None for an object that is a source itself."""
    return _find("source", format, SOURCES, SourceFormat)


def find_sink(format: Any) -> SinkFormat | None:
    """The record of a sink, by its name; None for an object that is a sink itself."""
    return _find("sink", format, SINKS, SinkFormat)


def _find(kind: str, format: Any, forms: Mapping[str, F], record: type[F]) -> F | None:
    if not isinstance(format, str):
        return format if isinstance(format, record) else None
    form = forms.get(format.lower())
    if form is None:
        raise OptionError(f"There is no {kind} {format!r}.{suggestion(format, forms)}")
    return form


def _custom_sink(
    sink: Any, options: Mapping[str, str], schema: pa.Schema, mode: str, checkpoint: Files
) -> Sink:
    from epochal.connectors.foreach import ForeachSink
    from epochal.connectors.memory import MemoryOutput, MemorySink

    match sink:
        case ("foreach" | "foreachBatch" as kind, function):
            refuse_options(kind, options)
            return ForeachSink(function, by_batch=kind == "foreachBatch")
        case MemoryOutput():
            refuse_options("memory", options)
            return MemorySink(sink, checkpoint, schema, complete=mode == COMPLETE)
    return cast(Sink, _custom(Sink, sink, options))


def _custom(contract: type[Any], connector_or_class: Any, options: Mapping[str, str]) -> Any:
    if isinstance(connector_or_class, type):
        connector = connector_or_class(dict(options))
    else:
        refuse_options(type(connector_or_class).__name__, options)
        connector = connector_or_class
    methods = [name for name in dir(contract) if not name.startswith("_")]
    missing = [name for name in methods if not hasattr(connector, name)]
    if missing:
        name = contract.__name__
        raise OptionError(
            f"{type(connector).__name__} cannot be a {name.lower()}: it has no "
            f"{', '.join(missing)}. Inherit from epochal.connectors.contract.{name}, which has "
            f"what is optional, and implement the rest."
        )
    return connector


def _refuse_name(text: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise OptionError(f"memory: the {text}")

    return refuse


_MEMORY_SOURCE = (
    "source is an object to which your code adds rows, not a name. Use "
    "format(epochal.connectors.memory.MemoryStream(schema))."
)
_MEMORY_SINK = (
    "sink is an object from which your code reads rows, not a name. Use "
    "format(epochal.connectors.memory.MemoryOutput())."
)

FILE_FORMATS = ("csv", "json", "parquet", "text")
FILE_SOURCES = (*FILE_FORMATS, "avro", "binaryfile", "orc", "xml")

SOURCES: dict[str, SourceFormat] = {
    form.name: form
    for form in (
        SourceFormat(
            "rate",
            open_lazily("epochal.connectors.rate:rate_schema"),
            open_lazily("epochal.connectors.rate:open_rate"),
        ),
        SourceFormat(
            "kafka",
            open_lazily("epochal.connectors.kafka.source.source_options:kafka_source_schema"),
            open_lazily("epochal.connectors.kafka.source.kafka_source:open_kafka_source"),
            pin=open_lazily("epochal.connectors.kafka.source.source_options:pin_values"),
        ),
        SourceFormat(
            "pubsub",
            open_lazily("epochal.connectors.pubsub.continuous_pubsub:pubsub_source_schema"),
            open_lazily("epochal.connectors.pubsub.continuous_pubsub:open_pubsub_source"),
            open_lazily("epochal.connectors.pubsub.continuous_pubsub:redelivery_identity"),
        ),
        SourceFormat("memory", _refuse_name(_MEMORY_SOURCE), _refuse_name(_MEMORY_SOURCE)),
        *(
            SourceFormat(
                name,
                open_lazily("epochal.connectors.file.file_source:file_source_schema"),
                open_lazily("epochal.connectors.file.file_source:open_file_source"),
            )
            for name in FILE_SOURCES
        ),
    )
}
_TABLE: dict[str, Any] = {"lasts": True, "partitions": True, "replaces": True}
_FILE: dict[str, Any] = {"lasts": True, "partitions": True}
_open_files = open_lazily("epochal.connectors.file.file_sink:open_file_sink")
_open_iceberg = open_lazily("epochal.connectors.iceberg.iceberg_sink:open_iceberg_sink", "iceberg")

SINKS: dict[str, SinkFormat] = {
    form.name: form
    for form in (
        SinkFormat("console", open_lazily("epochal.connectors.console:open_console"), counts=True),
        SinkFormat("csv", _open_files, **_FILE),
        SinkFormat(
            "delta", open_lazily("epochal.connectors.delta.delta_sink:open_delta_sink"), **_TABLE
        ),
        SinkFormat("iceberg", _open_iceberg, **_TABLE),
        SinkFormat("json", _open_files, **_FILE, counts=True),
        SinkFormat(
            "kafka",
            open_lazily("epochal.connectors.kafka.sink.kafka_sink:open_kafka_sink"),
            lasts=True,
            has_letter_topic=True,
        ),
        SinkFormat("memory", _refuse_name(_MEMORY_SINK)),
        SinkFormat("noop", open_lazily("epochal.connectors.at_least_once:open_noop"), counts=True),
        SinkFormat("parquet", _open_files, **_FILE),
        SinkFormat(
            "postgres",
            open_lazily("epochal.connectors.postgres.postgres_sink:open_postgres_sink"),
            lasts=True,
            replaces=True,
        ),
        SinkFormat(
            "pubsub",
            open_lazily("epochal.connectors.pubsub.continuous_pubsub:open_pubsub_sink"),
            lasts=True,
        ),
        SinkFormat("text", _open_files, **_FILE),
    )
}
