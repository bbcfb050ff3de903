"""Payloads into typed columns, by a schema that is given: JSON, Avro or Protobuf.

Rows get a column `parsed`, a struct, and a column `parse_error`, which says why `parsed` is null. A
payload that breaks its schema never ends a query: it shows in that column, or goes to a dead-letter
topic with the reason as an attribute.

What a reader would get wrong: the schema is the reader's. JSON fields that it does not name are
passed over, fields that are missing are null; a field of another type is an error, not a null.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from epochal.connectors.pubsub.publish.encode import Encoder
from epochal.connectors.pubsub.pubsub_options import SinkOptions, SourceOptions, full_name
from epochal.errors import OptionError, PayloadError

PARSED, PARSE_ERROR = "parsed", "parse_error"
FORMATS = ("json", "avro", "protobuf")
ERROR_ATTRIBUTE, ID_ATTRIBUTE = "epochal-parse-error", "epochal-message-id"
MAX_ERROR_CHARS = 500


class Decode(Protocol):
    """Decodes payloads of one schema."""

    @property
    def type(self) -> pa.StructType: ...

    def decode(self, payloads: Sequence[bytes], attributes: Any) -> tuple[Any, list[str | None]]:
        """A struct per payload, null where an error says why."""
        ...


@dataclass(frozen=True, slots=True)
class ParseSpec:
    """What to parse; travels pickled."""

    format: str
    schema: pa.Schema | None
    """For JSON: the fields."""
    document: bytes
    """For Avro: the schema's JSON; for Protobuf: a serialised FileDescriptorSet."""
    message: str

    def open(self) -> Parser:
        return Parser(_decoder(self))

    def extended(self, base: pa.Schema, *, errors: bool) -> pa.Schema:
        """The columns of parsed rows."""
        schema = base.append(pa.field(PARSED, _decoder(self).type))
        return schema.append(pa.field(PARSE_ERROR, pa.string())) if errors else schema


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows and what became of their payloads."""

    batch: pa.RecordBatch
    values: Any
    errors: list[str | None]

    def with_errors(self) -> pa.RecordBatch:
        """All rows, with both columns."""
        errors = pa.array(self.errors, pa.string())
        return _extended(self.batch, {PARSED: self.values, PARSE_ERROR: errors})

    def split(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows that could be parsed, and those that could not, with the reasons."""
        good = pa.array([error is None for error in self.errors])
        if good.true_count == len(good):
            return _extended(self.batch, {PARSED: self.values}), self.batch.slice(0, 0)
        bad = pa.array([error is not None for error in self.errors])
        errors = pa.array([error for error in self.errors if error is not None], pa.string())
        kept = _extended(self.batch.filter(good), {PARSED: self.values.filter(good)})
        return kept, _extended(self.batch.filter(bad), {PARSE_ERROR: errors})


class Parser:
    """Parses the column `data`."""

    def __init__(self, decoder: Decode) -> None:
        self._decoder = decoder

    def parse(self, batch: pa.RecordBatch) -> Parsed:
        payloads = batch.column("data").to_numpy(zero_copy_only=False).tolist()
        attributes = batch.column("attributes")
        values, errors = self._decoder.decode(payloads, attributes)
        return Parsed(batch, values, [None if e is None else e[:MAX_ERROR_CHARS] for e in errors])


class DeadLetters:
    """Sends what cannot be parsed to a topic of its own."""

    def __init__(self, options: SourceOptions) -> None:
        # Without dead letters, parsing needs no gRPC: it also runs in Spark's forked workers.
        from epochal.connectors.pubsub.connection import Connection
        from epochal.connectors.pubsub.publish.publisher import Publisher, PublishSettings

        topic = full_name("topics", options.dead_letter_topic_id or "", options)
        self._publisher = Publisher(Connection(options), PublishSettings(topic=topic))
        self._encoder: Encoder | None = None

    def take(self, parsed: Parsed) -> pa.RecordBatch:
        """Send the bad rows, return the good ones."""
        good, bad = parsed.split()
        if bad.num_rows:
            letters = _letters(bad)
            if self._encoder is None:
                self._encoder = Encoder(letters.schema, SinkOptions(topic_id="dead-letters"))
            encoded = self._encoder.encode(letters)
            self._publisher.add(encoded.messages)
        return good

    def mark(self) -> int:
        return self._publisher.mark()

    def is_published(self, mark: int | None, wait: bool = False) -> bool:
        """Whether all before a mark is safe; raises if the topic does not take it."""
        if mark is None:
            return True
        if wait:
            self._publisher.flush(mark)
        return self._publisher.is_published(mark)

    def close(self) -> None:
        self._publisher.close()


def parse_spec(options: SourceOptions, schema: pa.Schema | None = None) -> ParseSpec | None:
    """What the options say about parsing; `schema` is one that the user gave besides."""
    if options.parse is None:
        for name in ("parse_schema", "parse_message", "dead_letter_topic_id"):
            if getattr(options, name) is not None:
                raise OptionError(f"pubsub: {name} has no effect without parse.")
        if schema is not None:
            raise OptionError(
                "pubsub: its columns are fixed, so a schema has no effect. To parse payloads by "
                "it, set parse to json."
            )
        return None
    kind, text = options.parse.lower(), options.parse_schema
    if kind not in FORMATS:
        raise OptionError(f"pubsub: parse must be one of {', '.join(FORMATS)}, not {kind!r}.")
    if kind == "json":
        if (text is None) == (schema is None):
            raise OptionError(
                "pubsub: parse=json needs the payload's schema, once: by schema(...) or as DDL in "
                "parseSchema."
            )
        found = ParseSpec(kind, schema or _ddl(text or ""), b"", "")
    elif text is None:
        what = "its JSON" if kind == "avro" else "a descriptor set (protoc --descriptor_set_out)"
        raise OptionError(f"pubsub: parse={kind} needs parseSchema: {what}, or a file of it.")
    elif kind == "avro":
        is_document = text.lstrip().startswith(("{", "["))
        document = text.encode() if is_document else _file(text)
        found = ParseSpec(kind, None, document, "")
    else:
        if options.parse_message is None:
            raise OptionError("pubsub: parse=protobuf needs parseMessage, the message's full name.")
        found = ParseSpec(kind, None, _file(text), options.parse_message)
    _decoder(found)  # whatever is wrong with the schema is said now
    return found


def _decoder(spec: ParseSpec) -> Decode:
    match spec.format:
        case "json":
            from epochal.connectors.pubsub.parse.parse_json import JsonDecode

            assert spec.schema is not None
            return JsonDecode(pa.struct(list(spec.schema)))
        case "avro":
            from epochal.connectors.pubsub.parse.parse_avro import AvroDecode

            return AvroDecode(spec.document)
        case "protobuf":
            from epochal.connectors.pubsub.parse.parse_protobuf import ProtobufDecode

            return ProtobufDecode(spec.document, spec.message)
    raise AssertionError(spec.format)


def _file(text: str) -> bytes:
    """What a file holds, or text that is base64 itself."""
    path = Path(text)
    try:
        return path.read_bytes()
    except OSError as error:
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise OptionError(f"pubsub: parseSchema cannot be read: {error}.") from error


def _ddl(text: str) -> pa.Schema:
    from epochal.state.rows.arrow_types import arrow_type
    from epochal.state.rows.ddl import parse_ddl

    fields = parse_ddl(text).fields
    return pa.schema([pa.field(each.name, arrow_type(each.data_type)) for each in fields])


def one_by_one(
    payloads: Sequence[bytes], decode: Callable[[int, bytes], Any], caught: Any
) -> tuple[list[Any], list[str | None]]:
    """Values, None where decoding raised, and the reasons."""
    values: list[Any] = []
    errors: list[str | None] = []
    for place, payload in enumerate(payloads):
        try:
            values.append(decode(place, payload))
            errors.append(None)
        except caught as error:
            values.append(None)
            errors.append(f"{type(error).__name__}: {error}")
    return values, errors


def _extended(batch: pa.RecordBatch, columns: dict[str, Any]) -> pa.RecordBatch:
    names = [*batch.schema.names, *columns]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns.values()], names=names)


def _letters(bad: pa.RecordBatch) -> pa.RecordBatch:
    rows = zip(
        bad.column("attributes").to_pylist(),
        bad.column(PARSE_ERROR).to_pylist(),
        bad.column("message_id").to_pylist(),
        strict=True,
    )
    attributes = [
        [*(pairs or ()), (ERROR_ATTRIBUTE, error), (ID_ATTRIBUTE, message_id)]
        for pairs, error, message_id in rows
    ]
    kind = bad.schema.field("attributes").type
    return pa.RecordBatch.from_arrays(
        [bad.column("data"), pa.array(attributes, kind)], names=["data", "attributes"]
    )


def refuse_type(what: str, kind: object) -> PayloadError:
    return PayloadError(f"{what} is {kind}, which has no column type here. Leave the field out.")
