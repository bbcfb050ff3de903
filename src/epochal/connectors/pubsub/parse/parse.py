"""Parses JSON, Avro or Protobuf payloads into typed columns, by a schema that the user gives.

Rows get two columns: `parsed`, a struct, and `parse_error`, the reason if `parsed` is null. A
payload that does not match the schema never fails the query. It is reported in `parse_error`, or
sent to a dead-letter topic with the reason as an attribute (`dead_letters`).

Note: for JSON, a field that the schema does not name is ignored, and a missing field is null. A
field of the wrong type is an error, not a null.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochal.connectors.payloads.payload_columns import (
    MAX_ERROR_CHARS,
    PARSE_ERROR,
    PARSED,
    PayloadDecoder,
)
from epochal.connectors.pubsub.pubsub_options import SourceOptions
from epochal.errors import OptionError
from epochal.options import option_name
from epochal.record_batches import batch_of

FORMATS = ("json", "avro", "protobuf")


@dataclass(frozen=True, slots=True)
class ParseSpec:
    """What to parse. It is pickled and sent to tasks."""

    format: str
    schema: pa.Schema | None
    """For JSON: the payload's fields."""
    document: bytes
    """For Avro: the schema's JSON. For Protobuf: a serialised FileDescriptorSet."""
    message: str
    """For Protobuf: the message's full name."""

    def open(self) -> Parser:
        return Parser(_decoder(self))

    def extended(self, base: pa.Schema, *, errors: bool) -> pa.Schema:
        """Return the columns of `base` followed by those that parsing adds."""
        schema = base.append(pa.field(PARSED, _decoder(self).type))
        return schema.append(pa.field(PARSE_ERROR, pa.string())) if errors else schema


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows, with the parsed value or the error of each."""

    batch: pa.RecordBatch
    values: Any
    errors: list[str | None]

    def with_errors(self) -> pa.RecordBatch:
        """Return all rows, with both columns."""
        errors = pa.array(self.errors, pa.string())
        return _extend(self.batch, {PARSED: self.values, PARSE_ERROR: errors})

    def split(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows that were parsed, and the others with `parse_error`."""
        good = pa.array([error is None for error in self.errors])
        if good.true_count == len(good):
            return _extend(self.batch, {PARSED: self.values}), self.batch.slice(0, 0)
        bad = pa.array([error is not None for error in self.errors])
        errors = pa.array([error for error in self.errors if error is not None], pa.string())
        good_rows = _extend(self.batch.filter(good), {PARSED: self.values.filter(good)})
        return good_rows, _extend(self.batch.filter(bad), {PARSE_ERROR: errors})


class Parser:
    """Parses the column `data`."""

    def __init__(self, decoder: PayloadDecoder) -> None:
        self._decoder = decoder

    def parse(self, batch: pa.RecordBatch) -> Parsed:
        payloads = batch.column("data").to_numpy(zero_copy_only=False).tolist()
        attributes = batch.column("attributes")
        values, errors = self._decoder.decode(payloads, attributes)
        return Parsed(batch, values, [None if e is None else e[:MAX_ERROR_CHARS] for e in errors])


def parse_spec(options: SourceOptions, schema: pa.Schema | None = None) -> ParseSpec | None:
    """Read the options about parsing; `schema` is what the user gave with `schema(...)`."""
    if options.parse is None:
        for name in ("parse_schema", "parse_message", "dead_letter_topic_id"):
            if getattr(options, name) is not None:
                raise OptionError(
                    f"pubsub: {option_name(name)} has no effect without parse. Set parse to one of "
                    f"{', '.join(FORMATS)}, or remove it."
                )
        if schema is not None:
            raise OptionError(
                "pubsub: the source's columns are fixed, so schema(...) has no effect. To parse "
                "payloads with that schema, set parse to json."
            )
        return None
    kind, text = options.parse.lower(), options.parse_schema
    if kind not in FORMATS:
        raise OptionError(f"pubsub: parse must be one of {', '.join(FORMATS)}, not {kind!r}.")
    if kind == "json":
        if (text is None) == (schema is None):
            raise OptionError(
                "pubsub: parse=json needs the payload's schema, given once: either with "
                "schema(...) or as DDL in parseSchema."
            )
        spec = ParseSpec(kind, schema or _ddl(text or ""), b"", "")
    elif text is None:
        what = "the schema's JSON, or the path of a file with it"
        if kind == "protobuf":
            what = "the path of a descriptor set (protoc --descriptor_set_out), or its base64"
        raise OptionError(f"pubsub: parse={kind} needs parseSchema: {what}.")
    elif kind == "avro":
        is_document = text.lstrip().startswith(("{", "["))
        document = text.encode() if is_document else _read(text)
        spec = ParseSpec(kind, None, document, "")
    else:
        if options.parse_message is None:
            raise OptionError("pubsub: parse=protobuf needs parseMessage, the message's full name.")
        spec = ParseSpec(kind, None, _read(text), options.parse_message)
    _decoder(spec)  # report a broken schema now, not in the first task
    return spec


def _decoder(spec: ParseSpec) -> PayloadDecoder:
    match spec.format:
        case "json":
            from epochal.connectors.payloads.json_payloads import JsonDecoder

            assert spec.schema is not None
            return JsonDecoder(pa.struct(list(spec.schema)))
        case "avro":
            from epochal.connectors.pubsub.parse.parse_avro import AvroDecoder

            return AvroDecoder(spec.document)
        case "protobuf":
            from epochal.connectors.payloads.protobuf_payloads import ProtobufDecoder, message_of

            return ProtobufDecoder(message_of(spec.document, spec.message, "pubsub: parseSchema"))
    raise AssertionError(spec.format)


def _read(text: str) -> bytes:
    """Read the file with this path; if there is none, decode the text as base64."""
    path = Path(text)
    try:
        return path.read_bytes()
    except OSError as error:
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise OptionError(
                f"pubsub: parseSchema cannot be read: {error}. Give the path of a file on the "
                f"driver."
            ) from error


def _ddl(text: str) -> pa.Schema:
    from epochal.state.rows.arrow_types import arrow_type
    from epochal.state.rows.ddl import parse_ddl

    fields = parse_ddl(text).fields
    return pa.schema([pa.field(field.name, arrow_type(field.data_type)) for field in fields])


def _extend(batch: pa.RecordBatch, columns: dict[str, Any]) -> pa.RecordBatch:
    names = [*batch.schema.names, *columns]
    return batch_of([*batch.columns, *columns.values()], names, batch.num_rows)
