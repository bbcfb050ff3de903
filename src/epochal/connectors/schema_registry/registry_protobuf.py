"""Protobuf values with a schema registry.

Protobuf's fields are numbered, so a value is decoded with the schema that the query reads, whatever
version it was written with. Its id only says which message it is.

Note: registries keep Protobuf as text. Reading text needs a compiler, so the client asks for the
compiled form (`format=serialized`), which Confluent's registry and others give. For a registry that
does not, `valueSchema` must be a descriptor set.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.connectors.payloads.payload_columns import decode_each, fit_structs, spread
from epochal.connectors.payloads.protobuf_payloads import ProtobufDecoder, message_in
from epochal.connectors.schema_registry.registry_client import (
    RegisteredSchema,
    RegistryClient,
    header,
    message_indices,
    schema_id,
)
from epochal.errors import OptionError, PayloadError
from epochal.record_batches import batch_of

KIND = "PROTOBUF"


def files_of(schema: RegisteredSchema) -> list[Any]:
    """The files of a registered schema, those that others import first; OptionError if the
    registry gave text."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    files = []
    for name, text in (*schema.references, ("default.proto", schema.text)):
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(
                base64.b64decode(text, validate=True)
            )
        except (ValueError, DecodeError):
            raise OptionError(
                f"kafka: the registry returns schema {schema.id} as text, and not in its compiled "
                f"form. Give the schema in valueSchema: a descriptor set, made with protoc "
                f"--descriptor_set_out --include_imports."
            ) from None
        file.name = file.name or name
        files.append(file)
    names = {file.name for file in files}
    usual = descriptor_pool.Default()
    for file in list(files):  # Google's own types are not registered
        for name in file.dependency:
            if name not in names and name.startswith("google/"):
                _import_well_known(name)
                proto = descriptor_pb2.FileDescriptorProto()
                usual.FindFileByName(name).CopyToProto(proto)
                files.insert(0, proto)
                names.add(name)
    return files


def _import_well_known(name: str) -> None:
    """Let the default pool know one of Google's own files."""
    from importlib import import_module

    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        import_module(module)
    except ImportError:
        raise OptionError(
            f"kafka: a schema imports {name}, which is not installed. Give a descriptor set with "
            f"all imports in valueSchema."
        ) from None


def indices_of(descriptor: Any) -> tuple[int, ...]:
    """Where a message is in its file."""
    if descriptor.containing_type is None:
        return (list(descriptor.file.message_types_by_name).index(descriptor.name),)
    outer = descriptor.containing_type
    names = [kind.name for kind in outer.nested_types]
    return (*indices_of(outer), names.index(descriptor.name))


def message_at(files: Sequence[Any], indices: Sequence[int]) -> str | None:
    """The full name of the message at a place in the last file; None if there is none."""
    file = files[-1]
    inner, parts = file.message_type, [file.package] if file.package else []
    for index in indices:
        if not 0 <= index < len(inner):
            return None
        parts.append(inner[index].name)
        inner = inner[index].nested_type
    return ".".join(parts)


class ProtobufValues:
    """Decodes values of one message type."""

    def __init__(self, descriptor: Any, client: RegistryClient) -> None:
        self._descriptor, self._client = descriptor, client
        self._decoder = ProtobufDecoder(descriptor)
        self.type = self._decoder.type
        self._names: dict[tuple[int, tuple[int, ...]], str | None] = {}

    def decode(
        self, payloads: Sequence[bytes | None], attributes: Any = None
    ) -> tuple[Any, list[str | None]]:
        messages, errors = decode_each(payloads, self._payload, PayloadError)
        present = [message is not None for message in messages]
        records, failures = self._decoder.decode(list(compress(messages, present)))
        for index, failure in zip(np.flatnonzero(present).tolist(), failures, strict=True):
            errors[index] = failure
        return spread(records, present), errors

    def _payload(self, _: int, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        identifier = schema_id(value)
        indices, begin = message_indices(value)
        place = (identifier, indices)
        if place not in self._names:
            self._names[place] = self._name(identifier, indices)
        name, wanted = self._names[place], self._descriptor.full_name
        if name != wanted:
            raise PayloadError(
                f"the value is message {name or list(indices)} of schema {identifier}, not {wanted}"
            )
        return value[begin:]

    def _name(self, identifier: int, indices: tuple[int, ...]) -> str | None:
        schema = self._client.schema(identifier, serialized=True)
        if schema.kind != KIND:
            raise PayloadError(f"schema {identifier} of the registry is {schema.kind}, not {KIND}")
        try:
            return message_at(files_of(schema), indices)
        except OptionError:
            # The registry has only text. Messages keep their places in a file, as far as known.
            same = indices == indices_of(self._descriptor)
            return self._descriptor.full_name if same else None


class ProtobufEncoder:
    """Encodes structs as messages of one type, with one id."""

    def __init__(self, descriptor: Any, identifier: int) -> None:
        from ptars import HandlerPool

        self._handler: Any = HandlerPool([descriptor.file]).get_for_message(descriptor)
        self._schema: pa.Schema = self._handler.list_to_record_batch([]).schema
        self._header = header(identifier, indices_of(descriptor))

    def check_columns(self, kind: pa.StructType) -> None:
        """Raise OptionError if structs of this type cannot be messages."""
        lost = [
            kind.field(n).name
            for n in range(kind.num_fields)
            if kind.field(n).name not in self._schema.names
        ]
        if lost:
            raise OptionError(
                f"kafka: column value has the field {lost[0]}, but the message of the subject has "
                f"only {', '.join(self._schema.names)}. Change the query, or register another "
                f"schema."
            )

    def encode(self, column: Any) -> list[bytes]:
        structs = fit_structs(column, list(self._schema), fill=True)
        batch = batch_of(structs.flatten(), self._schema.names, len(structs))
        payloads = self._handler.record_batch_to_array(batch).to_pylist()
        return [self._header + payload for payload in payloads]


def descriptor_of(schema: RegisteredSchema, message: str | None) -> Any:
    """The message of a registered schema; by default its first one."""
    if schema.kind != KIND:
        raise OptionError(
            f"kafka: schema {schema.id} of the registry is {schema.kind}, not {KIND}."
        )
    return message_in(files_of(schema), message, f"kafka: schema {schema.id} of the registry")
