"""Delta's names for Arrow types, a query's schema as its JSON, and rows as it has them. Pure.

Only types that a Delta table holds without loss have a name here. All fields may be null, as in
Spark's own sink: what a table requires is checked row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.connectors.table_columns import TableColumn, name_columns
from epochal.errors import TableRowError

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
        known = all(field["type"] is not None for field in fields)
        return {"type": "struct", "fields": fields} if known else None
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
        found = delta_type(kind)
        return None if found is None else type_text(found)

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
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit != "us":
            wanted: Any = pa.timestamp("us", field.type.tz)
            column = rows.column(index).cast(wanted)
            rows = rows.set_column(index, field.with_type(wanted), column)
    return rows


def _field_json(name: str, kind: DeltaType | None) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _strict(kind: Mapping[str, Any], key: str) -> str:
    return "" if kind.get(key, True) else " not null"
