"""Maps Spark's data types to Arrow types and back. Pure.

The Arrow types hold every value that Spark can store. Calendar intervals and timestamps with
nanoseconds are therefore structs of their parts, named as in Spark's own lossless form: Arrow's
intervals and nanosecond timestamps only reach about 292 years from 1970. Year-month intervals are
months in an int32. Every field is nullable, even if the schema declares it not null: Spark before
4.3 stores nulls from outer joins in columns that it declares not null.
"""

from __future__ import annotations

from typing import Any, TypeAlias, assert_never

import numpy as np
import pyarrow as pa

from epochal.errors import StateSchemaError
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Kind,
    MapType,
    SpatialType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    field_names,
)

AnyArrowType: TypeAlias = pa.DataType

INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
NANOS = pa.struct([("epochMicros", pa.int64()), ("nanosWithinMicro", pa.int16())])
VARIANT = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])

_BY_NAME: dict[str, AnyArrowType] = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval": INTERVAL,
    "variant": VARIANT,
}

NUMBERS: dict[Kind, np.dtype[Any]] = {
    Kind.BYTE: np.dtype("<i1"),
    Kind.SHORT: np.dtype("<i2"),
    Kind.INT: np.dtype("<i4"),
    Kind.LONG: np.dtype("<i8"),
    Kind.FLOAT: np.dtype("<f4"),
    Kind.DOUBLE: np.dtype("<f8"),
}
"""Kinds whose value is a number; dates and times are the numbers that Spark stores."""


def arrow_type(data_type: DataType) -> AnyArrowType:
    """The Arrow type that columns of the Spark type are read into.

    The fields of a struct have unique names, see `field_names`.
    """
    match data_type:
        case AtomicType(name):
            return _BY_NAME.get(name) or _temporal(name)
        case StringType():
            return pa.string()
        case SpatialType():
            return pa.binary()
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case UserDefinedType(sql_type):
            return arrow_type(sql_type)
        case ArrayType(element):
            return pa.list_(pa.field("element", arrow_type(element)))
        case MapType(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case StructType(fields):
            types = (arrow_type(field.data_type) for field in fields)
            return pa.struct(list(zip(field_names(data_type), types, strict=True)))
        case _:
            assert_never(data_type)


def _temporal(name: str) -> AnyArrowType:
    if name.startswith("time("):
        return pa.time64("ns")
    if name.startswith("timestamp_"):
        return NANOS
    return pa.int32() if name.endswith(("year", "month")) else pa.duration("us")


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema that a table of this Arrow schema would have."""
    return StructType(tuple(_spark_field(schema.field(i)) for i in range(len(schema))))


def spark_type(arrow: AnyArrowType) -> DataType:
    """The Spark type of an Arrow type; StateSchemaError if Spark has none for it."""
    kind = pa.types
    if kind.is_dictionary(arrow):
        return spark_type(arrow.value_type)
    for lossless, name in ((INTERVAL, "interval"), (VARIANT, "variant")):
        if arrow.equals(lossless):
            return AtomicType(name)
    if kind.is_struct(arrow):
        return StructType(tuple(_spark_field(arrow.field(i)) for i in range(arrow.num_fields)))
    if kind.is_map(arrow):
        return MapType(spark_type(arrow.key_type), spark_type(arrow.item_type))
    if kind.is_list(arrow) or kind.is_large_list(arrow) or kind.is_fixed_size_list(arrow):
        return ArrayType(spark_type(arrow.value_type))
    if kind.is_string(arrow) or kind.is_large_string(arrow) or kind.is_string_view(arrow):
        return StringType()
    if kind.is_decimal(arrow):
        return DecimalType(arrow.precision, arrow.scale)
    if kind.is_timestamp(arrow):
        return AtomicType("timestamp" if arrow.tz else "timestamp_ntz")
    if kind.is_large_binary(arrow) or kind.is_fixed_size_binary(arrow):
        return AtomicType("binary")
    if kind.is_duration(arrow):
        return AtomicType("interval day to second")
    if kind.is_time(arrow):
        return AtomicType("time(6)")
    if kind.is_date(arrow):
        return AtomicType("date")
    for name, own_type in _BY_NAME.items():
        if own_type.equals(arrow):
            return AtomicType(name)
    raise StateSchemaError("Arrow schema", f"Spark has no type for Arrow's {arrow}")


def _spark_field(field: pa.Field[Any]) -> StructField:
    return StructField(field.name, spark_type(field.type), field.nullable)
