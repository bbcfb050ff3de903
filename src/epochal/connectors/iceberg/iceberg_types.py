"""Iceberg's names for Arrow types and for the types of a table. Pure."""

from __future__ import annotations

import re

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from epochal.connectors.table_columns import TableColumn, name_columns

_SIMPLE: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}
_WIDER = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+), (\d+)\)")
MAX_PRECISION = 38


def arrow_type_text(kind: pa.DataType) -> str | None:
    """Iceberg's name for an Arrow type; None if it has none."""
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz is not None else "timestamp"
    if pa.types.is_decimal(kind):
        fits = kind.precision <= MAX_PRECISION and 0 <= kind.scale <= kind.precision
        return f"decimal({kind.precision}, {kind.scale})" if fits else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = arrow_type_text(kind.value_type)
        return None if element is None else f"list<{element}>"
    if pa.types.is_map(kind):
        key, item = arrow_type_text(kind.key_type), arrow_type_text(kind.item_type)
        return None if key is None or item is None else f"map<{key}, {item}>"
    if pa.types.is_struct(kind):
        inner = [(field.name, arrow_type_text(field.type)) for field in kind]
        if any(text is None for _, text in inner):
            return None
        return f"struct<{', '.join(f'{name}: {text}' for name, text in inner)}>"
    return None


def type_text(kind: IcebergType) -> str:
    """The type of a table's column, without the ids of nested fields."""
    match kind:
        case ListType():
            return f"list<{type_text(kind.element_type)}>"
        case MapType():
            return f"map<{type_text(kind.key_type)}, {type_text(kind.value_type)}>"
        case StructType():
            inner = [f"{field.name}: {type_text(field.field_type)}" for field in kind.fields]
            return f"struct<{', '.join(inner)}>"
    return str(kind)


def type_fits(query: str, table: str) -> bool:
    """Whether a column of the table takes all values of a column of the query unchanged."""
    if query == table or (query, table) in _WIDER:
        return True
    one, other = _DECIMAL.fullmatch(query), _DECIMAL.fullmatch(table)
    if one is None or other is None:
        return False
    return one[2] == other[2] and int(one[1]) <= int(other[1])


def query_columns(table: str, schema: pa.Schema) -> list[TableColumn]:
    """The columns of a query; TableMismatchError if Iceberg has no type for one of them."""
    return name_columns(table, schema, "Iceberg", arrow_type_text)


def columns_of(schema: Schema) -> list[TableColumn]:
    """The columns of a table."""
    return [
        TableColumn(field.name, type_text(field.field_type), required=field.required)
        for field in schema.fields
    ]


def new_table_schema(schema: pa.Schema) -> pa.Schema:
    """A query's schema in the Arrow types that pyiceberg turns into a new table's."""
    return pa.schema([pa.field(field.name, _new_type(field.type)) for field in schema])


def _new_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_new_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_new_type(kind.key_type), _new_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _new_type(field.type)) for field in kind])
    return kind
