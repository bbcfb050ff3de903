"""The types of a table in Iceberg's words, and rows split by its partition transforms. Pure.

Iceberg has one partition value per file. A transform computes it from a column: the value itself,
its day, its bucket. Values are in Iceberg's own representation, as in manifests: times as
microseconds, dates as days.

Note: transforms are called once per distinct value of the column, not once per row.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import IcebergType, ListType, MapType, PrimitiveType, StructType

from epochal.connectors.table_columns import TableColumn, name_columns
from epochal.errors import OptionError

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


Values: TypeAlias = tuple[Any, ...]
"""One partition: the value of each partition field."""


@dataclass(frozen=True, slots=True)
class Transformed:
    """A partition field of a table: where it takes its values, and how."""

    column: str
    """The path of the source column, with dots between the parts."""
    source: PrimitiveType
    transform: Any
    result: PrimitiveType


Partitioning: TypeAlias = tuple[Transformed, ...]


def partitioning_of(table: str, schema: Schema, spec: PartitionSpec) -> Partitioning:
    """The partitioning of a table; OptionError if it has a transform that is not known."""
    fields = []
    for field in spec.fields:
        source, transform = schema.find_type(field.source_id), field.transform
        column = str(schema.find_column_name(field.source_id))
        if isinstance(transform, UnknownTransform) or not isinstance(source, PrimitiveType):
            raise OptionError(
                f"iceberg: table {table} is partitioned by {field.name}, with a transform of "
                f"column {column} that this sink cannot compute. Rows would go to wrong "
                f"partitions. Known are identity, bucket, truncate, year, month, day and hour."
            )
        result: Any = transform.result_type(source)
        fields.append(Transformed(column, source, transform, result))
    return tuple(fields)


def split(rows: pa.Table, by: Partitioning) -> list[tuple[Values, pa.Table]]:
    """The rows of each partition. Rows keep their order within a partition."""
    if not rows.num_rows:
        return []
    if not by:
        return [((), rows)]
    values_of: list[list[Any]] = []
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for field in by:
        values, of_row = _transformed(rows, field)
        values_of.append(values)
        codes = codes * len(values) + of_row
    partitions = []
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    for code, part in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
        chosen: list[Any] = []
        for values in reversed(values_of):
            code, index = divmod(code, len(values))
            chosen.append(values[index])
        partitions.append((tuple(reversed(chosen)), rows.take(part)))
    return partitions


def encode_values(values: Values, by: Partitioning) -> list[str | None]:
    """Partition values as text, in Iceberg's binary form of single values."""
    return [
        None if value is None else base64.b64encode(to_bytes(field.result, value)).decode()
        for value, field in zip(values, by, strict=True)
    ]


def decode_values(texts: Sequence[str | None], by: Partitioning) -> Values:
    """The values that `encode_values` encoded."""
    return tuple(
        None if text is None else from_bytes(field.result, base64.b64decode(text))
        for text, field in zip(texts, by, strict=True)
    )


def _transformed(rows: pa.Table, field: Transformed) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """The distinct results of a transform, and the index of each row's result among them."""
    if isinstance(field.transform, VoidTransform):
        return [None], np.zeros(rows.num_rows, dtype=np.int64)
    name, *inner = [field.column] if field.column in rows.schema.names else field.column.split(".")
    column: Any = rows.column(name)
    column = _internal(pc.struct_field(column, inner) if inner else column)
    distinct = pc.unique(column)
    function = field.transform.transform(field.source)
    index_of: dict[Any, int] = {}
    of_distinct = [
        index_of.setdefault(None if value is None else function(value), len(index_of))
        for value in distinct.to_pylist()
    ]
    positions = pc.index_in(column, value_set=distinct).to_numpy()
    return list(index_of), np.array(of_distinct, dtype=np.int64)[positions]


def _internal(column: Any) -> Any:
    """A column in Iceberg's representation: times as microseconds, dates as days."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pa.types.is_time64(kind):
        return column.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    return column
