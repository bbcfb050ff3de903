"""Decides what the Delta sink may do to a table, and names types as Delta does. Pure.

A query's marker is a `txn` action in the table's log, with the query's id and the epoch's number.
Delta writes it in the same commit as the epoch's files. Spark's own Delta sink uses the same id and
number, so either of them skips what the other has written.

Delta's library checks almost nothing that is given to it, so the checks are here: a table is
refused if it has a feature whose rules we would break. Only types that a Delta table holds without
loss have a name here. All fields may be null, as in Spark's own sink: what a table requires is
checked row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from epochal.checkpoint.layout import EPOCHAL
from epochal.connectors.file.file_formats import ParquetCodec
from epochal.connectors.formats import check_intervals
from epochal.connectors.staging.epoch_marker import MarkedOutput
from epochal.connectors.table_columns import (
    TableColumn,
    key_reasons,
    name_columns,
    new_partition_reasons,
    partition_reasons,
)
from epochal.connectors.tables.compaction import TableWriting
from epochal.connectors.tables.table_epochs import TableFormat, WriteMode
from epochal.errors import TableMismatchError, TableRowError

DELTA_OUTPUT = MarkedOutput(
    magic=b"EDT1",
    noun="table",
    how_lost="the table was deleted, replaced or restored from a copy, or its markers expired "
    "(delta.setTransactionRetentionDuration), or this is not the table that the query wrote to",
    how_behind="The table was restored to an earlier version, or this is not the table that the "
    "query wrote to",
    how_to_look="`deltalake.DeltaTable(path).history()` shows the epoch of each commit under "
    "`epochal`",
)

KNOWN_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Writer features that ask nothing of us, or only if a column or setting uses them: see below."""

DeltaType: TypeAlias = "str | dict[str, Any]"
"""A type in the JSON of a Delta schema."""

_SIMPLE: dict[pa.DataType, str] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}
PARTITION_TYPES = frozenset({"byte", "short", "integer", "long", "boolean", "string", "date"})
"""Types whose values have one text that every reader understands, whatever its time zone."""
MAX_DECIMAL_PRECISION = 38


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSinkOptions(TableWriting):
    """Where the table is, and how epochs change it."""

    path: str

    compression: ParquetCodec = ParquetCodec.SNAPPY

    log_cleanup_interval: timedelta = timedelta(hours=1)
    """How often the table's log is cleaned up, by the rules of the table."""

    def __post_init__(self) -> None:
        self.check_table_options("delta")
        check_intervals("delta", log_cleanup_interval=self.log_cleanup_interval)


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file that a task has written, as the table's log will describe it."""

    path: str
    """Below the table's directory, not escaped."""
    size: int
    rows: int
    modified_ms: int
    partition: dict[str, str | None]
    stats: str


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table's log says about the table."""

    table_id: str
    fields: tuple[Mapping[str, Any], ...]
    """The fields in the schema's JSON."""
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str] = field(default_factory=dict)
    writer_features: tuple[str, ...] = ()


DELTA = TableFormat(
    DELTA_OUTPUT,
    f"{EPOCHAL}/delta",
    DataFile,
    {mode: mode.value for mode in (WriteMode.APPEND, WriteMode.OVERWRITE)},
    says_none=True,
)


def check_table(
    table: str, shape: TableShape, mode: WriteMode, partition_by: Sequence[str], query: set[str]
) -> None:
    """Raise TableMismatchError if the sink would break the table's rules."""
    reasons = [*_features(shape), *_column_rules(shape), *_removal_rules(shape, mode)]
    reasons += partition_reasons(partition_by, shape.partition_by)
    reasons += [
        f"the table is partitioned by {name}, but the query has no such column. Add it."
        for name in shape.partition_by
        if name not in query
    ]
    if reasons:
        raise TableMismatchError(table, tuple(reasons))


def _features(shape: TableShape) -> list[str]:
    unknown = [name for name in shape.writer_features if name not in KNOWN_FEATURES]
    reasons = [
        f"the table has the feature {name}, which this sink does not know. Remove the feature, or "
        f"write with Spark."
        for name in unknown
    ]
    configuration = shape.configuration
    mapping = configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        reasons.append(
            f"the table maps its columns to other names (delta.columnMapping.mode = {mapping}), "
            f"and readers would find nulls in the files of this sink. Use a table without column "
            f"mapping."
        )
    reasons += [
        f"the table has the CHECK constraint {key.removeprefix('delta.constraints.')} ({value}), "
        f"which this sink does not check. Drop the constraint, or filter the rows and write to "
        f"another table."
        for key, value in sorted(configuration.items())
        if key.startswith("delta.constraints.")
    ]
    return reasons


def _column_rules(shape: TableShape) -> list[str]:
    reasons = []
    for column in shape.fields:
        metadata = column.get("metadata") or {}
        for key, rule in (
            ("delta.invariants", "an invariant"),
            ("delta.generationExpression", "a generated value"),
            ("delta.identity.start", "an identity value"),
            ("CURRENT_DEFAULT", "a default value"),
        ):
            if key in metadata:
                reasons.append(
                    f"column {column['name']} has {rule} ({metadata[key]}), which this sink does "
                    f"not honour. Remove it from the table, or write with Spark."
                )
    return reasons


def _removal_rules(shape: TableShape, mode: WriteMode) -> list[str]:
    if mode is WriteMode.APPEND:
        return []
    reasons = []
    what = "updates rows" if mode is WriteMode.MERGE else "replaces all rows"
    if shape.configuration.get("delta.appendOnly", "").lower() == "true":
        reasons.append(
            f"the table only takes new rows (delta.appendOnly), but the query {what}. Use output "
            f"mode append without mergeKeys, or another table."
        )
    if shape.configuration.get("delta.enableDeletionVectors", "").lower() == "true":
        reasons.append(
            f"the table has deletion vectors, but the query {what}. Set "
            f"delta.enableDeletionVectors to false and rewrite its files (REORG TABLE … APPLY "
            f"(PURGE)), or use another table."
        )
    return reasons


def check_new_table(
    table: str, query: Sequence[TableColumn], partition_by: Sequence[str], merge_keys: Sequence[str]
) -> None:
    """Raise TableMismatchError if partition columns or keys cannot be what they should be."""
    kinds = {column.name: column.kind for column in query}
    reasons = [*new_partition_reasons(partition_by, list(kinds)), *key_reasons(merge_keys, query)]
    reasons += [
        f"column {name} is {kinds[name]}, by which this sink does not partition. Partition by a "
        f"column of {', '.join(sorted(PARTITION_TYPES))}."
        for name in partition_by
        if name in kinds and kinds[name] not in PARTITION_TYPES
    ]
    if reasons:
        raise TableMismatchError(table, tuple(reasons))


def delta_type(kind: pa.DataType) -> DeltaType | None:
    """Return the type of a column; None if Delta has none."""
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        fits = kind.precision <= MAX_DECIMAL_PRECISION and 0 <= kind.scale <= kind.precision
        return f"decimal({kind.precision},{kind.scale})" if fits else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = delta_type(kind.value_type)
        if element is None:
            return None
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_map(kind):
        key, item = delta_type(kind.key_type), delta_type(kind.item_type)
        if key is None or item is None:
            return None
        return {"type": "map", "keyType": key, "valueType": item, "valueContainsNull": True}
    if pa.types.is_struct(kind):
        fields = [_field_json(field.name, delta_type(field.type)) for field in kind]
        all_named = all(field["type"] is not None for field in fields)
        return {"type": "struct", "fields": fields} if all_named else None
    return None


def type_text(kind: DeltaType) -> str:
    """Return a type as users write it: `array<struct<a: long>>`."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "array":
            return f"array<{type_text(kind['elementType'])}{_strict(kind, 'containsNull')}>"
        case "map":
            key, item = type_text(kind["keyType"]), type_text(kind["valueType"])
            return f"map<{key}, {item}{_strict(kind, 'valueContainsNull')}>"
        case "struct":
            inner = [
                f"{field['name']}: {type_text(field['type'])}{_strict(field, 'nullable')}"
                for field in kind["fields"]
            ]
            return f"struct<{', '.join(inner)}>"
    return str(kind["type"])


def query_columns(table: str, schema: pa.Schema) -> list[TableColumn]:
    """Return the columns of a query; TableMismatchError if Delta has no type for one of them."""

    def name_type(kind: pa.DataType) -> str | None:
        named = delta_type(kind)
        return None if named is None else type_text(named)

    return name_columns(table, schema, "Delta", name_type)


def schema_json(schema: pa.Schema) -> dict[str, Any]:
    """Return a query's schema as a new table has it."""
    fields = [_field_json(field.name, delta_type(field.type)) for field in schema]
    return {"type": "struct", "fields": fields}


def table_columns(fields: Sequence[Mapping[str, Any]]) -> list[TableColumn]:
    """Return the columns of a table, from the fields in its schema's JSON."""
    return [
        TableColumn(field["name"], type_text(field["type"]), required=not field["nullable"])
        for field in fields
    ]


def check_required(table: str, rows: pa.Table, required: Sequence[str]) -> None:
    """Raise TableRowError if a column that takes no nulls has one."""
    for name in required:
        nulls = rows.column(name).null_count
        if nulls:
            raise TableRowError(
                table,
                f"column {name} takes no nulls, but is null in {nulls} of {rows.num_rows} rows",
            )


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return the rows with times in microseconds, as Delta has them; an error if that loses."""
    for index, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type) and column.type.unit != "us":
            wanted: Any = pa.timestamp("us", column.type.tz)
            times = rows.column(index).cast(wanted)
            rows = rows.set_column(index, column.with_type(wanted), times)
    return rows


def _field_json(name: str, kind: DeltaType | None) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _strict(kind: Mapping[str, Any], key: str) -> str:
    return "" if kind.get(key, True) else " not null"
