"""The options about schemas of Kafka values, and the schemas that a query chooses.

Source and sink share them. The driver chooses when the query is defined. Tasks get plain data: the
document of the schema and how to reach the registry. A query reads with one schema for as long as
it runs. Values that were written with other versions are resolved to it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.connectors.payloads.payload_columns import PayloadDecoder, read_document
from epochal.connectors.schema_registry.registry_client import (
    RegisteredSchema,
    RegistryClient,
    RegistrySettings,
    registry_settings,
)
from epochal.errors import ComponentError, OptionError, SchemaRegistryError
from epochal.options import option_name, read_options

PREFIX = "schemaRegistry."
GIVEN = "kafka: valueSchema"


class ValueFormat(StrEnum):
    AVRO = "avro"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistryOptions:
    """How the values of records are encoded, and where their schemas are."""

    value_format: ValueFormat | None = None

    schema_registry: Mapping[str, str] = field(
        default_factory=dict, metadata={"prefix": PREFIX}, repr=False
    )
    """The address of the registry and how to reach it; `url` is required."""

    subject: str | None = None
    """The registry's name for the schemas of the values; by default the topic and `-value`."""

    schema_version: int | None = None
    """The version of the subject's schema; by default the latest at the start."""

    value_schema: str | None = None
    """The schema itself: Avro's JSON or a descriptor set of Protobuf; or a file with it."""

    value_message: str | None = None
    """Protobuf: the full name of the message; by default the first one of the schema."""

    auto_register: bool = True
    """Sink: whether a schema that the subject does not have is added to it."""

    def __post_init__(self) -> None:
        if self.value_format is None:
            for field in fields(self):
                value, is_set = getattr(self, field.name), field.name != "auto_register"
                if (value if is_set else not value) and field.name != "value_format":
                    shown = PREFIX if field.name == "schema_registry" else option_name(field.name)
                    raise OptionError(
                        f"kafka: {shown} has no effect without valueFormat. Set valueFormat to "
                        f"avro or protobuf, or remove it."
                    )
            return
        if self.value_schema is not None and self.schema_version is not None:
            raise OptionError(
                "kafka: valueSchema and schemaVersion both say which schema counts. Give only one."
            )
        if self.value_message is not None and self.value_format is ValueFormat.AVRO:
            raise OptionError("kafka: valueMessage has no effect with valueFormat=avro. Remove it.")

    def document(self) -> bytes | None:
        """The schema in `valueSchema`; None if that is not given."""
        if self.value_schema is None:
            return None
        is_avro = self.value_format is ValueFormat.AVRO
        return read_document(self.value_schema, GIVEN, is_avro=is_avro)


_NAMES = {
    option_name(field.name).lower()
    for field in fields(SchemaRegistryOptions)
    if "prefix" not in field.metadata
}


def split_registry_options(
    options: Mapping[str, str],
) -> tuple[SchemaRegistryOptions, dict[str, str]]:
    """Split options into those about schemas of values and all others."""
    ours = {
        key: text
        for key, text in options.items()
        if key.lower() in _NAMES or key.lower().startswith(PREFIX.lower())
    }
    rest = {key: text for key, text in options.items() if key not in ours}
    return read_options(SchemaRegistryOptions, ours, of="kafka"), rest


def subject_of(options: SchemaRegistryOptions, topic: str | None) -> str:
    """The subject; `topic` is the only topic, or None if there are several."""
    if options.subject is not None:
        return options.subject
    if topic is None:
        raise OptionError(
            "kafka: the values may come from, or go to, several topics, so there is no default "
            "for the subject of their schemas. Set the option subject."
        )
    return f"{topic}-value"


EncodeValues: TypeAlias = Callable[[Any], Sequence[bytes | None]]
"""Encodes a column of structs to values with their headers."""


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """Which schema values are read with, or written with. It is pickled and sent to tasks."""

    form: ValueFormat
    registry: RegistrySettings
    schema: RegisteredSchema | None
    """From the registry; None if the user gave the document."""
    document: bytes | None
    message: str | None
    identifier: int = 0
    """The id that values are written with."""

    def decoder(self, client: RegistryClient | None = None) -> PayloadDecoder:
        client = client or RegistryClient(self.registry)
        if self.form is ValueFormat.AVRO:
            from epochal.connectors.schema_registry.registry_avro import AvroValues

            return AvroValues(self._avro(), client)
        from epochal.connectors.schema_registry.registry_protobuf import ProtobufValues

        return ProtobufValues(self._protobuf(), client)

    def encoder(self, kind: pa.StructType) -> EncodeValues:
        """Open the encoder of structs of a type; OptionError if they do not fit the schema."""
        if self.form is ValueFormat.AVRO:
            from epochal.connectors.schema_registry.registry_avro import AvroEncoder, check_columns

            schema = self._avro()
            check_columns(kind, schema)
            return AvroEncoder(schema, self.identifier).encode
        from epochal.connectors.schema_registry.registry_protobuf import ProtobufEncoder

        encoder = ProtobufEncoder(self._protobuf(), self.identifier)
        encoder.check_columns(kind)
        return encoder.encode

    def _avro(self) -> Any:
        from epochal.connectors.payloads.avro_payloads import parsed_schema
        from epochal.connectors.schema_registry.registry_avro import parsed

        if self.document is not None:
            return parsed_schema(self.document, GIVEN)
        assert self.schema is not None
        return parsed(self.schema, f"schema {self.schema.id} of the registry")

    def _protobuf(self) -> Any:
        from epochal.connectors.payloads.protobuf_payloads import message_of
        from epochal.connectors.schema_registry.registry_protobuf import descriptor_of

        if self.document is not None:
            return message_of(self.document, self.message, GIVEN)
        assert self.schema is not None
        return descriptor_of(self.schema, self.message)


def pinned_version(source_options: Mapping[str, str], topic: str | None) -> dict[str, str]:
    """The options with the version of the schema that is the latest now, unless they name one."""
    options, _ = split_registry_options(source_options)
    is_pinned = options.schema_version is not None or options.value_schema is not None
    if options.value_format is None or is_pinned:
        return dict(source_options)
    client = RegistryClient(registry_settings(options.schema_registry))
    version, _ = _existing(client, options, subject_of(options, topic))
    return {**source_options, "schemaVersion": str(version)}


def reading_spec(options: SchemaRegistryOptions, topic: str | None) -> ValueSpec | None:
    """What values are read with; None if they stay bytes."""
    form = options.value_format
    if form is None:
        return None
    settings = registry_settings(options.schema_registry)
    document, schema = options.document(), None
    if document is None:
        client = RegistryClient(settings)
        _, identifier = _existing(client, options, subject_of(options, topic))
        schema = client.schema(identifier, serialized=form is ValueFormat.PROTOBUF)
    spec = ValueSpec(form, settings, schema, document, options.value_message)
    _check_libraries(spec).decoder()
    return spec


def writing_spec(options: SchemaRegistryOptions, topic: str | None, kind: Any) -> ValueSpec | None:
    """What structs of type `kind` are written with; None if values are written as they are."""
    form = options.value_format
    if form is None:
        return None
    if not pa.types.is_struct(kind):
        raise OptionError(
            f"kafka: with valueFormat={form.value} the column value must be a struct, but it is "
            f"{kind}. Make one, for example with .select('struct(*) AS value')."
        )
    settings, subject = registry_settings(options.schema_registry), subject_of(options, topic)
    client, document, schema = RegistryClient(settings), options.document(), None
    if document is not None:
        identifier = _identifier(client, options, subject, document)
    else:
        existing = client.version(subject, options.schema_version)
        may_derive = options.auto_register and options.schema_version is None
        if existing is None and may_derive and form is ValueFormat.AVRO:
            from epochal.connectors.schema_registry.registry_avro import KIND, derived_schema

            identifier = client.register(subject, KIND, derived_schema(kind, subject))
        else:
            _, identifier = existing or _existing(client, options, subject)
        schema = client.schema(identifier, serialized=form is ValueFormat.PROTOBUF)
    spec = ValueSpec(form, settings, schema, document, options.value_message, identifier)
    _check_libraries(spec).encoder(kind)
    return spec


def _existing(
    client: RegistryClient, options: SchemaRegistryOptions, subject: str
) -> tuple[int, int]:
    registered = client.version(subject, options.schema_version)
    if registered is None:
        version = options.schema_version
        which = "no schema" if version is None else f"no version {version}"
        raise SchemaRegistryError(
            registry_settings(options.schema_registry).shown,
            f"subject {subject} has {which}. Register one, set the option subject, or give the "
            f"schema in valueSchema",
        )
    return registered


def _identifier(
    client: RegistryClient, options: SchemaRegistryOptions, subject: str, document: bytes
) -> int:
    """The id of the user's schema, which is registered if it is new and may be registered."""
    kind, text = "AVRO", document.decode(errors="replace")
    if options.value_format is ValueFormat.PROTOBUF:
        from epochal.connectors.payloads.protobuf_payloads import message_of

        descriptor = message_of(document, options.value_message, GIVEN)
        kind, text = "PROTOBUF", base64.b64encode(descriptor.file.serialized_pb).decode()
    if options.auto_register:
        return client.register(subject, kind, text)
    lookup = client.lookup(subject, kind, text)
    if lookup is None:
        raise SchemaRegistryError(
            registry_settings(options.schema_registry).shown,
            f"subject {subject} does not have the schema in valueSchema, and autoRegister is "
            f"false. Register the schema, or set autoRegister to true",
        )
    return lookup


def _check_libraries(spec: ValueSpec) -> ValueSpec:
    """The spec, if the libraries of its format are installed."""
    try:
        if spec.form is ValueFormat.AVRO:
            import fastavro  # noqa: F401
        else:
            import ptars  # noqa: F401
    except ImportError as error:
        raise ComponentError(
            f"valueFormat={spec.form.value} needs the package {error.name}. Run "
            f"`pip install 'epochal[registry]'`."
        ) from None
    return spec
