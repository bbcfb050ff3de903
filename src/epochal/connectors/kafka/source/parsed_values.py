"""Adds the columns `parsed` and `parse_error` to rows of a Kafka source, with a schema registry."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from epochal.connectors.kafka.source.reader_rows import kafka_schema
from epochal.connectors.kafka.source.source_options import KafkaSourceOptions, read_source_options
from epochal.connectors.payloads.payload_columns import MAX_ERROR_CHARS, PARSE_ERROR, PARSED
from epochal.connectors.schema_registry.value_schemas import (
    ValueSpec,
    pinned_version,
    reading_spec,
    split_registry_options,
)
from epochal.errors import OptionError
from epochal.record_batches import batch_of


def read_with_values(options: Mapping[str, str]) -> tuple[KafkaSourceOptions, ValueSpec | None]:
    """Read the options of a source; ask the registry for the schema of its values, if any."""
    about_values, rest = split_registry_options(options)
    source_options = read_source_options(rest)
    return source_options, reading_spec(about_values, source_options.only_topic)


def kafka_source_schema(
    name: str, options: Mapping[str, str], schema: pa.Schema | None
) -> pa.Schema:
    """The columns of a source. Checks its options too."""
    if schema is not None:
        raise OptionError(
            f"{name}: the columns are always those of a Kafka record. Remove the schema from the "
            f"query."
        )
    source_options, values = read_with_values(options)
    columns = kafka_schema(source_options.include_headers)
    return columns if values is None else parsed_schema(columns, values)


def pin_values(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source with the version of its schema."""
    about_values, rest = split_registry_options(options)
    if about_values.value_format is None:
        return dict(options)
    return pinned_version(options, read_source_options(rest).only_topic)


def parsed_schema(schema: pa.Schema, spec: ValueSpec) -> pa.Schema:
    """The columns of a source, followed by those that parsing adds."""
    return schema.append(pa.field(PARSED, spec.decoder().type)).append(
        pa.field(PARSE_ERROR, pa.string())
    )


class ParsedValues:
    """Decodes the values of one reader's rows."""

    def __init__(self, spec: ValueSpec, wanted: frozenset[str] | None) -> None:
        self._decoder = spec.decoder()
        self._is_wanted = wanted is None or not wanted.isdisjoint((PARSED, PARSE_ERROR))
        self.needed = wanted if wanted is None or not self._is_wanted else wanted | {"value"}
        """The columns of records that the rows need."""

    def parsed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with both columns; they are null if the query uses neither."""
        count, kind = batch.num_rows, self._decoder.type
        values, errors = pa.nulls(count, kind), pa.nulls(count, pa.string())
        if self._is_wanted:
            column = batch.column("value").to_numpy(zero_copy_only=False).tolist()
            values, reasons = self._decoder.decode(column)
            errors = pa.array(
                [None if reason is None else reason[:MAX_ERROR_CHARS] for reason in reasons],
                pa.string(),
            )
        names = [*batch.schema.names, PARSED, PARSE_ERROR]
        return batch_of([*batch.columns, values, errors], names, count)
