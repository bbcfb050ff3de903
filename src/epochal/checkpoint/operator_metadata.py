"""Operator metadata: the stateful operator of `state/N`, its stores and its partitions.

Version 1 is one file, written once. Version 2 is a log.

Note: Entries of version 2 contain *absolute* paths of schema files. After a checkpoint is moved,
they still point to the old location.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from epochal.checkpoint.layout import (
    DEFAULT_STORE,
    STATE,
    operator_metadata_log_path,
    operator_metadata_path,
    parse_partition,
)
from epochal.checkpoint.metadata_log import MetadataLog, parse_version, storage_errors
from epochal.checkpoint.spark_json import (
    JsonValue,
    as_read,
    list_of,
    long_of,
    object_of,
    parse_object,
    string_of,
    text_lines,
    to_json,
)
from epochal.errors import MalformedFileError, OptionError
from epochal.files import Files, join_url

OPERATOR_METADATA_VERSION = 2
PREVIEW_SCHEMA_KEY = "stateSchemaFilePath"
"""What the previews of Spark 4.0.0 wrote instead of `stateSchemaFilePaths`."""

REPEATS_OPERATOR = "dropRepeats"
"""The name of our own deduplication of messages. Its keys do not tell their partition."""


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """One store of an operator, in every partition."""

    name: str = DEFAULT_STORE
    num_cols_prefix_key: int = 0
    num_partitions: int = 0
    schema_file_paths: tuple[str, ...] = ()
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    keys: tuple[str, ...] | None = field(default=None, compare=False)
    """The keys in the order they were read; None for all keys in Spark's order."""


@dataclass(frozen=True, slots=True)
class OperatorMetadata:
    """A stateful operator."""

    version: int
    operator_id: int
    operator_name: str
    stores: tuple[StoreMetadata, ...]
    properties_json: str = ""
    """The operator's settings, as JSON in a string; version 2 only."""

    def __post_init__(self) -> None:
        if self.version not in (1, 2):
            raise OptionError(
                f"The version of operator metadata must be 1 or 2, not {self.version}."
            )
        if self.version == 1 and (
            self.properties_json or any(store.schema_file_paths for store in self.stores)
        ):
            raise OptionError(
                "Operator metadata of version 1 cannot hold schema paths or settings: use version "
                "2."
            )


class OperatorFormat:
    """A version line, then a line of JSON."""

    def serialize(self, entry: OperatorMetadata) -> bytes:
        fields: dict[str, object] = {
            "operatorInfo": {"operatorId": entry.operator_id, "operatorName": entry.operator_name},
            "stateStoreInfo": [_store_json(store, entry.version) for store in entry.stores],
        }
        if entry.version == 2:
            fields["operatorPropertiesJson"] = entry.properties_json
        return f"v{entry.version}\n{to_json(fields)}".encode()

    def deserialize(self, data: bytes, path: str) -> OperatorMetadata:
        lines = text_lines(data, path)
        version = parse_version(lines[0] if lines else "", OPERATOR_METADATA_VERSION, path)
        fields = parse_object("\n".join(lines[1:]), path)
        info = object_of(fields, "operatorInfo", path)
        return OperatorMetadata(
            version,
            long_of(info, "operatorId", path),
            string_of(info, "operatorName", path),
            tuple(
                _store(value, version, path) for value in list_of(fields, "stateStoreInfo", path)
            ),
            string_of(fields, "operatorPropertiesJson", path) if version == 2 else "",
        )


def _store_json(store: StoreMetadata, version: int) -> dict[str, object]:
    fields: dict[str, object] = {
        "storeName": store.name,
        "numColsPrefixKey": store.num_cols_prefix_key,
        "numPartitions": store.num_partitions,
    }
    if version == 2:
        fields["stateSchemaFilePaths"] = list(store.schema_file_paths)
    return as_read(fields | dict(store.extra), store.keys)


def _store(value: JsonValue, version: int, path: str) -> StoreMetadata:
    if not isinstance(value, dict):
        raise MalformedFileError(path, "stateStoreInfo must be a list of objects")
    names = {"storeName", "numColsPrefixKey", "numPartitions"}
    if version == 2:
        names.add("stateSchemaFilePaths")
    return StoreMetadata(
        string_of(value, "storeName", path),
        long_of(value, "numColsPrefixKey", path),
        long_of(value, "numPartitions", path),
        _schema_paths(value, path) if version == 2 else (),
        extra={key: extra for key, extra in value.items() if key not in names},
        keys=tuple(value),
    )


def _schema_paths(store: dict[str, JsonValue], path: str) -> tuple[str, ...]:
    paths: list[str] = []
    for value in list_of(store, "stateSchemaFilePaths", path):
        if not isinstance(value, str):
            raise MalformedFileError(path, "stateSchemaFilePaths must be a list of strings")
        paths.append(value)
    return tuple(paths)


OPERATOR_FORMAT = OperatorFormat()


class OperatorMetadataLog(MetadataLog[OperatorMetadata]):
    """The log in `state/N/_metadata/v2`, with an entry for each batch that changed the metadata."""

    default_format = OPERATOR_FORMAT


def newest_at(batch_ids: Iterable[int], batch_id: int | None) -> int | None:
    """The id of the entry that applies to `batch_id`: the newest one not above it."""
    return max((i for i in batch_ids if batch_id is None or i <= batch_id), default=None)


def read_operator(
    files: Files, operator: int, batch_id: int | None = None
) -> OperatorMetadata | None:
    """The metadata of an operator as of `batch_id`; None if Spark wrote none, as before 4.0."""
    log = OperatorMetadataLog(files.at(operator_metadata_log_path(operator)), read_only=True)
    entry = newest_at(log.batch_ids(), batch_id)
    if entry is not None:
        return log.get(entry)
    path = operator_metadata_path(operator)
    url = join_url(files.url, path)
    try:
        with storage_errors(url):
            data = files.read(path)
    except FileNotFoundError:
        return None
    return OPERATOR_FORMAT.deserialize(data, url)


def list_operators(files: Files) -> list[int]:
    """The operators that have a directory below `state`, ascending."""
    with storage_errors(join_url(files.url, STATE)):
        numbers = [parse_partition(info.name) for info in files.list(STATE) if info.is_dir]
    return sorted(number for number in numbers if number is not None)
