"""Avro schemas as Arrow types, and decoded Avro values as values that Arrow accepts. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa

from epochal.connectors.payloads.payload_columns import unsupported_type
from epochal.errors import OptionError, PayloadError

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


def parsed_schema(document: bytes | str, what: str, references: Iterable[str] = ()) -> Any:
    """Parse a schema; `references` are the schemas that it refers to, those needed first first.

    `what` names the schema in errors.
    """
    named: dict[str, Any] = {}
    try:
        for text in references:
            fastavro.parse_schema(json.loads(text), named_schemas=named)
        return fastavro.parse_schema(json.loads(document), named_schemas=named)
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise OptionError(
            f"{what} is not a valid Avro schema: {error!r}. Correct the schema."
        ) from error


def record_type(schema: Any, what: str) -> pa.StructType:
    """Return the Arrow type of an Avro record; `what` names its schema in errors."""
    # A schema that refers to others has them under this key, by their full names.
    schemas = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    kind = avro_type(schema, "payload", dict(schemas))
    if not pa.types.is_struct(kind):
        raise OptionError(
            f"{what} is {kind}, but only an Avro record can become columns. Wrap it in a record."
        )
    return kind


def avro_type(schema: Any, what: str, named: dict[str, Any]) -> Any:
    """Return the Arrow type of an Avro schema.

    `what` is the field's path, for errors. `named` has the named types met so far, and schemas of
    others that may be named.
    """
    if isinstance(schema, list):
        arms = [branch for branch in schema if branch != "null"]
        if len(arms) != 1:
            raise unsupported_type(what, f"a union of {len(arms)} types")
        return avro_type(arms[0], what, named)
    if isinstance(schema, str):
        arrow_type = _PRIMITIVE.get(schema) or named.get(schema)
        if isinstance(arrow_type, dict):
            named[schema] = None  # a type inside itself has no column
            arrow_type = named[schema] = avro_type(arrow_type, what, named)
        if arrow_type is None:
            raise unsupported_type(what, schema)
        return arrow_type
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match kind:
        case "record":
            named[schema["name"]] = None
            fields = [
                pa.field(field["name"], avro_type(field["type"], f"{what}.{field['name']}", named))
                for field in schema["fields"]
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


def read_record(payload: bytes, written: Any, wanted: Any = None, *, start: int = 0) -> Any:
    """Read the record that is the rest of a payload, and resolve it to the schema `wanted`."""
    stream = BytesIO(payload)
    stream.seek(start)
    record = fastavro.schemaless_reader(stream, written, wanted)
    if left := len(payload) - stream.tell():
        raise PayloadError(f"{left} bytes follow the record")
    return record


def plain(value: Any) -> Any:
    """Replace UUIDs by strings, at any depth.

    A dictionary stays one: Arrow reads it as a map or as a record, depending on the column's type.
    """
    if value is not None and type(value).__name__ == "UUID":
        return str(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
