"""Decodes Avro payloads, binary or JSON, without a header, as Pub/Sub's own schemas encode them.

Note: the message's attribute `googclient_schemaencoding` names the encoding. A message without the
attribute is binary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO, StringIO
from typing import Any

import fastavro
import pyarrow as pa

from epochal.connectors.pubsub.parse.payload_decoder import decode_each, unsupported_type
from epochal.errors import OptionError, PayloadError

ENCODING = "googclient_schemaencoding"
_PRIMITIVE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


class AvroDecoder:
    """Decodes records of one schema."""

    def __init__(self, document: bytes) -> None:
        try:
            self._schema: Any = fastavro.parse_schema(json.loads(document))
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise OptionError(
                f"pubsub: parseSchema is not a valid Avro schema: {error!r}. Correct the schema."
            ) from error
        self.type = avro_type(self._schema, "payload", {})
        if not pa.types.is_struct(self.type):
            raise OptionError(
                f"pubsub: parseSchema is {self.type}, but only an Avro record can become columns. "
                f"Wrap it in a record."
            )

    def decode(self, payloads: Sequence[bytes], attributes: Any) -> tuple[Any, list[str | None]]:
        encodings = [dict(pairs or ()).get(ENCODING) for pairs in attributes.to_pylist()]

        def row(index: int, payload: bytes) -> Any:
            if encodings[index] == "JSON":
                return next(fastavro.json_reader(StringIO(payload.decode()), self._schema))
            stream = BytesIO(payload)
            found = fastavro.schemaless_reader(stream, self._schema, None)
            left = len(payload) - stream.tell()
            if left:
                raise PayloadError(f"{left} bytes follow the record")
            return found

        # On malformed input, fastavro raises many exceptions: IndexError, EOFError, KeyError, …
        values, errors = decode_each(payloads, row, Exception)
        return pa.array([_plain(each) for each in values], self.type), errors


def avro_type(schema: Any, what: str, named: dict[str, Any]) -> Any:
    """Return the Arrow type of an Avro schema.

    `what` is the field's path, for errors. `named` collects the named types met so far.
    """
    if isinstance(schema, list):
        arms = [each for each in schema if each != "null"]
        if len(arms) != 1:
            raise unsupported_type(what, f"a union of {len(arms)} types")
        return avro_type(arms[0], what, named)
    if isinstance(schema, str):
        found = _PRIMITIVE.get(schema) or named.get(schema)
        if found is None:
            raise unsupported_type(what, schema)
        return found
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match kind:
        case "record":
            fields = [
                pa.field(each["name"], avro_type(each["type"], f"{what}.{each['name']}", named))
                for each in schema["fields"]
            ]
            named[schema["name"]] = pa.struct(fields)
            return named[schema["name"]]
        case "array":
            return pa.list_(avro_type(schema["items"], what, named))
        case "map":
            return pa.map_(pa.string(), avro_type(schema["values"], what, named))
        case "enum" | "fixed":
            named[schema["name"]] = _PRIMITIVE[kind]
            return _PRIMITIVE[kind]
        case _:
            return avro_type(kind, what, named)


def _plain(value: Any) -> Any:
    """Replace UUIDs by strings, at any depth.

    A dictionary stays one: Arrow reads it as a map or as a record, depending on the column's type.
    """
    if value is not None and type(value).__name__ == "UUID":
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
