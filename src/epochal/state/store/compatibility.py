"""Decides whether a query may continue with the state that an earlier run left.

Column names may change, because rows do not contain them. Nothing else that changes the bytes or
their meaning may change: the number of columns, a type, or whether a value may be null if the
stored schema declares it not null. Keys are compared as bytes. So a key column whose collation
treats different bytes as equal is refused, even if there is no state yet.

Only the `settle_…` functions do IO; the rest is pure.

Note: the stored schema stays as it is. A query that renamed a column continues with the old schema
file, because Spark never rewrites it for stores with a single schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from epochal.checkpoint.layout import (
    operator_metadata_log_path,
    operator_metadata_path,
    operator_path,
    state_schema_log_path,
)
from epochal.checkpoint.operator_metadata import (
    OPERATOR_FORMAT,
    OperatorMetadata,
    StoreMetadata,
    read_operator,
)
from epochal.errors import StateSchemaMismatchError, StateUsageError
from epochal.files import Files, join_url
from epochal.state.files.schema_file import FamilySchema, encode_schema_file, parse_schema_file
from epochal.state.rows.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructType,
    schema_json,
)

SCHEMA_FILE = "_metadata/schema"
KEY_MISMATCH = "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"
VALUE_MISMATCH = "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
UNSTABLE_KEY = "STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY"
CONFIG_CHANGED = "STATE_STORE_INVALID_CONFIG_AFTER_RESTART"
_BINARY = "UTF8_BINARY"


def fits(asked: DataType, stored: DataType) -> bool:
    """Whether every value of type `asked` is also a value of type `stored`. Ignores names."""
    match asked, stored:
        case ArrayType(), ArrayType():
            nulls_fit = stored.contains_null or not asked.contains_null
            return nulls_fit and fits(asked.element, stored.element)
        case MapType(), MapType():
            nulls_fit = stored.value_contains_null or not asked.value_contains_null
            return nulls_fit and fits(asked.key, stored.key) and fits(asked.value, stored.value)
        case StructType(), StructType():
            return len(asked.fields) == len(stored.fields) and all(
                (theirs.nullable or not mine.nullable) and fits(mine.data_type, theirs.data_type)
                for mine, theirs in zip(asked.fields, stored.fields, strict=True)
            )
    return asked == stored


def is_binary_stable(kind: DataType) -> bool:
    """Whether equal values have equal bytes. A key needs such a type."""
    match kind:
        case StringType():
            return kind.collation in (None, _BINARY)
        case ArrayType():
            return is_binary_stable(kind.element)
        case MapType():
            return is_binary_stable(kind.key) and is_binary_stable(kind.value)
        case StructType():
            return all(is_binary_stable(field.data_type) for field in kind.fields)
    return True


def check_compatible(
    stored: FamilySchema,
    asked: FamilySchema,
    *,
    source: str,
    ignore_value: bool = False,
    ignore_nulls: bool = False,
) -> None:
    """Raise StateSchemaMismatchError unless a query with `asked` can use the stored state."""
    pairs = [(stored.key, asked.key, KEY_MISMATCH)]
    if not ignore_value:
        pairs.append((stored.value, asked.value, VALUE_MISMATCH))
    for theirs, mine, condition in pairs:
        if not fits(mine, _nullable(theirs) if ignore_nulls else theirs):
            schemas = (schema_json(theirs), schema_json(mine))
            raise StateSchemaMismatchError(source, *schemas, condition)


def settle_schema(
    files: Files, asked: FamilySchema, *, ignore_value: bool = False, ignore_nulls: bool = False
) -> FamilySchema:
    """Check a store against its schema file, or write the file if there is none yet.

    `files` is the directory of the store's partition 0. Returns the schema that is on disk
    afterwards. A new file allows nulls everywhere, as Spark's do: Spark asks for that, and refuses
    to go on from a file that allows fewer. Files of earlier releases may allow fewer; with
    `ignore_nulls` they fit a schema that does not know where nulls can be.
    """
    source = join_url(files.url, SCHEMA_FILE)
    if not is_binary_stable(asked.key):
        raise StateSchemaMismatchError(
            source, "keys compared as bytes", schema_json(asked.key), UNSTABLE_KEY
        )
    try:
        data = files.read(SCHEMA_FILE)
    except FileNotFoundError:
        try:
            created = replace(asked, key=_nullable(asked.key), value=_nullable(asked.value))
            files.create(SCHEMA_FILE, encode_schema_file([created]))
        except FileExistsError:
            # Another run created the file first; check against what it wrote.
            return settle_schema(files, asked, ignore_value=ignore_value, ignore_nulls=ignore_nulls)
        return created
    stored = parse_schema_file(data, source=source)[0]
    check_compatible(
        stored, asked, source=source, ignore_value=ignore_value, ignore_nulls=ignore_nulls
    )
    return stored


def _nullable(schema: StructType) -> StructType:
    return StructType(
        tuple(replace(f, nullable=True, data_type=_with_nulls(f.data_type)) for f in schema.fields)
    )


def _with_nulls(kind: DataType) -> DataType:
    match kind:
        case ArrayType():
            return ArrayType(_with_nulls(kind.element))
        case MapType():
            return MapType(_with_nulls(kind.key), _with_nulls(kind.value))
        case StructType():
            return _nullable(kind)
    return kind


def settle_operator(files: Files, operator_id: int, name: str, store: StoreMetadata) -> None:
    """Check an operator against its metadata, or write the metadata if there is none yet.

    `files` is the checkpoint. A store with a different number of partitions is refused: the state
    of partitions that no task opens any more would be lost silently.
    """
    metadata = read_operator(files, operator_id)
    if metadata is None:
        asked = OperatorMetadata(1, operator_id, name, (store,))
        try:
            files.create(operator_metadata_path(operator_id), OPERATOR_FORMAT.serialize(asked))
        except FileExistsError:
            settle_operator(files, operator_id, name, store)
        return
    for recorded in metadata.stores:
        if recorded.name == store.name and recorded.num_partitions != store.num_partitions:
            raise StateUsageError(
                join_url(files.url, operator_metadata_path(operator_id)),
                f"store {store.name} has {recorded.num_partitions} partitions, the job has "
                f"{store.num_partitions}. Bring the data into {recorded.num_partitions} "
                f"partitions, or change the state with `epochal state repartition`.",
                CONFIG_CHANGED,
            )


def settle_families(
    files: Files,
    operator_id: int,
    name: str,
    asked: Sequence[FamilySchema],
    properties_json: str,
    partitions: int,
) -> None:
    """Check an operator with column families, or write its schemas and metadata if it is new.

    `files` is the checkpoint. A variable that the stored schemas lack is refused: Spark would give
    it a schema file of its own, at its own start.
    """
    recorded, folder = read_operator(files, operator_id), state_schema_log_path(operator_id)
    if recorded is None:
        path = f"{folder}/0_{uuid4()}"
        ordered = sorted(asked, key=lambda family: family.name)
        files.create(path, encode_schema_file(ordered, version=3))
        schemas = (join_url(files.url, path),)
        store = StoreMetadata(num_partitions=partitions, schema_file_paths=schemas)
        metadata = OperatorMetadata(2, operator_id, name, (store,), properties_json)
        log = operator_metadata_log_path(operator_id)
        with suppress(FileExistsError):  # another run was first; its schema file counts
            files.create(f"{log}/0", OPERATOR_FORMAT.serialize(metadata))
        return
    paths = [path for store in recorded.stores for path in store.schema_file_paths]
    if recorded.version < 2 or not paths:
        raise StateUsageError(
            join_url(files.url, operator_path(operator_id)),
            f"its metadata has version {recorded.version} and no schema files, as state without "
            f"column families. Use a new checkpoint.",
            CONFIG_CHANGED,
        )
    path = f"{folder}/{paths[-1].rpartition('/')[2]}"
    source = join_url(files.url, path)
    stored = {family.name: family for family in parse_schema_file(files.read(path), source=source)}
    for family in asked:
        if family.name not in stored:
            raise StateUsageError(
                source,
                f"the query declares {family.name}, but the state has only "
                f"{', '.join(sorted(stored))}. Start the query with Spark once, which adds it.",
                CONFIG_CHANGED,
            )
        check_compatible(stored[family.name], family, source=source)
    for key in ("timeMode", "outputMode"):
        was, now = (
            json.loads(text).get(key) for text in (recorded.properties_json, properties_json)
        )
        if was != now:
            raise StateUsageError(
                source,
                f"the state was written with {key} {was}, but the query has {now}. Keep {was}.",
                CONFIG_CHANGED,
            )
