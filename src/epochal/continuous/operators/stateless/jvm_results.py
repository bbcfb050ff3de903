"""Converts the results of plain Python functions (`useArrow=False`) as Spark's JVM does. Pure.

The rules of the JVM are in `java_values`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from epochal.continuous.operators.java_values import java_bytes, java_integer, java_text
from epochal.errors import OptionError

Converter: TypeAlias = Callable[[Any], Any]

_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_CLASSES: dict[type[DataType], type] = {
    BooleanType: bool,
    FloatType: float,
    DoubleType: float,
    DateType: datetime.date,
    TimestampNTZType: datetime.datetime,
    DayTimeIntervalType: datetime.timedelta,
}
"""Types that take values of one class, as they are."""


def jvm_result(kind: DataType) -> Converter:
    """A function that converts a result for the type `kind`; null stays null."""
    convert = _converter(kind)
    return lambda value: None if value is None else convert(value)


def _converter(kind: DataType) -> Converter:
    if wanted := _CLASSES.get(type(kind)):
        return lambda value: value if isinstance(value, wanted) else None
    match kind:
        case ByteType() | ShortType() | IntegerType() | LongType():
            return java_integer(_BITS[type(kind)])
        case DecimalType():
            return _decimal(kind)
        case StringType():
            return java_text
        case BinaryType():
            return java_bytes
        case TimestampType():
            return _timestamp
        case ArrayType():
            element = jvm_result(kind.elementType)
            return lambda value: (
                [element(each) for each in value] if isinstance(value, list | tuple) else None
            )
        case MapType():
            key, item = jvm_result(kind.keyType), jvm_result(kind.valueType)
            return lambda value: (
                [(key(each), item(value[each])) for each in value]
                if isinstance(value, dict)
                else None
            )
        case StructType():
            return _struct(kind)
    return lambda value: value


def _decimal(kind: DecimalType) -> Converter:
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Any:
        if not isinstance(value, Decimal) or not value.is_finite():
            return None
        rounded = value.quantize(unit, "ROUND_HALF_UP")
        if abs(rounded) >= Decimal(10) ** (kind.precision - kind.scale):
            raise OptionError(
                f"[NUMERIC_VALUE_OUT_OF_RANGE] a function returned {value}, which does not fit "
                f"into {kind.simpleString()}. Declare more digits."
            )
        return rounded

    return convert


def _timestamp(value: Any) -> Any:
    if not isinstance(value, datetime.datetime):
        return None
    return value.astimezone(datetime.UTC)  # without a zone it is a local time


def _struct(kind: StructType) -> Converter:
    converters = [jvm_result(each.dataType) for each in kind.fields]
    names = kind.names

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            value = tuple(value.get(name) for name in names)
        if not isinstance(value, tuple | list):
            return None
        return {name: each(item) for name, each, item in zip(names, converters, value, strict=True)}

    return convert
