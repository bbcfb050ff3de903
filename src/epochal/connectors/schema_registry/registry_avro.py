"""Avro values with a schema registry: decoded by the ids in their headers, encoded with one id.

A value is read with the schema that it was written with, and resolved to the schema that the query
reads, by Avro's own rules: fields by name, defaults for missing ones, wider numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import fastavro
import msgspec
import pyarrow as pa

from epochal.connectors.payloads.avro_payloads import parsed_schema, plain, read_record, record_type
from epochal.connectors.payloads.payload_columns import as_column, decode_each, fit_structs
from epochal.connectors.schema_registry.registry_client import (
    HEADER_BYTES,
    RegisteredSchema,
    RegistryClient,
    header,
    schema_id,
)
from epochal.errors import OptionError, PayloadError, SchemaRegistryError

KIND = "AVRO"


def parsed(schema: RegisteredSchema, what: str) -> Any:
    """A registered schema as fastavro takes it."""
    if schema.kind != KIND:
        raise PayloadError(f"schema {schema.id} of the registry is {schema.kind}, not {KIND}")
    return parsed_schema(schema.text, what, [text for _, text in schema.references])


class AvroValues:
    """Decodes values to one schema."""

    def __init__(self, schema: Any, client: RegistryClient) -> None:
        self._schema, self._client = schema, client
        self.type = record_type(schema, "the Avro schema")
        self._written: dict[int, Any] = {}

    def decode(
        self, payloads: Sequence[bytes | None], attributes: Any = None
    ) -> tuple[Any, list[str | None]]:
        def row(_: int, value: bytes | None) -> Any:
            if value is None:
                return None
            identifier = schema_id(value)
            if identifier not in self._written:
                schema = self._client.schema(identifier)
                self._written[identifier] = parsed(schema, f"schema {identifier} of the registry")
            written = self._written[identifier]
            return read_record(value, written, self._schema, start=HEADER_BYTES)

        # A registry that fails is not the value's fault. fastavro raises many kinds of errors.
        records, errors = decode_each(payloads, row, Exception, SchemaRegistryError)
        return as_column([plain(record) for record in records], errors, self.type)


class AvroEncoder:
    """Encodes structs with one schema, whose id is in every header."""

    def __init__(self, schema: Any, identifier: int) -> None:
        self._schema, self._header = schema, header(identifier)
        self._type = record_type(schema, "the Avro schema")

    def encode(self, column: Any) -> list[bytes | None]:
        # fastavro writes a number of any size as an int, so the types are compared here.
        structs = fit_structs(column, list(self._type), fill=False)
        encoded: list[bytes | None] = []
        for record in structs.to_pylist(maps_as_pydicts="strict"):
            out = BytesIO()
            out.write(self._header)
            if record is not None:
                fastavro.schemaless_writer(out, self._schema, record)
            encoded.append(None if record is None else out.getvalue())
        return encoded


def check_columns(kind: pa.StructType, schema: Any) -> None:
    """Raise OptionError if structs of this type cannot be records of the schema."""
    names = [kind.field(n).name for n in range(kind.num_fields)]
    wanted = {field["name"]: "default" in field for field in schema["fields"]}
    missing = [name for name, optional in wanted.items() if not optional and name not in names]
    lost = [name for name in names if name not in wanted]
    if missing or lost:
        problem = (
            f"it lacks {', '.join(missing)}" if missing else f"{', '.join(lost)} would be lost"
        )
        raise OptionError(
            f"kafka: column value has the fields {', '.join(names)}, but the schema of the subject "
            f"has {', '.join(wanted)}: {problem}. Change the query, or register another schema."
        )


def derived_schema(kind: pa.StructType, subject: str) -> str:
    """An Avro record for structs of this type, as it is registered. Every field may be null."""
    record = _record(kind, re.sub(r"\W", "_", re.sub(r"^(?=\d)", "_", subject)))
    return msgspec.json.encode(record).decode()


def _record(kind: Any, name: str) -> dict[str, Any]:
    fields = []
    for n in range(kind.num_fields):
        field = kind.field(n)
        if not re.fullmatch(r"[A-Za-z_]\w*", field.name):
            raise OptionError(
                f"kafka: {field.name!r} cannot be the name of a field in Avro: only letters, "
                f"digits and _ can. Rename it."
            )
        inner = _type(field.type, f"{name}_{field.name}")
        fields.append({"name": field.name, "type": ["null", inner], "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: Any, name: str) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return _record(kind, name)
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            raise _no_type(kind)
        return {"type": "map", "values": ["null", _type(kind.item_type, name)]}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, name)]}
    if types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if types.is_timestamp(kind):
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    for test, avro_type in (
        (types.is_boolean, "boolean"),
        (types.is_int64, "long"),
        (types.is_integer, "int"),
        (types.is_float32, "float"),
        (types.is_float64, "double"),
        (types.is_string, "string"),
        (types.is_large_string, "string"),
        (types.is_binary, "bytes"),
        (types.is_large_binary, "bytes"),
        (types.is_date32, {"type": "int", "logicalType": "date"}),
    ):
        if test(kind):
            return avro_type
    raise _no_type(kind)


def _no_type(kind: Any) -> OptionError:
    return OptionError(
        f"kafka: a value of type {kind} has no schema in Avro. Cast it, or give valueSchema."
    )
