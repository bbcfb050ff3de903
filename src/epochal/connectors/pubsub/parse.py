"""Parses JSON, Avro or Protobuf payloads into typed columns, by a schema that the user gives.

Rows get two columns: `parsed`, a struct, and `parse_error`, the reason if `parsed` is null. A
payload that does not match the schema never fails the query. It is reported in `parse_error`, or
sent to a dead-letter topic with the reason as an attribute.

Note: for JSON, a field that the schema does not name is ignored, and a missing field is null. A
field of the wrong type is an error, not a null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pyarrow as pa

from epochal.connectors.payloads.payload_columns import (
    MAX_ERROR_CHARS,
    PARSE_ERROR,
    PARSED,
    PayloadDecoder,
    as_column,
    decode_each,
    read_document,
)
from epochal.connectors.pubsub.publish.encode import (
    MAX_ATTRIBUTES,
    MAX_VALUE_BYTES,
    RESERVED_KEY,
    Encoder,
)
from epochal.connectors.pubsub.pubsub_options import SinkOptions, SourceOptions, full_name
from epochal.errors import OptionError
from epochal.options import option_name
from epochal.record_batches import batch_of

FORMATS = ("json", "avro", "protobuf")
ENCODING = "googclient_schemaencoding"
OPTION = "pubsub: parseSchema"
ERROR_ATTRIBUTE, ID_ATTRIBUTE = "epochal-parse-error", "epochal-message-id"


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
        spec = ParseSpec(kind, None, read_document(text, OPTION, is_avro=True), "")
    else:
        if options.parse_message is None:
            raise OptionError("pubsub: parse=protobuf needs parseMessage, the message's full name.")
        document = read_document(text, OPTION, is_avro=False)
        spec = ParseSpec(kind, None, document, options.parse_message)
    _decoder(spec)  # report a broken schema now, not in the first task
    return spec


def _decoder(spec: ParseSpec) -> PayloadDecoder:
    match spec.format:
        case "json":
            from epochal.connectors.payloads.json_payloads import JsonDecoder

            assert spec.schema is not None
            return JsonDecoder(pa.struct(list(spec.schema)))
        case "avro":
            return AvroDecoder(spec.document)
        case "protobuf":
            from epochal.connectors.payloads.protobuf_payloads import ProtobufDecoder, message_of

            return ProtobufDecoder(message_of(spec.document, spec.message, OPTION))
    raise AssertionError(spec.format)


def _ddl(text: str) -> pa.Schema:
    from epochal.state.rows.arrow_types import arrow_type
    from epochal.state.rows.ddl import parse_ddl

    fields = parse_ddl(text).fields
    return pa.schema([pa.field(field.name, arrow_type(field.data_type)) for field in fields])


def _extend(batch: pa.RecordBatch, columns: dict[str, Any]) -> pa.RecordBatch:
    names = [*batch.schema.names, *columns]
    return batch_of([*batch.columns, *columns.values()], names, batch.num_rows)


class AvroDecoder:
    """Decodes Avro payloads, binary or JSON, without a header, as Pub/Sub's schemas encode them.

    Note: the message's attribute `googclient_schemaencoding` names the encoding. A message without
    the attribute is binary.
    """

    def __init__(self, document: bytes) -> None:
        import fastavro

        from epochal.connectors.payloads import avro_payloads

        self._fastavro, self._avro = fastavro, avro_payloads
        self._schema = avro_payloads.parsed_schema(document, OPTION)
        self.type = avro_payloads.record_type(self._schema, OPTION)

    def decode(self, payloads: Sequence[bytes], attributes: Any) -> tuple[Any, list[str | None]]:
        encodings = [dict(pairs or ()).get(ENCODING) for pairs in attributes.to_pylist()]

        def row(index: int, payload: bytes) -> Any:
            if encodings[index] == "JSON":
                return next(self._fastavro.json_reader(StringIO(payload.decode()), self._schema))
            return self._avro.read_record(payload, self._schema)

        # On malformed input, fastavro raises many exceptions: IndexError, EOFError, KeyError, …
        values, errors = decode_each(payloads, row, Exception)
        return as_column([self._avro.plain(value) for value in values], errors, self.type)


class DeadLetters:
    """Publishes messages that cannot be parsed to the topic in `deadLetterTopicId`.

    A dead letter has the message's data and attributes, plus two attributes: the error and the id
    of the original message. A message may be acknowledged only after its dead letter is published.
    Otherwise a crash between the two would lose it.
    """

    def __init__(self, options: SourceOptions) -> None:
        # Only dead letters need gRPC. Without them rows are also parsed in Spark's forked workers.
        from epochal.connectors.pubsub.connection import Connection
        from epochal.connectors.pubsub.publish.publisher import Publisher

        topic = full_name("topics", options.dead_letter_topic_id or "", options)
        self._options = SinkOptions(topic_id=topic)
        self._publisher = Publisher(Connection(options), self._options)
        self._encoder: Encoder | None = None

    def take(self, parsed: Parsed) -> pa.RecordBatch:
        """Send the rows that could not be parsed, and return the others."""
        good, bad = parsed.split()
        if bad.num_rows:
            letters = _letters(bad)
            if self._encoder is None:
                self._encoder = Encoder(letters.schema, self._options)
            self._publisher.add(self._encoder.encode(letters).messages)
        return good

    def mark(self) -> int:
        """Return a mark that covers every dead letter sent so far."""
        return self._publisher.mark()

    def is_published(self, mark: int | None, wait: bool = False) -> bool:
        """Whether everything up to a mark is published; raises if the topic refuses it."""
        if mark is None:
            return True
        if wait:
            self._publisher.flush(mark)
        return self._publisher.is_published(mark)

    def close(self) -> None:
        self._publisher.close()


def _letters(bad: pa.RecordBatch) -> pa.RecordBatch:
    attributes = []
    for pairs, error, message_id in zip(
        bad.column("attributes").to_pylist(),
        bad.column(PARSE_ERROR).to_pylist(),
        bad.column("message_id").to_pylist(),
        strict=True,
    ):
        # Pub/Sub itself adds attributes with reserved names, but accepts none from a publisher.
        free = [pair for pair in pairs or () if not pair[0].lower().startswith(RESERVED_KEY)]
        reason = str(error).encode()[:MAX_VALUE_BYTES].decode(errors="ignore")
        own = [(ERROR_ATTRIBUTE, reason), (ID_ATTRIBUTE, message_id)]
        attributes.append([*free[: MAX_ATTRIBUTES - len(own)], *own])
    kind = bad.schema.field("attributes").type
    return batch_of(
        [bad.column("data"), pa.array(attributes, kind)], ["data", "attributes"], bad.num_rows
    )
