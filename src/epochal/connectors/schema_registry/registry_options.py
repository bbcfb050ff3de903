"""The options about schemas of Kafka values. Source and sink share them. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path

from epochal.errors import OptionError
from epochal.options import option_name, read_options

PREFIX = "schemaRegistry."


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
        text = self.value_schema
        if text is None:
            return None
        if self.value_format is ValueFormat.AVRO and text.lstrip().startswith(("{", "[")):
            return text.encode()
        try:
            return Path(text).read_bytes()
        except OSError as error:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                raise OptionError(
                    f"kafka: valueSchema cannot be read: {error}. Give the path of a file on the "
                    f"driver."
                ) from error


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
